"""The story of a notebook's GPU as a person sees it in chip, panel and notices, on real parts."""

from __future__ import annotations

import os
import re
import signal

import lab_cells
import pytest
from playwright.sync_api import Route, expect


def test_an_idle_notebook_is_seen_to_give_its_gpu_back_and_get_it_again(page, policy, wait_until):
    policy(park_when="idle")
    notebook = page.open_notebook(
        "work/training.ipynb", lab_cells.allocate(100), lab_cells.CPU, lab_cells.READ
    )
    page.show_panel()
    expect(page.panel).to_contain_text("Simulated GPU")
    expect(page.state_of("training.ipynb")).to_have_text("No GPU used")

    assert notebook.run_cell(0) == "allocated"
    expect(page.state_of("training.ipynb")).to_have_text("GPU freed, 100 MiB safe in RAM")
    expect(notebook.chip()).to_have_text("GPU freed")
    expect(page.gpu_bar()).not_to_have_accessible_name(re.compile("training.ipynb"))
    expect(page.ram_bar()).to_have_accessible_name(re.compile("training.ipynb 100 MiB"))

    notebook.run_cell(1)  # computes on the processor only
    expect(notebook.chip()).to_have_text("GPU freed")

    assert notebook.run_cell(2) == "7 7"
    kernel_id = notebook.kernel_id()

    def moves() -> tuple[int, int]:
        kernel = page.server.machine.kernel(kernel_id)
        return kernel["parks"], kernel["resumes"]

    wait_until(lambda: moves() == (2, 1), message=moves)  # before, the chip may still say the same
    expect(notebook.chip()).to_have_text("GPU freed")  # it was back, and is idle again


@pytest.mark.long
def test_the_chip_frees_the_gpu_and_gets_it_back_in_its_popover(page):
    notebook = page.open_notebook("chip.ipynb", lab_cells.allocate(100), lab_cells.READ)
    chip, popover, keyboard = notebook.chip(), notebook.popover(), page.page.keyboard
    expect(chip).to_have_accessible_name("GPU: No GPU used")

    notebook.run_cell(0)
    expect(chip).to_have_text("On the GPU: 100 MiB")
    chip.click()
    expect(popover).to_contain_text("On the GPU: 100 MiB")
    free, back = (
        popover.get_by_role("button", name=f"{label}: chip.ipynb") for label in ("Free", "Get back")
    )
    expect(free).to_be_focused()
    keyboard.press("Enter")
    expect(popover).to_contain_text("GPU freed, 100 MiB safe in RAM")
    expect(chip).to_have_text("GPU freed")
    keyboard.press("Escape")
    expect(popover).to_have_count(0)
    expect(chip).to_be_focused()
    keyboard.press("Enter")
    back.click()
    expect(chip).to_have_text("On the GPU: 100 MiB")
    popover.get_by_role("button", name="Keep: chip.ipynb").click()
    expect(chip).to_have_accessible_name(re.compile(r"^GPU: On the GPU: 100 MiB, kept until \d\d:\d\d"))
    expect(chip.locator(".jp-affinode-pin")).to_be_visible()
    popover.get_by_role("button", name="Stop keeping: chip.ipynb").click()
    expect(chip.locator(".jp-affinode-pin")).to_have_count(0)
    notebook.activate().locator(".jp-CodeCell").nth(1).click()
    expect(popover).to_have_count(0)  # closed by a click elsewhere
    assert notebook.run_cell(1) == "7 7"


@pytest.mark.long
def test_typing_in_a_notebook_brings_its_gpu_back_and_asks_once(page):
    notebook = page.open_notebook("typing.ipynb", lab_cells.allocate(100), lab_cells.CPU)
    notebook.run_cell(0)
    chip, keyboard = notebook.chip(), page.page.keyboard
    expect(chip).to_have_text("On the GPU: 100 MiB")
    hints: list[str] = []
    page.page.on("request", lambda request: "/focus" in request.url and hints.append(request.method))
    held: list[Route] = []  # so that the kernel stays parked meanwhile
    page.page.route("**/focus*", lambda route: held.append(route))

    def free_and_type() -> None:
        notebook.choose("Free")
        expect(chip).to_have_text("GPU freed")
        notebook.activate().locator(".jp-CodeCell").nth(1).locator(".cm-content").click()
        with page.page.expect_request("**/focus*"):
            keyboard.type("#")
        keyboard.type(" next")

    def all_hints() -> list[str]:
        page.page.evaluate("() => fetch('/api/status')")  # is heard of after whatever came before it
        return hints

    free_and_type()
    assert all_hints() == ["POST"]
    held.pop().continue_()
    expect(chip).to_have_text("On the GPU: 100 MiB")
    keyboard.type("!")
    assert all_hints() == ["POST"], "of a kernel that has its memory there is nothing to announce"
    kernel = page.server.machine.kernel(notebook.kernel_id())
    assert (kernel["parks"], kernel["resumes"], kernel["cell_open"]) == (1, 1, False)

    free_and_type()  # parked after the announcement, it is announced anew
    assert all_hints() == ["POST", "POST"]
    held.pop().continue_()
    expect(chip).to_have_text("On the GPU: 100 MiB")


