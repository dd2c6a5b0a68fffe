"""The processes of a kernel: the one that the server started, and all below it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Collection, Iterable
from pathlib import Path

from ..keeping.processes import Adopted, ProcessName, name_of
from .seen import Seen, everything

GONE_S = 20.0  # until a process must be dead, and until its parent must have reaped it
REAPED_S = 2.0  # a parent that has not noted an end by then will not
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


def groups_of(pids: Iterable[int]) -> set[int]:
    """Return the process groups and sessions of processes, which CRIU makes again under their numbers.

    Those of the first count only where it leads them, or another of the processes does: else CRIU takes its own.
    """
    processes = [Seen(pid) for pid in pids]
    own = {each.pid for each in processes}
    found = {number for each in processes for number in (each.group, each.session)}
    outer = {processes[0].group, processes[0].session} - own if processes else set()
    return found - outer - {0}


def beside(pids: Collection[int]) -> list[Seen]:
    """Return the processes that are not among these and in a group or session of theirs, the dead ones last.

    A cell's program is there after its parent has ended, which may have been a shell: it is below no process of the
    kernel's then, and its group keeps the number that the kernel's process needs to come back.
    """
    numbers = groups_of(pids) | set(pids)
    found = [
        each
        for each in everything()
        if each.pid not in pids and (each.group in numbers or each.session in numbers)
    ]
    return sorted(found, key=lambda each: each.is_dead)


async def until_reaped(pids: Collection[int]) -> None:
    """Wait a moment for dead processes beside these to be noted by their parents."""
    deadline = asyncio.get_running_loop().time() + REAPED_S
    while (found := beside(pids)) and found[0].is_dead and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(LOOK_EVERY_S)


async def free(ids: list[int]) -> str | None:
    """Wait until dead processes are gone; return why one of these ids cannot be had, and what to do; None: all can.

    A number is also taken by a process whose group or session has it, though its leader has ended.
    """
    deadline = asyncio.get_running_loop().time() + GONE_S
    while (found := _holder(ids)) is not None:
        number, holder = found
        if not holder.is_dead or asyncio.get_running_loop().time() > deadline:
            return _taken(number, holder)
        await asyncio.sleep(LOOK_EVERY_S)
    return None


def _holder(ids: list[int]) -> tuple[int, Seen] | None:
    """Return the first number that is taken, and the process that has it: one that lives before one that is dead."""
    wanted, dead = set(ids), None
    for number in ids:  # threads' ids, too, which no listing shows
        if Path(f"/proc/{number}").exists():
            if not (holder := Seen(number)).is_dead:
                return number, holder
            dead = number, holder
    for each in everything():
        if numbers := wanted & {each.group, each.session}:
            if not each.is_dead:
                return min(numbers), each
            dead = dead or (min(numbers), each)
    return dead


def not_reaped(process: Seen) -> str:
    """Return what is to be done about a dead process that its parent has not noted, after "process 7"."""
    return (
        f"has ended, but its parent, process {process.parent}, has not noted that: in a container, start that with an"
        " init (docker run --init)"
    )


def _taken(number: int, holder: Seen) -> str:
    if holder.is_dead:
        return f"its process {holder.pid} {not_reaped(holder)}"
    if number in (holder.group, holder.session) and number != holder.pid:
        return (
            f"`{holder.command}` (process {holder.pid}) is in the process group or session {number}, whose number the"
            f" kernel needs: end it (`kill {holder.pid}`), or wait until it has ended"
        )
    return f"its process id {number} is {holder.name}'s now: try again when that has ended"


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
