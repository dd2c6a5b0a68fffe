"""Hibernated kernels, and those on their way, while their server ends: real servers, kernels and CRIU."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

import pytest
from gpu_cells import SETUP
from hibernating import images, move, moved, prepare, result
from keepers import the_keeper
from live_server import JupyterKernel, JupyterServer
from tab import Tab, run_in_tab
from tornado.websocket import WebSocketClosedError
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


def state_of(server: JupyterServer, kernel: JupyterKernel) -> str | None:
    """What a person is shown of a kernel's hibernation."""
    return server.affinode(f"kernels/{kernel.id}")[1]["hibernation"]["state"]


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
        with contextlib.suppress(WebSocketClosedError):  # its connection has ended
            tab.run("print(kept)")
        await ended(server)
        await tab.close()

    asyncio.run(told())
    assert images(server) == sorted([large.id, small.id])
    server.start(INTO_IMAGES, port=server.port)
    for kernel, kept in ((small, 8), (large, 7)):
        assert run_in_tab(server, kernel.id, "print(kept)") == f"{kept}\n"


@pytest.mark.long
def test_a_cell_that_wakes_its_kernel_while_the_server_ends_is_interrupted(server):
    """Its kernel says that it is busy a moment after the server has looked."""
    server.start(INTO_IMAGES)
    kernel = started(server, "large.ipynb", LARGE)

    async def told() -> None:
        tab = await Tab(kernel.id).attach(server)
        await moved(server, kernel.id, "hibernate")
        keeper = the_keeper(server.machine)
        os.kill(keeper, signal.SIGSTOP)
        tab.run("kept = 8\nwhile True: pass")
        await until(lambda: state_of(server, kernel) == "waking")
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: "received signal" in server.log())
        os.kill(keeper, signal.SIGCONT)
        await ended(server)
        await tab.close()

    asyncio.run(told())
    assert images(server) == [kernel.id]
    server.start(INTO_IMAGES, port=server.port)
    assert run_in_tab(server, kernel.id, "print(kept, len(big))") == "8 300\n"


@pytest.mark.long
def test_a_keeper_that_is_killed_while_kernels_are_handed_over_loses_none(server):
    """The next one knows them by what the server had told the first."""
    server.start("--AffinodeExtension.keep_kernels=all")
    kernels = [started(server, f"{name}.ipynb", f"kept = {name!r}") for name in ("one", "two")]

    async def told() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET /api?token={server.token} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        keeper = the_keeper(server.machine)
        os.kill(keeper, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        await reader.read()  # until the server closes all connections, and begins to hand over
        os.kill(keeper, signal.SIGKILL)
        await ended(server)
        writer.close()

    asyncio.run(told())
    server.start("--AffinodeExtension.keep_kernels=all", port=server.port)
    for kernel, name in zip(kernels, ("one", "two"), strict=True):
        assert run_in_tab(server, kernel.id, "print(kept)") == f"{name}\n"


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
    may_end = server.machine.folder / "may-end"
    waits = f"while not os.path.exists({str(may_end)!r}): time.sleep(0.01)"

    async def told() -> None:
        tab = await Tab(kernel.id).attach(server)
        cell = tab.run(f"import os, time; print('begun', flush=True)\n{waits}")
        await until(lambda: tab.text(cell) == "begun\n")

        def ask() -> asyncio.Task[tuple[int, Any]]:
            asks = asyncio.to_thread(server.affinode, f"kernels/{kernel.id}/hibernate", "POST", {})
            return asyncio.create_task(asks)

        first = ask()
        await asyncio.sleep(0.05)  # each looks every 0.1 s whether the cell has ended
        second = ask()
        await asyncio.sleep(0.2)  # both are under way; the server waits for a second
        may_end.touch()
        answers = await asyncio.gather(first, second)
        statuses = sorted(status for status, _ in answers)
        assert statuses in ([200, 200], [200, 409]), answers
        assert await result(tab, "print(kept)") == "7\n"
        await moved(server, kernel.id, "hibernate")
        assert await result(tab, "print(kept)") == "7\n"
        await tab.close()

    asyncio.run(told())
