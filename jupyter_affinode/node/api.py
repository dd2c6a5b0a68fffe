"""The HTTP API on the controller's Unix socket; `openapi.json` is its description, held to it by a test."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream, StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler

from .controller import Controller
from .peers import DropLog, peer_of
from .records import KernelRecord, Outcome
from .settings import SettingsRefused

BODY_BYTES_MAX = 64 * 1024
HEADER_BYTES_MAX = 16 * 1024
IDLE_S = 60.0
CONNECTIONS_MAX = 256
KERNELS_MAX = 4096
MOVE_WAIT_S = 60.0
PING_S = 5.0
UNREAD_STREAM_S = 30.0
TEXT_MAX = 4096
KERNEL_ID = r"[^/\s]{1,256}"


class ApiError(Exception):
    """A request that is not served; becomes the JSON error."""

    def __init__(self, status: int, slug: str, message: str):
        super().__init__(message)
        self.status, self.slug, self.message = status, slug, message


class ApiServer(HTTPServer):
    """Serves our own user and root, a bounded number of connections at a time."""

    controller: Controller
    drops: DropLog

    def handle_stream(self, stream: IOStream, address: Any) -> None:  # type: ignore[override]
        """Look who it is before a byte is read; called by tornado for each connection."""
        peer = peer_of(stream.socket)
        if not peer.is_allowed:
            self.drops.drop(f"API client {peer.pid}", f"it belongs to user {peer.uid}")
            stream.close()
        elif len(self._connections) >= CONNECTIONS_MAX:
            self.drops.drop(f"API client {peer.pid}", f"{CONNECTIONS_MAX} clients are connected already")
            stream.close()
        else:
            super().handle_stream(stream, address)


def serve(controller: Controller) -> ApiServer:
    """Bind the API socket; the caller holds the lock that makes removing an old socket right."""
    server = ApiServer(
        Application(ROUTES, controller=controller, log_function=lambda handler: None),
        max_body_size=BODY_BYTES_MAX,
        max_header_size=HEADER_BYTES_MAX,
        idle_connection_timeout=IDLE_S,
        body_timeout=IDLE_S,
    )
    server.controller = controller
    server.drops = DropLog(controller.log)
    path: Path = controller.socket
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listening.bind(str(path))
    os.chmod(path, 0o600)
    listening.listen(128)
    server.add_socket(listening)
    return server


class Handler(RequestHandler):
    """JSON in, JSON out."""

    controller: Controller
    _counted = False

    def initialize(self) -> None:
        """Called by tornado."""
        self.controller = self.settings["controller"]

    def prepare(self) -> None:
        """A request under way keeps the controller; called by tornado."""
        self._counted = True
        self.controller.api_requests_open += 1
        self.controller.needed_at = self.now()

    def on_finish(self) -> None:
        """Called by tornado, also when the client hung up."""
        if self._counted:
            self._counted = False
            self.controller.api_requests_open -= 1

    def on_connection_close(self) -> None:
        """The client hung up in the middle; called by tornado."""
        self.on_finish()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Every error is JSON; called by tornado."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, ApiError):
            self.set_status(error.status)
            self.finish({"error": error.slug, "message": error.message})
            return
        if not isinstance(error, HTTPError):
            self.finish({"error": "internal", "message": "the controller failed; its log has the error"})
            return
        slug = {404: "not-found", 405: "not-allowed"}.get(status_code, "bad-request")
        self.finish({"error": slug, "message": self._reason})

    def log_exception(self, kind: Any, value: Any, traceback: Any) -> None:
        """Only surprises are logged; called by tornado."""
        if not isinstance(value, ApiError | HTTPError):
            self.controller.log.error("a request failed", exc_info=(kind, value, traceback))

    def body(self, **allowed: tuple[type, ...]) -> dict[str, Any]:
        """The request's JSON object, each member of one of its allowed types; {} without a body."""
        try:
            body = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):
            raise ApiError(400, "bad-request", "the body is not JSON") from None
        if not isinstance(body, dict):
            raise ApiError(400, "bad-request", "the body must be a JSON object")
        for name, value in body.items():
            if name not in allowed:
                known = ", ".join(allowed) or "none"
                raise ApiError(400, "bad-request", f"{name!r} is not known here; known are: {known}")
            good = isinstance(value, allowed[name]) and (bool in allowed[name] or not isinstance(value, bool))
            if not good or (isinstance(value, str) and len(value) > TEXT_MAX):
                raise ApiError(400, "bad-request", f"{name!r} has a value of the wrong type or size")
        return body

    def kernel(self, kernel_id: str) -> KernelRecord:
        """A known kernel, or 404."""
        kernel = self.controller.state.kernels.get(kernel_id)
        if kernel is None:
            raise ApiError(404, "unknown-kernel", f"there is no kernel {kernel_id}")
        self.controller.look(self.now())
        return kernel

    def made_known(self, kernel_id: str) -> KernelRecord:
        """A kernel that a server speaks of, known from now on if it was not."""
        state = self.controller.state
        if kernel_id not in state.kernels and len(state.kernels) >= KERNELS_MAX:
            raise ApiError(429, "too-many-kernels", f"this controller knows {KERNELS_MAX} kernels already")
        return state.kernel(kernel_id, self.now())

    def now(self) -> float:
        """The moment, for the state."""
        return time.monotonic()

    def speaker(self) -> int:
        """The pid of the client."""
        stream = getattr(self.request.connection, "stream", None)
        return peer_of(stream.socket).pid if stream is not None and stream.socket is not None else 0


