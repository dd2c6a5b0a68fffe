"""SIGTERM to every process of a machine at once, as systemd sends it with KillMode=control-group.

Servers, keepers, kernels and CRIU are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from gpu_cells import SETUP
from hibernating import images, prepare
from live_machine import environment_of_started
from live_server import JupyterServer
from tab import run_in_tab

from jupyter_affinode import environment
from jupyter_affinode.hibernation import criu as criu_program

INTO_IMAGES = "--AffinodeExtension.keep_kernels=hibernated"


@pytest.fixture
def server(keeping_machine, criu):
    """A server whose kernels hibernate; each test starts it."""
    made = prepare(JupyterServer(keeping_machine), criu)
    yield made
    made.stop()


def processes_of(server: JupyterServer) -> list[int]:
    """Everything that runs on the server's machine: what has its folder in the environment that it was started with."""
    name = f"JUPYTER_RUNTIME_DIR={server.machine.environment['JUPYTER_RUNTIME_DIR']}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if name in environment_of_started(int(path.name)).split(b"\0"):
                found.append(int(path.name))
    return found


def end_all(server: JupyterServer, *numbers: int) -> None:
    """Send signals to every process at once."""
    for number in numbers:
        for pid in processes_of(server):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
def test_kernels_hibernate_when_all_processes_get_sigterm(server, times):
    """Twice, as Slurm does, and again when the server has ended, as systemd does."""
    server.start(INTO_IMAGES)
    kernel = server.start_kernel(path="work.ipynb")
    assert kernel.run("kept = 7").error is None
    kernel.close()
    end_all(server, *[signal.SIGTERM] * times)
    server.process.wait(timeout=120)
    end_all(server, signal.SIGTERM, signal.SIGCONT)
    assert images(server) == [kernel.id], server.log()[-3000:]
    server.start(INTO_IMAGES, port=server.port)
    assert run_in_tab(server, kernel.id, "print(kept)") == "7\n"


@pytest.mark.long
def test_a_kernel_with_gpu_memory_hibernates_when_all_processes_get_sigterm(server):
    server.machine.simulate("4GiB")
    server.start(INTO_IMAGES)
    kernel = server.start_kernel(path="work.ipynb")
    before = kernel.run(f"{SETUP}\nblock = Block(24, seed=7)\nprint(block.checksum())").text
    kernel.close()
    end_all(server, signal.SIGTERM, signal.SIGCONT)
    server.process.wait(timeout=120)
    end_all(server, signal.SIGTERM, signal.SIGCONT)
    assert images(server) == [kernel.id], server.log()[-3000:]
    server.start(INTO_IMAGES, port=server.port)
    assert run_in_tab(server, kernel.id, "print(block.checksum())") == before != ""


def test_criu_that_gets_sigterm_too_does_its_work(criu, tmp_path, monkeypatch):
    """It has code of its own in the process that it writes, which may end with it."""
    wrapper = tmp_path / "criu"
    wrapper.write_text(f'#!/bin/sh\nkill -TERM $$\nkill -HUP $$\nexec {criu} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv(environment.CRIU, str(wrapper))
    monkeypatch.setattr(criu_program, "_works", {})
    assert asyncio.run(criu_program.try_out())


@pytest.mark.long
def test_kernels_run_on_when_all_processes_get_sigterm_and_none_is_killed(server):
    server.start("--AffinodeExtension.keep_kernels=all")
    kernel = server.start_kernel(path="work.ipynb")
    assert kernel.run("kept = 7").error is None
    kernel.close()
    end_all(server, signal.SIGTERM)
    server.process.wait(timeout=120)
    server.start("--AffinodeExtension.keep_kernels=all", port=server.port)
    assert run_in_tab(server, kernel.id, "print(kept)") == "7\n"
