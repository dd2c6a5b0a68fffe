"""Locks on the GPUs in the attacker's own folder, held for ever: `holding_locks.py FOLDER files` or `odd`.

Odd ones are no regular files: a directory, a FIFO with text in it, and a link to the lock that the controller holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from pathlib import Path

from attacking import FOLDER, goes_on, node, under_way

OWN = Path(f"/tmp/affinode-{os.getuid()}")


def make_file(path: Path) -> int:
    """What a controller makes."""
    path.write_text("process 1 (/a/node.sock)\n")
    return os.open(path, os.O_RDWR)


def make_directory(path: Path) -> int:
    """One that can be locked and not read."""
    path.mkdir()
    return os.open(path, os.O_RDONLY)


def make_fifo(path: Path) -> int:
    """One that is read once, by whichever process comes first."""
    os.mkfifo(path)
    made = os.open(path, os.O_RDWR)
    os.write(made, b"process 1 (/a/node.sock)\n")
    return made


def make_link(path: Path) -> int:
    """One to a file that the controller itself has locked."""
    path.symlink_to(FOLDER / path.name)
    return os.open("/dev/null", os.O_RDWR)


def main() -> None:
    """Hold a lock of each GPU."""
    uuids = [gpu["uuid"] for gpu in node()["gpus"]]
    kinds = {"files": (make_file,), "odd": (make_directory, make_fifo, make_link)}[sys.argv[2]]
    OWN.mkdir(mode=0o755)
    try:
        for number, uuid in enumerate(uuids):
            held = kinds[number % len(kinds)](OWN / f"serves-{uuid}.lock")
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        under_way()
        while goes_on(0.1):
            pass
    finally:
        shutil.rmtree(OWN)


if __name__ == "__main__":
    main()
