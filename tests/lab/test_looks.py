"""What the panel and what stands around a notebook look like, measured: contrast, narrow pages, motion."""

from __future__ import annotations

import contrast
import lab_cells
import pytest
import recorded
from playwright.sync_api import expect
from recorded_page import AROUND, PANEL, THEMES, ZOOMED, Looks, RecordedPanel

pytestmark = pytest.mark.long  # each draws all states
NO_TROUBLE = {name: [] for name in recorded.states()}


@pytest.mark.parametrize("theme", THEMES)
def test_everything_drawn_has_enough_contrast(page, theme):
    pairs = contrast.table(page, theme)
    assert {pair["kind"] for pair in pairs} >= {"text", "graphic"}
    assert contrast.too_weak(pairs) == []


def test_a_sidebar_of_250_pixels_cuts_nothing_off(page):
    panel, looks = RecordedPanel(page), Looks(page)
    panel.widen(250)
    assert {name: looks.troubles(PANEL) for name in panel.each(recorded.states())} == NO_TROUBLE
    assert [looks.troubles(PANEL) for _ in panel.each_failure()] == [[], [], []]


def test_a_page_at_400_percent_cuts_nothing_off(sized):
    notebook = sized.open_notebook("zoomed.ipynb", lab_cells.CPU)
    panel, looks = RecordedPanel(sized), Looks(sized)
    sized.page.set_viewport_size(ZOOMED)
    assert {name: looks.troubles(PANEL) for name in panel.each(recorded.states())} == NO_TROUBLE
    states = recorded.around()
    found = {}
    for name, answer in states.items():
        sized.show_panel()
        panel.show_around(notebook, answer)
        sized.hide_panel()
        found[name] = looks.troubles(AROUND)
    assert found == {name: [] for name in states}


@pytest.mark.parametrize(("theme", "system"), [("light", "dark"), ("dark", "light")])
def test_what_is_drawn_is_seen_where_the_system_forces_its_colours(page, theme, system):
    page.theme(THEMES[theme])
    panel, looks = RecordedPanel(page), Looks(page)
    page.page.emulate_media(forced_colors="active", color_scheme=system)
    for name in ("resident", "moving", "waiting"):
        panel.show(recorded.states()[name])
        pairs = looks.pairs(PANEL)
        assert {pair["what"] for pair in pairs} > {"jp-affinode-switch", "jp-affinode-stateIcon"}
        assert contrast.too_weak(pairs) == [], name
    page.page.emulate_media(forced_colors="none", color_scheme="light")


@pytest.mark.parametrize("width", [320, 1280])
def test_the_popover_fits_and_keeps_the_keyboard(sized, width):
    """On a page at 400 %, where the chip is behind "More commands", and beside a sidebar of 250 pixels."""
    notebook = sized.open_notebook(f"narrow-{width}.ipynb", lab_cells.CPU)
    panel, looks = RecordedPanel(sized), Looks(sized)
    panel.widen(250)
    page, keyboard, popover = sized.page, sized.page.keyboard, notebook.popover()
    page.set_viewport_size({"width": width, "height": 640})
    chip = page.locator(".jp-affinode-chip")

    def reach(target):
        for _ in range(40):
            if target.evaluate("node => node.contains(document.activeElement)"):
                return
            keyboard.press("Tab")
        raise AssertionError(f"not reached from {page.evaluate('() => document.activeElement.outerHTML')}")

    for name, answer in recorded.around().items():
        sized.show_panel()
        panel.show_around(notebook, answer)
        toolbar = page.locator(".jp-NotebookPanel-toolbar")
        if width == 320:
            sized.hide_panel()
            toolbar.locator(".jp-Toolbar-responsive-opener jp-button").focus()
            toolbar = page.locator(".jp-Toolbar-responsive-popup").filter(has=chip)
            if not toolbar.is_visible():
                keyboard.press("Enter")
        toolbar.locator("jp-button").first.focus()
        reach(chip)
        keyboard.press("Enter")
        expect(popover.locator(":focus")).to_have_count(1)
        for button in popover.get_by_role("button").all():
            reach(button)
            box = button.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width, (name, box)
        assert looks.troubles(".jp-affinode-popover") == [], name
        keyboard.press("Escape")
        expect(chip).to_be_focused()


def test_the_focus_stays_in_a_popover_whose_buttons_go(page):
    notebook = page.open_notebook("going.ipynb", lab_cells.CPU)
    panel = RecordedPanel(page)
    panel.show_popover(notebook, recorded.around()["resident"])
    popover = notebook.popover()
    expect(popover.get_by_role("button").first).to_be_focused()
    panel.answer["kernels"][0]["residency"] = "parking"
    panel.look_again()
    expect(popover).to_contain_text("Freeing")
    expect(popover.locator(":focus")).to_have_count(1)


def test_nothing_moves_by_itself_where_less_motion_is_asked_for(page):
    panel = RecordedPanel(page)
    moves = """() => [...document.querySelectorAll("[class*='jp-affinode']")]
        .filter(each => getComputedStyle(each).transitionDuration !== '0s' ||
            getComputedStyle(each).animationName !== 'none')
        .map(each => each.getAttribute('class'))"""
    for name in ("resident", "moving"):
        panel.show(recorded.states()[name])
        assert page.page.evaluate(moves) != []
        page.page.emulate_media(reduced_motion="reduce")
        assert page.page.evaluate(moves) == []
        page.page.emulate_media(reduced_motion="no-preference")
    expect(panel.root).to_be_visible()
