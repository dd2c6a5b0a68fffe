"""Requests to a controller on an event loop: HTTP by tornado, each request on a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket as sockets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError

from .controller_socket import (
    authorization,
    connect_in_line,
    refuse_other_sockets,
    refuse_peer,
    socket_or_default,
)
from .errors import ControllerUnavailable, refusal, why

CONNECT_TIMEOUT_S = 5.0
CONNECT_WAIT_S = 0.005  # in the line, in which the event loop stands still
CONNECT_AGAIN_S, CONNECT_AGAIN_MAX_S = 0.01, 0.1
REQUEST_TIMEOUT_S = 15.0
LARGEST_LINE_BYTES = 32 * 1024 * 1024


class ControllerRequests:
    """Sends requests to one controller.

    All raise ControllerUnavailable if no controller answers and ControllerRefused if it refuses.
    `socket` is the API socket, by default the one that `environment.socket_path` finds.
    """

    _family = sockets.AF_UNIX

    def __init__(self, socket: Path | None = None, headers: Mapping[str, str] | None = None):
        """`headers` go with every request: a program that acts for a user names it there (`node/api/audit.py`)."""
        self.socket = socket_or_default(socket)
        self._headers = dict(headers or {})
        self._streams: set[IOStream] = set()

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
                raise refusal(status, raw)
            return json.loads(raw) if raw else None
        except asyncio.TimeoutError:
            raise ControllerUnavailable(
                f"the controller at {self.socket} did not answer in {timeout_s:g} s"
            ) from None
        except (ValueError, RecursionError) as error:
            raise ControllerUnavailable(
                f"the controller at {self.socket} did not answer in JSON: {error}"
            ) from None

    async def _lines(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """One request whose answer is a stream of JSON objects, one a line."""
        async with self._send(method, path, body) as (answer, reading):
            await _first(answer.started.wait(), reading, CONNECT_TIMEOUT_S)
            if not answer.status:
                raise ControllerUnavailable(f"the controller at {self.socket} does not answer")
            if answer.status != 200:
                raise refusal(answer.status, await asyncio.wait_for(_whole(answer), CONNECT_TIMEOUT_S))
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

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        async with self._send(method, path, body) as (answer, _):
            raw = await _whole(answer)
            if not answer.status:
                raise ControllerUnavailable(f"the controller at {self.socket} hung up without an answer")
            return answer.status, raw

    def _authorization(self) -> dict[str, str]:
        """What shows whose the request is."""
        return authorization()

    async def _connect(self) -> IOStream:
        stream = IOStream(sockets.socket(self._family, sockets.SOCK_STREAM))
        self._streams.add(stream)
        try:
            await asyncio.wait_for(self._reach(stream), CONNECT_TIMEOUT_S)
            return stream
        except BaseException as error:
            self._drop(stream)
            if isinstance(error, OSError | asyncio.TimeoutError):
                cause = getattr(error, "real_error", None) or error  # of tornado's "Stream is closed"
                raise ControllerUnavailable(f"no controller answers at {self.socket}: {why(cause)}") from None
            raise

    async def _reach(self, stream: IOStream) -> None:
        """Connect as soon as there is a place in the line at the socket. Raises ControllerUnavailable and OSError."""
        refuse_other_sockets(self.socket)
        pause_s = CONNECT_AGAIN_S
        while True:
            try:
                connect_in_line(stream.socket, self.socket, CONNECT_WAIT_S)
                return refuse_peer(stream.socket, self.socket)
            except BlockingIOError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, CONNECT_AGAIN_MAX_S)

    @contextlib.asynccontextmanager
    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> AsyncIterator[tuple[_Answer, asyncio.Task[None]]]:
        """Send a request on a connection that ends with the context; the task reads the response into the answer,
        None last, and never raises.
        """
        stream = await self._connect()
        reading: asyncio.Task[None] | None = None
        try:
            payload = b"" if body is None else json.dumps(body).encode()
            headers = HTTPHeaders(
                {"Host": "localhost", "Connection": "close", "Content-Length": str(len(payload))}
            )
            if body is not None:
                headers["Content-Type"] = "application/json"
            headers.update(self._authorization() | self._headers)
            parameters = HTTP1ConnectionParameters(no_keep_alive=True, max_body_size=1 << 62)
            connection = HTTP1Connection(stream, True, parameters)
            start = RequestStartLine(method, f"/api/v1{path}", "HTTP/1.1")
            try:
                await connection.write_headers(start, headers, payload)
                connection.finish()
            except StreamClosedError:
                raise ControllerUnavailable(f"the controller at {self.socket} hung up") from None
            answer = _Answer()
            reading = asyncio.get_running_loop().create_task(_read(connection, answer))
            yield answer, reading
        finally:
            if reading is not None:
                reading.cancel()
            self._drop(stream)

    def _drop(self, stream: IOStream) -> None:
        self._streams.discard(stream)
        stream.close()


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


async def _read(connection: HTTP1Connection, answer: _Answer) -> None:
    with contextlib.suppress(StreamClosedError):
        await connection.read_response(answer)
    await answer.chunks.put(None)


async def _whole(answer: _Answer) -> bytes:
    """All of a response's body."""
    parts = []
    while (chunk := await answer.chunks.get()) is not None:
        parts.append(chunk)
    return b"".join(parts)


async def _first(event: Any, reading: asyncio.Task[None], timeout_s: float) -> None:
    """Wait until a response began or could not."""
    waiting = asyncio.ensure_future(event)
    try:
        await asyncio.wait({waiting, reading}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
