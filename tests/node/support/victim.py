"""A person's kernel in a process of its own: `victim.py FOLDER KERNEL_ID`.

Prints "ready", then answers each line on standard input: what its shim has heard (`heard`), what one request to
the API says (`METHOD PATH JSON`), and whether another process of the person is welcome (`another`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from fake_shim import MIB, FakeShim  # noqa: E402
from live_machine import UnixConnection, ask  # noqa: E402
from waiting import wait_until  # noqa: E402

FOLDER, KERNEL_ID = Path(sys.argv[1]), sys.argv[2]
GRANT = os.environ.get("AFFINODE_GRANT") or None


def asked(method: str, path: str, body: object = None) -> tuple[int, object]:
    """One request: status and JSON."""
    headers = {"Authorization": f"Bearer {GRANT}"} if GRANT else {}
    with contextlib.closing(UnixConnection(FOLDER / "node.sock", timeout=60)) as connection:
        wait_until(lambda: connects(connection))
        return ask(connection, method, f"/api/v1{path}", body, **headers)


def connects(connection: UnixConnection) -> bool:
    """Whether there is a place in the line at the socket; clients try again, too."""
    try:
        connection.connect()
    except BlockingIOError:
        connection.close()
        return False
    return True


def another() -> bool:
    """Whether a new process is welcomed."""
    try:
        shim = FakeShim(FOLDER, "another", grant=GRANT)
    except OSError:  # the line at the socket is full: a shim tries again, too
        return False
    shim.close()
    return shim.heard.welcome is not None


shim = FakeShim(FOLDER, KERNEL_ID, resident=300 * MIB, grant=GRANT)
asked("PUT", f"/kernels/{KERNEL_ID}", {"name": "thesis", "path": "home/thesis.ipynb"})
print("ready", flush=True)
for line in sys.stdin:
    words = line.split(" ", 2)
    if words[0].strip() == "heard":
        answer: object = [command.kind for command in shim.heard.commands]
    elif words[0].strip() == "another":
        answer = wait_until(another)
    else:
        answer = asked(words[0], words[1].strip(), *map(json.loads, words[2:]))
    print(json.dumps(answer), flush=True)
