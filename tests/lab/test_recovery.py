"""A page that is not alone: by keyboard to the panel and back, two browsers, a server and a controller that end."""

from __future__ import annotations

import lab_cells
import pytest
from lab_server import LAB
from playwright.sync_api import expect

SOON_S = 2.0
# How many seconds after the network's return the page asks, by its own clock: the answer may take longer.
ASKED_AFTER_S = """() => {
    window.askedAfter = new Promise(done => window.addEventListener('online', () => {
        const online = performance.now();
        new PerformanceObserver((seen, observer) => {
            const asked = seen.getEntries().find(({ name, startTime }) =>
                name.includes('/affinode/api/status') && startTime >= online);
            if (asked) {
                observer.disconnect();
                done((asked.startTime - online) / 1000);
            }
        }).observe({ type: 'resource' });
    }, { capture: true, once: true }));
}"""


@pytest.mark.long
def test_the_keyboard_alone_gets_a_notebooks_gpu_back(page):
    notebook = page.open_notebook("keys.ipynb", lab_cells.allocate(64), lab_cells.READ)
    notebook.run_cell(0)
    assert page.server.affinode(f"kernels/{notebook.kernel_id()}/park", "POST", {})[0] == 200
    expect(notebook.chip()).to_have_text("GPU freed")
    notebook.activate().locator(".jp-CodeCell .cm-content").nth(1).click()  # where the user was writing

    keyboard = page.page.keyboard
    keyboard.press("Control+Shift+C")
    expect(page.page.locator(".lm-CommandPalette-input")).to_be_focused()
    keyboard.type("Show the GPU Panel")
    expect(page.page.locator(".lm-CommandPalette-item.lm-mod-active")).to_contain_text("Show the GPU Panel")
    keyboard.press("Enter")
    row = page.row("keys.ipynb")
    expect(row.get_by_role("button", name="keys.ipynb", exact=True)).to_be_focused()
    keyboard.press("Tab")
    expect(row.get_by_role("button", name="Get back: keys.ipynb")).to_be_focused()
    keyboard.press("Enter")
    expect(page.state_of("keys.ipynb")).to_have_text("On the GPU: 64 MiB")
    keyboard.press("Escape")
    page.page.wait_for_function("() => document.activeElement.closest('.jp-Notebook') !== null")
    keyboard.press("Control+Enter")
    notebook.wait_for_cell(1)
    assert notebook.output(1) == "7 7"


@pytest.mark.long
def test_what_one_browser_does_the_other_shows(page, open_lab):
    notebook = page.open_notebook("both.ipynb", lab_cells.allocate(64))
    notebook.run_cell(0)
    other = open_lab(at=page.server)
    other.show_panel()
    expect(other.state_of("both.ipynb")).to_have_text("On the GPU: 64 MiB")
    notebook.choose("Free")
    expect(other.state_of("both.ipynb")).to_have_text("GPU freed, 64 MiB safe in RAM")
    other.button("both.ipynb", "Get back").click()
    expect(notebook.chip()).to_have_text("On the GPU: 64 MiB")


@pytest.mark.long
def test_a_page_that_is_online_again_says_so_at_once(page, open_lab):
    page = open_lab(at=page.server)  # JupyterLab's own dialog about its server would stay on the shared one
    page.show_panel()
    alert = page.panel.get_by_role("alert")
    expect(page.panel.get_by_role("img", name="GPU memory")).to_be_visible()
    waited_s = []
    for offline_s in (0, 8):  # the second is long enough for the page to ask less often
        page.page.context.set_offline(True)
        page.panel.get_by_role("button", name="Refresh").first.click()
        expect(alert).to_contain_text("The Jupyter server does not answer")
        page.page.wait_for_timeout(1000 * offline_s)
        page.page.evaluate(ASKED_AFTER_S)
        page.page.context.set_offline(False)
        waited_s.append(page.page.evaluate("() => window.askedAfter"))
        expect(alert).to_have_count(0)
    print("the page asked", [f"{each:.2f}" for each in waited_s], "s after the network's return")
    page.errors[:] = [error for error in page.errors if error.message != "Failed to fetch"]
    assert max(waited_s) < SOON_S


@pytest.mark.long
def test_a_page_finds_its_server_again(gpu_machine, lab, open_lab):
    server = lab()
    page = open_lab()
    page.show_panel()
    expect(page.panel.get_by_role("img", name="GPU memory")).to_be_visible()
    server.stop()
    expect(page.panel.get_by_role("alert")).to_contain_text("The Jupyter server does not answer")
    server.start(*LAB, application="jupyterlab", port=server.port)
    expect(page.panel.get_by_role("alert")).to_have_count(0)
    kernel = server.start_kernel(path="again.ipynb")
    assert kernel.run(lab_cells.allocate(64)).error is None
    expect(page.state_of("again.ipynb")).to_have_text("On the GPU: 64 MiB")
    # JupyterLab's own requests while no server was there.
    page.errors[:] = [error for error in page.errors if error.message != "Failed to fetch"]


def test_a_cell_that_is_run_while_the_page_is_loading_runs_in_the_notebooks_kernel(page, open_lab):
    """JupyterLab by itself would end that kernel: it starts another for the cell, and has two then."""
    page = open_lab(at=page.server)
    notebook = page.open_notebook("early.ipynb", "kept = 7", "print(kept)")
    notebook.run_cell(0)
    kernel = notebook.kernel_id()
    page.command("docmanager:save")
    asked = []

    def hold_back_the_second(route):
        """The first answer restores the page; the second connects the notebook."""
        if route.request.method == "GET":
            asked.append(route)
        if route.request.method != "GET" or len(asked) != 2:
            route.continue_()

    page.page.route("**/api/sessions?*", hold_back_the_second)
    page.page.reload()
    while len(asked) < 2:  # until the test's own limit; the notebook is seen some time before
        page.page.wait_for_timeout(50)
    notebook.start_cell(1)
    asked[1].continue_()
    notebook.wait_for_cell(1)
    assert notebook.output(1) == "7"
    assert notebook.kernel_id() == kernel


@pytest.mark.long
def test_a_cell_that_is_run_while_the_page_is_loading_shares_the_kernel_that_is_started(page, open_lab):
    page = open_lab(at=page.server)
    notebook = page.open_notebook("first.ipynb", "print('ran')")
    page.command("docmanager:save")
    assert page.server.request("DELETE", f"/api/kernels/{notebook.kernel_id()}")[0] == 204
    gets, posts = [], []

    def hold_back(route):
        """The second answer has the notebook get a kernel, while the one for the cell is not there yet."""
        asked, held = (gets, 2) if route.request.method == "GET" else (posts, 1)
        asked.append(route)
        if len(asked) != held:
            route.continue_()

    page.page.route("**/api/sessions?*", hold_back)
    page.page.reload()
    while len(gets) < 2:  # else the cell's own question may be the second
        page.page.wait_for_timeout(50)
    notebook.start_cell(0)
    while not posts:
        page.page.wait_for_timeout(50)
    gets[1].continue_()
    page.page.wait_for_timeout(1000)
    posts[0].continue_()
    notebook.wait_for_cell(0)
    assert (notebook.output(0), len(posts)) == ("ran", 1)
