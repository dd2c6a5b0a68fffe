"""What each kind of operation does at the steps that all kinds have; `Operations` calls it.

A new kind is one more class beside these: it begins operations of its own, and says what a reply, time and the end mean
for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..protocol.wire import CommandKind, Reply, Status
from ..state.observer import Observer
from ..state.records.operations import Operation, Phase
from ..state.records.process import Process
from ..state.registry import NodeState
from .failed_moves import FailedParks, UnusedRoom

Kept = TypeVar("Kept", bound=Operation)


@dataclass(frozen=True)
class Surroundings:
    """What operations of all kinds work on and report to."""

    state: NodeState
    log: logging.Logger
    observer: Observer  # of all that ended
    failed_parks: FailedParks
    unused_room: UnusedRoom
    promise: Callable[[Process, int], None]  # reserves lots for a process, lent as they come; 0 ends that


class Kind(Generic[Kept]):
    """The steps of operations of one kind."""

    def __init__(self, around: Surroundings):
        self._around, self._state, self._log = around, around.state, around.log

    def take_reply(self, operation: Kept, process: Process, reply: Reply) -> None:
        """Learn from a process's last reply."""

    def expire(self, operation: Kept, now: float) -> None:
        """Mark the participants whose reply is not waited for any more; called in each pass."""

    def stop(self, operation: Kept) -> None:
        """Have its processes stop after the chunks that they are at work on."""
        if operation.phase is Phase.ABORTING:
            return
        operation.phase = Phase.ABORTING
        for process in operation.kernel.connected():
            told = operation.awaited.get(process.key)
            if told is not None and told.epoch is not None and process.connection is not None:
                process.connection.command(CommandKind.ABORT, request=told.epoch)

    def end(self, operation: Kept) -> None:
        """Draw conclusions: all participants are done, and the kernel has no operation any more."""

    # ---- of those in two steps

    def obstacle(self, operation: Kept) -> tuple[Status, str] | None:
        """Return why not all participants can go on; None as long as all may. The pages are fresh."""
        return None

    def commit(self, operation: Kept) -> None:
        """Have all participants carry out what they prepared."""

    def abort(self, operation: Kept, failure: tuple[Status, str]) -> None:
        """Have all participants undo what they prepared."""
