"""Kernels whose monotonic clock is not the controller's, as in a time namespace."""

from __future__ import annotations

import subprocess
import sys

import pytest
from gpu_cells import KEEPER, contents
from namespaces import needs_namespaces

AHEAD = ("unshare", "--time", "--monotonic", "500000")  # days, in seconds
OF_KERNELS, OF_CONTROLLER = "kernels ahead", "controller ahead"


@pytest.mark.long
@pytest.mark.parametrize("clocks", [OF_KERNELS, OF_CONTROLLER])
def test_a_kernel_with_another_clock_is_parked_when_idle_and_only_then(native, machine, wait_until, clocks):
    needs_namespaces(*AHEAD, "true")
    machine.simulate(memory="1GiB")
    settings = ("--park-when=idle", "--idle-timeout=1", "--cell-idle-timeout=1", "--settle=0.1")
    node = (sys.executable, "-m", "jupyter_affinode.node", *settings)
    log = (machine.folder / "controller.log").open("ab")
    machine.start(*(AHEAD if clocks is OF_CONTROLLER else ()), *node, stdout=log, stderr=log)
    log.close()
    wait_until(machine.node)
    run = (sys.executable, "-m", "jupyter_affinode.cli", "run", "--", sys.executable, "-c", KEEPER, "32")
    keeper = machine.start(
        *(AHEAD if clocks is OF_KERNELS else ()),
        *run,
        env={**machine.environment, "AFFINODE_KERNEL_ID": "k"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert keeper.stdout.readline() == "ready\n"
    seen = []

    def idle_and_parked():
        kernel = machine.kernel("k") or {}
        if seen or kernel.get("residency", "none") != "none":  # the controller may meet it after it is ready
            seen.append(kernel)
        return kernel.get("residency") == "parked"

    wait_until(idle_and_parked, 30, lambda: str(seen[-1:]))
    assert seen[0].get("residency") == "resident", "it was parked at once"
    assert all(0 <= each.get("idle_s", 0) < 30 for each in seen), seen
    assert contents(keeper) == "same"
    wait_until(lambda: machine.kernel("k")["residency"] == "parked", 30)
    assert contents(keeper) == "same"
