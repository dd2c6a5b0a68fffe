"""Asks the node controller, and starts one where none answers.

Used by the server extension, the provisioner and the command line. The protocol is `node/api/openapi.json`: HTTP
and JSON on a Unix socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket as sockets
import subprocess
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError

from .. import environment
from ..printable import fitting
from ..python_command import module_command
from ..threads import on_own_thread
from .controller_socket import (
    ControllerUnavailable as ControllerUnavailable,  # raised by nearly all that is here
)
from .controller_socket import (
    authorization,
    make_own_folder,
    one_starts,
    refuse_other_sockets,
    refuse_peer,
    send_only,
    socket_or_default,
    why,
)

CONNECT_TIMEOUT_S = 5.0
CONNECT_AGAIN_S = 0.01
REQUEST_TIMEOUT_S = 15.0
MOVE_TIMEOUT_S = 75.0  # the controller answers a park or resume within 60 s
START_MARGIN_S = 10.0  # how much longer than its own time-out a start may take, where a file system hangs
MACHINES_RESTART_S = 3.0  # its unit starts it again after one second
LARGEST_LINE_BYTES = 32 * 1024 * 1024

# Controllers that this process started, reaped at the next start; they outlive us if they are needed.
_started: list[subprocess.Popen[bytes]] = []


class ControllerRefused(Exception):
    """The controller answered, and will not do it."""

    def __init__(self, status: int, slug: str, message: str):
        super().__init__(message)
        self.status = status  # of HTTP
        self.slug = slug  # for programs: "busy", "held", "no-host-memory", …
        self.message = message  # for users


def refusal_advice(slug: str) -> str:
    """What a user can do about a refusal, by its `slug`; "" where that says so itself."""
    if slug in ("bad-grant", "grant-required"):
        return (
            "The Hub that started this server gives it its grant: stop the server there and start it again."
        )
    return ""


class _Answer(HTTPMessageDelegate):
    """Collects one response; `chunks` gets what arrives, None at its end."""

    def __init__(self) -> None:
        self.status = 0
        self.started = asyncio.Event()
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue(64)

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        assert isinstance(start_line, ResponseStartLine)
        self.status = start_line.code
        self.started.set()

    async def data_received(self, chunk: bytes) -> None:  # tornado awaits it
        await self.chunks.put(chunk)


class ControllerClient:
    """One controller's API; every method is one request on a connection of its own.

    All raise ControllerUnavailable if no controller answers and ControllerRefused if it refuses.
    `socket` is the API socket, by default the one that `environment.socket_path` finds.
    """

    def __init__(self, socket: Path | None = None, headers: Mapping[str, str] | None = None):
        """`headers` go with every request: a program that acts for a user names it there (`node/api/audit.py`)."""
        self.socket = socket_or_default(socket)
        self._headers = dict(headers or {})
        self._streams: set[IOStream] = set()

    async def node(self) -> dict[str, Any]:
        """The controller, the GPUs, the host's memory, settings and the queue."""
        return await self._json("GET", "/node")

    async def kernels(self) -> list[dict[str, Any]]:
        """Every kernel the controller knows."""
        return (await self._json("GET", "/kernels"))["kernels"]

    async def kernel(self, kernel_id: str) -> dict[str, Any]:
        """One kernel."""
        return await self._json("GET", _kernel(kernel_id))

    async def activity(self, kernel_id: str) -> dict[str, Any]:
        """What a kernel calls, by class and by entry point; counted for the next seconds, too."""
        return await self._json("GET", _kernel(kernel_id, "activity"))

    async def register(self, kernel_id: str, **description: Any) -> dict[str, Any]:
        """Describe a kernel (`name`, `path`, `language`, `server`, and of its kernelspec `priority` and
        `may_park`); what is not named stays as it was.
        """
        fit = {
            name: fitting(value, keeps_end=name == "path") if isinstance(value, str) else value
            for name, value in description.items()
        }
        return await self._json("PUT", _kernel(kernel_id), fit)

    async def forget(self, kernel_id: str) -> None:
        """The kernel has been shut down."""
        await self._json("DELETE", _kernel(kernel_id))

    async def park(self, kernel_id: str, wait: bool = True) -> dict[str, Any]:
        """Free the kernel's GPU now; with `wait`, returns when it is done."""
        return await self._json("POST", _kernel(kernel_id, "park"), {"wait": wait}, MOVE_TIMEOUT_S)

    async def resume(self, kernel_id: str, wait: bool = True) -> dict[str, Any]:
        """Get the kernel's GPU back; with `wait`, returns when it is there or still queued after 60 s."""
        return await self._json("POST", _kernel(kernel_id, "resume"), {"wait": wait}, MOVE_TIMEOUT_S)

    async def hold(self, kernel_id: str, duration_s: float | None = None) -> dict[str, Any]:
        """Keep the kernel on the GPU, for the controller's default time if none is named."""
        return await self._json("POST", _kernel(kernel_id, "hold"), {"duration_s": duration_s})

    async def release(self, kernel_id: str) -> dict[str, Any]:
        """End a hold."""
        return await self._json("POST", _kernel(kernel_id, "release"), {})

    async def place(self, kernel_id: str) -> list[str]:
        """The GPUs that a kernel which is about to start should see, the best first, as CUDA names them."""
        answer = await self._json("POST", _kernel(kernel_id, "place"), {})
        return list(answer["visible_devices"])

    async def end(self, kernel_id: str, process: int) -> dict[str, Any]:
        """End a process of the kernel that is stuck, by its `number`."""
        return await self._json("POST", _kernel(kernel_id, "end"), {"process": process})

    async def cell(
        self, kernel_id: str, open: bool, cell_id: str | None = None, open_s: float | None = None
    ) -> None:
        """Say whether a cell runs in the kernel, and for how long it has if that is known."""
        fit = None if cell_id is None else fitting(cell_id)
        body: dict[str, Any] = {"open": open, "cell_id": fit}
        if open_s is not None:
            body["open_s"] = open_s
        await self._json("POST", _kernel(kernel_id, "cell"), body)

    async def cancel(self, kernel_id: str, process_group: int | None = None) -> None:
        """The kernel was interrupted: calls that wait for the GPU fail, in the processes of that group."""
        await self._json("POST", _kernel(kernel_id, "cancel"), {"process_group": process_group})

    async def focus(self, kernel_id: str) -> None:
        """The user looks at the kernel."""
        await self._json("POST", _kernel(kernel_id, "focus"), {})

    def tell_cancel(self, kernel_id: str, process_group: int | None = None) -> None:
        """`cancel` without waiting for the answer, from anywhere; this and the next two never block."""
        send_only(self.socket, "POST", _kernel(kernel_id, "cancel"), {"process_group": process_group})

    def tell_dying(self, kernel_id: str, process_group: int | None = None) -> None:
        """The processes of that group are about to be ended: their calls that wait for the GPU, now or later, fail."""
        send_only(self.socket, "POST", _kernel(kernel_id, "dying"), {"process_group": process_group})

    def tell_forget(self, kernel_id: str) -> None:
        """`forget` without waiting for the answer."""
        send_only(self.socket, "DELETE", _kernel(kernel_id))

    async def policy(self) -> dict[str, Any]:
        """The controller's settings."""
        return await self._json("GET", "/policy")

    async def set_policy(self, *, configured_at: float | None = None, **settings: Any) -> dict[str, Any]:
        """Change some of the controller's settings; returns all of them.

        `configured_at`: since when they are configured so, in monotonic seconds; what was configured later stays.
        """
        moment = "" if configured_at is None else f"?configured_at={configured_at!r}"
        return await self._json("PATCH", f"/policy{moment}", settings)

    async def report(self, **question: str | None) -> dict[str, Any]:
        """Return how much each user used the GPUs: `since`, `until` (days), `by` ("day", "user", "gpu"), `user`."""
        asked = {name: value for name, value in question.items() if value is not None}
        return await self._json("GET", f"/report?{urlencode(asked)}")

    async def audit(self, limit: int = 100) -> list[dict[str, Any]]:
        """Return what administrators did, the newest first; for administrators."""
        return list((await self._json("GET", f"/audit?limit={limit}"))["audit"])

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Every change from now on, a full snapshot first; ends when the controller does."""
        async for event in self._lines("GET", "/events"):
            yield event

    async def room(
        self, size: int, *, user: str | None = None, priority: int | None = None, timeout_s: float = 10.0
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Have room made on a GPU for a kernel that is about to start: how that stands, each time that it changes.

        The last line's `state` is "done" or "refused". Closing the iterator withdraws the request.
        """
        body: dict[str, Any] = {"bytes": size, "timeout_s": timeout_s}
        body.update(
            {} if user is None else {"user": user}, **({} if priority is None else {"priority": priority})
        )
        async for line in self._lines("POST", "/room", body):
            yield line

    async def _lines(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """One request whose answer is a stream of JSON objects, one a line."""
        stream = await self._connect()
        answer = _Answer()
        connection, reading = await self._send(stream, answer, method, path, body)
        try:
            await _first(answer.started.wait(), reading, CONNECT_TIMEOUT_S)
            if not answer.status:
                raise ControllerUnavailable(f"the controller at {self.socket} does not answer")
            if answer.status != 200:
                raise _refusal(answer.status, await asyncio.wait_for(_whole(answer), CONNECT_TIMEOUT_S))
            pending = b""
            while True:
                chunk = await answer.chunks.get()
                if chunk is None:
                    return
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
                if len(pending) > LARGEST_LINE_BYTES:
                    raise ControllerUnavailable(f"the controller at {self.socket} sends a line without end")
        finally:
            reading.cancel()
            connection.close()
            self._drop(stream)

    async def close(self) -> None:
        """End every request under way."""
        for stream in list(self._streams):
            self._drop(stream)

    async def _json(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Any:
        """One request: the answer's JSON, None if it has none."""
        try:
            status, raw = await asyncio.wait_for(self._exchange(method, path, body), timeout_s)
            if status >= 400:
                raise _refusal(status, raw)
            return json.loads(raw) if raw else None
        except asyncio.TimeoutError:
            raise ControllerUnavailable(
                f"the controller at {self.socket} did not answer in {timeout_s:g} s"
            ) from None
        except ValueError as error:
            raise ControllerUnavailable(
                f"the controller at {self.socket} did not answer in JSON: {error}"
            ) from None

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        stream = await self._connect()
        try:
            answer = _Answer()
            _, reading = await self._send(stream, answer, method, path, body)
            try:
                raw = await _whole(answer)
            finally:
                reading.cancel()
            if not answer.status:
                raise ControllerUnavailable(f"the controller at {self.socket} hung up without an answer")
            return answer.status, raw
        finally:
            self._drop(stream)

    def _authorization(self) -> dict[str, str]:
        """What shows whose the request is."""
        return authorization()

    async def _connect(self) -> IOStream:
        refuse_other_sockets(self.socket)
        connected = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM | sockets.SOCK_NONBLOCK)
        stream = IOStream(connected)
        self._streams.add(stream)
        try:
            await asyncio.wait_for(_connected(connected, self.socket), CONNECT_TIMEOUT_S)
            refuse_peer(stream.socket, self.socket)
            return stream
        except BaseException as error:
            self._drop(stream)
            if isinstance(error, OSError | asyncio.TimeoutError):
                raise ControllerUnavailable(f"no controller answers at {self.socket}: {why(error)}") from None
            raise

    async def _send(
        self, stream: IOStream, answer: _Answer, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[HTTP1Connection, asyncio.Task[None]]:
        """Send a request; the task reads its response into `answer`, None last, and never raises."""
        payload = b"" if body is None else json.dumps(body).encode()
        headers = HTTPHeaders(
            {"Host": "localhost", "Connection": "close", "Content-Length": str(len(payload))}
        )
        if body is not None:
            headers["Content-Type"] = "application/json"
        headers.update(self._authorization() | self._headers)
        parameters = HTTP1ConnectionParameters(no_keep_alive=True, max_body_size=1 << 62)
        connection = HTTP1Connection(stream, True, parameters)

        async def read() -> None:
            with contextlib.suppress(StreamClosedError):
                await connection.read_response(answer)
            await answer.chunks.put(None)

        start = RequestStartLine(method, f"/api/v1{path}", "HTTP/1.1")
        try:
            await connection.write_headers(start, headers, payload)
            connection.finish()
        except StreamClosedError:
            raise ControllerUnavailable(f"the controller at {self.socket} hung up") from None
        return connection, asyncio.get_running_loop().create_task(read())

    def _drop(self, stream: IOStream) -> None:
        self._streams.discard(stream)
        stream.close()


def ensure_controller(
    socket: Path | None = None, *, extra_args: Sequence[str] = (), timeout_s: float = 5.0
) -> Path:
    """Start a controller unless one answers; the path of its API socket.

    Blocks up to `timeout_s`, and some seconds more while the machine's controller may be starting again. `extra_args`
    are for a controller that is started, `--park-when=idle`. It survives this process, and ends by itself when nothing
    needs it. Raises ControllerUnavailable.
    """
    path = socket_or_default(socket)
    if environment.listens(path):
        return path
    if socket is None and not os.environ.get(environment.SOCKET) and _machines_comes_back():
        return environment.NODE_SOCKET
    if path == environment.NODE_SOCKET:  # the administrator's to start, and started again when it fails
        raise ControllerUnavailable(f"this machine's controller does not answer at {path}")
    deadline = time.monotonic() + timeout_s
    with one_starts(path, until=deadline - timeout_s / 2):
        if environment.listens(path):
            return path
        child = _start(path, extra_args)
        while not environment.listens(path):
            if time.monotonic() > deadline or child.poll() not in (None, 0):
                raise ControllerUnavailable(
                    f"the controller for {path} did not come up within {timeout_s:g} s"
                    if child.poll() is None
                    else f"the controller for {path} ended with status {child.returncode}: {_last_words(path)}"
                )
            time.sleep(0.02)
    return path


async def ensure_controller_async(
    socket: Path | None = None, *, extra_args: Sequence[str] = (), timeout_s: float = 5.0
) -> Path:
    """`ensure_controller` for event loops, on a thread."""
    ensure = partial(ensure_controller, socket, extra_args=extra_args, timeout_s=timeout_s)
    try:
        return await on_own_thread(ensure, timeout_s=timeout_s + START_MARGIN_S)
    except asyncio.TimeoutError:
        raise ControllerUnavailable("starting a controller did not come to an end") from None


def _machines_comes_back() -> bool:
    """Wait for the machine's controller for some seconds, if its socket is there: it may be starting again."""
    deadline = time.monotonic() + MACHINES_RESTART_S
    while environment.NODE_SOCKET.exists() and time.monotonic() < deadline:
        if environment.listens(environment.NODE_SOCKET):
            return True
        time.sleep(0.05)
    return False


def _start(path: Path, extra_args: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a controller of its own session; if two do at once all the same, its election settles which serves."""
    _started[:] = [child for child in _started if child.poll() is None]
    folder = path.parent
    try:
        make_own_folder(folder)
        environ = environment.controller_environment()
        environ[environment.SOCKET] = str(path.absolute())
        with (folder / "node.log").open("ab") as log:
            child = subprocess.Popen(
                module_command("jupyter_affinode.node", *extra_args),
                env=environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except (OSError, environment.SimulationRefused) as error:
        raise ControllerUnavailable(
            f"no controller answers at {path}, and none can be started: {error}"
        ) from None
    _started.append(child)
    return child


async def _connected(connecting: sockets.socket, path: Path) -> None:
    """Connect as soon as there is a place in the line at the socket; a Unix socket does not wait for one itself."""
    while True:
        try:
            return connecting.connect(str(path))
        except BlockingIOError:
            await asyncio.sleep(CONNECT_AGAIN_S)


async def _whole(answer: _Answer) -> bytes:
    """All of a response's body."""
    parts = []
    while (chunk := await answer.chunks.get()) is not None:
        parts.append(chunk)
    return b"".join(parts)


def _refusal(status: int, raw: bytes) -> ControllerRefused:
    """What an answer of 400 and more says."""
    answer = None
    with contextlib.suppress(ValueError):
        answer = json.loads(raw)
    said = answer if isinstance(answer, dict) else {}
    return ControllerRefused(
        status, str(said.get("error", "failed")), str(said.get("message", f"status {status}"))
    )


async def _first(event: Any, reading: asyncio.Task[None], timeout_s: float) -> None:
    """Wait until a response began or could not."""
    waiting = asyncio.ensure_future(event)
    try:
        await asyncio.wait({waiting, reading}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def _kernel(kernel_id: str, action: str | None = None) -> str:
    path = f"/kernels/{quote(kernel_id, safe='')}"
    return path if action is None else f"{path}/{action}"


def _last_words(path: Path) -> str:
    """The last line of the controller's log, for an error message."""
    try:
        lines = (path.parent / "node.log").read_text(errors="replace").strip().splitlines()
    except OSError as error:
        return f"its log cannot be read: {why(error)}"
    return lines[-1] if lines else "its log is empty"
