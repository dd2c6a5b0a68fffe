"""A notebook's tab whose server a real Hub stops under it and starts again, where kernels outlive their server."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import lab_cells
import pytest
from lab_page import LabPage
from lab_server import BUILT, LAB, VIEWPORT, settings
from live_browser import sign_in
from live_server import exists
from user_servers import ANA, UserServer, gpu_hub

WITH_LAB = "--ServerApp.jpserver_extensions=jupyterlab=True"
UNTIL = "while not pathlib.Path('enough').exists():"
COUNTING = f"number = 0\n{UNTIL}\n    print(number, flush=True)\n    number += 1\n    time.sleep(0.1)"


class HubsLabPage(LabPage):
    """A person's browser, signed in to the Hub that started the JupyterLab."""

    def load(self, path: str = "lab?reset") -> None:
        """Sign in, and open JupyterLab in a fresh workspace."""
        sign_in(self.page, self.server.hub.url, self.server.user, f"/user/{self.server.user}/{path}")
        self.wait_for_lab()


@pytest.fixture(params=["6", "5"], ids=["hub-6", "hub-5.5"])
def lab(native, request):
    """Ana's JupyterLab, whose kernels outlive it."""
    if not BUILT.joinpath("package.json").exists():
        pytest.fail(f"{BUILT} is not built: run `jlpm install && jlpm build:prod`", pytrace=False)
    environment = {
        "JUPYTERLAB_DIR": f"{sys.prefix}/share/jupyter/lab",
        "JUPYTER_PREFER_ENV_PATH": "0",
    }
    spawner = {"keep_kernels": "all"}
    with gpu_hub(request.param, {"ana": ANA}, environment, spawner=spawner, args=[*LAB, WITH_LAB]) as hub:
        server = UserServer(hub, "ana")
        home = server.machine.folder
        server.machine.work = home
        folder = home / ".local" / "share" / "jupyter" / "labextensions"
        folder.mkdir(parents=True)
        (folder / "jupyter-affinode").symlink_to(BUILT)
        machine = SimpleNamespace(environment={"JUPYTER_CONFIG_DIR": str(home / ".jupyter")})
        settings(machine, "@jupyterlab/apputils-extension", "notification", fetchNews="false")
        give(home)
        yield server


def give(folder: Path) -> None:
    """Have ana own a folder and what is in it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ANA, ANA, follow_symlinks=False)


def start(lab, wait_until):
    """Have her server run."""
    lab.hub.spawn("ana")
    lab.hub.follow("ana").whole()
    wait_until(lambda: lab.hub.server("ana").get("ready"), message=lab.hub.log)


def stop(lab, wait_until):
    """Stop it as the culler does."""
    assert lab.hub.ask("DELETE", "/users/ana/server")[0] in (202, 204)
    wait_until(lambda: not lab.hub.server("ana"), message=lab.hub.log)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_tab_goes_on_with_its_cell_variables_and_gpu_memory_when_its_server_is_back(
    lab, browser, wait_until, tmp_path
):
    start(lab, wait_until)
    context = browser.new_context(viewport=VIEWPORT)
    page = HubsLabPage(context.new_page(), lab, tmp_path)
    page.load()
    notebook = page.open_notebook("work.ipynb", lab_cells.allocate(64), COUNTING, lab_cells.READ)
    notebook.run_cell(0)
    kernel, pid = notebook.kernel_id(), processes_of(lab)
    notebook.start_cell(1)
    wait_until(lambda: "5" in notebook.output(1).split())
    stop(lab, wait_until)
    assert exists(pid)
    start(lab, wait_until)
    (lab.machine.work / "enough").touch()
    notebook.wait_for_cell(1, timeout_s=180)
    dismiss(page)
    counted = [int(number) for number in notebook.output(1).split()]
    assert counted == list(range(len(counted)))
    assert notebook.run_cell(2) == "7 7"
    assert (notebook.kernel_id(), processes_of(lab)) == (kernel, pid)

    stop(lab, wait_until)  # and in the morning
    start(lab, wait_until)
    page.page.reload()
    page.wait_for_lab()
    notebook.wait_for_kernel()
    assert notebook.run_cell(2) == "7 7"
    assert (notebook.kernel_id(), processes_of(lab)) == (kernel, pid)
    context.close()


def processes_of(lab):
    """The process of the only kernel, as the machine's controller knows it."""
    (kernel,) = lab.hub.machine.kernels().values()
    (process,) = kernel["processes"]
    return process["pid"]


def dismiss(page):
    """Close what JupyterLab itself says of a server that was away."""
    dialog = page.page.locator(".jp-Dialog")
    if dialog.is_visible():
        dialog.get_by_role("button", name="Dismiss").or_(dialog.get_by_role("button", name="Close")).click()
