"""The keepers of a test's machine."""

from __future__ import annotations

from pathlib import Path

from live_machine import Machine


def keepers(machine: Machine) -> list[int]:
    """The pids of the machine's keepers."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/environ")
        if (path.parent / "cmdline").read_bytes().find(b"jupyter_affinode.keeping.keeper") >= 0
        and machine.environment["AFFINODE_FOLDER"].encode() in path.read_bytes()
    ]
