"""The keepers of a test's machine."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from live_machine import Machine
from waiting import wait_until

KEEPER, SUPERVISOR = b"jupyter_affinode.keeping.keeper", b"jupyter_affinode.client.supervisor"


def keepers(machine: Machine) -> list[int]:
    """The pids of the machine's keepers."""
    return [pid for pid, command in _found(machine) if SUPERVISOR not in command]


def supervisors(machine: Machine) -> list[int]:
    """The pids of what starts the machine's keepers again."""
    return [pid for pid, command in _found(machine) if SUPERVISOR in command]


def the_keeper(machine: Machine) -> int:
    """The pid of the machine's only keeper. Where one was killed two may be started, and one ends at once."""

    def only() -> list[int]:
        found = keepers(machine)
        return found if len(found) == 1 else []

    (pid,) = wait_until(only)
    return pid


def end_keepers(machine: Machine) -> list[int]:
    """Kill the machine's keepers, and first what would start them again; the pids of all."""
    killed = []
    for pid, _ in sorted(_found(machine), key=lambda found: SUPERVISOR not in found[1]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        killed.append(pid)
    return killed


def _found(machine: Machine) -> Iterator[tuple[int, bytes]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ends meanwhile
            command = path.read_bytes()
            if (
                KEEPER in command
                and machine.environment["AFFINODE_FOLDER"].encode()
                in Path(path.parent, "environ").read_bytes()
            ):
                yield int(path.parent.name), command
