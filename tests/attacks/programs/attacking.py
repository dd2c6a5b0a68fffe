"""What the programs in this folder share. Each is `NAME.py FOLDER …`, run by `Scene.attack` as the attacking user.

It says that its attack is under way by one line of JSON, goes on with it, and ends when its standard input does.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import json
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2] / "node" / "support"), str(Path(__file__).parents[2])]

from live_machine import UnixConnection, ask  # noqa: E402

FOLDER = Path(sys.argv[1])
API, LINK = FOLDER / "node.sock", FOLDER / "link.sock"
INTERRUPT_EVERY_S = 0.05


def under_way(**facts: Any) -> None:
    """Say so."""
    print(json.dumps(facts), flush=True)


def goes_on(pause_s: float = 0.0) -> bool:
    """Whether the attack is to go on; called between its steps."""
    return not select.select([sys.stdin], [], [], pause_s)[0]


def again_and_again(attack: Callable[[], None]) -> None:
    """Attack until it is to end; it is under way after the first time."""
    is_begun = False
    while goes_on(0.02):
        attack()
        if not is_begun:
            is_begun = True
            under_way()


def connect(path: Path) -> socket.socket:
    """A connection to one of the controller's sockets."""
    kind = socket.SOCK_SEQPACKET if path == LINK else socket.SOCK_STREAM
    connected = socket.socket(socket.AF_UNIX, kind)
    connected.settimeout(60)
    connected.connect(str(path))
    return connected


def node() -> Any:
    """What the controller says of the machine."""
    with contextlib.closing(UnixConnection(API)) as connection:
        return ask(connection, "GET", "/api/v1/node")[1]


class Lingering:
    """Descriptors whose last close blocks: TCP sockets that linger for an hour over data that is never read."""

    def __init__(self) -> None:
        self._deaf: list[socket.socket] = []
        self._made = 0
        # Where the receiver closed first, our close is the last and blocks: a signal ends that, and Python goes on with
        # any other call.
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, INTERRUPT_EVERY_S, INTERRUPT_EVERY_S)
        atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # Python gives up its handlers as it ends

    def new(self) -> socket.socket:
        """One more; it blocks the process that closes it last."""
        if self._made % 1000 == 0:  # no more fit into the queue of one that accepts nothing
            self._deaf.append(socket.create_server(("127.0.0.1", 0), backlog=2000))
            self._deaf[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._made += 1
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 3600))
        made.connect(self._deaf[-1].getsockname())
        made.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                made.send(bytes(4096))
        return made

    def nested(self) -> socket.socket:
        """One end of a pair of Unix sockets, with one of them in its queue."""
        outer, inner = socket.socketpair()
        self.give(inner, b"x", 1)
        inner.close()
        return outer

    def give(self, connected: socket.socket, data: bytes, count: int, *first: int) -> None:
        """Send a message with that many of them, after the descriptors `first`; the receiver has them alone."""
        given = [self.new() for _ in range(count)]
        rights = array.array("i", [*first, *(each.fileno() for each in given)])
        try:
            connected.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError:  # they stay ours, to be closed at once
            for each in given:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 0, 0))
            raise
        finally:
            for each in given:
                each.close()
