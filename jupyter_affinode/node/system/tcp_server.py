"""Web servers on a TCP port: a bounded number of connections, none of which is kept for long."""

from __future__ import annotations

import logging
import socket
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application

CONNECTIONS_MAX = 32
IDLE_S = 30.0
HEADER_BYTES_MAX = 16 * 1024


class BoundedServer(HTTPServer):
    """Serves a bounded number of connections."""

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            stream.close()
        else:
            super().handle_stream(stream, address)


def serve_tcp(
    application: Application, ip: str, port: int, *, body_bytes_max: int, what: str, log: logging.Logger
) -> BoundedServer | None:
    """Serve `what` at an address; return the server. "" is every address, of both families where that is possible.

    Return None, with a line in the log, where it cannot listen: the controller serves all the same.
    """
    try:
        listening = _listen(ip, port)
    except OSError as error:
        log.error("no %s over TCP: %s port %d cannot be bound: %s", what, ip or "*", port, error)
        return None
    server = BoundedServer(
        application,
        max_body_size=body_bytes_max,
        max_header_size=HEADER_BYTES_MAX,
        idle_connection_timeout=IDLE_S,
        body_timeout=IDLE_S,
    )
    server.add_socket(listening)
    log.info("%s over TCP: at %s port %d", what, ip or "*", port)
    return server


def _listen(ip: str, port: int) -> socket.socket:
    if not ip and socket.has_dualstack_ipv6():
        listening = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        listening = socket.create_server((ip, port), family=family)
    listening.setblocking(False)
    return listening
