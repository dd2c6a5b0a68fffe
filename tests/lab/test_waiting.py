"""A notebook that waits: which other one is in its way, and what resolves it, in banner and popover."""

from __future__ import annotations

import re

import lab_cells
import pytest
from playwright.sync_api import expect


@pytest.mark.long
def test_a_wait_names_the_notebook_in_its_way_and_offers_to_stop_keeping_it(page):
    kept = page.open_notebook("kept.ipynb", lab_cells.allocate(150))
    waiter = page.open_notebook("needs.ipynb", lab_cells.allocate(124))
    kept.run_cell(0)
    kept.choose("Keep")
    waiter.start_cell(0)
    expect(waiter.banner()).to_contain_text("kept.ipynb is kept on the GPU until ")
    expect(waiter.banner()).to_contain_text(re.compile("At most|How long cannot be said"))
    waiter.chip().click()
    expect(waiter.popover()).to_contain_text("kept.ipynb is kept on the GPU")
    page.page.keyboard.press("Escape")
    waiter.banner().get_by_role("button", name="Stop keeping kept.ipynb").click()
    waiter.wait_for_cell(0)
    assert waiter.output(0) == "allocated"
    expect(waiter.banner()).to_be_hidden()
    expect(kept.chip()).to_have_text("GPU freed")


@pytest.mark.long
def test_the_running_panel_frees_a_notebook(page):
    notebook = page.open_notebook("listed.ipynb", lab_cells.allocate(64))
    notebook.run_cell(0)
    page.command("running:show-panel")
    item = page.page.locator(".jp-affinode-running").filter(has_text="listed.ipynb")
    expect(item).to_contain_text("On the GPU")
    item.hover()
    item.get_by_title("Free").click()
    expect(item).to_contain_text("GPU freed")


@pytest.mark.long
def test_a_narrow_notebook_keeps_its_chip_as_an_icon(sized):
    sized.page.set_viewport_size({"width": 700, "height": 700})
    notebook = sized.open_notebook("narrow.ipynb", lab_cells.allocate(64))
    notebook.run_cell(0)
    expect(notebook.chip()).to_be_visible()
    expect(notebook.chip()).to_have_text("")
    expect(notebook.chip()).to_have_accessible_name("GPU: On the GPU: 64 MiB")
    notebook.choose("Free")
    expect(notebook.chip()).to_have_accessible_name("GPU: GPU freed, 64 MiB safe in RAM")


@pytest.mark.parametrize("menu", ["kernel", "context"])
@pytest.mark.long
def test_the_menus_have_what_is_possible(page, menu):
    notebook = page.open_notebook(f"{menu}-menu.ipynb", lab_cells.allocate(64))
    notebook.run_cell(0)
    expect(notebook.chip()).to_have_text("On the GPU: 64 MiB")
    if menu == "kernel":
        page.page.get_by_role("menuitem", name="Kernel", exact=True).click()
    else:
        notebook.activate().locator(".jp-CodeCell .cm-content").first.click(button="right")
    items = page.page.locator(".lm-Menu-item:visible")
    expect(items.filter(has_text="Get the GPU Back")).to_have_count(0)
    items.filter(has_text="Free the GPU of This Notebook").click()
    expect(notebook.chip()).to_have_text("GPU freed")


@pytest.mark.long
def test_a_lost_state_is_restarted_from_panel_banner_or_popover(page):
    """No kernel here loses its state by itself: the page is told so."""
    notebook = page.open_notebook("lost.ipynb", lab_cells.allocate(64), "print('alive')")

    def lost(route):
        answer = route.fetch()
        status = answer.json()
        for kernel in status["kernels"]:
            kernel["residency"] = "lost"
        route.fulfill(response=answer, json=status)

    notebook.run_cell(0)
    page.page.route("**/affinode/api/status*", lost)
    page.show_panel()
    notebook.chip().click()
    expect(notebook.banner()).to_contain_text("GPU state lost")
    first = page.panel.locator(".jp-affinode-section").first
    expect(first.get_by_role("button", name="Needs you")).to_be_visible()
    for place in (first, notebook.banner(), notebook.popover()):
        expect(place.get_by_role("button", name="Restart: lost.ipynb")).to_be_visible()
    place.get_by_role("button", name="Restart: lost.ipynb").click()
    dialog = page.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("Restart the kernel of lost.ipynb?")
    page.page.unroute_all()
    with page.page.expect_response("**/api/kernels/*/restart*"):  # what is run before it may be lost
        dialog.get_by_role("button", name="Restart").click()
    expect(notebook.banner()).to_be_hidden()
    notebook.wait_for_kernel()
    assert notebook.run_cell(1) == "alive"


@pytest.mark.long
def test_a_console_has_a_banner_too(page):
    kept = page.open_notebook("kept-from-console.ipynb", lab_cells.allocate(150))
    kept.run_cell(0)
    kept.choose("Keep")
    page.command("console:create", path="console-1", kernelPreference={"name": "python3"}, activate=True)
    console = page.page.locator(".jp-ConsolePanel")
    expect(console).to_contain_text("IPython")  # what is run before the kernel is there, is dropped
    console.locator(".jp-CodeConsole-promptCell .cm-content").click()
    page.page.keyboard.insert_text(lab_cells.allocate(124))
    page.page.keyboard.press("Shift+Enter")
    banner = console.locator(".jp-affinode-banner")
    expect(banner).to_contain_text("kept-from-console.ipynb is kept on the GPU")
    banner.get_by_role("button", name="Stop waiting").click()
    expect(banner).to_be_hidden()


@pytest.mark.parametrize("way", ["restart", "reload"])
@pytest.mark.long
def test_what_says_in_a_cell_that_it_waits_outlives_neither_kernel_nor_page(page, open_lab, way):
    page = open_lab(at=page.server)
    kept = page.open_notebook(f"kept-over-{way}.ipynb", lab_cells.allocate(150))
    waiter = page.open_notebook(f"waits-over-{way}.ipynb", lab_cells.allocate(124), "print('alive')")
    kept.run_cell(0)
    kept.choose("Keep")
    waiter.start_cell(0)
    line = page.page.locator(".jp-OutputArea-output").filter(has_text="Waiting for the GPU")
    expect(line).to_have_count(1)
    if way == "restart":
        page.page.get_by_role("menuitem", name="Kernel", exact=True).click()
        page.page.locator(".lm-Menu-item:visible").filter(has_text="Restart Kernel…").first.click()
        page.page.locator(".jp-Dialog .jp-mod-accept").click()
        waiter.wait_for_kernel()
        assert waiter.run_cell(1) == "alive"
    else:
        page.command("docmanager:save")
        page.page.reload()
        page.wait_for_lab()
        waiter.activate()
        expect(waiter.banner()).to_contain_text("kept-over-reload.ipynb is kept on the GPU")
    expect(line).to_have_count(0)
