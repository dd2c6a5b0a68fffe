"""The processes of a kernel: the one that the server started, and all below it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from ..keeping.processes import Adopted, ProcessName, name_of

GONE_S = 20.0  # until a process must be dead, and until its parent must have reaped it
LOOK_EVERY_S = 0.02


def tree_of(pid: int) -> list[ProcessName]:
    """Return a process and all below it, itself first. Raises ProcessLookupError if it has ended."""
    found, waiting = [name_of(pid)], [pid]
    while waiting:
        for child in _children(waiting.pop()):
            with contextlib.suppress(ProcessLookupError):
                found.append(name_of(child))
                waiting.append(child)
    return found


def lives(process: ProcessName) -> bool:
    """Return whether a process lives; one that waits for its parent does not."""
    return _is_it(process) and not _is_dead(process.pid)


def threads_of(pid: int) -> list[int]:
    """Return the ids of a process's threads."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def go_on(processes: list[ProcessName]) -> None:
    """Have stopped processes go on; those that have ended are left out."""
    _signal(processes, signal.SIGCONT)


def taken(ids: list[int]) -> tuple[int, str] | None:
    """Return the first of these process ids that a process has, and its name; None: all are free."""
    for each in ids:
        with contextlib.suppress(OSError):
            return each, Path(f"/proc/{each}/comm").read_text().strip()
    return None


async def end(processes: list[ProcessName]) -> None:
    """End processes at once, and wait until they are dead; their ids may be taken a while longer."""
    _signal(processes, signal.SIGKILL)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            died = Adopted(process)
            await asyncio.to_thread(died.wait, GONE_S)


async def free(ids: list[int]) -> tuple[int, str] | None:
    """Wait until dead processes are gone; return the first of these ids that a living one has, and its name."""
    deadline = asyncio.get_running_loop().time() + GONE_S
    while (found := taken(ids)) is not None and _is_dead(found[0]):
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(LOOK_EVERY_S)
    return found


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True


def _signal(processes: list[ProcessName], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(process.pid)
            try:
                if _is_it(process):
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def _is_it(process: ProcessName) -> bool:
    try:
        return name_of(process.pid) == process
    except ProcessLookupError:
        return False


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in threads_of(pid):
        with contextlib.suppress(OSError, ValueError):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found
