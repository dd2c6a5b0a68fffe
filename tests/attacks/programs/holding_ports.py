"""Connections to TCP ports that say little, or nothing, or do not read: `holding_ports.py FOLDER WAY SOURCES PORT …`.

There are always 64 for each port: what the controller closes comes again, from one after the other of so many
addresses. WAY is what each does: `silent`, `headers` (a byte now and then), `body` (likewise), `idle` (a request, then
nothing), `unread` (requests whose answers it does not read), `forged` (requests with a token that is none).
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import sys
import time

from attacking import again_and_again, goes_on

HELD = 64
WAY, SOURCES = sys.argv[2], int(sys.argv[3])
PORTS = [int(port) for port in sys.argv[4:]]
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
FIRST = {
    "silent": b"",
    "headers": b"GET /api/v1/node HTTP/1.1\r\nX: ",
    "body": b"PATCH /api/v1/policy HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{",
    "idle": GET + b"\r\n",
    "unread": (GET + b"\r\n") * 50,
    "forged": b"GET /api/v1/node HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a.b.c\r\n\r\n",
}[WAY]
NEXT = {"unread": GET + b"\r\n", "silent": b"", "idle": b"", "forged": FIRST}.get(WAY, b" ")
_sources = itertools.cycle(range(1, SOURCES + 1))


def opened(port: int) -> socket.socket:
    """A connection from the next address."""
    made = socket.create_connection(("127.0.0.1", port), 5.0, (f"127.0.1.{next(_sources)}", 0))
    made.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        made.send(FIRST)
    return made


def is_open(held: socket.socket) -> bool:
    """Whether the controller has not closed it; says the next little thing."""
    try:
        if WAY != "unread" and select.select([held], [], [], 0)[0] and not held.recv(65536):
            return False
        held.send(NEXT)
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True


held: dict[int, list[socket.socket]] = {port: [] for port in PORTS}


def hold() -> None:
    """Open what is missing."""
    for port, connections in held.items():
        for each in [each for each in connections if not is_open(each)]:
            connections.remove(each)
            each.close()
        until = time.monotonic() + 0.5
        while len(connections) < HELD and time.monotonic() < until and goes_on():
            with contextlib.suppress(OSError):
                connections.append(opened(port))


again_and_again(hold)
