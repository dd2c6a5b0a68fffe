"""The story of a notebook's GPU as a person sees it in chip, panel and notices, on real parts."""

from __future__ import annotations

import re

import lab_cells
from playwright.sync_api import Route, expect


def test_an_idle_notebook_is_seen_to_give_its_gpu_back_and_get_it_again(page, policy):
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
    expect(notebook.chip()).to_have_text("GPU freed")  # it was back, and is idle again
    kernel = page.server.machine.kernel(notebook.kernel_id())
    assert (kernel["parks"], kernel["resumes"]) == (2, 1)


def test_the_chip_frees_the_gpu_and_gets_it_back_at_a_click(page):
    notebook = page.open_notebook("chip.ipynb", lab_cells.allocate(100), lab_cells.READ)
    chip = notebook.chip()
    expect(chip).to_have_attribute("aria-disabled", "true")
    expect(chip).to_have_accessible_name("No GPU used")

    notebook.run_cell(0)
    expect(chip).to_have_text("On the GPU: 100 MiB")
    expect(chip).to_have_attribute("title", re.compile(r"On the GPU: 100 MiB.*Click to free the GPU", re.S))
    chip.click()
    expect(chip).to_have_text("GPU freed")
    expect(chip).to_have_attribute(
        "title", re.compile(r"GPU freed, 100 MiB safe in RAM.*\(simulated\)", re.S)
    )
    chip.click()
    expect(chip).to_have_text("On the GPU: 100 MiB")
    assert notebook.run_cell(1) == "7 7"


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
        chip.click()
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


def test_the_panel_keeps_and_releases_frees_and_brings_back(page):
    notebook = page.open_notebook("work/kept.ipynb", lab_cells.allocate(100))
    notebook.run_cell(0)
    page.show_panel()
    expect(page.gpu_bar()).to_have_accessible_name(re.compile(r"256 MiB in all: kept.ipynb 100 MiB, .*Free"))

    page.button("kept.ipynb", "Keep GPU (1 h)").click()
    expect(page.state_of("kept.ipynb")).to_have_text("On the GPU: 100 MiB, kept for 1 h")
    page.button("kept.ipynb", "Release").click()
    expect(page.state_of("kept.ipynb")).to_have_text("On the GPU: 100 MiB")

    page.button("kept.ipynb", "Free GPU").click()
    expect(page.state_of("kept.ipynb")).to_have_text("GPU freed, 100 MiB safe in RAM")
    page.button("kept.ipynb", "Get GPU back").click()
    expect(page.state_of("kept.ipynb")).to_have_text("On the GPU: 100 MiB")


def test_a_waiting_cell_shows_its_place_and_when_the_wait_is_over(page):
    done = page.server.machine.work / "done"
    first = page.open_notebook("first.ipynb", lab_cells.allocate(150), lab_cells.compute_until(str(done)))
    second = page.open_notebook("second.ipynb", lab_cells.allocate(124))
    third = page.open_notebook("third.ipynb", lab_cells.allocate(124))
    page.show_panel()
    first.run_cell(0)
    first.start_cell(1)
    second.start_cell(0)
    expect(page.state_of("second.ipynb")).to_have_text("Waiting: 1st")
    third.start_cell(0)
    expect(page.state_of("third.ipynb")).to_have_text("Waiting: 2nd")
    expect(third.chip()).to_have_text("Waiting")
    expect(third.chip()).to_have_attribute("aria-disabled", "true")
    expect(page.row("third.ipynb")).to_contain_text(re.compile(r"waiting \d+ s"))
    expect(page.notices().filter(has_text="second.ipynb waits for the GPU: 1st.")).to_be_visible()
    expect(page.notices().filter(has_text="third.ipynb waits for the GPU: 2nd.")).to_be_visible()

    done.touch()
    made_room = (
        "first.ipynb freed the GPU to make room for another notebook of yours. Its 150 MiB are safe in RAM"
    )
    expect(page.notices().filter(has_text=made_room)).to_be_visible()
    expect(page.notices().filter(has_text="second.ipynb has the GPU again.")).to_be_visible()
    second.wait_for_cell(0)
    third.wait_for_cell(0)
    assert [notebook.output(0) for notebook in (second, third)] == ["allocated", "allocated"]
    expect(page.state_of("third.ipynb")).to_have_text("On the GPU: 124 MiB")
    expect(page.notices().filter(has_text="waits for the GPU")).to_have_count(0)


def test_a_refusal_is_told_with_its_reason(page):
    done = page.server.machine.work / "busy-done"
    notebook = page.open_notebook("busy.ipynb", lab_cells.allocate(100), lab_cells.compute_until(str(done)))
    page.show_panel()
    notebook.run_cell(0)
    notebook.start_cell(1)
    expect(page.row("busy.ipynb")).to_contain_text("a cell is running")
    page.button("busy.ipynb", "Free GPU").click()
    expect(page.notices().filter(has_text="busy.ipynb: ")).to_be_visible()
    refusal = page.server.machine.kernel(notebook.kernel_id())["refusal"]
    expect(page.row("busy.ipynb").locator(".jp-affinode-refusal")).to_have_text(f"Not freed: {refusal}")
    expect(page.state_of("busy.ipynb")).to_have_text("On the GPU: 100 MiB")
    done.touch()
    notebook.wait_for_cell(1)
    assert notebook.output(1) == "computed"


def test_memory_that_cannot_move_is_named(page):
    notebook = page.open_notebook("pooled.ipynb", lab_cells.allocate(128), lab_cells.POOLED)
    page.show_panel()
    notebook.run_cell(0)
    assert notebook.run_cell(1) == "pooled"
    expect(page.row("pooled.ipynb")).to_contain_text("32 MiB cannot move: stream-ordered memory pools")
    page.button("pooled.ipynb", "Free GPU").click()
    expect(page.state_of("pooled.ipynb")).to_have_text("GPU freed, 128 MiB safe in RAM")
    expect(page.row("pooled.ipynb")).to_contain_text("32 MiB cannot move: stream-ordered memory pools")


HEAR_NOTICES = """() => {
    window.heardNotices = [];
    window.jupyterapp.serviceManager.events.stream.connect((_, event) => {
        if (event.schema_id.includes('/notice/')) { window.heardNotices.push(event.text); }
    });
}"""


def test_no_notices_where_the_person_wants_none(page):
    page.page.evaluate(HEAR_NOTICES)
    page.set("jupyter-affinode:model", "showNotifications", False)
    done = page.server.machine.work / "unnoticed-done"
    first = page.open_notebook("one.ipynb", lab_cells.allocate(150), lab_cells.compute_until(str(done)))
    second = page.open_notebook("two.ipynb", lab_cells.allocate(124))
    page.show_panel()
    first.run_cell(0)
    first.start_cell(1)
    second.start_cell(0)
    # The page tells of a wait after half of that.
    expect(page.row("two.ipynb")).to_contain_text(re.compile(r"waiting ([3-9] s|\d\d+ s|\d+ min)"))
    expect(page.notices()).to_have_count(0)
    done.touch()
    second.wait_for_cell(0)
    page.page.wait_for_function("() => window.heardNotices.some(text => text.includes('to make room'))")
    expect(page.state_of("two.ipynb")).to_have_text("On the GPU: 124 MiB")
    expect(page.notices()).to_have_count(0)
    page.set("jupyter-affinode:model", "showNotifications", True)
