"""What the programs in this folder share. Each is `NAME.py FOLDER …`, run by `Scene.attack` as the attacking user.

It says that its attack is under way by one line of JSON, goes on with it, and ends when its standard input does.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2] / "node"), str(Path(__file__).parents[2])]

FOLDER = Path(sys.argv[1])
API, LINK = FOLDER / "node.sock", FOLDER / "link.sock"


def under_way(**facts: Any) -> None:
    """Say so."""
    print(json.dumps(facts), flush=True)


def goes_on(pause_s: float = 0.0) -> bool:
    """Whether the attack is to go on; called between its steps."""
    return not select.select([sys.stdin], [], [], pause_s)[0]


def connect(path: Path) -> socket.socket:
    """A connection to one of the controller's sockets."""
    kind = socket.SOCK_SEQPACKET if path == LINK else socket.SOCK_STREAM
    connected = socket.socket(socket.AF_UNIX, kind)
    connected.settimeout(20)
    connected.connect(str(path))
    return connected
