"""Notebook 7, which shows one notebook in each of the browser's tabs: all that JupyterLab has but a status bar."""

from __future__ import annotations

import re

import lab_cells
import pytest
from lab_page import LabPage, Notebook
from playwright.sync_api import Locator, expect


class OnlyNotebook(Notebook):
    """The notebook of a page of Notebook 7."""

    @property
    def _panel(self) -> Locator:
        return self.lab.page.locator(".jp-NotebookPanel")


@pytest.fixture
def open_page(page: LabPage, open_lab):
    """`open_page("tree?")`: a page of Notebook 7 at the server of `page`."""
    opened = []

    def start(path: str) -> LabPage:
        opened.append(open_lab(at=page.server, path=path))
        return opened[-1]

    yield start
    for each in opened:  # Notebook 7.6 has this one at each start, with or without extensions
        each.errors = [error for error in each.errors if "(reading 'schema')" not in error.message]


@pytest.mark.long
def test_a_notebook_waits_and_is_freed_in_notebook_7(page, open_page):
    kept = page.open_notebook("kept-in-lab.ipynb", lab_cells.allocate(150))
    kept.run_cell(0)
    kept.choose("Keep")
    page.write_notebook("seven.ipynb", lab_cells.allocate(124))
    seven = OnlyNotebook(open_page("notebooks/seven.ipynb?"), "seven.ipynb")
    seven.wait_for_kernel()
    keyboard = seven.lab.page.keyboard

    seven.start_cell(0)
    expect(seven.chip()).to_have_text("Waiting")
    expect(seven.lab.page).to_have_title(re.compile("^Waiting: seven"))
    expect(seven.banner()).to_contain_text("kept-in-lab.ipynb is kept on the GPU")
    seven.chip().click()
    seven.popover().get_by_role("button", name="All kernels and GPUs").click()
    name = seven.lab.row("seven.ipynb").get_by_role("button", name="seven.ipynb", exact=True)
    expect(name).to_be_focused()
    keyboard.press("Escape")
    expect(seven.activate().locator(":focus")).to_have_count(1)
    seven.banner().get_by_role("button", name="Stop keeping kept-in-lab.ipynb").click()
    seven.wait_for_cell(0)
    expect(seven.banner()).to_be_hidden()
    expect(seven.lab.page).to_have_title(re.compile("^seven"))
    expect(kept.chip()).to_have_text("GPU freed")

    expect(seven.chip()).to_have_text("On the GPU: 124 MiB")  # a menu shows what was possible when it opened
    seven.lab.page.get_by_role("menuitem", name="Kernel", exact=True).click()
    seven.lab.page.get_by_role("menuitem", name="Free the GPU of This Notebook").click()
    expect(seven.chip()).to_have_text("GPU freed")
    keyboard.press("Control+Shift+C")
    seven.lab.page.locator(".lm-CommandPalette-input").fill("Get the GPU Back for This Notebook")
    keyboard.press("Enter")
    expect(seven.chip()).to_have_text("On the GPU: 124 MiB")
    expect(seven.lab.state_of("seven.ipynb")).to_have_text("On the GPU: 124 MiB")
    expect(seven.lab.status_item()).to_have_count(0)

    tree = open_page("tree?").page
    tree.get_by_role("tab", name="Running").click()
    section = tree.get_by_role("region", name="GPU Section")
    expect(section.get_by_role("treeitem", name="seven.ipynb On the GPU")).to_be_visible()