class NodeHandler(Handler):
    """The machine."""

    def get(self) -> None:
        """GET /node"""
        self.finish(self.controller.node_json())


class KernelsHandler(Handler):
    """All kernels."""

    def get(self) -> None:
        """GET /kernels"""
        self.finish({"kernels": self.controller.kernels_json()})


class KernelHandler(Handler):
    """One kernel: what servers say of it."""

    def get(self, kernel_id: str) -> None:
        """GET /kernels/{id}"""
        self.finish(self.controller.kernel_json(self.kernel(kernel_id)))

    def put(self, kernel_id: str) -> None:
        """PUT /kernels/{id}: describe it."""
        text = (str, type(None))
        description = self.body(name=text, path=text, language=text, server=text)
        kernel = self.made_known(kernel_id)
        kernel.describe(**description)
        if (
            description.get("server") is not None
        ):  # else whoever speaks (`run`) may end before the kernel does
            self.controller.servers.speaks_for(self.speaker(), kernel)
        self.controller.poke()
        self.finish(self.controller.kernel_json(kernel))

    def delete(self, kernel_id: str) -> None:
        """DELETE /kernels/{id}: it was shut down. Processes that are left keep it until they end."""
        kernel = self.kernel(kernel_id)
        kernel.description = None
        kernel.is_tracked = kernel.cell_open = False
        if not kernel.processes:
            del self.controller.state.kernels[kernel_id]
        self.controller.poke()
        self.set_status(204)


class MoveHandler(Handler):
    """Park and resume, waited for."""

    async def finish_with(self, kernel: KernelRecord, done: asyncio.Future[Outcome], wait: bool) -> None:
        """Answer when it is done, refused, or has lasted a minute."""
        if not wait and not done.done():
            self.set_status(202)
            return await self.finish_kernel(kernel)
        try:
            outcome = await asyncio.wait_for(asyncio.shield(done), MOVE_WAIT_S)
        except asyncio.TimeoutError:
            self.set_status(202)
            return await self.finish_kernel(kernel)
        if outcome.slug:
            raise ApiError(409, outcome.slug, outcome.text)
        await self.finish_kernel(kernel)

    async def finish_kernel(self, kernel: KernelRecord) -> None:
        """Answer with the kernel."""
        await self.finish(self.controller.kernel_json(kernel))


class ParkHandler(MoveHandler):
    """Free a kernel's GPU."""

    async def post(self, kernel_id: str) -> None:
        """POST /kernels/{id}/park"""
        wait = self.body(wait=(bool,)).get("wait", True)
        kernel = self.kernel(kernel_id)
        await self.finish_with(kernel, self.controller.wishes.park(kernel), wait)


class ResumeHandler(MoveHandler):
    """Bring a kernel back."""

    async def post(self, kernel_id: str) -> None:
        """POST /kernels/{id}/resume"""
        wait = self.body(wait=(bool,)).get("wait", True)
        kernel = self.kernel(kernel_id)
        await self.finish_with(kernel, self.controller.wishes.resume(kernel), wait)


class HoldHandler(Handler):
    """Keep a kernel on the GPU."""

    def post(self, kernel_id: str) -> None:
        """POST /kernels/{id}/hold"""
        duration = self.body(duration_s=(int, float, type(None))).get("duration_s")
        if duration is not None and not (math.isfinite(duration) and duration > 0):
            raise ApiError(400, "bad-request", "duration_s must be a positive number of seconds")
        kernel = self.kernel(kernel_id)
        self.controller.wishes.hold(kernel, duration)
        self.finish(self.controller.kernel_json(kernel))


class ReleaseHandler(Handler):
    """End a hold."""

    def post(self, kernel_id: str) -> None:
        """POST /kernels/{id}/release"""
        self.body()
        kernel = self.kernel(kernel_id)
        self.controller.wishes.release(kernel)
        self.finish(self.controller.kernel_json(kernel))


