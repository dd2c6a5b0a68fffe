"""An honest user's requests, one after the other until standard input ends: `bystander.py FOLDER PID`.

Some are made as a command line does, on a connection of their own, some as a server does, on one that stays open.
Prints for each a line of JSON: when it was sent, how long its answer took, for how much of that the controller (whose
pid is PID) or this process waited for a processor, how much processor time the controller's threads used meanwhile, its
status (0: none came), and what it was.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import select
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from live_machine import UnixConnection, ask  # noqa: E402

PAUSE_S = 0.03  # one user may ask 50 times a second
TIMEOUT_S = 60.0
REQUESTS = (
    ("GET", "/node", None),
    ("GET", "/kernels", None),
    ("PUT", "/kernels/mine", {"name": "mine"}),
    ("GET", "/kernels/mine", None),
)


def status_of(connection: UnixConnection, method: str, path: str, body: object) -> int:
    """The status of one request; 0 if there was no answer."""
    try:
        return ask(connection, method, f"/api/v1{path}", body)[0]
    except (OSError, http.client.HTTPException):
        connection.close()
        return 0


def waited_s(*processes: str) -> float:
    """How long the first threads of these processes ever waited for a processor (proc(5), schedstat), in seconds."""
    return sum(int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) for process in processes) / 1e9


def worked_s(process: str) -> float:
    """How much processor time the threads of a process have used, in seconds."""
    used = 0
    for thread in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            used += int((thread / "schedstat").read_text().split()[0])
    return used / 1e9


def main() -> None:
    """Ask and print."""
    socket, processes = Path(sys.argv[1]) / "node.sock", (sys.argv[2], "self")
    kept = UnixConnection(socket, TIMEOUT_S)
    for number, (method, path, body) in enumerate(itertools.cycle(REQUESTS)):
        if select.select([sys.stdin], [], [], PAUSE_S)[0]:
            return
        connection = kept if number // len(REQUESTS) % 2 else UnixConnection(socket, TIMEOUT_S)
        worked, waited, began = worked_s(sys.argv[2]), waited_s(*processes), time.monotonic()
        status = status_of(connection, method, path, body)
        lasted = time.monotonic() - began
        waited, worked = waited_s(*processes) - waited, worked_s(sys.argv[2]) - worked
        print(json.dumps([began, lasted, waited, worked, status, f"{method} {path}"]), flush=True)
        if connection is not kept:
            connection.close()


if __name__ == "__main__":
    main()
