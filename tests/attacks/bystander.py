"""An honest user's requests, one after the other until standard input ends: `bystander.py FOLDER`.

Some are made as a command line does, on a connection of their own, some as a server does, on one that stays open.
Prints for each a line of JSON: when it was sent, how long its answer took, its status (0: none came), and what it was.
"""

from __future__ import annotations

import http.client
import itertools
import json
import select
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from live_machine import UnixConnection  # noqa: E402

PAUSE_S = 0.03  # one user may ask 50 times a second
TIMEOUT_S = 60.0
REQUESTS = (
    ("GET", "/node", None),
    ("GET", "/kernels", None),
    ("PUT", "/kernels/mine", '{"name": "mine"}'),
    ("GET", "/kernels/mine", None),
)


def ask(connection: UnixConnection, method: str, path: str, body: str | None) -> int:
    """The status of one request; 0 if there was no answer."""
    try:
        connection.request(method, f"/api/v1{path}", body)
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        connection.close()
        return 0


def main() -> None:
    """Ask and print."""
    socket = Path(sys.argv[1]) / "node.sock"
    kept = UnixConnection(socket, TIMEOUT_S)
    for number, (method, path, body) in enumerate(itertools.cycle(REQUESTS)):
        if select.select([sys.stdin], [], [], PAUSE_S)[0]:
            return
        connection = kept if number // len(REQUESTS) % 2 else UnixConnection(socket, TIMEOUT_S)
        began = time.monotonic()
        status = ask(connection, method, path, body)
        print(json.dumps([began, time.monotonic() - began, status, f"{method} {path}"]), flush=True)
        if connection is not kept:
            connection.close()


if __name__ == "__main__":
    main()
