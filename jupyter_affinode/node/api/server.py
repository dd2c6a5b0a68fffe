"""The HTTP API on the controller's Unix socket; `openapi.json` describes it, and a test compares the two."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from tornado.http1connection import HTTP1ServerConnection
from tornado.iostream import IOStream
from tornado.web import Application

from ...settings.declaration import LONGEST_S, SettingsRefused
from ...settings.policy import check_each
from ..controller import Controller
from ..model.reasons import Refusal
from ..system.accepting import Line
from ..system.peer_socket import ListeningSocket, PeerSocket
from ..system.peers import DropLog
from ..system.web_server import WebServer
from ..views.visibility import settings_view
from .clients import Clients
from .errors import ApiError
from .handler import Handler
from .kernels import KERNEL_ROUTES
from .report import AuditHandler, PastHandler, ReportHandler
from .request_check import json_object
from .room import RoomHandler

BODY_BYTES_MAX = 64 * 1024  # the rules of all settings at their longest, in ASCII
HEADER_BYTES_MAX = 16 * 1024
IDLE_S = 60.0
BACKLOG = 512  # what one user may send at once; short, since a flood of connections stands before all others
WAITING_MAX = 2 * BACKLOG  # accepted connections that wait; more are served at once
PING_S = 5.0
KERNEL_ID = r"[^/\s]+"


class ApiServer(WebServer):
    """Serves the users that may connect, a bounded number of connections of each."""

    controller: Controller
    drops: DropLog
    clients: Clients

    def take(self, connected: PeerSocket, address: Any) -> None:
        """Accept or refuse a connection with as little work as possible, since others wait behind a flood of them."""
        if not self.clients.may_connect(connected.peer_place):
            self.drops.drop("an API client", "its user connects more often than one user may")
            connected.close()
        elif len(self.line) >= WAITING_MAX:
            self.handle_stream(IOStream(connected), address)
        else:
            self.line.add(connected.peer_place, IOStream(connected))

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Identify the peer before a byte is read."""
        why = self.clients.enter(stream)
        if why is not None:
            self.drops.drop("an API client", why)
            stream.close()
        else:
            super().handle_stream(stream, address)

    def on_close(self, server_conn: object) -> None:
        """Forget a connection that ended."""
        super().on_close(server_conn)
        assert isinstance(server_conn, HTTP1ServerConnection)
        self.clients.leave(server_conn.stream)


def serve(controller: Controller) -> ApiServer:
    """Bind the API socket and return the server; the caller holds the lock that makes removing an old socket right."""
    clients, drops = Clients(controller.access, controller.accounts), DropLog(controller.log)
    server = ApiServer(
        Application(
            ROUTES, controller=controller, clients=clients, drops=drops, log_function=lambda handler: None
        ),
        max_body_size=BODY_BYTES_MAX,
        max_header_size=HEADER_BYTES_MAX,
        idle_connection_timeout=IDLE_S,
        body_timeout=IDLE_S,
    )
    server.controller, server.clients, server.drops = controller, clients, drops
    listening = ListeningSocket(socket.SOCK_STREAM, controller.closing, takes_descriptors=False)
    listening.listen_at(controller.socket, controller.access.socket_mode, BACKLOG)
    server.listen_at(listening, Line(lambda stream: server.handle_stream(stream, "")), controller.log)
    return server


class NodeHandler(Handler):
    """The machine."""

    def get(self) -> None:
        """Serve GET /node."""
        self.finish(self.controller.node_json(self.identity))


class KernelsHandler(Handler):
    """All kernels."""

    async def get(self) -> None:
        """Serve GET /kernels."""
        self.set_header("Content-Type", "application/json; charset=UTF-8")
        if await self.send_kernels('{"kernels": [', self.seen_kernels(), "]}"):
            await self.finish()


