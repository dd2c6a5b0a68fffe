"""A browser tab's connection to a kernel: a websocket that is made again with the same session after it broke."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from live_server import JupyterServer
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect
from waiting import until


class Tab:
    """Attached to one kernel; `outputs` and `replies` by the id of the request that they answer."""

    def __init__(self, kernel_id: str):
        self.kernel_id = kernel_id
        self.session = uuid.uuid4().hex
        self.outputs: dict[str, list[dict[str, Any]]] = {}
        self.replies: dict[str, dict[str, Any]] = {}
        self.control: dict[str, dict[str, Any]] = {}  # as `replies`
        self.questions: list[dict[str, Any]] = []
        self._socket: WebSocketClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None

    async def attach(self, server: JupyterServer) -> Tab:
        """Connect, again after the server's end."""
        await self.close()
        url = f"ws{server.url[4:]}/api/kernels/{self.kernel_id}/channels?session_id={self.session}"
        request = HTTPRequest(url, headers={"Authorization": f"token {server.token}"}, request_timeout=60)
        self._socket = await websocket_connect(request, max_message_size=1 << 30)
        self._reading = asyncio.get_running_loop().create_task(self._read(self._socket))
        return self

    async def _read(self, socket: WebSocketClientConnection) -> None:
        while (text := await socket.read_message()) is not None:
            message = json.loads(text)
            parent = message["parent_header"].get("msg_id", "")
            if message["channel"] == "iopub":
                self.outputs.setdefault(parent, []).append(message)
            elif message["channel"] == "stdin":
                self.questions.append(message)
            elif message["channel"] == "shell":
                self.replies[parent] = message["content"]
            elif message["channel"] == "control":
                self.control[parent] = message["content"]

    def send(self, kind: str, content: dict[str, Any], channel: str = "shell", parent: Any = None) -> str:
        """Send a message; its id."""
        assert self._socket is not None
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": kind,
            "session": self.session,
            "username": "",
            "version": "5.4",
        }
        message = {
            "header": header,
            "parent_header": parent or {},
            "metadata": {},
            "content": content,
            "channel": channel,
        }
        self._socket.write_message(json.dumps(message))
        return header["msg_id"]

    def run(self, code: str, allow_stdin: bool = False) -> str:
        """Send a cell; its id."""
        return self.send("execute_request", {"code": code, "silent": False, "allow_stdin": allow_stdin})

    def text(self, message_id: str) -> str:
        """What a cell has printed so far."""
        return "".join(
            message["content"].get("text", "") or message["content"].get("data", {}).get("text/plain", "")
            for message in self.outputs.get(message_id, [])
        )

    def is_done(self, message_id: str) -> bool:
        """Whether a cell's answer is there, and the kernel's word that it is idle."""
        return message_id in self.replies and any(
            message["content"].get("execution_state") == "idle"
            for message in self.outputs.get(message_id, [])
        )

    async def close(self) -> None:
        """Close the tab."""
        if self._socket is not None:
            self._socket.close()
        if self._reading is not None:
            await self._reading
        self._socket = self._reading = None


def run_in_tab(server: Any, kernel_id: str, code: str) -> str:
    """Return what a cell of a tab prints, which wakes the kernel. `server`: asked as a `JupyterServer` is."""

    async def told() -> str:
        tab = await Tab(kernel_id).attach(server)
        try:
            message = tab.run(code)
            await until(lambda: tab.is_done(message), message=server.log)
            return tab.text(message)
        finally:
            await tab.close()

    return asyncio.run(told())