@pytest.mark.long  # labextension/test has the buttons, tests/server what the server does
def test_the_panel_keeps_and_releases_frees_and_brings_back(page):
    notebook = page.open_notebook("work/kept.ipynb", lab_cells.allocate(100))
    notebook.run_cell(0)
    page.show_panel()
    expect(page.gpu_bar()).to_have_accessible_name(re.compile(r"256 MiB in all: kept.ipynb 100 MiB, .*Free"))
    expect(page.row("kept.ipynb")).to_contain_text("stays until another notebook needs the room")
    notebook.chip().click()
    expect(notebook.popover()).to_contain_text("stays until another notebook needs the room")
    page.page.keyboard.press("Escape")

    page.button("kept.ipynb", "Keep").click()
    expect(page.state_of("kept.ipynb")).to_have_text(
        re.compile(r"^On the GPU: 100 MiB, kept until \d\d:\d\d")
    )
    page.button("kept.ipynb", "Stop keeping").click()
    expect(page.state_of("kept.ipynb")).to_have_text("On the GPU: 100 MiB")

    page.button("kept.ipynb", "Free").click()
    expect(page.state_of("kept.ipynb")).to_have_text("GPU freed, 100 MiB safe in RAM")
    page.button("kept.ipynb", "Get back").click()
    expect(page.state_of("kept.ipynb")).to_have_text("On the GPU: 100 MiB")


def test_a_waiting_notebook_says_so_until_the_wait_is_over_or_is_stopped_in_its_banner(page):
    done = page.server.machine.work / "done"
    first = page.open_notebook("first.ipynb", lab_cells.allocate(150), lab_cells.compute_until(str(done)))
    second = page.open_notebook("second.ipynb", lab_cells.allocate(124))
    third = page.open_notebook("third.ipynb", lab_cells.allocate(124), lab_cells.CPU)
    page.show_panel()
    first.run_cell(0)
    first.start_computing(1, done)
    second.start_cell(0)
    expect(page.state_of("second.ipynb")).to_have_text("Waiting: 1st")
    expect(page.status_item()).to_have_text(re.compile(r"^GPU [\d.]+/256 MiB · 1 waiting$"))
    expect(second.banner()).to_contain_text("first.ipynb is computing")
    expect(second.banner().get_by_role("button", name="Open first.ipynb")).to_be_visible()
    third.start_cell(0)
    expect(page.state_of("third.ipynb")).to_have_text("Waiting: 2nd")
    expect(third.chip()).to_have_text("Waiting")
    expect(third.banner()).to_contain_text("Waiting: 2nd")
    expect(page.announced()).to_contain_text("third.ipynb: Waiting: 2nd. ")
    stop = third.banner().get_by_role("button", name="Stop waiting")
    expect(stop).to_be_in_viewport()
    expect(page.page.locator(".jp-affinode-waitingTab")).to_have_count(2)

    stop.click()
    third.wait_for_cell(0)
    output = third.output(0)
    assert "KeyboardInterrupt" in output
    assert "waiting for the gpu" not in output.lower()
    expect(third.banner()).to_be_hidden()
    expect(page.page.locator(".jp-affinode-waitingTab")).to_have_count(1)
    assert third.run_cell(1) == "499500"

    page.hide_panel()
    second.activate()
    done.touch()
    second.wait_for_cell(0)
    assert second.output(0) == "allocated"
    expect(second.chip()).to_have_text("On the GPU: 124 MiB")
    expect(page.announced()).to_contain_text("second.ipynb: On the GPU: 124 MiB.")
    expect(second.banner()).to_be_hidden()
    expect(page.page.locator(".jp-affinode-waitingTab")).to_have_count(0)
    expect(page.status_item()).to_have_text(re.compile(r"^GPU [\d.]+/256 MiB$"))
    expect(page.notices()).to_have_count(0)  # it was short, between notebooks of one user, and in view


