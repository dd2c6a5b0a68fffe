"""Programs that start kernels by a kernelspec's name take warm ones, and know nothing of it; with a simulated GPU."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_cells import SETUP
from keepers import end_keepers
from live_machine import new_machine
from live_server import exists, free_port
from waiting import wait_until
from warm_stage import WarmStage

pytestmark = pytest.mark.long

APART = Path(__file__).resolve().parents[3] / "build" / "programs"
CELL = "import os\nprint('seen', os.getpid(), prepared, block.checksum() > 0, os.getcwd())"
MANAGERS = {
    "MultiKernelManager": """
from jupyter_client.multikernelmanager import MultiKernelManager
manager = MultiKernelManager()
kernel = manager.get_kernel(manager.start_kernel(kernel_name="warm"))
client = kernel.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=60)
client.execute_interactive(CELL, timeout=60)
client.stop_channels()
manager.shutdown_all()
""",
    "AsyncMultiKernelManager": """
import asyncio
from jupyter_client.multikernelmanager import AsyncMultiKernelManager
async def main():
    manager = AsyncMultiKernelManager()
    kernel = manager.get_kernel(await manager.start_kernel(kernel_name="warm"))
    client = kernel.client()
    client.start_channels()
    await client.wait_for_ready(timeout=60)
    await client.execute_interactive(CELL, timeout=60)
    client.stop_channels()
    await manager.shutdown_all()
asyncio.run(main())
""",
    "nbclient": """
import nbformat
from nbclient import NotebookClient
done = NotebookClient(nbformat.read("work.ipynb", as_version=4)).execute()
print(done.cells[0].outputs[0].text)
""",
}


@pytest.fixture(scope="module")
def stage(native):
    """A machine with one warm kernelspec; its kernels use a simulated GPU."""
    with new_machine() as machine:
        machine.environment["AFFINODE_FOLDER"] = str(machine.folder / "own")
        yield prepared(WarmStage(machine))
        end_keepers(machine)


def prepared(made: WarmStage) -> WarmStage:
    """Add the kernelspec, and write a notebook of it."""
    made.machine.simulate(memory="256MiB")
    if APART.exists():  # before a kernel is made: PYTHONPATH is a variable that a kernel reads once
        made.machine.environment |= {"PYTHONPATH": str(APART), "JUPYTER_PATH": str(APART / "share/jupyter")}
    prelude = made.machine.folder / "prelude.py"
    prelude.write_text(f"{SETUP}\nprint('said by the prelude')\nprepared = 42\nblock = Block(16, seed=7)")
    added = made.machine.affinode("warm", "add", "warm", "--prelude", str(prelude))
    assert added.returncode == 0, added.stderr
    source = CELL.splitlines(keepends=True)
    cell = {"cell_type": "code", "id": "one", "metadata": {}, "source": source}
    cell |= {"execution_count": None, "outputs": []}
    kernelspec = {"name": "warm", "display_name": "warm", "language": "python"}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernelspec}, "cells": [cell]}
    (made.machine.work / "work.ipynb").write_text(json.dumps(notebook))
    return made


def run(stage: WarmStage, *arguments: str, said: str = "") -> str:
    """Run a Python program until it ends; return what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=stage.machine.environment,
        cwd=stage.machine.work,
        input=said,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def apart(name: str) -> None:
    """Skip where a program is not installed apart."""
    if not (APART / name).exists() and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not there: make {APART.relative_to(APART.parents[1])}")


def nbconvert(stage: WarmStage) -> str:
    return run(
        stage, "-m", "jupyter_core", "nbconvert", "--execute", "--to", "notebook", "--stdout", "work.ipynb"
    )


def papermill(stage: WarmStage) -> str:
    apart("papermill")
    run(stage, "-m", "papermill", "--no-progress-bar", "-p", "given", "7", "work.ipynb", "done.ipynb")
    cells = json.loads((stage.machine.work / "done.ipynb").read_text())["cells"]
    assert any("given = 7" in "".join(cell["source"]) for cell in cells)
    return "".join(cells[-1]["outputs"][0]["text"])


def voila(stage: WarmStage) -> str:
    apart("voila")
    port = free_port()
    options = ("--no-browser", f"--port={port}", "work.ipynb")
    with (stage.machine.folder / "voila.log").open("w+") as log:
        server = stage.machine.start(sys.executable, "-m", "voila", *options, stdout=log, stderr=log)

        def page() -> str:
            assert server.poll() is None, Path(log.name).read_text()
            with contextlib.suppress(ConnectionError, urllib.error.URLError):
                return str(urllib.request.urlopen(f"http://localhost:{port}/", timeout=60).read().decode())
            return ""

        try:
            return wait_until(page)
        finally:
            server.terminate()
            server.wait(timeout=60)


def console(stage: WarmStage) -> str:
    apart("jupyter_console")
    options = ("--kernel=warm", "--simple-prompt", "--ZMQTerminalInteractiveShell.confirm_exit=False")
    lines = "; ".join(CELL.splitlines())
    return run(stage, "-m", "jupyter_console", *options, said=f"{lines}\nexit\n")


def jupyter_run(stage: WarmStage) -> str:
    return run(stage, "-m", "jupyter_core", "run", "--kernel=warm", said=CELL)


def jupyter_execute(stage: WarmStage) -> str:
    run(stage, "-m", "jupyter_core", "execute", "work.ipynb", "--output=executed.ipynb")
    cells = json.loads((stage.machine.work / "executed.ipynb").read_text())["cells"]
    return "".join(cells[0]["outputs"][0]["text"])


PROGRAMS: dict[str, Callable[[WarmStage], str]] = {
    "nbconvert": nbconvert,
    "papermill": papermill,
    "voila": voila,
    "jupyter console": console,
    "jupyter run": jupyter_run,
    "jupyter execute": jupyter_execute,
    **{
        name: lambda stage, code=code: run(stage, "-c", f"CELL = {CELL!r}\n{code}")
        for name, code in MANAGERS.items()
    },
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_takes_a_warm_kernel_by_name_and_nothing_of_it_stays(stage, program):
    before = stage.until("warm", "ready")
    (pid,), (kernel,) = stage.pids(), before["kernels"]
    wait_until(lambda: residencies(stage).get(kernel["id"]) == "parked", 60, stage.log)

    said = PROGRAMS[program](stage)
    seen = re.search(r"seen (\d+) 42 True (\S+?)(\\n|[\s<\"])", said)
    assert seen is not None, said
    assert seen[1] == str(pid) and seen[2] == os.path.realpath(stage.machine.work)
    assert "said by the prelude" not in said

    wait_until(lambda: not exists(pid), 60, stage.log)
    after = stage.until("warm", "ready")
    assert after["taken"] == before["taken"] + 1 and after["misses"] == before["misses"]
    (fresh,) = after["kernels"]
    assert stage.pids() != [pid]
    # The controller knows the new one alone, and no connection file stays.
    wait_until(lambda: residencies(stage).keys() == {fresh["id"]}, 60, lambda: residencies(stage))
    assert not [*Path(stage.machine.environment["JUPYTER_RUNTIME_DIR"]).glob("kernel-*.json")]


def residencies(stage: WarmStage) -> dict[str, str]:
    """Where the GPU memory of each kernel is that the controller knows."""
    if stage.machine.node() is None:
        return {}
    return {kernel_id: kernel["residency"] for kernel_id, kernel in stage.machine.kernels().items()}
