"""The panel where there is nothing to manage, what it asks of the server, and its use without a mouse."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import lab_cells
import pytest
import recorded
from lab_page import Notebook
from live_server import JupyterServer
from playwright.sync_api import Route, expect
from recorded_page import RecordedPanel

import jupyter_affinode

pytestmark = pytest.mark.long  # labextension/test has the panel without a browser

ASKS = re.compile(r"/affinode/api/status(\?|$)")


def test_without_the_server_part_the_panel_says_how_to_get_it(machine, lab, open_lab):
    lab("--ServerApp.jpserver_extensions", "jupyter_affinode=False")
    page = open_lab()
    notebook = page.open_notebook("plain.ipynb", lab_cells.CPU)
    page.show_panel()
    expect(page.panel.get_by_role("alert")).to_contain_text("Server part missing")
    expect(page.panel.get_by_role("alert")).to_contain_text("jupyter affinode doctor")
    expect(notebook.chip()).to_have_count(0)
    assert notebook.run_cell(0) == "499500"


@pytest.fixture
def gateway(machine):
    """Another machine's server, which starts kernels for a server that asks; it ends after page and server have."""
    made = JupyterServer(machine)
    yield made
    made.stop()


HAS_KERNEL = """() => [...window.jupyterapp.shell.widgets('main')].some(
    widget => widget.sessionContext?.session?.kernel
)"""


@pytest.mark.parametrize("how", ["Switched off", "Your kernels run on another machine"])
def test_a_server_that_follows_no_kernel_says_why_and_no_alert(gateway, lab, open_lab, wait_until, how):
    switched_off = "--AffinodeExtension.enabled=False"
    if how == "Switched off":
        lab(switched_off)
    else:
        gateway.start(switched_off)
        lab(f"--GatewayClient.url={gateway.url}", f"--GatewayClient.auth_token={gateway.token}")
    page = open_lab()
    page.show_panel()
    expect(page.panel.get_by_role("status").filter(has_text=how)).to_be_visible()
    expect(page.panel).not_to_contain_text("doctor")
    expect(page.panel.get_by_role("alert")).to_have_count(0)
    page.write_notebook("plain.ipynb", lab_cells.CPU)
    page.command("docmanager:open", path="plain.ipynb")
    notebook = Notebook(page, "plain.ipynb")
    page.page.wait_for_function(HAS_KERNEL)
    # Behind a gateway no cell is run: browsers refuse the connection that its client (jupyter_server 2.21) accepts
    # first, and the page makes another; the first one to the gateway stays open, and the kernel answers one of the two.
    if how == "Switched off":
        notebook.wait_for_kernel()
        assert notebook.run_cell(0) == "499500"
    else:
        wait_until(lambda: gateway.request("GET", "/api/kernels")[1][0]["execution_state"] == "idle")
    expect(notebook.chip()).to_have_count(0)


def test_a_page_of_another_version_than_the_server_offers_to_reload(page, open_lab):
    page = open_lab(at=page.server)
    page.show_panel()
    expect(page.gpu_bar()).to_be_visible()

    def newer(route):
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "version": "99.0.0"})

    page.page.route(ASKS, newer)
    page.panel.get_by_role("button", name="Refresh").first.click()
    expect(page.panel.get_by_role("alert")).to_contain_text("the server of version 99.0.0")
    expect(page.gpu_bar()).to_have_count(0)  # figures of another version may mean something else
    with page.page.expect_navigation():
        page.panel.get_by_role("button", name="Reload").click()
    page.page.unroute_all(behavior="wait")
    page.wait_for_lab()
    page.show_panel()
    expect(page.gpu_bar()).to_be_visible()
    expect(page.panel.get_by_role("alert")).to_have_count(0)


def test_before_the_first_answer_the_panel_says_that_it_looks(page, open_lab):
    page = open_lab(at=page.server)
    page.page.goto("about:blank")  # so that only the new page asks
    held: list[Route] = []
    page.page.route(ASKS, lambda route: held.append(route))
    with page.page.expect_request(ASKS):
        page.load()
    page.show_panel()
    expect(page.panel.get_by_role("status").filter(has_text="Looking…")).to_be_visible()
    for each in held:  # on a busy machine it has asked again meanwhile
        each.continue_()
    page.page.unroute(ASKS)
    expect(page.gpu_bar()).to_be_visible()
    expect(page.panel).not_to_contain_text("Looking…")


