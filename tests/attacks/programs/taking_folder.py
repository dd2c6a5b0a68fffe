"""Another user's place for sockets in /tmp, taken: `taking_folder.py FOLDER UID folder`, `link`, `file` or `fifo`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from attacking import goes_on, under_way

PLACE = Path(f"/tmp/affinode-{sys.argv[2]}")


def make_folder() -> None:
    """One that every user may enter and change."""
    PLACE.mkdir()
    PLACE.chmod(0o777)


def main() -> None:
    """Take it and give it up at the end."""
    ways = {
        "folder": make_folder,
        "link": lambda: PLACE.symlink_to("/tmp"),
        "file": PLACE.touch,
        "fifo": lambda: os.mkfifo(PLACE),
    }
    ways[sys.argv[3]]()
    under_way()
    while goes_on(0.1):
        pass
    if PLACE.is_dir() and not PLACE.is_symlink():
        PLACE.rmdir()
    else:
        PLACE.unlink()


if __name__ == "__main__":
    main()
