"""Kernels whose server runs hibernate and wake: real servers, tabs and kernels, real CRIU."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from live_server import JupyterServer, exists
from tab import Tab

CYCLES = 3


@pytest.fixture
def server(keeping_machine, criu):
    """A server whose kernels hibernate; they end with it."""
    keeping_machine.environment["AFFINODE_CRIU"] = criu
    keeping_machine.environment["AFFINODE_HIBERNATE_DIR"] = str(keeping_machine.folder / "images")
    keeping_machine.environment["XDG_STATE_HOME"] = str(keeping_machine.folder / "state")
    made = JupyterServer(keeping_machine)
    made.transport = "tcp"
    made.start()
    yield made
    if made.process.poll() is None:
        made.stop()


def images(server: JupyterServer) -> list[str]:
    """The images of the machine."""
    folder = server.machine.folder / "images"
    return sorted(os.listdir(folder)) if folder.exists() else []


def move(server: JupyterServer, kernel_id: str, action: str, status: int = 200) -> dict:
    """Have a kernel hibernate, wake, or stay."""
    found, answer = server.affinode(f"kernels/{kernel_id}/{action}", "POST", {})
    assert found == status, (answer, server.log()[-3000:])
    return answer


async def until(seen, seconds: float = 60.0):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < end, seen
        await asyncio.sleep(0.02)
    return found


async def result(tab: Tab, code: str) -> str:
    """What a cell prints."""
    message_id = tab.run(code)
    await until(lambda: tab.is_done(message_id))
    return tab.text(message_id)


def test_a_kernel_with_a_tab_hibernates_and_the_next_cell_wakes_it(server):
    kernel = server.start_kernel(path="work.ipynb")
    pid = kernel.pid
    kernel.close()

    async def story() -> None:
        tab = await Tab(kernel.id).attach(server)
        address = await result(tab, "kept = [1, 2, 3]; done = []; print(id(kept))")
        for cycle in range(CYCLES):
            hibernated = await asyncio.to_thread(move, server, kernel.id, "hibernate")
            assert hibernated["hibernation"]["state"] == "hibernated"
            assert not exists(pid)
            assert len(images(server)) == 1
            assert kernel.alive()
            sent = [
                tab.run(f"done.append(({cycle}, {number})); print(len(done), flush=True)")
                for number in range(3)
            ]
            asked = tab.send("complete_request", {"code": "kept.app", "cursor_pos": 8})
            await until(lambda: all(map(tab.is_done, sent)) and asked in tab.replies)  # noqa: B023
            assert [tab.text(each) for each in sent] == [f"{3 * cycle + n + 1}\n" for n in range(3)]
            assert tab.replies[asked]["matches"]
        assert await result(tab, "print(id(kept), kept)") == f"{address.strip()} [1, 2, 3]\n"
        assert await result(tab, "import os; print(os.getpid())") == f"{pid}\n"
        assert images(server) == []
        await tab.close()

    asyncio.run(story())