def test_a_user_who_may_only_look_is_told_so_and_changes_nothing(gpu_machine, server, lab, open_lab):
    server.allow("read")
    lab()
    page = open_lab()
    notebook = page.open_notebook("seen.ipynb", lab_cells.allocate(64))
    notebook.run_cell(0)
    page.show_panel()
    expect(page.state_of("seen.ipynb")).to_have_text("On the GPU: 64 MiB")
    notebook.chip().click()

    def is_told() -> None:
        for place in (page.row("seen.ipynb"), notebook.popover()):
            free = place.get_by_role("button", name="Free: seen.ipynb")
            expect(free).to_have_attribute("aria-disabled", "true")
            expect(free).to_have_attribute("title", "You may look but not change anything here.")
        expect(page.panel.get_by_role("switch")).to_have_count(0)

    is_told()
    server.allow("read", "write")
    page.panel.get_by_role("button", name="Refresh").click()
    expect(page.panel.get_by_role("switch")).to_be_visible()
    page.button("seen.ipynb", "Free").click()
    expect(page.state_of("seen.ipynb")).to_have_text("GPU freed, 64 MiB safe in RAM")
    page.button("seen.ipynb", "Get back").click()
    expect(page.state_of("seen.ipynb")).to_have_text("On the GPU: 64 MiB")

    page.hide_panel()
    server.allow("read")  # the page learns of it by the first refusal
    kernel_id = notebook.kernel_id()
    page.command("affinode:park", kernelId=kernel_id)
    expect(page.notices()).to_contain_text("seen.ipynb: you may look but not change anything here")
    page.page.wait_for_function(
        "kernelId => !window.jupyterapp.commands.isEnabled('affinode:park', { kernelId })", arg=kernel_id
    )
    page.show_panel()
    notebook.chip().click()
    is_told()


def test_a_machine_without_a_gpu_is_told_how_to_try_it(native, machine, lab, open_lab):
    lab()
    page = open_lab()
    page.show_panel()
    expect(page.panel).to_contain_text("No GPU on this machine")
    expect(page.panel).to_contain_text("jupyter affinode simulate -- jupyter lab")
    expect(page.open_notebook("no-gpu.ipynb", lab_cells.CPU).chip()).to_have_count(0)
    expect(page.status_item()).to_have_count(0)


def test_a_lost_controller_is_told_and_the_panel_comes_back_with_the_next_one(page):
    notebook = page.open_notebook("training.ipynb", lab_cells.allocate(150))
    notebook.run_cell(0)
    page.show_panel()
    expect(page.state_of("training.ipynb")).to_have_text("On the GPU: 150 MiB")
    machine = page.server.machine
    folder = machine.socket.parent
    folder.chmod(0o777)  # no controller starts where others could take its place
    os.kill(machine.controller_pid(), signal.SIGKILL)
    expect(page.panel.get_by_role("alert")).to_contain_text("GPU controller unavailable")
    expect(page.panel.get_by_role("alert")).to_contain_text("jupyter affinode doctor")
    folder.chmod(0o700)
    expect(page.state_of("training.ipynb")).to_have_text("On the GPU: 150 MiB")
    expect(page.panel.get_by_role("alert")).to_have_count(0)


def test_a_kernel_of_another_server_is_shown_without_its_name(page, other_server):
    page.show_panel()
    other = other_server.start_kernel(path="secret.ipynb")
    assert other.run(lab_cells.allocate(128)).error is None
    row = page.row("Another server")
    expect(row.locator(".jp-affinode-state")).to_have_text("On the GPU: 128 MiB")
    expect(row.get_by_role("button")).to_have_accessible_name("Details of Another server")  # and no other
    expect(page.panel).not_to_contain_text("secret")
    section = page.panel.get_by_role("region", name="Elsewhere")
    expect(section.locator(".jp-affinode-name")).to_have_text(["Another server"])
    expect(page.gpu_bar()).to_have_accessible_name(re.compile("Another server 128 MiB"))
    waiter = page.open_notebook("waits-for-it.ipynb", lab_cells.allocate(124))
    assert page.server.machine.ask("POST", f"/kernels/{other.id}/hold", {})[0] == 200
    waiter.start_cell(0)
    expect(waiter.banner()).to_contain_text("A notebook of yours on another server is kept on the GPU")
    assert page.server.machine.ask("POST", f"/kernels/{other.id}/release", {})[0] == 200
    waiter.wait_for_cell(0)
    assert waiter.output(0) == "allocated"


