"""Pods as mount and pid namespaces: the real controller, shim and init container's script, and a simulated GPU."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from gpu_cells import SETUP
from live_machine import Machine

NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
HOLD = f"""{SETUP}
import sys
try:
    block = Block(int(sys.argv[1]))
    print("has it", flush=True)
except RuntimeError as error:
    print(error, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def namespaces() -> list[str]:
    """A command line that begins mount and pid namespaces; skips where there are none."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not here")
    probe = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no namespaces here: {probe.stderr.strip()}")
    return NAMESPACES


@contextlib.contextmanager
def asking_for(machine: Machine, mib: int, *prefix: str) -> Iterator[str]:
    """Start a program that asks the simulated GPU for so much and keeps it; what it says."""
    command = [
        *prefix,
        sys.executable,
        "-m",
        "jupyter_affinode.cli",
        "simulate",
        "--",
        sys.executable,
        "-c",
        HOLD,
    ]
    process = machine.start(
        *command, str(mib), env={**machine.environment, "AFFINODE_DISABLE": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill() if prefix else process.stdin.close()
        process.wait(timeout=60)


def test_processes_of_other_pid_namespaces_keep_their_memory_of_the_simulated_gpu(
    gpu_machine, namespaces, wait_until
):
    """And it is free again when they are killed."""

    def said() -> str:
        with asking_for(gpu_machine, 700) as answer:
            return answer

    with asking_for(gpu_machine, 700, *namespaces) as answer:
        assert answer == "has it"
        assert said() == "CUDA_ERROR_OUT_OF_MEMORY"
    wait_until(lambda: said() == "has it", timeout=60)
