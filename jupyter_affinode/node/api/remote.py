"""The part of the API that a Hub reaches over TCP, so that its page shows machines other than the Hub's, and servers
that it starts there find room.

Off by default. Each request shows a grant that makes its bearer an administrator: signed with the Hub's key, for the
very address that it is sent to, and good for a minute. No user's grant does that, and this one lets no process in.
What is served is what the page and a spawn need; kernels and servers speak to the Unix sockets alone. Nothing is
encrypted: the network has to be one that only the Hub's own programs reach, which the chart's network policy sees to.
"""

from __future__ import annotations

import ipaddress
from weakref import WeakSet

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application

from ..controller import Controller
from ..identity.access import Access, NotAllowed
from ..identity.identity import Identity
from ..identity.rate_limits import Accounts
from ..model.reasons import Refusal
from ..system.peers import DropLog
from ..system.tcp_server import serve_tcp
from .clients import TooMuch
from .kernels import HoldHandler, MoveHandler, ReleaseHandler
from .report import AuditHandler, ReportHandler
from .room import RoomHandler
from .server import BODY_BYTES_MAX, ROUTES, KernelsHandler, NodeHandler, PolicyHandler, UnknownHandler

SERVED = (
    NodeHandler,
    KernelsHandler,
    MoveHandler,
    HoldHandler,
    ReleaseHandler,
    PolicyHandler,
    ReportHandler,
    AuditHandler,
    RoomHandler,
    UnknownHandler,
)


class RemoteClients:
    """`Clients` for TCP: the grant alone names the administrator."""

    def __init__(self, access: Access, accounts: Accounts):
        self._access = access
        self._accounts = accounts
        self._known: WeakSet[IOStream] = WeakSet()

    def is_known(self, stream: IOStream) -> bool:
        """Return whether a connection's client has shown an administrator's grant."""
        return stream in self._known

    def introduce(self, stream: IOStream, grant: str | None) -> Identity:
        """Return the administrator that the grant names. Raises NotAllowed and TooMuch."""
        try:
            ip, port = stream.socket.getsockname()[:2]
        except OSError:
            raise NotAllowed(Refusal.GONE, "the connection is closed") from None
        identity = self._access.identify_administrator(grant, audience_at(ip, port))
        if not self._accounts.of(identity.charged_user).requests.take():
            raise TooMuch("you ask more often than one user may; wait a second")
        self._known.add(stream)
        return identity

    def pid_of(self, stream: IOStream | None) -> int:
        """Return 0: processes on other machines have no pid here."""
        return 0


def audience_at(ip: str, port: int) -> str:
    """Return what grants for the API at an address are for, as `hub_spawner.nodes` signs them."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return f"affinode:{mapped or address}:{port}"


def serve_remote(controller: Controller, ip: str, port: int) -> HTTPServer | None:
    """Listen and return the server; None where that is not possible (`serve_tcp`)."""
    clients = RemoteClients(controller.access, controller.accounts)
    application = Application(
        [(path, handler) for path, handler in ROUTES if handler in SERVED],
        controller=controller,
        clients=clients,
        drops=DropLog(controller.log),
        log_function=lambda handler: None,
    )
    return serve_tcp(
        application,
        ip,
        port,
        body_bytes_max=BODY_BYTES_MAX,
        what="API for the Hub's administrators",
        log=controller.log,
        is_known=clients.is_known,
    )