class CellHandler(Handler):
    """What the execution tracker sees."""

    def post(self, kernel_id: str) -> None:
        """POST /kernels/{id}/cell"""
        body = self.body(open=(bool,), cell_id=(str, type(None)))
        if "open" not in body:
            raise ApiError(400, "bad-request", "'open' is missing")
        kernel = self.made_known(kernel_id)
        cell_id = body.get("cell_id")
        if not body["open"] or cell_id != kernel.cell_id:
            self.controller.wishes.end_cancel(kernel)
        kernel.is_tracked, kernel.cell_open = True, body["open"]
        kernel.cell_id = cell_id if body["open"] else None
        self.controller.servers.speaks_for(self.speaker(), kernel)
        self.controller.poke()
        self.set_status(204)


class CancelHandler(Handler):
    """An interrupt."""

    def post(self, kernel_id: str) -> None:
        """POST /kernels/{id}/cancel"""
        self.body()
        self.controller.wishes.cancel(self.kernel(kernel_id))
        self.set_status(204)


class DyingHandler(Handler):
    """A shutdown is about to begin."""

    def post(self, kernel_id: str) -> None:
        """POST /kernels/{id}/dying"""
        self.body()
        self.controller.wishes.dying(self.kernel(kernel_id))
        self.set_status(204)


class FocusHandler(Handler):
    """The person looks at a kernel."""

    def post(self, kernel_id: str) -> None:
        """POST /kernels/{id}/focus"""
        self.body()
        self.kernel(kernel_id).focus_at = self.now()
        self.set_status(204)


class PolicyHandler(Handler):
    """The settings."""

    def get(self) -> None:
        """GET /policy"""
        self.finish(self.controller.state.settings.as_dict())

    def patch(self) -> None:
        """PATCH /policy"""
        names = self.controller.state.settings.as_dict()
        changes = self.body(**dict.fromkeys(names, (str, int, float)))
        try:
            self.finish(self.controller.change_settings(**changes).as_dict())
        except SettingsRefused as refused:
            raise ApiError(400, "bad-setting", str(refused)) from None


class EventsHandler(Handler):
    """The stream of changes."""

    async def get(self) -> None:
        """GET /events"""
        self.set_header("Content-Type", "application/x-ndjson")
        subscriber = self.controller.events.subscribe()
        try:
            while True:
                self.write(await subscriber.lines(PING_S))
                await asyncio.wait_for(self.flush(), UNREAD_STREAM_S)
        except StreamClosedError:
            return
        except asyncio.TimeoutError:
            self.controller.log.warning("dropped an API client that does not read its events")
            stream = getattr(self.request.connection, "stream", None)
            if stream is not None:
                stream.close()
        finally:
            self.controller.events.unsubscribe(subscriber)


class MetricsHandler(Handler):
    """Prometheus."""

    def get(self) -> None:
        """GET /metrics"""
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish(self.controller.metrics.text())


class UnknownHandler(Handler):
    """Everything else."""

    def prepare(self) -> None:
        """Called by tornado."""
        super().prepare()
        raise ApiError(404, "not-found", f"there is nothing at {self.request.path}")


_PREFIX = "/api/v1"
_KERNEL = rf"{_PREFIX}/kernels/({KERNEL_ID})"
ROUTES: list[tuple[str, type[Handler]]] = [
    (rf"{_PREFIX}/node", NodeHandler),
    (rf"{_PREFIX}/kernels", KernelsHandler),
    (_KERNEL, KernelHandler),
    (rf"{_KERNEL}/park", ParkHandler),
    (rf"{_KERNEL}/resume", ResumeHandler),
    (rf"{_KERNEL}/hold", HoldHandler),
    (rf"{_KERNEL}/release", ReleaseHandler),
    (rf"{_KERNEL}/cell", CellHandler),
    (rf"{_KERNEL}/cancel", CancelHandler),
    (rf"{_KERNEL}/dying", DyingHandler),
    (rf"{_KERNEL}/focus", FocusHandler),
    (rf"{_PREFIX}/policy", PolicyHandler),
    (rf"{_PREFIX}/events", EventsHandler),
    (rf"{_PREFIX}/metrics", MetricsHandler),
    (r"/metrics", MetricsHandler),
    (r".*", UnknownHandler),
]


def openapi_paths() -> dict[str, set[str]]:
    """The served paths as OpenAPI writes them, each with its methods; for the test of the description."""
    paths: dict[str, set[str]] = {}
    for pattern, handler in ROUTES:
        if handler is UnknownHandler:
            continue
        path = pattern.replace(f"({KERNEL_ID})", "{kernel_id}")
        methods = [name for name in ("get", "put", "post", "patch", "delete") if _defines(handler, name)]
        paths[re.sub(r"\\", "", path)] = set(methods)
    return paths


def _defines(handler: type[Handler], method: str) -> bool:
    return getattr(handler, method) is not getattr(RequestHandler, method)