class PolicyHandler(Handler):
    """The settings."""

    def get(self) -> None:
        """Serve GET /policy."""
        self.finish(settings_view(self.identity, self.controller.state.settings.as_dict()))

    def patch(self) -> None:
        """Serve PATCH /policy."""
        self.for_admins("the settings of this machine's controller")
        changes = json_object(self.request.body)
        said_at, times = self._said_at(), self.controller.setting_times
        try:
            check_each(changes)
            newest = times.newest(changes, said_at)
            self.finish(self.controller.change_settings(**newest).as_dict())
            times.take(newest, said_at)
        except SettingsRefused as refused:
            raise ApiError(400, Refusal.BAD_SETTING, str(refused)) from None

    def acts_for_others(self) -> bool:
        """Return whether the request changes the settings, which are for all users."""
        return self.request.method == "PATCH"

    def _said_at(self) -> float:
        """Return since when the settings have been configured so, in monotonic seconds; now, unless the request
        tells.
        """
        text, now = self.get_query_argument("configured_at", None), self.now()
        try:
            moment = now if text is None else float(text)
        except ValueError:
            moment = float("nan")
        if not abs(moment) <= LONGEST_S:  # NaN neither
            raise ApiError(400, Refusal.BAD_REQUEST, "configured_at must be a moment in monotonic seconds")
        return min(moment, now)


class EventsHandler(Handler):
    """The stream of changes."""

    async def get(self) -> None:
        """Serve GET /events."""
        account = self.account
        assert account is not None
        if account.streams >= self.controller.access.limits.streams:
            raise ApiError(
                429, Refusal.TOO_MANY_STREAMS, f"you have {account.streams} streams of events open already"
            )
        if not account.new_streams.take():
            raise ApiError(429, Refusal.TOO_MANY_STREAMS, "you open streams of events too often")
        account.streams += 1
        self.set_header("Content-Type", "application/x-ndjson")
        subscriber = self.controller.events.subscribe(self.identity)
        try:
            while not self.identity.is_revoked:
                lines = await subscriber.lines(PING_S)
                if not await (self._send_snapshot() if lines is None else self.send(lines)):
                    return
        except asyncio.CancelledError:
            return  # the controller ends
        finally:
            account.streams -= 1
            self.controller.events.unsubscribe(subscriber)

    async def _send_snapshot(self) -> bool:
        """Send everything as one event; return whether the client has taken it."""
        node = json.dumps(self.controller.node_json(self.identity))
        begin = f'{{"event": "snapshot", "node": {node}, "kernels": ['
        return await self.send_kernels(begin, self.seen_kernels(), "]}\n")


class MetricsHandler(Handler):
    """Prometheus."""

    def get(self) -> None:
        """Serve GET /metrics."""
        if self.controller.metrics.with_users and not self.identity.is_admin:
            raise ApiError(403, Refusal.FORBIDDEN, "metrics by user are for administrators here")
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish(self.controller.metrics.text())


class UnknownHandler(Handler):
    """Any other path."""

    async def prepare(self) -> None:  # type: ignore[override]  # tornado awaits it
        await super().prepare()
        raise ApiError(404, Refusal.NOT_FOUND, f"there is nothing at {self.request.path}")


_PREFIX = "/api/v1"
_KERNEL = rf"{_PREFIX}/kernels/({KERNEL_ID})"
ROUTES: list[tuple[str, type[Handler]]] = [
    (rf"{_PREFIX}/node", NodeHandler),
    (rf"{_PREFIX}/kernels", KernelsHandler),
    *((_KERNEL + path, handler) for path, handler in KERNEL_ROUTES.items()),
    (rf"{_PREFIX}/room", RoomHandler),
    (rf"{_PREFIX}/policy", PolicyHandler),
    (rf"{_PREFIX}/events", EventsHandler),
    (rf"{_PREFIX}/report", ReportHandler),
    (rf"{_PREFIX}/past", PastHandler),
    (rf"{_PREFIX}/audit", AuditHandler),
    (r"/metrics", MetricsHandler),
    (r".*", UnknownHandler),
]
