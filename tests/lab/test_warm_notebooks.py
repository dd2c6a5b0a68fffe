"""A notebook whose kernel is ready: the launcher says so, and its first cell need not wait for the prelude."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from lab_page import Notebook
from lab_server import start_lab
from live_server import JupyterServer
from playwright.sync_api import expect

READY = re.compile("ready")
WORDS = "Model loaded"


@pytest.fixture
def server(machine, labextension):
    """A JupyterLab with one warm kernelspec, whose prelude waits for a file and removes it."""
    go = Path(machine.folder, "go")
    go.touch()
    prelude = machine.folder / "prelude.py"
    prelude.write_text(
        f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\nos.remove({str(go)!r})\n"
        "model = 'loaded'\nprint('said by the prelude')"
    )
    machine.environment["AFFINODE_FOLDER"] = str(machine.folder / "own")
    added = machine.affinode("warm", "add", "model", "--prelude", str(prelude), "--display-name", WORDS)
    assert added.returncode == 0, added.stderr
    server = JupyterServer(machine)
    yield start_lab(server, labextension)
    for model in server.request("GET", "/api/kernels")[1]:
        server.request("DELETE", f"/api/kernels/{model['id']}")
    server.stop()


@pytest.mark.long
def test_a_new_notebook_opens_with_its_model_loaded(server, open_lab):
    page = open_lab()
    page.show_panel()
    section = page.panel.locator("[data-kernelspec=model]")
    expect(section).to_contain_text("1 of 1 ready", timeout=120_000)
    expect(section).to_contain_text(re.compile(r"made at .* of RAM"))
    page.command("launcher:create")
    tiles = page.page.locator(".jp-Launcher:visible .jp-LauncherCard[data-category=Notebook]")
    tile = tiles.filter(has_text=WORDS)
    expect(tile).to_have_attribute("data-affinode-ready", READY, timeout=60_000)
    expect(tiles.filter(has_text="Python 3")).not_to_have_attribute("data-affinode-ready", READY)
    page.picture("warm-launcher")

    began = time.monotonic()
    tile.click()  # no other kernel's prelude can end: its file is gone
    cell = page.page.locator(".jp-Notebook .jp-CodeCell").first
    expect(page.page.get_by_role("tab", name="Untitled.ipynb")).to_be_visible()
    Notebook(page, "Untitled.ipynb").wait_for_kernel()
    cell.locator(".cm-content").click()
    page.page.keyboard.type("model, 1 + 1")
    page.page.keyboard.press("Control+Enter")
    expect(cell.locator(".jp-OutputArea-output")).to_have_text("('loaded', 2)", timeout=60_000)
    print(f"from the click to the reply: {time.monotonic() - began:.2f} s")
    assert "was ready: it is a warm one" in server.log()

    option = page.page.locator(".jp-Dialog option", has_text=WORDS).first
    page.page.evaluate("void window.jupyterapp.commands.execute('notebook:change-kernel')")
    expect(option).to_be_attached()
    expect(option).not_to_have_attribute("label", READY)
    Path(server.machine.folder, "go").touch()
    expect(option).to_have_attribute("label", f"{WORDS} (ready)", timeout=120_000)
    page.page.keyboard.press("Escape")
    expect(section).to_contain_text("1 of 1 ready")