def test_the_switch_says_what_it_does_and_changes_when_idle_notebooks_are_freed(page, policy):
    page.show_panel()
    machine = page.server.machine
    switch = page.panel.get_by_role("switch", name="Always free idle notebooks")
    expect(switch).not_to_be_checked()
    expect(page.panel).to_contain_text("Idle notebooks are freed when another needs room, after up to 1 s")
    held: list[Route] = []
    page.page.route("**/affinode/api/policy*", lambda route: held.append(route))
    with page.page.expect_request("**/affinode/api/policy*"):
        page.panel.get_by_text("Always free idle notebooks").click()
    expect(switch).to_have_attribute("aria-busy", "true")
    expect(switch).to_have_attribute("aria-disabled", "true")
    held.pop().continue_()
    expect(switch).to_be_checked()
    expect(switch).to_have_attribute("aria-disabled", "false")
    expect(page.panel).to_contain_text("Idle notebooks are freed after 1 s")
    assert machine.ask("GET", "/policy")[1]["park_when"] == "idle"
    page.page.unroute("**/affinode/api/policy*")
    switch.press("Space")
    expect(switch).not_to_be_checked()
    assert machine.ask("GET", "/policy")[1]["park_when"] == "needed"


def test_what_is_old_says_of_when_it_is_and_takes_no_orders(page):
    notebook = page.open_notebook("old.ipynb", lab_cells.CPU)
    panel = RecordedPanel(page)
    panel.show_around(notebook, recorded.around()["resident"])
    switch = panel.root.get_by_role("switch")
    panel.fail("stale")
    as_of = re.compile(r", as of \d")
    expect(notebook.chip()).to_have_accessible_name(as_of)
    expect(page.status_item()).to_have_accessible_name(as_of)
    expect(page.status_item()).to_have_attribute("title", as_of)
    expect(switch).to_have_attribute("aria-disabled", "true")
    panel.show(panel.answer)
    expect(notebook.chip()).not_to_have_accessible_name(as_of)
    expect(page.status_item()).not_to_have_accessible_name(as_of)
    expect(switch).to_have_attribute("aria-disabled", "false")


@pytest.mark.parametrize("by", ["pointer", "focus"])
def test_rows_hold_still_while_pointer_or_focus_is_in_the_list(page, by):
    panel = RecordedPanel(page)
    names = ("a.ipynb", "b.ipynb", "c.ipynb")
    kernels = [recorded.resident(number, 3, name) for number, name in enumerate(names, 1)]
    panel.show(recorded.machine(kernels))
    row = page.row("b.ipynb")
    section = panel.root.get_by_role("region", name="On the GPU")
    if by == "pointer":
        row.locator(".jp-affinode-line").hover()
    else:
        row.get_by_role("button", name="b.ipynb", exact=True).focus()
    before = row.bounding_box()

    # The first is freed, so that the bar of RAM comes above the list, the third has ended, and one has come.
    new = recorded.resident(4, 3, "0.ipynb")
    panel.answer = recorded.machine([recorded.parked(1, 3, "a.ipynb"), kernels[1], new])
    panel.look_again()
    expect(page.ram_bar()).to_be_visible()
    expect(section.get_by_role("listitem")).to_have_text([re.compile(each) for each in (*names, "0.ipynb")])
    expect(section.locator(".jp-mod-gone")).to_contain_text("Ended")
    assert row.bounding_box() == before
    if by == "focus":
        expect(row.get_by_role("button", name="b.ipynb", exact=True)).to_be_focused()

    page.page.mouse.move(900, 700)
    page.page.evaluate("() => document.activeElement.blur()")
    expect(section.get_by_role("listitem")).to_have_text(
        [re.compile(each) for each in ("0.ipynb", "b.ipynb")]
    )
    freed = panel.root.get_by_role("region", name="Freed").get_by_role("listitem")
    expect(freed).to_have_text(re.compile("a.ipynb"))


def test_a_button_is_the_same_one_when_another_comes_before_it(page):
    """What is pressed then is what was aimed at: here no kernel is freed by who wanted to keep it."""
    panel = RecordedPanel(page)
    panel.show(recorded.machine([recorded.resident(1, 3, "a.ipynb", residency="resuming")]))
    keep = page.button("a.ipynb", "Keep")
    expect(page.button("a.ipynb", "Free")).to_have_count(0)
    keep.focus()
    panel.answer = recorded.machine([recorded.resident(1, 3, "a.ipynb")])
    panel.look_again()
    expect(page.button("a.ipynb", "Free")).to_have_count(1)
    expect(keep).to_be_focused()


