"""Pictures of every state at once in both themes, to be looked at; one of them is in the README."""

from __future__ import annotations

import os
import re

import lab_cells
import pytest
from playwright.sync_api import expect

# Larger where the pictures are wanted.
UNIT = 4 if "AFFINODE_SCREENSHOTS" in os.environ else 1
TABLE, VOCABULARY, VECTORS, WEIGHTS = (UNIT * mib for mib in (176, 76, 224, 250))


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
    analysis.run_cell(0)
    kept.run_cell(0)
    page.button("tokenizer.ipynb", "Keep GPU (1 h)").click()
    busy.run_cell(0)  # takes analysis.ipynb's place
    busy.start_cell(1)
    waiting.start_cell(0)
    busy.activate()
    expect(page.state_of("analysis.ipynb")).to_have_text(f"GPU freed, {TABLE} MiB safe in RAM")
    expect(page.state_of("tokenizer.ipynb")).to_have_text(
        re.compile(f"On the GPU: {VOCABULARY} MiB, kept for")
    )
    expect(page.state_of("diffusion.ipynb")).to_have_text(re.compile(f"On the GPU: {WEIGHTS} MiB"))
    expect(page.state_of("embeddings.ipynb")).to_have_text("Waiting: 1st")
    expect(page.row("embeddings.ipynb")).to_contain_text(re.compile(r"waiting \d+ s · .*[a-z]{4}"))  # and why
    expect(page.notices().filter(has_text="embeddings.ipynb waits")).to_be_visible()
    for theme in ("light", "dark"):
        page.theme(f"JupyterLab {theme.title()}")
        hues = page.panel.locator(".jp-affinode-kernelTitle .jp-affinode-swatch").evaluate_all(
            "swatches => swatches.map(swatch => getComputedStyle(swatch).backgroundColor)"
        )
        assert len(set(hues)) == 4
        page.picture(f"lab-{theme}")
        page.panel.screenshot(path=page.screenshots / f"panel-{theme}.png", animations="disabled")
    done.touch()
    waiting.wait_for_cell(0)
    assert waiting.output(0) == ""  # no error
