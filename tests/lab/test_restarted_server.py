"""A tab whose server is restarted under it, where kernels outlive their server."""

from __future__ import annotations

import re

import lab_cells
import pytest
from lab_page import Notebook
from lab_server import LAB
from playwright.sync_api import expect

KEEP = "--AffinodeExtension.keep_kernels=all"
COUNTING = "import time\nfor number in range(80):\n    print(number, flush=True)\n    time.sleep(0.1)"


@pytest.fixture
def server(gpu_machine, lab):
    """A JupyterLab whose kernels outlive it; they are ended afterwards."""
    gpu_machine.environment["AFFINODE_FOLDER"] = str(gpu_machine.folder / "own")
    server = lab(KEEP)
    yield server
    for model in server.request("GET", "/api/kernels")[1]:
        server.request("DELETE", f"/api/kernels/{model['id']}")


def stop(server):
    """End a server as a Hub does."""
    server.process.terminate()
    server.process.wait(timeout=60)


def start(server):
    """Start it again, where it was."""
    server.start(*LAB, KEEP, application="jupyterlab", port=server.port)


@pytest.mark.long
def test_a_tab_goes_on_by_itself_with_a_cell_that_ran_through_its_servers_restart(
    server, open_lab, wait_until
):
    page = open_lab()
    notebook = page.open_notebook("kept.ipynb", lab_cells.allocate(64), COUNTING, lab_cells.READ)
    notebook.run_cell(0)
    kernel = notebook.kernel_id()
    notebook.start_cell(1)
    wait_until(lambda: "5" in notebook.output(1).split())
    stop(server)
    start(server)
    notebook.wait_for_cell(1, timeout_s=180)
    dismiss_error(page)
    assert notebook.output(1).split() == [str(number) for number in range(80)]
    assert notebook.run_cell(2) == "7 7"
    assert notebook.kernel_id() == kernel
    page.page.reload()
    page.wait_for_lab()
    assert notebook.run_cell(2) == "7 7"


def dismiss_error(page):
    """Close what JupyterLab itself says of a server that was away."""
    dialog = page.page.get_by_role("dialog", name="Server Connection Error")
    if dialog.is_visible():
        dialog.get_by_role("button", name="Close").click()


@pytest.mark.long
def test_the_panel_lists_kernels_that_no_notebook_shows_and_opens_and_ends_them(server, open_lab):
    """One with its notebook, one whose file is gone, one that is to end; what a notebook shows is not listed."""
    page = open_lab()
    named = {}
    for name in ("kept.ipynb", "gone.ipynb", "end.ipynb"):
        notebook = page.open_notebook(name, lab_cells.allocate(16), lab_cells.READ)
        notebook.run_cell(0)
        named[name] = notebook.kernel_id()
    page.show_panel()
    section = page.panel.locator("section").filter(has=page.page.locator("#jp-affinode-section-kept"))
    expect(section).to_have_count(0)
    stop(server)
    (server.machine.work / "gone.ipynb").unlink()
    start(server)
    page.load()
    page.show_panel()
    rows = section.get_by_role("listitem")
    expect(rows).to_have_count(3)
    kept, gone, end = (rows.filter(has_text=name) for name in named)
    for row in (kept, gone, end):
        expect(row).to_have_text(re.compile(r"16 MiB.*its server ended at \d\d:\d\d"))
    page.picture("lab-kept")

    kept.get_by_role("button", name="Open").click()
    notebook = Notebook(page, "kept.ipynb")
    notebook.wait_for_kernel()
    assert notebook.run_cell(1) == "7 7"
    assert notebook.kernel_id() == named["kept.ipynb"]
    page.show_panel()
    expect(kept).to_have_count(0)

    gone.get_by_role("button", name="Open").click()
    expect(page.page.locator(".jp-CodeConsole")).to_be_visible()
    expect(gone).to_have_count(0)
    consoles = [each for each in server.request("GET", "/api/sessions")[1] if each["type"] == "console"]
    assert [each["kernel"]["id"] for each in consoles] == [named["gone.ipynb"]]

    end.get_by_role("button", name="End kernel").click()
    page.page.get_by_role("dialog").get_by_role("button", name="End kernel").click()
    expect(section).to_have_count(0)
    left = {each["id"] for each in server.request("GET", "/api/kernels")[1]}
    assert left == {named["kept.ipynb"], named["gone.ipynb"]}
