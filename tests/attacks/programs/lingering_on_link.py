"""Descriptors whose close blocks, on the shims' socket: with HELLO, after it, and unread behind a bad message."""

from __future__ import annotations

import contextlib

from attacking import LINK, Lingering, again_and_again, connect
from fake_shim import FakePage, hello, notify, send

lingering, page = Lingering(), FakePage()


def with_hello() -> None:
    """Beside the page, in its place, and nested in another socket."""
    with connect(LINK) as link:
        lingering.give(link, hello("beside"), 5, page.descriptor)
    with connect(LINK) as link:
        lingering.give(link, hello("instead"), 1)
    with connect(LINK) as link, lingering.nested() as nested:
        send(link, hello("nested"), page.descriptor, nested.fileno())


def after_hello() -> None:
    """With a message that has none."""
    with connect(LINK) as link:
        send(link, hello("after"), page.descriptor)
        link.recv(4096)  # WELCOME
        lingering.give(link, notify(1), 3)


def unread() -> None:
    """In messages behind one for which the connection is ended."""
    with connect(LINK) as link:
        link.send(b"no message of ours")
        for _ in range(5):
            lingering.give(link, notify(1), 3)


def attack() -> None:
    """All of them."""
    for each in (with_hello, after_hello, unread):
        with contextlib.suppress(OSError):  # the controller hung up, or takes no descriptors
            each()


again_and_again(attack)
