"""Pictures of every state in every theme, to be looked at; each is checked for accessibility, contrast included."""

from __future__ import annotations

import os
import re

import lab_cells
import pytest
import recorded
from live_browser import AXE, VIOLATIONS
from playwright.sync_api import expect
from recorded_page import AROUND, PANEL, RUNNING, THEMES, RecordedPanel

TALLEST = 1000
# Larger where the pictures are wanted.
UNIT = 4 if "AFFINODE_SCREENSHOTS" in os.environ else 1
TABLE, VOCABULARY, VECTORS, WEIGHTS = (UNIT * mib for mib in (176, 76, 224, 250))


@pytest.fixture
def panel(page):
    """The module's page, with recorded answers instead of the server's."""
    return RecordedPanel(page)


@pytest.mark.long
@pytest.mark.parametrize("theme", THEMES)
def test_every_state_is_accessible_in_every_theme(panel, theme):
    lab = panel.lab
    lab.theme(THEMES[theme])
    lab.page.add_script_tag(path=AXE)
    violations: dict[str, list[str]] = {}

    def look(name: str, selector: str) -> None:
        if selector == PANEL:
            panel.root.screenshot(path=lab.screenshots / f"panel-{name}-{theme}.png", animations="disabled")
        else:
            lab.picture(f"{name}-{theme}")
        violations[name] = lab.page.evaluate(VIOLATIONS, selector)

    for name in panel.each(recorded.states()):
        look(name, PANEL)
    for name in panel.each_failure():
        look(name, PANEL)
    panel.open_calls(recorded.states()["resident"])
    look("calls", PANEL)
    notebook = lab.open_notebook(f"around-{theme}.ipynb", lab_cells.CPU)
    for name, answer in recorded.around().items():
        panel.show_popover(notebook, answer)
        look(f"around-{name}", AROUND)
    panel.show_popover(notebook, recorded.around()["waiting"])
    panel.fail("stale")
    look("around-stale", AROUND)
    lab.page.keyboard.press("Escape")
    panel.show_around(notebook, recorded.around()["waiting"])
    lab.command("running:show-panel")
    look("running", RUNNING)
    assert violations == {name: [] for name in violations}


@pytest.mark.long
@pytest.mark.parametrize("width", [250, 290])
def test_thirty_kernels_on_eight_gpus_fit_into_a_thousand_pixels(panel, width):
    panel.show(recorded.busy_machine())
    panel.widen(width)
    expect(panel.root.get_by_text(re.compile(r"^\d+ %$")).filter(visible=True)).to_have_count(
        8 if width > 280 else 0
    )
    height = panel.root.evaluate(
        """panel => [...panel.querySelectorAll('.jp-affinode-toolbar, .jp-affinode-body > :not(.jp-affinode-history)')]
            .reduce((sum, part) => sum + part.offsetHeight, 0)"""
    )
    print(f"{width} pixels wide, {height} high")
    assert height < TALLEST
    body = panel.root.locator(".jp-affinode-body")
    assert body.evaluate("body => body.scrollWidth <= body.clientWidth")


@pytest.mark.long
def test_a_full_panel_in_both_themes(gpu_machine, lab, open_lab):
    gpu_machine.simulate(memory=f"{UNIT * 512}MiB")
    gpu_machine.environment["AFFINODE_SIM_CONTEXT"] = f"{UNIT * 16}MiB"
    work = gpu_machine.work / "work"
    work.mkdir()
    (work / "arrays.py").write_text(lab_cells.ARRAYS)
    gpu_machine.start_controller("--park-when=needed", "--idle-timeout=1")
    lab()
    page = open_lab(width=1200, height=800)
    done = work / "done"
    analysis = page.open_notebook("work/analysis.ipynb", lab_cells.array("table", TABLE))
    kept = page.open_notebook("work/tokenizer.ipynb", lab_cells.array("vocabulary", VOCABULARY))
    waiting = page.open_notebook("work/embeddings.ipynb", lab_cells.array("vectors", VECTORS))
    busy = page.open_notebook(
        "work/diffusion.ipynb",
        lab_cells.array("weights", WEIGHTS),
        "step = 0\nwhile not Path('done').exists():\n    step += 1\n    weights.fill(step)",
    )
    page.show_panel()
    page.widen_panel(344)
    analysis.run_cell(0)
    kept.run_cell(0)
    page.button("tokenizer.ipynb", "Keep").click()
    busy.run_cell(0)  # takes analysis.ipynb's place
    busy.start_cell(1)
    waiting.start_cell(0)
    busy.activate()
    expect(page.state_of("analysis.ipynb")).to_have_text(f"GPU freed, {TABLE} MiB safe in RAM")
    expect(page.state_of("tokenizer.ipynb")).to_have_text(
        re.compile(f"On the GPU: {VOCABULARY} MiB, kept until")
    )
    expect(page.state_of("diffusion.ipynb")).to_have_text(re.compile(f"On the GPU: {WEIGHTS} MiB"))
    expect(page.state_of("embeddings.ipynb")).to_have_text("Waiting: 1st")
    expect(page.row("embeddings.ipynb").locator(".jp-affinode-wait")).to_contain_text(".ipynb is")  # and why
    for theme in ("light", "dark"):
        page.theme(THEMES[theme])
        hues = page.panel.locator(".jp-affinode-line > .jp-affinode-swatch").evaluate_all(
            "swatches => swatches.map(swatch => getComputedStyle(swatch).backgroundColor)"
        )
        assert len(set(hues)) == 4
        page.page.mouse.move(900, 700)
        page.picture(f"lab-{theme}")
        page.panel.screenshot(path=page.screenshots / f"panel-{theme}.png", animations="disabled")
    done.touch()
    waiting.wait_for_cell(0)
    assert waiting.output(0) == ""  # no error
