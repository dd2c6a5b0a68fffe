"""A notebook whose kernel hibernates: computed, put on disk from the panel, and used again."""

from __future__ import annotations

import os
import re

import lab_cells
import pytest
from fetched_criu import fetched_criu
from lab_server import start_lab
from live_server import JupyterServer, exists
from playwright.sync_api import expect


@pytest.fixture
def server(gpu_machine, labextension):
    """A JupyterLab whose kernels hibernate."""
    folder = gpu_machine.folder
    gpu_machine.environment.update(
        AFFINODE_CRIU=fetched_criu(),
        AFFINODE_FOLDER=str(folder / "own"),
        AFFINODE_HIBERNATE_DIR=str(folder / "images"),
        XDG_STATE_HOME=str(folder / "state"),
    )
    gpu_machine.simulate(memory="4GiB")  # with room for the way back
    server = JupyterServer(gpu_machine)
    server.transport = "tcp"
    yield start_lab(server, labextension)
    for model in server.request("GET", "/api/kernels")[1]:
        server.request("DELETE", f"/api/kernels/{model['id']}")
    server.stop()


AWAY = re.compile(r"Hibernated · \d+ MiB on disk · back in about")


@pytest.mark.long
def test_a_notebook_hibernates_from_the_panel_and_its_next_cell_finds_everything(server, open_lab):
    page = open_lab()
    work = "kept = {'a': [1, 2]}; import os; print(os.getpid(), id(kept))"
    notebook = page.open_notebook(
        "work.ipynb", lab_cells.allocate(64), work, lab_cells.READ, "print(os.getpid(), id(kept))"
    )
    notebook.run_cell(0)
    before = notebook.run_cell(1)
    pid = int(before.split()[0])

    page.show_panel()
    row = page.opened_row("work.ipynb")
    page.button("work.ipynb", "Hibernate").click()
    expect(row).to_contain_text(AWAY, timeout=60_000)
    assert not exists(pid)
    expect(notebook.chip()).to_have_text("Hibernated")
    assert os.listdir(server.machine.folder / "images")

    assert notebook.run_cell(2) == "7 7", "the same tensors"
    assert notebook.run_cell(3) == before, "the same variables, at the same addresses"
    assert exists(pid)
    expect(notebook.chip()).to_contain_text("On the GPU")

    page.button("work.ipynb", "Hibernate").click()
    expect(row).to_contain_text(AWAY, timeout=60_000)
    page.button("work.ipynb", "Wake").click()
    expect(page.button("work.ipynb", "Hibernate")).to_be_visible(timeout=60_000)
    assert notebook.run_cell(3) == before
