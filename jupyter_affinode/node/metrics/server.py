"""The metrics over TCP, for a Prometheus elsewhere: this one page, and never the API.

Off by default. Any program may read the page, so it says nothing of users unless the administrator
turned that on, and what it costs is bounded: one collection a second however many ask.
"""

from __future__ import annotations

import logging
import socket
import time
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application, RequestHandler

from .collectors import Metrics

CONNECTIONS_MAX = 32
IDLE_S = 30.0
FRESH_S = 1.0  # how long a collected page is served again


class MetricsServer(HTTPServer):
    """Serves a bounded number of connections."""

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Called by tornado for each connection."""
        if len(self._connections) >= CONNECTIONS_MAX:
            stream.close()
        else:
            super().handle_stream(stream, address)


class _Page(RequestHandler):
    """GET /metrics"""

    def get(self) -> None:
        """Called by tornado."""
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(self.application.settings["page"]())


class _Nothing(RequestHandler):
    """Everything else."""

    def prepare(self) -> None:
        """Called by tornado."""
        self.set_status(404)
        self.set_header("Content-Type", "text/plain")
        self.finish("only /metrics is here\n")


def serve_metrics(metrics: Metrics, ip: str, port: int, log: logging.Logger) -> MetricsServer | None:
    """Listen; None, with a line in the log, where that is not possible: the controller goes on without."""
    page = _Fresh(metrics)
    server = MetricsServer(
        Application(
            [(r"/metrics", _Page), (r".*", _Nothing)], page=page.text, log_function=lambda handler: None
        ),
        max_body_size=1024,
        max_header_size=16 * 1024,
        idle_connection_timeout=IDLE_S,
        body_timeout=IDLE_S,
    )
    try:
        listening = _listen(ip, port)
    except OSError as error:
        log.error("no metrics over TCP: %s port %d cannot be bound: %s", ip or "*", port, error)
        return None
    server.add_socket(listening)
    log.info("metrics at %s port %d, /metrics", *listening.getsockname()[:2])
    return server


def _listen(ip: str, port: int) -> socket.socket:
    """A listening socket; "" is every address, of both families where that can be. Raises OSError."""
    if not ip and socket.has_dualstack_ipv6():
        listening = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        listening = socket.create_server((ip, port), family=family)
    listening.setblocking(False)
    return listening


class _Fresh:
    """The page, not older than a second."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._made_at = 0.0
        self._text = b""

    def text(self) -> bytes:
        """The exposition format."""
        if time.monotonic() - self._made_at >= FRESH_S or not self._text:
            self._text, self._made_at = self._metrics.text(), time.monotonic()
        return self._text
