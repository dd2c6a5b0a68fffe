"""Kernels change places on a simulated GPU while host memory is short, under a real controller."""

from __future__ import annotations

import re
import tempfile
from contextlib import ExitStack

import pytest
from live_machine import Machine
from sharing import metrics, refusals, start_bounded

from jupyter_affinode.bench.child_process import BenchProcess
from jupyter_affinode.settings.policy import MIB

SIZE_MIB = 640
SPARE_MIB = 48  # contexts and what else is on the GPU
FREE_MIB = 560  # host memory beside a copy, and the reserve: two windows, and slabs that are not full
HOST_MIB = (SIZE_MIB + FREE_MIB) * 8 // 7
# Six whole lots. Beside two of them host memory has what a hand-over begins with (320 MiB), and a lot for each parked
# kernel, since lots come free only when they are empty, and 64 MiB: too little for another.
LARGE_MIB = 1536
HOST_WITH_DISK_MIB = (2 * LARGE_MIB + 320 + 3 * 256 + 64) * 8 // 7
EXCHANGES = 3
OPTIONS = ["--idle-timeout=0.1", "--contended-idle-timeout=0.1", "--margin-bytes=0", "--low-watermark=0"]


def simulate(machine: Machine, monkeypatch: pytest.MonkeyPatch, size_mib: int) -> None:
    """Give the machine a GPU with room for one kernel."""
    machine.simulate(memory=f"{size_mib + SPARE_MIB}MiB")
    machine.environment["AFFINODE_SIM_CONTEXT"] = "1MiB"
    for name, value in machine.environment.items():
        if name.startswith("AFFINODE_"):
            monkeypatch.setenv(name, value)


def begin(machine: Machine, stack: ExitStack, name: str, size_mib: int) -> BenchProcess:
    """Start a kernel that has all of the GPU."""
    child = stack.enter_context(BenchProcess(socket=machine.socket, kernel_id=name))
    child.ask("hold", size=size_mib * MIB, block=64 * MIB)
    child.ask("change", seed=1)
    return child


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_kernels_change_places_with_host_memory_for_one_copy(native, machine: Machine, monkeypatch):
    """What is written before each exchange is there after it; no park is refused."""
    simulate(machine, monkeypatch, SIZE_MIB)
    start_bounded(machine, HOST_MIB, OPTIONS)
    with ExitStack() as stack:
        kernels = [begin(machine, stack, name, SIZE_MIB) for name in ("a", "b")]
        refused = refusals(metrics(machine))
        for turn in range(EXCHANGES):
            child = kernels[turn % 2]
            assert child.ask("verify") == {"differing_words": 0}
            child.ask("change", seed=2 + turn)
        for child in kernels:
            assert child.ask("verify") == {"differing_words": 0}
        handed = re.findall(r"(\w+) hands its host memory over to (\w+)", machine.controller_log())
        assert len(handed) > EXCHANGES, machine.controller_log()
        assert refusals(metrics(machine)) == refused, machine.controller_log()


@pytest.mark.long
@pytest.mark.timeout(900)  # it copies for a minute, alone
def test_a_kernel_on_a_full_disk_is_read_back_and_changes_places(native, machine: Machine, monkeypatch):
    """Host memory has no room for the kernel on the GPU, and the disk has room for the one that it has already."""
    simulate(machine, monkeypatch, LARGE_MIB)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="affinode-spill-", dir="/var/tmp"))
        disk = [f"--spill-dir={folder}", f"--spill-limit-bytes={LARGE_MIB * MIB}"]
        start_bounded(machine, HOST_WITH_DISK_MIB, [*OPTIONS, *disk])
        kernels = [begin(machine, stack, name, LARGE_MIB) for name in ("a", "b", "c", "d")]
        for turn in range(2 * len(kernels)):
            child = kernels[turn % len(kernels)]
            assert child.ask("verify") == {"differing_words": 0}
            child.ask("change", seed=2 + turn)
        for child in kernels:
            assert child.ask("verify") == {"differing_words": 0}
        log = machine.controller_log()
        assert len(re.findall(r": [1-9].* read from disk in ", log)) > 0, log
