"""Two kernels change places on a simulated GPU with host memory for one copy, under a real controller."""

from __future__ import annotations

import re
from contextlib import ExitStack

import pytest
from live_machine import Machine
from sharing import metrics, refusals, start_bounded

from jupyter_affinode.bench.child_process import BenchProcess
from jupyter_affinode.settings.policy import MIB

SIZE_MIB = 640
SPARE_MIB = 24  # contexts and what else is on the GPU
FREE_MIB = 560  # host memory beside a copy, and the reserve: two windows, and slabs that are not full
HOST_MIB = (SIZE_MIB + FREE_MIB) * 8 // 7
EXCHANGES = 3
OPTIONS = ["--idle-timeout=0.1", "--contended-idle-timeout=0.1", "--margin-bytes=0", "--low-watermark=0"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_kernels_change_places_with_host_memory_for_one_copy(native, machine: Machine, monkeypatch):
    """What is written before each exchange is there after it; no park is refused."""
    machine.simulate(memory=f"{SIZE_MIB + SPARE_MIB}MiB")
    machine.environment["AFFINODE_SIM_CONTEXT"] = "1MiB"
    for name, value in machine.environment.items():
        if name.startswith("AFFINODE_"):
            monkeypatch.setenv(name, value)
    start_bounded(machine, HOST_MIB, OPTIONS)
    with ExitStack() as stack:
        kernels = []
        for name in ("a", "b"):
            child = BenchProcess(socket=machine.socket, kernel_id=name)
            kernels.append(stack.enter_context(child))
            child.ask("hold", size=SIZE_MIB * MIB, block=64 * MIB)
            child.ask("change", seed=1)
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
