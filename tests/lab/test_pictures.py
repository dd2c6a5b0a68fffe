"""Pictures of every state at once in both themes, to be looked at; one of them is in the README."""

from __future__ import annotations

import re
from pathlib import Path

import lab_cells
import pytest
from playwright.sync_api import expect


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_full_panel_in_both_themes(theme, gpu_machine, lab, open_lab):
    gpu_machine.simulate(memory="2GiB")
    gpu_machine.start_controller("--park-when=needed", "--idle-timeout=1")
    lab()
    page = open_lab(width=1200, height=700)
    page.theme(f"JupyterLab {theme.title()}")
    done = gpu_machine.work / "done"
    analysis = page.open_notebook("work/analysis.ipynb", lab_cells.allocate(700))
    kept = page.open_notebook("work/tokenizer.ipynb", lab_cells.allocate(300))
    waiting = page.open_notebook("work/embeddings.ipynb", lab_cells.allocate(900))
    busy = page.open_notebook(
        "work/diffusion.ipynb", lab_cells.allocate(1000), lab_cells.compute_until(str(done))
    )
    page.show_panel()
    analysis.run_cell(0)
    kept.run_cell(0)
    page.button("tokenizer.ipynb", "Keep GPU (1 h)").click()
    busy.run_cell(0)  # takes analysis.ipynb's place
    busy.start_cell(1)
    waiting.start_cell(0)
    busy.activate()
    expect(page.state_of("analysis.ipynb")).to_have_text("GPU freed, 700 MiB safe in RAM")
    expect(page.state_of("tokenizer.ipynb")).to_have_text(re.compile("On the GPU: 300 MiB, kept for"))
    expect(page.state_of("diffusion.ipynb")).to_have_text(re.compile("On the GPU: 1000 MiB"))
    expect(page.state_of("embeddings.ipynb")).to_have_text("Waiting for GPU: 1st")
    expect(page.notices().filter(has_text="embeddings.ipynb waits")).to_be_visible()
    hues = page.panel.locator(".jp-affinode-kernelTitle .jp-affinode-swatch").evaluate_all(
        "swatches => swatches.map(swatch => getComputedStyle(swatch).backgroundColor)"
    )
    assert len(set(hues)) == 4
    whole, panel = page.picture(f"lab-{theme}"), page.screenshots / f"panel-{theme}.png"
    page.panel.screenshot(path=panel, animations="disabled")
    assert all(Path(path).stat().st_size > 5_000 for path in (whole, panel))
    done.touch()
    waiting.wait_for_cell(0)
    assert waiting.output(0) == "allocated"