def test_kernels_are_found_by_name_by_server_and_by_section(page):
    panel = RecordedPanel(page)
    panel.show(recorded.states()["resident"])
    names = panel.root.locator(".jp-affinode-nameText")
    shown = names.all_inner_texts()
    expect(panel.root).to_contain_text("Given back today: 3.3 GPU h")

    field = panel.root.get_by_role("searchbox", name="Filter kernels")
    field.fill("THESIS")
    expect(names).to_have_text(["notes.ipynb", "train.ipynb"])
    field.fill("no such kernel")
    expect(panel.root.get_by_role("status")).to_have_text("No kernel of this name")
    field.fill("")

    here = panel.root.get_by_role("button", name="Here", exact=True)
    here.click()
    expect(names).to_have_text([name for name in shown if name.endswith(".ipynb")])
    here.click()
    expect(names).to_have_text(shown)

    caret = page.row("notes.ipynb").get_by_role("button", name="Details of notes.ipynb").bounding_box()
    assert min(caret["width"], caret["height"]) >= 24

    heading = panel.root.get_by_role("button", name=re.compile("^On the GPU"))
    heading.click()
    expect(names).to_have_text(shown[3:])
    panel.answer["node"]["today"]["freed_gpu_s"] = 20
    panel.look_again()
    expect(panel.root).not_to_contain_text("Given back today")
    expect(heading).to_have_attribute("aria-expanded", "false")
    heading.press("Enter")
    expect(names).to_have_text(shown)


def test_a_hidden_panel_asks_nothing_and_still_the_chip_follows(page, open_lab):
    page = open_lab(clock=True, at=page.server)
    notebook = page.open_notebook("hidden.ipynb", lab_cells.allocate(150))
    notebook.run_cell(0)
    expect(notebook.chip()).to_have_text("On the GPU: 150 MiB")
    page.show_panel()
    expect(page.state_of("hidden.ipynb")).to_have_text("On the GPU: 150 MiB")
    for _ in range(3):
        with page.page.expect_request(ASKS):
            page.page.clock.run_for(6_500)
    page.hide_panel()
    page.page.clock.run_for(2_000)  # what was under way
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url))
    # Seen, it asks each 5 s; hidden, after 65 s, and the page's clock also runs by itself.
    page.page.clock.run_for(30_000)
    page.page.evaluate("() => fetch('/api/status')")  # is heard of after whatever came before it
    assert f"{page.server.url}/api/status" in asked
    assert not [url for url in asked if ASKS.search(url)]
    assert page.server.affinode(f"kernels/{notebook.kernel_id()}/park", "POST", {})[0] == 200
    expect(notebook.chip()).to_have_text("GPU freed")  # told by an event


def test_cuda_calls_are_asked_for_only_while_they_are_seen_and_the_server_answers(page, open_lab):
    done = page.server.machine.work / "launched"
    page = open_lab(clock=True, at=page.server)
    launches = lab_cells.launch_until(str(done))
    notebook = page.open_notebook("launching.ipynb", lab_cells.allocate(64), launches)
    notebook.run_cell(0)
    notebook.start_cell(1)
    page.show_panel()
    row = page.row("launching.ipynb")
    open_calls = row.get_by_role("button", name="CUDA calls: launching.ipynb")
    rates = row.get_by_role("table", name="Calls per second")
    refresh = page.panel.get_by_role("button", name="Refresh")
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url))

    def are_asked_for(pass_time) -> bool:
        """Whether the calls are asked for while the page's time passes."""
        page.page.clock.run_for(2_000)  # what was under way
        asked.clear()
        pass_time()
        page.page.evaluate("() => fetch('/api/status')")  # is heard of after whatever came before it
        return any(url.partition("?")[0].endswith("/activity") for url in asked)

    def until_the_next_looks() -> None:
        for _ in range(2):
            with page.page.expect_request(ASKS):
                page.page.clock.run_for(15_000)

    open_calls.click()
    expect(rates.get_by_role("row", name="Launches")).to_be_visible()
    expect(row.get_by_role("table", name="Called most")).to_contain_text("cuLaunchHostFunc")
    with page.page.expect_request("**/activity*"):
        page.page.clock.run_for(2_000)

    page.page.route(ASKS, lambda route: route.abort())
    refresh.first.click()
    expect(page.panel.get_by_role("alert")).to_be_visible()
    assert not are_asked_for(until_the_next_looks)
    page.page.unroute(ASKS)
    with page.page.expect_request("**/activity*"):
        refresh.first.click()
    expect(page.panel.get_by_role("alert")).to_have_count(0)
    expect(rates.get_by_role("row", name="Launches")).to_be_visible()

    row.get_by_role("button", name="Details of launching.ipynb").click()
    expect(rates).to_have_count(0)
    assert not are_asked_for(until_the_next_looks)
    row.get_by_role("button", name="Details of launching.ipynb").click()
    open_calls.click()
    expect(rates.get_by_role("row", name="Launches")).to_be_visible()
    page.hide_panel()
    assert not are_asked_for(lambda: page.page.clock.run_for(60_000))
    done.touch()
    notebook.wait_for_cell(1)


