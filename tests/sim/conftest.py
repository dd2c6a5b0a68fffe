"""Programs that run on a simulated GPU of their own, unchanged: cuda-bindings, pynvml, and C."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_machine import Machine

HERE = Path(__file__).resolve().parent
LINKS = {
    "libcuda.so.1": "libaffinode-sim-cuda.so",
    "libcuda.so": "libaffinode-sim-cuda.so",
    "libnvidia-ml.so.1": "libaffinode-sim-nvml.so",
}


class SimulatedMachine:
    """One simulated machine; `run` and `start` execute Python code after `from sim_program import *`."""

    def __init__(self, machine: Machine, native: Path):
        self.machine = machine
        self.libraries = machine.folder / "sim"
        self.libraries.mkdir()
        for link, library in LINKS.items():
            (self.libraries / link).symlink_to(native / library)
        machine.environment.update(
            LD_LIBRARY_PATH=str(self.libraries),
            PYTHONPATH=str(HERE),
            AFFINODE_SIM_MEMORY="1GiB",
            AFFINODE_SIM_CONTEXT="64MiB",
        )

    def set(self, **variables: str) -> None:
        """Set AFFINODE_SIM_<NAME> variables for what is started from now on."""
        self.machine.environment.update({f"AFFINODE_SIM_{name.upper()}": v for name, v in variables.items()})

    def start(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a program with pipes; its first line of output usually says that it is ready."""
        program = "import os, sys\nfrom sim_program import *\n" + textwrap.dedent(code)
        return self.machine.start(
            sys.executable,
            "-c",
            program,
            *arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, *arguments: str, timeout: float = 200) -> list[str]:
        """Run a program to its end, which must be a good one; the lines it printed."""
        process = self.start(code, *arguments)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"not done in {timeout} s:\n{out}\n{err}")
        assert process.returncode == 0, f"exit status {process.returncode}:\n{out}\n{err}"
        return out.splitlines()


@pytest.fixture
def gpu(native: Path, machine: Machine) -> Iterator[SimulatedMachine]:
    """A simulated machine with one GPU of 1 GiB whose contexts cost 64 MiB."""
    yield SimulatedMachine(machine, native)
