"""Web servers on a TCP port: a bounded number of connections, none of which keeps another client from an answer.

Any program of the network may connect. Where too many are connected, a client that has not proved its identity makes
way for a new one. One that asks at once has its answer before that.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from tornado.http1connection import HTTP1ServerConnection
from tornado.iostream import IOStream
from tornado.web import Application

from .accepting import Line
from .peers import oldest_of_largest_user
from .web_server import WebServer

CONNECTIONS_MAX = 128  # that are served, and as many may wait for it
REQUESTS_PER_S, AT_ONCE = 100.0, 16  # of all clients: the loop has time for others however many ask
BACKLOG = 128
PATIENCE_S = 10.0  # with a request's headers, and with its body
HEADER_BYTES_MAX = 16 * 1024
NETWORK_BITS = {4: 24, 6: 64}  # what one site or one machine has many addresses of


class Address(NamedTuple):
    """Where a client is."""

    network: str
    ip: str


class BoundedServer(WebServer):
    """Serves a bounded number of connections, one from each network at a time."""

    is_known: Callable[[IOStream], bool]  # whether a connection's client has proved its identity

    def initialize(self, *arguments: Any, **options: Any) -> None:
        """Prepare, as tornado's servers do."""
        super().initialize(*arguments, **options)
        self._addresses: dict[IOStream, Address] = {}  # of those that are served, oldest first

    def take(self, connected: socket.socket, address: Any) -> None:
        """Have a connection wait for its turn."""
        if len(self.line) >= CONNECTIONS_MAX:
            connected.close()
        else:
            self.line.add(address_of(address).network, IOStream(connected))

    def serve(self, stream: IOStream) -> None:
        """Serve a connection; where there are too many, end the oldest of the network that has the most."""
        try:
            address = stream.socket.getpeername()
        except OSError:
            return stream.close()  # the client has hung up
        if len(self._addresses) >= CONNECTIONS_MAX:
            unknown = {other: its for other, its in self._addresses.items() if not self.is_known(other)}
            goes = oldest_of_largest_user(unknown)
            if goes is None:
                return stream.close()
            del self._addresses[goes]
            goes.close()
        self._addresses[stream] = address_of(address)
        self.handle_stream(stream, address)

    def on_close(self, server_conn: object) -> None:
        """Forget a connection that ended."""
        super().on_close(server_conn)
        assert isinstance(server_conn, HTTP1ServerConnection)
        self._addresses.pop(server_conn.stream, None)


def address_of(name: tuple[Any, ...]) -> Address:
    """Return where a client is, by the name of its socket."""
    ip = ipaddress.ip_address(str(name[0]).partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    network = ipaddress.ip_network((ip, NETWORK_BITS[ip.version]), strict=False)
    return Address(str(network), str(ip))


def serve_tcp(
    application: Application,
    ip: str,
    port: int,
    *,
    body_bytes_max: int,
    what: str,
    log: logging.Logger,
    is_known: Callable[[IOStream], bool] = lambda stream: False,
) -> BoundedServer | None:
    """Serve `what` at an address; return the server. "" is every address, of both families where that is possible.

    `is_known`: whether a connection's client has proved its identity. Return None, with a line in the log, where it
    cannot listen: the controller serves all the same.
    """
    try:
        listening = _listen(ip, port)
    except OSError as error:
        log.error("no %s over TCP: %s port %d cannot be bound: %s", what, ip or "*", port, error)
        return None
    server = BoundedServer(
        application,
        no_keep_alive=True,  # a client waits in line for each request
        max_body_size=body_bytes_max,
        max_header_size=HEADER_BYTES_MAX,
        idle_connection_timeout=PATIENCE_S,
        body_timeout=PATIENCE_S,
    )
    server.is_known = is_known
    server.listen_at(listening, Line(server.serve, per_s=REQUESTS_PER_S, at_once=AT_ONCE), log)
    log.info("%s over TCP: at %s port %d", what, ip or "*", port)
    return server


def _listen(ip: str, port: int) -> socket.socket:
    if not ip and socket.has_dualstack_ipv6():
        listening = socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
        )
    else:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        listening = socket.create_server((ip, port), family=family, backlog=BACKLOG)
    listening.setblocking(False)
    return listening
