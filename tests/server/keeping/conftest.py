"""A machine whose keeper is its own, and CRIU."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from keepers import keepers

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def keeping_machine(machine):
    """A machine whose keeper is its own."""
    machine.environment["AFFINODE_FOLDER"] = str(machine.folder / "own")
    yield machine
    for pid in keepers(machine):
        os.kill(pid, signal.SIGKILL)


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
