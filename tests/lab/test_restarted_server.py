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
# What is not saved before the server ends is lost: it prints few numbers until then, however long that takes.
COUNTING_ON = f"""import pathlib
{COUNTING}
    while number == 9 and not pathlib.Path("away").exists():
        time.sleep(0.05)"""


@pytest.fixture
def server(gpu_machine, lab):
    """A JupyterLab whose kernels outlive it; they are ended afterwards."""
    gpu_machine.environment["AFFINODE_FOLDER"] = str(gpu_machine.folder / "own")
    server = lab(KEEP)
    yield server
    for model in server.request("GET", "/api/kernels")[1]:
        server.request("DELETE", f"/api/kernels/{model['id']}")


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
    page.command("console:create", kernelPreference={"id": kernel})  # another tab, and the last to attach
    expect(page.page.locator(".jp-CodeConsole")).to_be_visible()
    notebook.start_cell(1)
    wait_until(lambda: "5" in notebook.output(1).split())
    server.terminate()
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


# A picture of one pixel, as plotting libraries display theirs.
DRAWING = """
from IPython.display import Image, display
import base64, pathlib
png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
display(Image(base64.b64decode(png)))
pathlib.Path("done").touch()
"""


@pytest.mark.long
def test_a_reloaded_notebook_has_what_its_cells_printed_and_drew_without_a_server(
    server, open_lab, wait_until
):
    """One cell ran already, the next began meanwhile; what had been saved is there once."""
    page = open_lab()
    notebook = page.open_notebook("reloaded.ipynb", COUNTING_ON, DRAWING, "1 + 1")
    notebook.start_cell(0)
    notebook.start_cell(1)
    wait_until(lambda: "5" in notebook.output(0).split())
    page.command("docmanager:save")
    server.terminate()
    (server.machine.work / "away").touch()
    wait_until((server.machine.work / "done").exists)
    start(server)
    page.load()
    page.command("docmanager:open", path="reloaded.ipynb")
    notebook = Notebook(page, "reloaded.ipynb")
    notebook.wait_for_kernel()
    wait_until(lambda: "79" in notebook.output(0).split())
    shown = [int(number) for number in notebook.output(0).split()]
    assert shown[:6] == [0, 1, 2, 3, 4, 5] and shown == sorted(set(shown))
    assert shown[-60:] == list(range(20, 80))  # what the tab had shown and not saved went with the page
    expect(notebook.activate().locator(".jp-OutputArea img")).to_have_count(1)
    prompts = notebook.activate().locator(".jp-InputPrompt")
    expect(prompts).to_have_text(["[1]:", "[2]:", "[ ]:"])
    assert notebook.run_cell(2) == "2"
    expect(notebook.activate().locator(".jp-OutputArea img")).to_have_count(1)


PLOT = """
%matplotlib inline
import pathlib, time
import matplotlib.pyplot as plt
pathlib.Path("begun").touch()
while not pathlib.Path("drawn").exists():
    time.sleep(0.05)
plt.plot(range(10))
plt.show()
"""


@pytest.mark.long
def test_a_plot_that_was_drawn_without_a_server_is_in_the_tab_and_stays_after_a_reload(
    server, open_lab, wait_until
):
    pytest.importorskip("matplotlib", reason="pip install --group apart")
    page, work = open_lab(), server.machine.work
    notebook = page.open_notebook("plot.ipynb", PLOT, "plt.plot(range(3))")
    notebook.start_cell(0)
    wait_until((work / "begun").exists)
    server.terminate()
    (work / "drawn").touch()
    start(server)
    notebook.wait_for_cell(0, timeout_s=180)
    dismiss_error(page)
    plots = notebook.activate().locator(".jp-OutputArea img")
    expect(plots).to_have_count(1)
    drawn = plots.first.get_attribute("src")
    plots.first.evaluate("image => image.decode()")  # before, it has no size
    assert plots.first.evaluate("image => image.naturalWidth > 300 && image.naturalHeight > 200")
    page.command("docmanager:save")
    page.load()
    page.command("docmanager:open", path="plot.ipynb")
    notebook = Notebook(page, "plot.ipynb")
    notebook.wait_for_kernel()
    plots = notebook.activate().locator(".jp-OutputArea img")
    expect(plots).to_have_count(1)
    assert plots.first.get_attribute("src") == drawn
    notebook.run_cell(1)
    expect(plots).to_have_count(2)


@pytest.mark.long
def test_a_widget_works_after_a_restart_of_the_server_and_after_a_reload(server, open_lab):
    pytest.importorskip("ipywidgets", reason="pip install --group apart")
    page = open_lab()
    made = "import ipywidgets\nslider = ipywidgets.IntSlider(value=3)\nslider"
    notebook = page.open_notebook("widget.ipynb", made, "slider.value", "slider.value = 8")
    slider = page.page.get_by_role("slider")
    notebook.run_cell(0)
    expect(slider).to_have_attribute("aria-valuenow", re.compile("^3"))
    server.terminate()
    is_connected = """isConnected => [...window.jupyterapp.shell.widgets('main')].some(({ sessionContext: context }) =>
        (context?.session.kernel.connectionStatus === 'connected') === isConnected && context)"""
    page.page.wait_for_function(is_connected, arg=False)
    start(server)
    page.page.wait_for_function(is_connected, arg=True, timeout=180_000)
    dismiss_error(page)
    for value in (4, 9):
        slider.press("ArrowRight")
        expect(slider).to_have_attribute("aria-valuenow", re.compile(f"^{value}"))
        assert notebook.run_cell(1) == str(value)
        notebook.run_cell(2)
        expect(slider).to_have_attribute("aria-valuenow", re.compile("^8"))
        page.command("docmanager:save")
        page.load()
        page.command("docmanager:open", path="widget.ipynb")
        notebook = Notebook(page, "widget.ipynb")
        notebook.wait_for_kernel()
        expect(slider).to_have_attribute("aria-valuenow", re.compile("^8"))


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
    server.terminate()
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
    notebook.activate()  # once it is there
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
