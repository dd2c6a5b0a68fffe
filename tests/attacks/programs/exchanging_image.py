"""Another user's folder for images, which lies in one of the attacker's, exchanged: `exchanging_image.py FOLDER STORE`.

Each line on standard input exchanges the two: what the other user made, and what the attacker made.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from attacking import under_way

STORE = Path(sys.argv[2])


def main() -> None:
    """Exchange them for each line."""
    mine, aside = STORE.with_name("mine"), STORE.with_name("aside")
    shutil.rmtree(mine, ignore_errors=True)
    (mine / "one" / "process").mkdir(parents=True)
    (mine / "one" / "process" / "inventory.img").touch()
    under_way()
    for _ in sys.stdin:
        os.rename(STORE, aside)
        os.rename(mine, STORE)
        os.rename(aside, mine)
        under_way()


if __name__ == "__main__":
    main()
