"""Hibernated kernels, and those on their way, while their server ends: real servers, kernels and CRIU."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from gpu_cells import SETUP
from hibernating import images, move, moved, prepare, result
from live_server import JupyterKernel, JupyterServer
from tab import Tab, run_in_tab
from waiting import until

INTO_IMAGES = "--AffinodeExtension.keep_kernels=hibernated"
LARGE = "import os; kept = 7; big = [os.urandom(1 << 20) for _ in range(300)]"


@pytest.fixture
def server(keeping_machine, criu):
    """A server whose kernels hibernate; each test starts it."""
    made = prepare(JupyterServer(keeping_machine), criu)
    yield made
    made.stop()


def started(server: JupyterServer, path: str, code: str) -> JupyterKernel:
    """A kernel that has run a cell."""
    kernel = server.start_kernel(path=path)
    done = kernel.run(code)
    assert done.error is None, done.traceback
    kernel.close()
    return kernel


async def ended(server: JupyterServer) -> None:
    await asyncio.to_thread(server.process.wait, 120)


def test_a_kernel_that_is_on_its_way_into_its_image_gets_there(server):
    server.start(INTO_IMAGES)
    kernel = started(server, "large.ipynb", LARGE)

    async def told() -> None:
        going = asyncio.create_task(
            asyncio.to_thread(server.affinode, f"kernels/{kernel.id}/hibernate", "POST", {})
        )
        await until(lambda: images(server))
        server.process.send_signal(signal.SIGTERM)
        await asyncio.gather(going, return_exceptions=True)  # its answer may not come any more
        await ended(server)

    asyncio.run(told())
    assert images(server) == [kernel.id]
    server.start(INTO_IMAGES, port=server.port)
    assert run_in_tab(server, kernel.id, "print(kept, len(big))") == "7 300\n"


@pytest.mark.long
def test_a_tab_wakes_no_kernel_while_another_one_is_still_written(server):
    server.start(INTO_IMAGES)
    large, small = started(server, "large.ipynb", LARGE), started(server, "small.ipynb", "kept = 8")
    move(server, small.id, "hibernate")

    async def told() -> None:
        tab = await Tab(small.id).attach(server)
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: len(images(server)) == 2)
        tab.run("print(kept)")
        await ended(server)
        await tab.close()

    asyncio.run(told())
    assert images(server) == sorted([large.id, small.id])
    server.start(INTO_IMAGES, port=server.port)
    for kernel, kept in ((small, 8), (large, 7)):
        assert run_in_tab(server, kernel.id, "print(kept)") == f"{kept}\n"


@pytest.mark.long
def test_a_controller_that_does_not_answer_costs_no_hibernated_kernel(server):
    """What runs may be on the GPU, for all that its server knows, and ends with it."""
    server.machine.simulate("4GiB")
    controller = server.machine.start_controller("--settle=0")
    server.start("--AffinodeExtension.keep_kernels=parked")
    hibernated = started(server, "hibernated.ipynb", "kept = 7")
    started(server, "runs.ipynb", f"{SETUP}\nblock = Block(24, seed=7)")
    move(server, hibernated.id, "hibernate")
    controller.send_signal(signal.SIGSTOP)
    try:
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(timeout=120)
    finally:
        controller.send_signal(signal.SIGCONT)
    assert images(server) == [hibernated.id]
    server.start("--AffinodeExtension.keep_kernels=parked", port=server.port)
    assert run_in_tab(server, hibernated.id, "print(kept)") == "7\n"


def test_two_who_ask_during_a_cell_have_it_hibernate_once(server):
    server.start()
    kernel = started(server, "work.ipynb", "kept = 7")

    async def told() -> None:
        tab = await Tab(kernel.id).attach(server)
        cell = tab.run("import time; print('begun', flush=True); time.sleep(0.7)")
        await until(lambda: tab.text(cell) == "begun\n")

        def ask() -> asyncio.Task[tuple[int, Any]]:
            asks = asyncio.to_thread(server.affinode, f"kernels/{kernel.id}/hibernate", "POST", {})
            return asyncio.create_task(asks)

        first = ask()
        await asyncio.sleep(0.05)  # each looks every 0.1 s whether the cell has ended
        answers = await asyncio.gather(first, ask())
        statuses = sorted(status for status, _ in answers)
        assert statuses in ([200, 200], [200, 409]), answers
        assert await result(tab, "print(kept)") == "7\n"
        await moved(server, kernel.id, "hibernate")
        assert await result(tab, "print(kept)") == "7\n"
        await tab.close()

    asyncio.run(told())
