"""The metrics over TCP, for a Prometheus elsewhere: this one page, and never the API.

Off by default. Any program may read the page, so it names no users unless the administrator turned that on. Its cost is
bounded: one collection a second however many programs ask.
"""

from __future__ import annotations

import logging
import time

from prometheus_client import CONTENT_TYPE_LATEST
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from ..system.tcp_server import serve_tcp
from .collectors import Metrics

FRESH_S = 1.0  # how long a collected page is served again


class _Page(RequestHandler):
    """GET /metrics"""

    def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(self.application.settings["page"]())


class _Nothing(RequestHandler):
    """Any other path."""

    def prepare(self) -> None:
        self.set_status(404)
        self.set_header("Content-Type", "text/plain")
        self.finish("only /metrics is here\n")


def serve_metrics(metrics: Metrics, ip: str, port: int, log: logging.Logger) -> HTTPServer | None:
    """Listen and return the server; None where that is not possible (`serve_tcp`)."""
    page = _Fresh(metrics)
    application = Application(
        [(r"/metrics", _Page), (r".*", _Nothing)], page=page.text, log_function=lambda handler: None
    )
    return serve_tcp(application, ip, port, body_bytes_max=1024, what="metrics", log=log)


class _Fresh:
    """The page, at most a second old."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._made_at = 0.0
        self._text = b""

    def text(self) -> bytes:
        """Return the exposition format."""
        if time.monotonic() - self._made_at >= FRESH_S or not self._text:
            self._text, self._made_at = self._metrics.text(), time.monotonic()
        return self._text