def test_a_cell_that_waits_outlives_the_controller_and_the_page_says_so(page):
    machine = page.server.machine
    done = machine.work / "outlived"
    busy = page.open_notebook("ahead.ipynb", lab_cells.allocate(150), lab_cells.compute_until(str(done)))
    waiter = page.open_notebook("behind.ipynb", lab_cells.allocate(124), lab_cells.READ)
    page.show_panel()
    busy.run_cell(0)
    busy.start_computing(1, done)
    waiter.start_cell(0)
    expect(page.state_of("behind.ipynb")).to_have_text("Waiting: 1st")
    folder = machine.socket.parent
    folder.chmod(0o777)  # no controller starts where others could take its place
    os.kill(machine.controller_pid(), signal.SIGKILL)
    expect(page.panel.get_by_role("alert")).to_contain_text("GPU controller unavailable")
    folder.chmod(0o700)
    expect(page.panel.get_by_role("alert")).to_have_count(0)
    expect(page.state_of("behind.ipynb")).to_have_text("Waiting: 1st")
    expect(waiter.banner()).to_contain_text("ahead.ipynb is computing")
    done.touch()
    waiter.wait_for_cell(0)
    busy.wait_for_cell(1)
    assert (busy.output(1), waiter.output(0)) == ("computed", "allocated")
    assert waiter.run_cell(1) == "7 7"
    expect(waiter.banner()).to_be_hidden()


@pytest.mark.long
def test_a_wait_that_lasts_is_told_once_and_can_be_stopped_there(page, open_lab):
    done = page.server.machine.work / "notice-done"
    page = open_lab(clock=True, at=page.server)
    first = page.open_notebook("holder.ipynb", lab_cells.allocate(150), lab_cells.compute_until(str(done)))
    second = page.open_notebook("waiter.ipynb", lab_cells.allocate(124))
    first.run_cell(0)
    first.start_computing(1, done)
    before = page.page.evaluate("Date.now()")  # of the page's clock, which also runs by itself
    second.start_cell(0)
    expect(second.chip()).to_have_text("Waiting")
    first.activate()  # a notebook that waits in view has its banner instead
    while page.notices().count() == 0:  # until the test's own limit
        page.page.clock.run_for(500)
    assert page.page.evaluate("Date.now()") - before >= 10_000
    expect(page.notices()).to_have_count(1)
    expect(page.notices()).to_contain_text("waiter.ipynb waits for the GPU.")
    page.notices().get_by_role("button", name="Stop waiting").click()
    second.activate()
    second.wait_for_cell(0)
    assert "KeyboardInterrupt" in second.output(0)
    expect(second.chip()).not_to_have_text("Waiting")
    page.page.clock.run_for(2_000)
    expect(page.notices()).to_have_count(0)
    done.touch()


@pytest.mark.long
def test_a_refusal_is_told_with_its_reason(page):
    done = page.server.machine.work / "busy-done"
    notebook = page.open_notebook("busy.ipynb", lab_cells.allocate(100), lab_cells.compute_until(str(done)))
    page.show_panel()
    notebook.run_cell(0)
    notebook.start_computing(1, done)
    expect(page.row("busy.ipynb")).to_contain_text("Active")
    page.button("busy.ipynb", "Free").click()
    expect(page.notices().filter(has_text="busy.ipynb: ")).to_be_visible()
    refused = "Not freed: the GPU is at work for it"
    expect(page.row("busy.ipynb").locator(".jp-affinode-refusal")).to_have_text(refused)
    expect(page.state_of("busy.ipynb")).to_have_text("On the GPU: 100 MiB")
    done.touch()
    notebook.wait_for_cell(1)
    assert notebook.output(1) == "computed"


@pytest.mark.long
def test_memory_that_cannot_move_is_named(page):
    notebook = page.open_notebook("pooled.ipynb", lab_cells.allocate(128), lab_cells.POOLED)
    page.show_panel()
    notebook.run_cell(0)
    assert notebook.run_cell(1) == "pooled"
    expect(page.row("pooled.ipynb")).to_contain_text("32 MiB cannot move: stream-ordered memory pools")
    page.button("pooled.ipynb", "Free").click()
    expect(page.state_of("pooled.ipynb")).to_have_text("GPU freed, 128 MiB safe in RAM")
    expect(page.row("pooled.ipynb")).to_contain_text("32 MiB cannot move: stream-ordered memory pools")
