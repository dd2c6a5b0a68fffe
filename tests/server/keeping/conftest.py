"""A machine whose keeper is its own, and CRIU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
from keepers import keepers
from live_machine import new_machine
from live_server import JupyterServer

ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def with_own_keeper(machine):
    """Have the machine's keeper be its own."""
    machine.environment["AFFINODE_FOLDER"] = str(machine.folder / "own")
    yield
    for pid in keepers(machine):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def keeping_machine(machine):
    """A machine whose keeper is its own."""
    with with_own_keeper(machine):
        yield machine


@pytest.fixture(scope="module")
def keeping_server():
    """A server on such a machine for a module's tests, which start it, end it and start it again."""
    with new_machine() as machine, with_own_keeper(machine):
        made = JupyterServer(machine)
        yield made
        made.stop()


@pytest.fixture(scope="session")
def criu(tmp_path_factory) -> str:
    """How CRIU is called; fetched once for all tests, and skipped where it cannot be."""
    fetched = subprocess.run(
        [ROOT / "binder" / "criu.sh", ROOT / "build" / "criu"], capture_output=True, text=True
    )
    if fetched.returncode:
        pytest.skip(f"CRIU cannot be had: {fetched.stderr.strip()}")
    command = fetched.stdout.strip()
    checked = subprocess.run([*command.split(), "check"], capture_output=True, text=True)
    if checked.returncode:
        pytest.skip(f"CRIU does not work here: {checked.stderr.strip()}")
    return command
