"""Kernels of other kinds, twenty times into an image and back: they wait in calls of Linux in ways of their own.

Each is tried where its kernelspec is installed, in this environment or in a folder of JUPYTER_PATH.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from live_machine import Machine
from lone_kernel import PATIENCE_S, LoneKernel

CYCLES = 20
# What a kernel counts with, and prints.
CELLS = {
    "xpython": ("n = 0", "n += 1; print(n)"),
    "xpython-raw": ("n = 0", "n += 1; print(n)"),
    "bash": ("n=0", "n=$((n+1)); echo $n"),
    "python3": ("n = 0", "n += 1; print(n)"),  # with a subshell
    "ir": ("n <- 0", "n <- n + 1; cat(n)"),
}


class OtherKernel(LoneKernel):
    """One of another kernelspec."""

    def __init__(self, machine: Machine, kind: str):
        """Find out how it is started; skip where it is not installed."""
        super().__init__(machine, uses_gpu=False)
        self.kind = kind
        folder = KernelSpecManager().find_kernel_specs().get(kind)
        if folder is None:
            pytest.skip(f"the kernelspec {kind} is not installed")
        spec = json.loads((Path(folder) / "kernel.json").read_text())
        program, *words = (word for word in spec["argv"] if word not in ("-f", "{connection_file}"))
        own = Path(folder).parents[3] / "bin" / program
        self.command = [str(own) if own.exists() else program, *words]
        self.environment.update(spec.get("env", {}))

    def begin(self) -> None:
        """Run its first cell."""
        self.run(CELLS[self.kind][0])
        self.pid = int((self.folder / "connection.json.pid").read_text())
        if self.kind == "python3":
            self.begin_subshell()

    def begin_subshell(self) -> None:
        """Have ipykernel make a thread that executes beside the first."""
        client = BlockingKernelClient(connection_file=str(self.folder / "connection.json"))
        client.load_connection_file()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=PATIENCE_S)
            client.control_channel.send(client.session.msg("create_subshell_request"))
            reply = client.get_control_msg(timeout=PATIENCE_S)
            assert reply["content"]["status"] == "ok", reply
        finally:
            client.stop_channels()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", CELLS)
def test_a_kernel_of_another_kind_hibernates_and_wakes_twenty_times(
    gpu_machine_with_criu: Machine, kind: str
) -> None:
    with OtherKernel(gpu_machine_with_criu, kind) as kernel:
        for number in range(1, CYCLES + 1):
            kernel.hibernate()
            kernel.wake()
            assert re.findall(r"\d+", kernel.run(CELLS[kind][1])) == [str(number)]
