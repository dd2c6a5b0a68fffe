"""On the path of a server's programs: the keeper stops at a step of hibernating or waking of which a file tells, once,
until another file is there.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEEPER = ["-m", "jupyter_affinode.keeping.keeper"]

if "STOPPING" in os.environ and any(sys.orig_argv[at : at + 2] == KEEPER for at in range(len(sys.orig_argv))):
    from jupyter_affinode.hibernation import hibernate as images

    folder = Path(os.environ["STOPPING"])

    def stopping(function: Callable[..., Any], which: str) -> Callable[..., Any]:
        """Return the function, which stops where the file says so."""

        async def instead(
            *arguments: Any, on_step: Callable[[str], None] | None = None, **others: Any
        ) -> Any:
            def step(name: str) -> None:
                if on_step is not None:
                    on_step(name)
                told = folder / "stop"
                if told.exists() and told.read_text() == f"{which}: {name}":
                    told.unlink()
                    (folder / "stopped").touch()
                    while not (folder / "go").exists():
                        time.sleep(0.002)

            return await function(*arguments, on_step=step, **others)

        return instead

    images.hibernate = stopping(images.hibernate, "hibernate")
    images.wake = stopping(images.wake, "wake")