def test_everything_in_a_row_can_be_reached_and_used_by_keyboard(page):
    notebook = page.open_notebook("work/typed.ipynb", lab_cells.allocate(100))
    other = page.open_notebook("other.ipynb", lab_cells.CPU)
    notebook.run_cell(0)
    other.activate()
    page.show_panel()
    expect(page.state_of("typed.ipynb")).to_have_text("On the GPU: 100 MiB")  # before, it has no buttons
    page.row("typed.ipynb").get_by_role("button", name="typed.ipynb", exact=True).focus()
    keyboard = page.page.keyboard
    keyboard.press("Tab")
    expect(page.button("typed.ipynb", "Free")).to_be_focused()
    keyboard.press("Tab")
    expect(page.button("typed.ipynb", "Keep")).to_be_focused()
    keyboard.press("Shift+Tab")
    keyboard.press("Enter")
    expect(page.state_of("typed.ipynb")).to_have_text("GPU freed, 100 MiB safe in RAM")
    page.row("typed.ipynb").get_by_role("button", name="typed.ipynb", exact=True).press("Enter")
    expect(notebook.activate().locator(".jp-affinode-chip")).to_be_visible()
    expect(page.page.locator(".lm-TabBar-tab.lm-mod-current").filter(has_text="typed.ipynb")).to_be_visible()


def test_the_palette_has_the_commands(page):
    notebook = page.open_notebook("called.ipynb", lab_cells.allocate(100))
    notebook.run_cell(0)
    expect(notebook.chip()).to_have_text("On the GPU: 100 MiB")
    commands = {
        "Free the GPU of This Notebook": "GPU freed",
        "Get the GPU Back for This Notebook": "On the GPU: 100 MiB",
    }
    for label, shown in commands.items():
        page.page.keyboard.press("Control+Shift+C")
        page.page.locator(".lm-CommandPalette-input").fill(label)
        page.page.locator(".lm-CommandPalette-item").filter(has_text=label).click()
        expect(notebook.chip()).to_have_text(shown)


@pytest.fixture
def other_server(page):
    """A second server of the same person on the same machine."""
    made = JupyterServer(page.server.machine).start()
    yield made
    made.stop()


STRANGER = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
context, block = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)
print(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(100 << 20)), flush=True)
sys.stdin.read()
"""


def test_unmanaged_and_stuck_kernels_are_named_and_stuck_ones_can_be_ended(page):
    """Nothing here gets stuck by itself: the page is told so, and the controller refuses to end what is healthy."""
    driver = Path(jupyter_affinode.__file__).parent / "lib" / "libaffinode-sim-cuda.so"
    command = (sys.executable, "-c", STRANGER, str(driver))
    machine = page.server.machine
    stranger = machine.start(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert stranger.stdout.readline() == "0\n"

    def stuck(route):
        answer = route.fetch()
        status = answer.json()
        for kernel in status["kernels"]:
            for process in kernel["processes"]:
                process["stuck"] = {"reason": "lost", "text": "a reason"}
        route.fulfill(response=answer, json=status)

    page.page.route("**/affinode/api/status*", stuck)
    notebook = page.open_notebook("stuck.ipynb", lab_cells.allocate(64))
    page.show_panel()
    notebook.run_cell(0)
    pid = machine.kernel(notebook.kernel_id())["processes"][0]["pid"]
    expect(page.row("stuck.ipynb")).to_contain_text(f"Stuck (pid {pid}): its GPU state is lost")
    if machine.node()["gpus"][0]["unmanaged"] is not None:  # None in a container, where pids prove nothing
        expect(page.panel).to_contain_text(f"(pid {stranger.pid}): 108 MiB")
    page.row("stuck.ipynb").get_by_role("button", name=f"End process {pid}").click()
    dialog = page.page.get_by_role("dialog")
    expect(dialog).to_contain_text("what it has in GPU memory is lost")
    dialog.get_by_role("button", name="End process").click()
    expect(page.notices().filter(has_text="stuck.ipynb: the process is not stuck")).to_be_visible()
    stranger.communicate("")
