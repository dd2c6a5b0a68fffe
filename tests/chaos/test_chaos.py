"""A dozen random faults, one of each kind at least; chaos.py injects as many as wanted."""

from __future__ import annotations

import os

import pytest
from chaos import Chaos, spill_folder
from fetched_criu import fetched_criu
from live_machine import Machine

FAULTS = int(os.environ.get("CHAOS_FAULTS", "12"))
GAP_S = 0.2
SEED = int(os.environ.get("CHAOS_SEED", "1"))  # chaos.py draws one


@pytest.mark.timeout(FAULTS + 300)
def test_no_fault_loses_a_kernel_or_holds_one_up_for_ever(native, machine: Machine, capsys):
    chaos = Chaos(machine, SEED, kernels=6, servers=2, block_s=1.0)
    account = chaos.run(FAULTS, GAP_S)
    with capsys.disabled():
        print(f"\n{account}")
    assert account.faults == FAULTS and account.cells > 0 and account.words_checked > 0


@pytest.mark.long
@pytest.mark.timeout(FAULTS + 600)
def test_nor_does_one_where_kernels_hand_their_host_memory_over(native, machine: Machine, capsys):
    with spill_folder() as spill_dir:
        chaos = Chaos(machine, SEED, kernels=4, servers=2, block_s=1.0, spill_dir=spill_dir, ballast_mib=480)
        account = chaos.run(FAULTS, GAP_S)
    with capsys.disabled():
        print(f"\n{account}")
    assert account.faults == FAULTS and account.moves["hand-overs"] > 0


@pytest.mark.long
@pytest.mark.timeout(FAULTS + 600)
def test_nor_does_one_where_kernels_hibernate(native, machine: Machine, capsys):
    criu = fetched_criu()
    faults = max(FAULTS, 30)
    with spill_folder() as images:
        chaos = Chaos(machine, SEED, kernels=4, servers=2, block_s=1.0, images=images, criu=criu)
        account = chaos.run(faults, GAP_S)
    with capsys.disabled():
        print(f"\n{account}")
    assert account.faults == faults and account.moves["hibernations"] > 0
