"""The honest user's keeper with one image: `using_image.py FOLDER STORE`, not an attack.

It makes the image, and wakes it at the first line on standard input. Before each step of that it says the step's name
and waits for a line; at the end it says why the image was not woken.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "hibernation"))

from attacking import under_way
from written_images import made

from jupyter_affinode.hibernation.hibernate import wake
from jupyter_affinode.hibernation.store import images_in

STORE = Path(sys.argv[2])


def at_step(name: str) -> None:
    """Let the test do something there."""
    under_way(step=name)
    sys.stdin.readline()


def main() -> None:
    """Do it."""
    image = made(STORE)
    under_way(whole=image.is_whole)
    for what in ("list", "wake"):
        sys.stdin.readline()
        try:
            found = images_in(STORE) if what == "list" else asyncio.run(wake(image, at_step))
        except Exception as error:
            under_way(refused=type(error).__name__, why=str(error))
        else:
            under_way(found=str(found))


if __name__ == "__main__":
    main()
