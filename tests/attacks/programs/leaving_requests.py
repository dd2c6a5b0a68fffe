"""Connections that are closed at once, each with more than a thousand requests in its buffer."""

from __future__ import annotations

import contextlib

from attacking import API, again_and_again, connect

REQUESTS = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * 2300  # what is read at once


def leave() -> None:
    """Say it all and hang up."""
    with contextlib.suppress(OSError), connect(API) as connected:
        connected.setblocking(False)
        connected.send(REQUESTS)


again_and_again(leave)
