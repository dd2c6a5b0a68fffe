"""More light kernels than the GPU has room for, at random work, for some seconds; sharing.py runs it for longer."""

from __future__ import annotations

import os
import tempfile

import pytest
from light_kernels import Workload
from live_machine import Machine
from sharing import share

KERNELS = int(os.environ.get("SHARING_KERNELS", "12"))
SECONDS = float(os.environ.get("SHARING_SECONDS", "4"))
SEED = int(os.environ.get("SHARING_SEED", "1"))  # sharing.py draws one


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 300)
def test_kernels_worth_three_gpus_lose_nothing_and_see_no_out_of_memory(native, machine: Machine, capsys):
    account = share(machine, kernels=KERNELS, seconds=SECONDS, seed=SEED, workload=Workload(think_ms=200))
    with capsys.disabled():
        print(f"\n{account}")
    assert min(account.cells) > 0 and account.parks > 0 and account.words_checked > 0


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 300)
def test_with_host_memory_for_few_and_a_disk_nothing_is_lost_either(native, machine: Machine, capsys):
    """What is parked does not fit in host memory."""
    work = Workload(mebibytes=128, think_ms=200)
    with tempfile.TemporaryDirectory(prefix="aff-spill-", dir="/var/tmp") as folder:
        account = share(
            machine,
            kernels=6,
            seconds=SECONDS,
            seed=SEED,
            workload=work,
            worth=2,
            host_mib=320,
            spill_dir=folder,
        )
    with capsys.disabled():
        print(f"\n{account}; {account.spills} went to disk")
    assert min(account.cells) > 0 and account.parks > 0 and account.words_checked > 0
    assert account.spills > 0
