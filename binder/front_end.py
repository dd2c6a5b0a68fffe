"""A small front end without a browser: a Jupyter server of its own, one notebook kernel, the server's events.

It speaks what JupyterLab speaks: the REST API, the kernel's channels and the events, both on websockets.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


class ServerFailed(RuntimeError):
    """The server ended, or did not start; its log says why."""


class CellFailed(RuntimeError):
    """A cell raised; the message is its traceback."""


@dataclass(frozen=True)
class Server:
    """A running Jupyter server."""

    process: subprocess.Popen[bytes]
    address: str  # without "http://", ends with the base URL's slash
    token: str

    @classmethod
    async def start(
        cls,
        folder: Path,
        options: list[str],
        environment: dict[str, str],
        log: Path,
        python: str = sys.executable,
    ) -> Server:
        """Start one in a folder, on a free port, and wait until it answers."""
        command = [python, "-m", "jupyter_server", "--no-browser", "--ServerApp.port=0", *options]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        about = Path(environment["JUPYTER_RUNTIME_DIR"]) / f"jpserver-{process.pid}.json"
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while True:
            if process.poll() is not None or asyncio.get_running_loop().time() > deadline:
                process.kill()
                raise ServerFailed("the Jupyter server did not start")
            if about.exists():
                facts = json.loads(about.read_text() or "{}")
                if facts:
                    server = cls(process, facts["url"].removeprefix("http://"), facts["token"])
                    await server.ask("GET", "api/status")
                    return server
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        """End it and its kernels."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One REST request's answer; ServerFailed if it is an error."""
        request = HTTPRequest(
            f"http://{self.address}{path}",
            method=method,
            headers={"Authorization": f"token {self.token}"},
            body=None if body is None else json.dumps(body),
        )
        answer = await AsyncHTTPClient().fetch(request, raise_error=False)
        if answer.error is not None:
            raise ServerFailed(f"{method} {path}: {answer.error}")
        return json.loads(answer.body) if answer.body else None

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The server's Jupyter events, from now on."""
        socket = await self.connect("api/events/subscribe")
        while (message := await socket.read_message()) is not None:
            yield json.loads(message)

    async def connect(self, path: str) -> WebSocketClientConnection:
        """Open a websocket."""
        headers = {"Authorization": f"token {self.token}"}
        return await websocket_connect(HTTPRequest(f"ws://{self.address}{path}", headers=headers))


class NotebookKernel:
    """The kernel of a notebook's session."""

    def __init__(self, kernel_id: str, channels: WebSocketClientConnection, session: str):
        self.id = kernel_id
        self._channels = channels
        self._session = session

    @classmethod
    async def start(cls, server: Server, notebook: str) -> NotebookKernel:
        """Start it as opening the notebook does."""
        body = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {"name": "python3"}}
        session = await server.ask("POST", "api/sessions", body)
        kernel_id, name = session["kernel"]["id"], uuid.uuid4().hex
        channels = await server.connect(f"api/kernels/{kernel_id}/channels?session_id={name}")
        return cls(kernel_id, channels, name)

    async def execute(self, code: str) -> str:
        """Run a cell; its text. CellFailed if it raises."""
        request = await self._send(code)
        text: list[str] = []
        failure = None
        waiting = {"reply", "idle"}
        while waiting:
            message = await self._channels.read_message()
            if message is None:
                raise ServerFailed("the kernel's connection was closed")
            answer = json.loads(message)
            if answer["parent_header"].get("msg_id") != request:
                continue
            kind, content = answer["msg_type"], answer["content"]
            if kind == "stream":
                text.append(content["text"])
            elif kind in ("execute_result", "display_data"):
                text.append(content["data"].get("text/plain", "") + "\n")
            elif kind == "error":
                failure = "\n".join(content["traceback"])
            elif kind == "execute_reply":
                waiting.discard("reply")
            elif kind == "status" and content["execution_state"] == "idle":
                waiting.discard("idle")
        if failure is not None:
            raise CellFailed(failure)
        return "".join(text)

    async def _send(self, code: str) -> str:
        request = uuid.uuid4().hex
        message = {
            "header": {
                "msg_id": request,
                "msg_type": "execute_request",
                "session": self._session,
                "username": "demo",
                "version": "5.3",
            },
            "parent_header": {},
            "metadata": {},
            "content": {"code": code, "silent": False, "store_history": True, "allow_stdin": False},
            "channel": "shell",
        }
        await self._channels.write_message(json.dumps(message))
        return request
