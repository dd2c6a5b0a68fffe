"""A random fault of each kind beside a real server, its keeper and CRIU; keeping.py injects as many as wanted."""

from __future__ import annotations

import asyncio
import os

import pytest
from fetched_criu import fetched_criu
from keeping import KINDS, Keeping, small_disk
from live_machine import Machine

FAULTS = int(os.environ.get("CHAOS_FAULTS", str(len(KINDS))))
GAP_S = 0.5
SEED = int(os.environ.get("CHAOS_SEED", "2"))  # keeping.py draws one


@pytest.mark.long
@pytest.mark.timeout(20 * FAULTS + 600)
def test_no_fault_loses_a_kernel_that_outlives_its_server_or_hibernates(native, machine: Machine, capsys):
    with small_disk(machine.folder / "disk"):
        chaos = Keeping(machine, SEED, fetched_criu(), servers=1, kernels=2)
        asyncio.run(chaos.run(FAULTS, GAP_S))
    with capsys.disabled():
        print(f"\n{chaos.account()}")
    assert chaos.faults == FAULTS and chaos.outcomes["cells that were run and answered"] > 0
