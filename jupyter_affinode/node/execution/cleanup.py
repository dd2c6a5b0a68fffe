"""Ends a stuck process at its owner's request, and makes sure that it is the right one.

A process is identified by the descriptor (pidfd) that was opened when its shim said HELLO, never by its pid. The pid
was still its own then, because its link was up afterwards: a process that has ended has none. Its user and start time
are checked too. SIGTERM comes first, SIGKILL if it is still there after some seconds.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time

from ..model.reasons import Refusal, StuckReason
from ..protocol.wire import CommandKind
from ..state.records.kernel import KernelRecord
from ..state.records.process import Process
from ..system.peers import started_at

KILL_AFTER_S = 5.0


class CannotEnd(Exception):
    """The process is not ended; `slug` is for programs, the message for users."""

    def __init__(self, slug: Refusal, message: str):
        super().__init__(message)
        self.slug = slug


class CleanUp:
    """Ends stuck processes."""

    def __init__(self, log: logging.Logger):
        self._log = log

    def end(self, kernel: KernelRecord, process: Process, verdict: StuckReason | None) -> None:
        """End a process. Raises CannotEnd for one that is not stuck, or that cannot be identified for certain."""
        if verdict is None:
            raise CannotEnd(Refusal.NOT_STUCK, "the process is not stuck; shut its kernel down to end it")
        watch = process.watch
        if watch is None or not (process.connection is not None or process.is_stopped):
            raise CannotEnd(
                Refusal.OUT_OF_REACH,
                "the process cannot be told for certain from here (it may be in a container)",
            )
        try:
            watch.send(0)  # may we? One that has just ended is as it should be.
            if not _is_same_process(process):
                raise CannotEnd(Refusal.OUT_OF_REACH, "the process is not the one that connected any more")
            self._log.warning(
                "process %d of %s is ended as its owner asked: %s", process.pid, kernel.id, verdict.phrase
            )
            process.said_dying = True
            if process.connection is not None:  # else its exit handlers might wait for the GPU
                process.connection.command(CommandKind.DYING)
            watch.send(signal.SIGTERM)
        except ProcessLookupError:
            return
        except PermissionError:
            raise CannotEnd(Refusal.OUT_OF_REACH, "this controller may not end the process") from None
        asyncio.get_running_loop().call_later(KILL_AFTER_S, self._kill, kernel, process)

    def _kill(self, kernel: KernelRecord, process: Process) -> None:
        if kernel.processes.get(process.key) is process and process.watch is not None:
            self._log.warning("process %d of %s did not end: it is killed", process.pid, kernel.id)
            try:
                process.watch.send(signal.SIGKILL)
            except (ProcessLookupError, PermissionError) as error:
                self._log.warning("process %d: %s", process.pid, error)


def _is_same_process(process: Process) -> bool:
    """Return whether the process behind the descriptor began before its shim connected, and is of the same user.

    If the pid was reused between the connection and our opening the descriptor, the new process began later.
    """
    if process.peer_uid is None:
        return False
    try:
        if os.stat(f"/proc/{process.pid}").st_uid != process.peer_uid:
            return False
    except OSError:
        return False
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return started_at(process.pid, default=math.inf) <= process.connected_at + asleep
