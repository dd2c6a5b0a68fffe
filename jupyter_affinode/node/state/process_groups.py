"""Which processes of a kernel a signal to it reaches: those of the process group that the kernel was started in.

Interrupts and ends of a kernel concern these processes alone. A job in a session of its own goes on, and what is said
of a kernel that was restarted since does not reach the processes of the new one, which have another group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..system.peers import pid_namespace_of
from .records import Process


@dataclass(frozen=True)
class ProcessGroup:
    """A process group by its number, as the server sees it that started the kernel in it."""

    number: int
    namespace: str  # of the server's process ids; "" if that cannot be seen


def reached(processes: Iterable[Process], group: ProcessGroup | None) -> list[Process]:
    """Return the processes that a signal to `group` reaches, as far as that can be known; None reaches all.

    Where numbers cannot be compared, a signal may be handed on: a program that runs a kernel in a container does so.
    """
    return [process for process in processes if group is None or _is_reached(process, group)]


def _is_reached(process: Process, group: ProcessGroup) -> bool:
    if process.hello.process_group in (0, group.number):
        return True
    return pid_namespace_of(process.pid) != group.namespace
