"""Servers whose kernels hibernate while they run, and what tests have them do."""

from __future__ import annotations

import asyncio
from typing import Any

from live_server import JupyterServer
from tab import Tab
from waiting import until


def prepare(server: JupyterServer, criu: str) -> JupyterServer:
    """Have a server's kernels hibernate."""
    folder = server.machine.folder
    server.machine.environment.update(
        AFFINODE_CRIU=criu,
        AFFINODE_HIBERNATE_DIR=str(folder / "images"),
        XDG_STATE_HOME=str(folder / "state"),
    )
    server.transport = "tcp"
    return server


def end_kernels(server: JupyterServer) -> None:
    """End all that a server has."""
    for model in server.request("GET", "/api/kernels")[1]:
        server.request("DELETE", f"/api/kernels/{model['id']}")


def images(server: JupyterServer) -> list[str]:
    """The images of the machine."""
    folder = server.machine.folder / "images"
    return sorted(path.name for path in folder.glob("[!.]*"))


def move(server: JupyterServer, kernel_id: str, action: str, status: int = 200) -> dict[str, Any]:
    """Have a kernel hibernate, wake, or stay."""
    found, answer = server.affinode(f"kernels/{kernel_id}/{action}", "POST", {})
    assert found == status, (answer, server.log()[-3000:])
    return answer


async def moved(server: JupyterServer, kernel_id: str, action: str, status: int = 200) -> dict[str, Any]:
    """`move`, while tabs are read."""
    return await asyncio.to_thread(move, server, kernel_id, action, status)


async def result(tab: Tab, code: str) -> str:
    """What a cell prints."""
    message_id = tab.run(code)
    await until(lambda: tab.is_done(message_id))
    return tab.text(message_id)
