"""What the controller tells of its doings to what keeps history or figures; nothing here decides anything.

An observer is called on the controller's loop and must neither block nor raise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..model.reasons import Cause, Refusal
from ..model.snapshot import Waiter
from .records.kernel import KernelRecord


@dataclass(frozen=True)
class MoveEnded:
    """A park or a resume of a whole kernel that ended, however."""

    parks: bool
    outcome: str  # "ok", or a slug of `move_outcomes.SLUGS`
    cause: Cause
    depth: str  # "memory" or "context": what it was parked to, or came back from
    bytes: int  # moved
    duration_s: float  # from the command to the last process's answer
    waited_s: float | None  # resume: how long it had stood in the queue when it began
    for_kernel: str | None = None  # park: the kernel that waited for its memory
    from_gpu: str | None = None  # resume: the GPU that it had left, if it was to come back on another one
    to_gpu: str | None = None  # … and that one


@dataclass(frozen=True)
class SpillEnded:
    """Parked memory of a kernel was written to disk, as far as it went."""

    outcome: str  # "ok" or "failed"
    bytes: int
    duration_s: float


@dataclass(frozen=True)
class RoomAnswered:
    """An allocation that met a full GPU got its answer."""

    granted: bool
    gpu: str
    bytes: int
    waited_s: float
    cause: Cause = Cause.OTHER  # of a denial


class Observer:
    """Hears of everything that ends, as far as it has a method for it."""

    def move_ended(self, kernel: KernelRecord, ended: MoveEnded) -> None:
        """A park or resume ended, or failed."""

    def park_refused(self, kernel: KernelRecord, slug: Refusal, was_tried: bool) -> None:
        """A kernel that should have been parked stays: the policy's refusal, or a park that failed (it was
        tried, and `move_ended` told of it already).
        """

    def spill_ended(self, kernel: KernelRecord, ended: SpillEnded) -> None:
        """Parked memory went to disk, or could not."""

    def room_answered(self, kernel: KernelRecord, answered: RoomAnswered) -> None:
        """An allocation was granted room, or denied it."""

    def kernel_ending(self, kernel: KernelRecord, cause: Cause) -> None:
        """A kernel's server was asked to shut it down."""

    def looked(self, now: float, queue: Sequence[Waiter]) -> None:
        """A pass is over: pages were read, decisions carried out; `queue` has the waiters."""


class Observers(Observer):
    """Tells several; one that fails is logged, and neither the others nor the controller feel it."""

    def __init__(self, log: logging.Logger, *observers: Observer):
        self._log = log
        self._observers = list(observers)

    def add(self, observer: Observer) -> None:
        """Tell this one, too, from now on."""
        self._observers.append(observer)

    def move_ended(self, kernel: KernelRecord, ended: MoveEnded) -> None:
        """See Observer."""
        self._tell(lambda observer: observer.move_ended(kernel, ended))

    def park_refused(self, kernel: KernelRecord, slug: Refusal, was_tried: bool) -> None:
        """See Observer."""
        self._tell(lambda observer: observer.park_refused(kernel, slug, was_tried))

    def spill_ended(self, kernel: KernelRecord, ended: SpillEnded) -> None:
        """See Observer."""
        self._tell(lambda observer: observer.spill_ended(kernel, ended))

    def room_answered(self, kernel: KernelRecord, answered: RoomAnswered) -> None:
        """See Observer."""
        self._tell(lambda observer: observer.room_answered(kernel, answered))

    def kernel_ending(self, kernel: KernelRecord, cause: Cause) -> None:
        """See Observer."""
        self._tell(lambda observer: observer.kernel_ending(kernel, cause))

    def looked(self, now: float, queue: Sequence[Waiter]) -> None:
        """See Observer."""
        self._tell(lambda observer: observer.looked(now, queue))

    def _tell(self, tell: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                tell(observer)
            except Exception:  # figures and history must never keep a kernel waiting
                self._log.exception("an observer failed")
