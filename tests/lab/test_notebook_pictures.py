"""Pictures of what stands around a notebook, in both themes, to be looked at."""

from __future__ import annotations

import lab_cells
import pytest
from playwright.sync_api import expect


@pytest.mark.long
def test_a_wait_around_a_notebook_in_both_themes(page):
    done = page.server.machine.work / "pictures-done"
    busy = page.open_notebook("train.ipynb", lab_cells.allocate(150), lab_cells.compute_until(str(done)))
    freed = page.open_notebook("analysis.ipynb", lab_cells.allocate(100))
    waiter = page.open_notebook("embeddings.ipynb", lab_cells.allocate(124))
    freed.run_cell(0)
    busy.run_cell(0)
    busy.start_computing(1, done)
    expect(freed.chip()).to_have_text("GPU freed")
    for theme in ("Light", "Dark"):
        page.theme(f"JupyterLab {theme}")
        freed.chip().click()
        expect(freed.popover()).to_be_visible()
        page.picture(f"notebook-freed-{theme.lower()}")
        page.page.keyboard.press("Escape")
    waiter.start_cell(0)
    expect(waiter.banner()).to_be_visible()
    for theme in ("Dark", "Light"):
        page.theme(f"JupyterLab {theme}")
        waiter.chip().click()
        expect(waiter.popover()).to_be_visible()
        page.picture(f"notebook-waiting-{theme.lower()}")
        page.page.keyboard.press("Escape")
    page.page.set_viewport_size({"width": 700, "height": 500})
    page.picture("notebook-waiting-narrow")
    page.page.set_viewport_size({"width": 1280, "height": 800})
    busy.chip().click()
    busy.popover().get_by_role("button", name="Keep: train.ipynb").click()
    expect(busy.chip().locator(".jp-affinode-pin")).to_be_visible()
    page.picture("notebook-kept")
    page.page.keyboard.press("Escape")
    page.command("running:show-panel")
    page.picture("running")
    page.page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.picture("kernel-menu")
    page.page.keyboard.press("Escape")
    busy.choose("Stop keeping")
    busy.activate()
    expect(page.notices()).to_contain_text("embeddings.ipynb")
    for theme in ("Dark High Contrast", "Dark", "Light"):
        page.theme(f"JupyterLab {theme}")
        page.picture(f"notice-waiting-{theme.lower().replace(' ', '-')}")
    done.touch()
    expect(page.notices()).to_contain_text("has the GPU")
    page.picture("notice-back")
    waiter.activate()
    waiter.wait_for_cell(0)
