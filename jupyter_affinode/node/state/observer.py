"""Observers: what the controller reports to history and metrics; nothing here decides anything.

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
    """A park or resume of a whole kernel that ended, well or badly."""

    parks: bool
    outcome: str  # "ok", or a slug of `move_outcomes.SLUGS`
    cause: Cause
    depth: str  # "memory" or "context": the depth of the park, or that the resume began from
    bytes: int  # moved
    duration_s: float  # from the command to the last process's answer
    waited_s: float | None  # resume: how long it had waited in the queue when it began
    for_kernel: str | None = None  # park: the kernel that waited for its memory
    from_gpu: str | None = None  # resume: the GPU that it left, if it migrates
    to_gpu: str | None = None  # … and that one


@dataclass(frozen=True)
class SpillEnded:
    """A spill of a kernel's parked memory that ended."""

    outcome: str  # "ok" or "failed"
    bytes: int
    duration_s: float
    into_image: bool = False  # with its processes, which leave


@dataclass(frozen=True)
class RoomAnswered:
    """An answer to an allocation that found its GPU full."""

    granted: bool
    gpu: str
    bytes: int
    waited_s: float
    cause: Cause = Cause.OTHER  # of a denial


class Observer:
    """An observer; it overrides the methods that it needs."""

    def move_ended(self, kernel: KernelRecord, ended: MoveEnded) -> None:
        """Take note of a park or resume that ended or failed."""

    def park_refused(self, kernel: KernelRecord, slug: Refusal, was_tried: bool) -> None:
        """Take note of a kernel that stays although it should have been parked: refused by the policy, or tried and
        failed (`was_tried`; `move_ended` reported that already).
        """

    def spill_ended(self, kernel: KernelRecord, ended: SpillEnded) -> None:
        """Take note of a spill that ended or failed."""

    def room_answered(self, kernel: KernelRecord, answered: RoomAnswered) -> None:
        """Take note of an allocation that was granted room or denied it."""

    def kernel_ending(self, kernel: KernelRecord, cause: Cause) -> None:
        """Take note of a kernel whose server was asked to shut it down."""

    def looked(self, now: float, queue: Sequence[Waiter]) -> None:
        """Take note of a finished pass; `queue` has the waiters."""


def _to_all(method: str) -> Callable[..., None]:
    """Return a method of `Observers` that calls the same one of each observer."""

    def tell(self: Observers, *arguments: object) -> None:
        for observer in self.observers:
            try:
                getattr(observer, method)(*arguments)
            except Exception:  # figures and history must never keep a kernel waiting
                self.log.exception("an observer failed")

    return tell


class Observers(Observer):
    """Reports to several observers; one that fails is logged and disturbs neither the others nor the controller."""

    def __init__(self, log: logging.Logger, *observers: Observer):
        self.log = log
        self.observers = observers

    move_ended = _to_all("move_ended")
    park_refused = _to_all("park_refused")
    spill_ended = _to_all("spill_ended")
    room_answered = _to_all("room_answered")
    kernel_ending = _to_all("kernel_ending")
    looked = _to_all("looked")
