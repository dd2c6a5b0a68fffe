"""Floods of the controller's two sockets; each runs for so many seconds and expects to be cut off at any moment."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "node" / "support"))

import fake_shim as wire

STRANGERS = 100
CALLERS = 60
NOISE_BYTES_MAX = 1024


def strangers(folder: Path, source: random.Random, seconds: float) -> None:
    """More connections than may be open without a HELLO, which say nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(STRANGERS):
            with contextlib.suppress(OSError):
                stack.enter_context(wire.connect(folder / "link.sock"))
        time.sleep(seconds)


def noise(folder: Path, source: random.Random, seconds: float) -> None:
    """Random packets, and good headers before random bytes."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        body = source.randbytes(source.randrange(1, NOISE_BYTES_MAX))
        kind = source.choice((wire.HELLO, wire.NOTIFY, wire.REPLY, wire.REQUEST, 0x7F))
        with contextlib.suppress(OSError), wire.connect(folder / "link.sock") as link:
            link.send(body if source.random() < 0.5 else wire.message(kind, body))
            link.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                link.recv(64)


def notices(folder: Path, source: random.Random, seconds: float) -> None:
    """A process that introduced itself says what it can as fast as it can."""
    page = wire.FakePage()
    page.state = wire.NONE
    page.memory = {}
    page.write()
    kinds = (wire.STATE, wire.WANT, wire.UNWANT, wire.ROOM_END, 99)
    until = time.monotonic() + seconds
    with contextlib.suppress(OSError), wire.connect(folder / "link.sock") as link:
        wire.send(link, wire.hello(f"flood-{source.random()}"), page.descriptor)
        link.settimeout(0.05)
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                link.send(wire.notify(source.choice(kinds), number=source.randrange(1 << 32)))
    page.close()


def wrong_versions(folder: Path, source: random.Random, seconds: float) -> None:
    """Shims of unknown versions, again and again."""
    until = time.monotonic() + seconds
    with contextlib.closing(wire.FakePage()) as page:
        while time.monotonic() < until:
            version = source.choice((0, 1, 9))
            with contextlib.suppress(OSError), wire.connect(folder / "link.sock") as link:
                wire.send(link, wire.hello("wrong", version=version), page.descriptor)
                link.settimeout(0.05)
                link.recv(64)


def callers(folder: Path, source: random.Random, seconds: float) -> None:
    """Connections to the API that say nothing, half a request, or nonsense; and honest ones in between."""
    words = (
        b"",
        b"GET /api/v1/node HTTP/1.1\r\nHost:",
        source.randbytes(512),
        b"GET /api/v1/kernels HTTP/1.1\r\n\r\n",
    )
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(CALLERS):
            with contextlib.suppress(OSError):
                caller = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                caller.settimeout(0.5)
                caller.connect(str(folder / "node.sock"))
                caller.send(source.choice(words))
                opened.append(caller)
        while time.monotonic() < until and opened:
            with contextlib.suppress(OSError):
                source.choice(opened).send(source.choice(words))
            time.sleep(0.005)


FLOODS: tuple[Callable[[Path, random.Random, float], None], ...] = (
    strangers,
    noise,
    notices,
    wrong_versions,
    callers,
)
