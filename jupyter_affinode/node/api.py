"""The HTTP API on the controller's Unix socket; `openapi.json` is its description, held to it by a test."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from pathlib import Path
from typing import Any

from tornado.http1connection import HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream, StreamClosedError
from tornado.web import Application, RequestHandler

from .api_handler import ApiError, Handler
from .api_kernels import (
    CancelHandler,
    CellHandler,
    DyingHandler,
    EndHandler,
    FocusHandler,
    HoldHandler,
    KernelHandler,
    ParkHandler,
    PlaceHandler,
    ReleaseHandler,
    ResumeHandler,
)
from .api_report import ReportHandler
from .clients import Clients
from .controller import Controller
from .peer_socket import ListeningSocket
from .peers import DropLog
from .settings import SettingsRefused
from .views import kernel_view, settings_view

BODY_BYTES_MAX = 256 * 1024  # a kernel's four texts at their longest, each character written as two \uXXXX
HEADER_BYTES_MAX = 16 * 1024
IDLE_S = 60.0
BACKLOG = 1024
PING_S = 5.0
UNREAD_STREAM_S = 30.0
KERNEL_ID = r"[^/\s]+"


class ApiServer(HTTPServer):
    """Serves who may enter, a bounded number of connections of each."""

    controller: Controller
    drops: DropLog
    clients: Clients

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Look who it is before a byte is read; called by tornado for each connection."""
        why = self.clients.enter(stream)
        if why is not None:
            self.drops.drop("an API client", why)
            stream.close()
        else:
            super().handle_stream(stream, address)

    def on_close(self, server_conn: object) -> None:
        """A connection ended; called by tornado."""
        super().on_close(server_conn)
        assert isinstance(server_conn, HTTP1ServerConnection)
        self.clients.leave(server_conn.stream)


def serve(controller: Controller) -> ApiServer:
    """Bind the API socket; the caller holds the lock that makes removing an old socket right."""
    clients = Clients(controller.access, controller.accounts)
    server = ApiServer(
        Application(ROUTES, controller=controller, clients=clients, log_function=lambda handler: None),
        max_body_size=BODY_BYTES_MAX,
        max_header_size=HEADER_BYTES_MAX,
        idle_connection_timeout=IDLE_S,
        body_timeout=IDLE_S,
    )
    server.controller, server.clients = controller, clients
    server.drops = DropLog(controller.log)
    path: Path = controller.socket
    path.unlink(missing_ok=True)
    listening = ListeningSocket(socket.SOCK_STREAM, controller.closing, takes_descriptors=False)
    listening.bind(str(path))
    os.chmod(path, controller.access.socket_mode)
    listening.listen(BACKLOG)
    server.add_socket(listening)
    return server


class NodeHandler(Handler):
    """The machine."""

    def get(self) -> None:
        """GET /node"""
        self.finish(self.controller.node_json(self.identity))


class KernelsHandler(Handler):
    """All kernels."""

    def get(self) -> None:
        """GET /kernels"""
        kernels = self.controller.kernels_json(self.identity)
        owner_of = self.controller.owner_of
        seen = [kernel_view(self.identity, kernel, owner_of(kernel["id"])) for kernel in kernels]
        self.finish({"kernels": seen})


class PolicyHandler(Handler):
    """The settings."""

    def get(self) -> None:
        """GET /policy"""
        self.finish(settings_view(self.identity, self.controller.state.settings.as_dict()))

    def patch(self) -> None:
        """PATCH /policy"""
        self.for_admins("the settings of this machine's controller")
        names = self.controller.state.settings.as_dict()
        changes = self.body(**dict.fromkeys(names, (str, int, float, bool, type(None))))
        try:
            self.finish(self.controller.change_settings(**changes).as_dict())
        except SettingsRefused as refused:
            raise ApiError(400, "bad-setting", str(refused)) from None


class EventsHandler(Handler):
    """The stream of changes."""

    async def get(self) -> None:
        """GET /events"""
        account = self.controller.accounts.of(self.identity.payer)
        if account.streams >= self.controller.access.limits.streams:
            raise ApiError(
                429, "too-many-streams", f"you have {account.streams} streams of events open already"
            )
        if not account.new_streams.take():
            raise ApiError(429, "too-many-streams", "you open streams of events too often")
        account.streams += 1
        self.set_header("Content-Type", "application/x-ndjson")
        subscriber = self.controller.events.subscribe(self.identity)
        try:
            while not self.identity.is_revoked:
                self.write(await subscriber.lines(PING_S))
                await asyncio.wait_for(self.flush(), UNREAD_STREAM_S)
        except (StreamClosedError, asyncio.CancelledError):
            return  # they hung up, or the controller ends
        except asyncio.TimeoutError:
            self.controller.log.warning("dropped an API client that does not read its events")
            stream = getattr(self.request.connection, "stream", None)
            if stream is not None:
                stream.close()
        finally:
            account.streams -= 1
            self.controller.events.unsubscribe(subscriber)


class MetricsHandler(Handler):
    """Prometheus."""

    def get(self) -> None:
        """GET /metrics"""
        if self.controller.metrics.with_users and not self.identity.is_admin:
            raise ApiError(403, "forbidden", "metrics by user are for administrators here")
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
    (rf"{_KERNEL}/end", EndHandler),
    (rf"{_KERNEL}/place", PlaceHandler),
    (rf"{_KERNEL}/cell", CellHandler),
    (rf"{_KERNEL}/cancel", CancelHandler),
    (rf"{_KERNEL}/dying", DyingHandler),
    (rf"{_KERNEL}/focus", FocusHandler),
    (rf"{_PREFIX}/policy", PolicyHandler),
    (rf"{_PREFIX}/events", EventsHandler),
    (rf"{_PREFIX}/report", ReportHandler),
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
