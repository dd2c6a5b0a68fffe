"""The processes of a kernel: the one that the server started, and all below it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from ..keeping.processes import Adopted, ProcessName, name_of
from .seen import Seen

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


def threads_of(pid: int) -> list[int]:
    """Return the ids of a process's threads."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def bound_to_processors(threads: list[int]) -> dict[str, list[int]]:
    """Return to which processors threads are bound, by thread, where those are not this process's. CRIU forgets it."""
    own, found = os.sched_getaffinity(0), dict[str, list[int]]()
    for thread in threads:
        with contextlib.suppress(OSError):
            if (processors := os.sched_getaffinity(thread)) != own:
                found[str(thread)] = sorted(processors)
    return found


def bind_to_processors(bound: dict[str, list[int]]) -> None:
    """Bind threads again, but to processors that this machine or its cgroup does not have."""
    for thread, processors in bound.items():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(thread), processors)


def go_on(processes: list[ProcessName]) -> None:
    """Have stopped processes go on; those that have ended are left out."""
    _signal(processes, signal.SIGCONT)


def kill(processes: list[ProcessName]) -> None:
    """End processes at once."""
    _signal(processes, signal.SIGKILL)


async def end(processes: list[ProcessName]) -> None:
    """End processes at once, and wait until they are dead; their ids may be taken a while longer."""
    kill(processes)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            died = Adopted(process)
            await asyncio.to_thread(died.wait, GONE_S)


async def free(ids: list[int]) -> str | None:
    """Wait until dead processes are gone; return why one of these ids cannot be had, and what to do; None: all can."""
    deadline = asyncio.get_running_loop().time() + GONE_S
    while (found := next((each for each in ids if Path(f"/proc/{each}").exists()), None)) is not None:
        is_dead = _is_dead(found)
        if not is_dead or asyncio.get_running_loop().time() > deadline:
            return _taken(found, is_dead)
        await asyncio.sleep(LOOK_EVERY_S)
    return None


def _taken(pid: int, is_dead: bool) -> str:
    process = Seen(pid)
    if is_dead:
        parent = process.status.get("PPid", "?")
        return (
            f"its process {pid} has ended, but its parent, process {parent}, has not noted that: in a container, start"
            " that with an init (docker run --init)"
        )
    return f"its process id {pid} is {process.name}'s now: try again when that has ended"


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True


def _signal(processes: list[ProcessName], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            Adopted(process).send_signal(number)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in threads_of(pid):
        with contextlib.suppress(OSError, ValueError):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found
