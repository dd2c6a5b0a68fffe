"""What the controller's web servers share: how they accept connections, and the end of those that were hung up."""

from __future__ import annotations

import logging
import socket
from typing import Any

from tornado.http1connection import HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPInputError,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream

from .accepting import Accepting, Line

ACCEPTS_IN_A_TURN = 64


class WebServer(HTTPServer):
    """Serves the connections to one socket, one from each place at a time."""

    def listen_at(self, listening: socket.socket, line: Line[IOStream], log: logging.Logger) -> None:
        """Serve the connections to a socket until `stop`; `line` is theirs."""
        self.line = line
        self._accepting = Accepting(listening, self.take, log, in_a_turn=ACCEPTS_IN_A_TURN)

    def take(self, connected: Any, address: Any) -> None:
        """Put a connection that was accepted in line, or close it."""
        raise NotImplementedError

    def stop(self) -> None:
        """Accept no more connections."""
        self._accepting.stop()
        for stream in self.line.clear():
            stream.close()
        super().stop()

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Return what reads the next request: nothing of one that a closed connection has left in its buffer.

        Tornado would go on to serve what is there, which may be thousands of requests.
        """
        assert isinstance(server_conn, HTTP1ServerConnection)
        return _HungUp() if server_conn.stream.closed() else super().start_request(server_conn, request_conn)


class _HungUp(HTTPMessageDelegate):
    """Ends a connection instead of reading a request."""

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        raise HTTPInputError("the client has hung up")
