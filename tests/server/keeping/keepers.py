"""The keepers of a test's machine."""

from __future__ import annotations

import contextlib
from pathlib import Path

from live_machine import Machine


def keepers(machine: Machine) -> list[int]:
    """The pids of the machine's keepers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ends meanwhile
            is_keeper = b"jupyter_affinode.keeping.keeper" in path.read_bytes()
            if (
                is_keeper
                and machine.environment["AFFINODE_FOLDER"].encode()
                in Path(path.parent, "environ").read_bytes()
            ):
                found.append(int(path.parent.name))
    return found
