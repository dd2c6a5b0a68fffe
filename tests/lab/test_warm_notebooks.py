"""A notebook whose kernel is ready: the launcher says so, and its first cell need not wait for the prelude."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab_server import start_lab
from live_server import JupyterServer
from playwright.sync_api import expect

FIRST_CELL = Path(__file__).with_name("first_cell.js").read_text()
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
    tiles = page.page.locator(".jp-Launcher:visible .jp-LauncherCard[data-category=Notebook]")
    tile = tiles.filter(has_text=WORDS)
    expect(tile).to_have_attribute(
        "data-affinode-ready", READY, timeout=120_000
    )  # with the panel closed, too
    page.show_panel()
    section = page.panel.locator("[data-kernelspec=model]")
    expect(section).to_contain_text("1 of 1 ready", timeout=120_000)
    expect(section).to_contain_text(re.compile(r"made at .* of RAM"))
    page.command("launcher:create")
    expect(tile).to_have_attribute("data-affinode-ready", READY, timeout=60_000)
    expect(tiles.filter(has_text="Python 3")).not_to_have_attribute("data-affinode-ready", READY)
    page.picture("warm-launcher")

    plain = page.page.evaluate(FIRST_CELL, ["Python 3", "1 + 1", "2"])
    # No other kernel's prelude can end: its file is gone.
    warm = page.page.evaluate(FIRST_CELL, [WORDS, "model, 1 + 1", "('loaded', 2)"])
    for name, seen in (("plain", plain), ("warm", warm)):
        print(
            f"{name}: output {seen['shown']:.0f} ms after the click, notebook open after {seen['opened']:.0f} ms"
        )
    assert warm["shown"] - warm["opened"] < plain["shown"] - plain["opened"]
    assert "was ready: it is a warm one" in server.log()

    option = page.page.locator(".jp-Dialog option", has_text=WORDS).first
    page.page.evaluate("void window.jupyterapp.commands.execute('notebook:change-kernel')")
    expect(option).to_be_attached()
    expect(option).not_to_have_attribute("label", READY)
    Path(server.machine.folder, "go").touch()
    expect(option).to_have_attribute("label", f"{WORDS} (ready)", timeout=120_000)
    page.page.keyboard.press("Escape")
    expect(section).to_contain_text("1 of 1 ready")
