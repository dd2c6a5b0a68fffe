"""Where host memory is short a controller has a real kernel hibernate, and its tab's next cell has it back."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from gpu_cells import SETUP
from hibernating import images, moved, result
from tab import Tab
from waiting import until

CHAOS = Path(__file__).resolve().parents[2] / "chaos"
MIB = 64  # of each kernel on the GPU
HOST_MIB = 164  # of host memory, as the controller sees it: for two of them
# Kernels that have just begun may hibernate for others, too.
CONTROLLER = f"""
from jupyter_affinode.node.simulation import start_over
start_over()
import sys
sys.path.insert(0, {str(CHAOS)!r})
from bounded_controller import bound
from jupyter_affinode.node.app import NodeController
from jupyter_affinode.node.policy.resources import disk
disk.may_hibernate.__defaults__ = (0.0,)
disk.DiskRoom.hibernates.__defaults__ = (disk.NO_BYTES, 0.0)
bound({HOST_MIB} << 20)
NodeController.launch_instance(sys.argv[1:])
"""


@pytest.mark.long
def test_the_least_recently_used_kernel_hibernates_and_its_next_cell_wakes_it(unstarted):
    machine = unstarted.machine
    machine.simulate("4GiB")
    with (machine.folder / "controller.log").open("ab") as log:
        options = ("--settle=0", "--host-reserve-bytes=0", "--lot-bytes=0")
        machine.start(sys.executable, "-c", CONTROLLER, *options, stdout=log, stderr=log)
    asyncio.run(until(machine.node))
    server = unstarted.start()
    kernels = [server.start_kernel(path=f"{name}.ipynb") for name in ("first", "second", "third")]

    def residency(kernel_id: str) -> str:
        return str(machine.kernel(kernel_id)["residency"])

    async def story() -> None:
        tabs = []
        for kernel in kernels:
            kernel.close()
            tabs.append(await Tab(kernel.id).attach(server))
        first, second, third = tabs
        block = f"{SETUP}\nblock, kept = Block({MIB}, seed=7), {{}}\nprint(block.checksum(), id(kept))"
        known = {tab: await result(tab, block) for tab in tabs}
        for tab in (first, second):
            await moved(server, tab.kernel_id, "park")
        assert [residency(tab.kernel_id) for tab in tabs] == ["parked", "parked", "resident"]
        # There is no room for the third beside them.
        parking = asyncio.create_task(
            asyncio.to_thread(server.affinode, f"kernels/{third.kernel_id}/park", "POST", {})
        )
        await until(lambda: residency(first.kernel_id) == "hibernated" and images(server))
        await parking
        await until(lambda: residency(third.kernel_id) == "parked")
        assert residency(second.kernel_id) == "parked"
        # The next cell of each has it back, as it was.
        for tab in tabs:
            assert await result(tab, "print(block.checksum(), id(kept))") == known[tab]
            await until(lambda tab=tab: residency(tab.kernel_id) == "resident")
            await tab.close()

    asyncio.run(story())
