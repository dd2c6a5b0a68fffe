"""What the panel offers for several notebooks at once, and what it says before the click."""

from __future__ import annotations

import re

import lab_cells
import pytest
import recorded
from playwright.sync_api import expect
from recorded_page import RecordedPanel

pytestmark = pytest.mark.long  # labextension/test/freeing.test.ts has what is offered and said


def resident(page, notebook):
    return page.row(notebook).and_(page.panel.locator("[data-residency='resident']"))


def test_all_idle_notebooks_are_freed_by_one_click_and_undo_brings_them_back(page, wait_until):
    names = ["first.ipynb", "second.ipynb"]
    notebooks = [page.open_notebook(name, lab_cells.allocate(32), lab_cells.READ) for name in names]
    for notebook in notebooks:
        assert "allocated" in notebook.run_cell(0)
    page.show_panel()
    for name in names:
        expect(resident(page, name)).to_be_visible()
    button = page.panel.get_by_role("button", name="Free all my idle (64 MiB)")
    button.click()
    freed = page.panel.locator("[data-residency='parked']")
    expect(freed).to_have_count(2)
    page.panel.get_by_role("button", name="Undo").click()
    expect(freed).to_have_count(0)
    for name in names:
        expect(resident(page, name)).to_be_visible()
    expect(page.panel.get_by_role("button", name="Undo")).to_have_count(0)
    for notebook in notebooks:
        assert "7 7" in notebook.run_cell(1)


def test_free_says_before_the_click_what_it_gives_and_how_soon_that_is_back(page):
    notebook = page.open_notebook("gives.ipynb", lab_cells.allocate(32))
    assert "allocated" in notebook.run_cell(0)
    page.show_panel()
    says = re.compile(r"gives 32 MiB, back in about [\d.]+ s")
    row = page.opened_row("gives.ipynb")
    expect(row).to_contain_text(says)
    expect(row).to_contain_text(re.compile(r"keeps the GPU \d+ % busy"))
    expect(row).to_contain_text(re.compile(r"its RAM: \d+ MiB, freeing takes \d+ MiB more"))
    expect(row.get_by_role("button", name="Free: gives.ipynb")).to_have_attribute("title", says)


def test_a_notebook_is_kept_until_a_moment_of_the_users_choice(page):
    notebook = page.open_notebook("until.ipynb", lab_cells.allocate(32))
    assert "allocated" in notebook.run_cell(0)
    page.show_panel()
    row = page.opened_row("until.ipynb")
    until = row.get_by_role("button", name="Keep until…")
    until.click()
    choices = row.get_by_role("group", name="Keep until.ipynb until")
    choices.get_by_role("button", name="1 h").click()
    expect(choices).to_have_count(0)
    expect(row.get_by_role("button", name="Stop keeping")).to_be_visible()
    assert 3500 < page.server.affinode(f"kernels/{notebook.kernel_id()}")[1]["held_for_s"] <= 3600


@pytest.mark.parametrize("number", [12])
def test_a_waiting_notebook_lists_what_ends_its_wait_with_sizes_and_does_it_by_one_click(page, number):
    panel = RecordedPanel(page)
    asked = []
    page.page.route(
        "**/affinode/api/kernels/*/park*",
        lambda route: (asked.append(route.request.url), route.fulfill(status=409, json={"error": "busy"})),
    )
    page.page.route(
        "**/affinode/api/kernels/*/release*",
        lambda route: (asked.append(route.request.url), route.fulfill(status=409, json={"error": "busy"})),
    )
    panel.show(recorded.states()["waiting"])
    row = panel.root.locator(f"[data-kernel-id='kernel-{number}']")
    expect(row.get_by_role("button", name="Stop keeping tokenizer.ipynb (12 GiB)")).to_be_visible()
    expect(row.get_by_role("button", name="Free notes.ipynb (22 GiB)")).to_be_visible()
    with (
        page.page.expect_request("**/affinode/api/kernels/*/park*"),
        page.page.expect_request("**/affinode/api/kernels/*/release*"),
    ):
        row.get_by_role("button", name="All of these (34 GiB)").click()
    expect(page.notices().first).to_be_visible()
    page.page.unroute_all()
    assert sorted(re.sub(r"[?&].*", "", each).rsplit("/kernels/")[1] for each in asked) == [
        "kernel-2/park",
        "kernel-3/release",
    ]
