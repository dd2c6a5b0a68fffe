"""What each user's kernels freed since midnight, local time: parks, and GPU seconds without their memory.

A running sum, updated as kernels are parked and resumed. The part of the day before this controller is what the
ledger says of the kernels' past, read once at the start.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...threads import on_own_thread
from ..model.snapshot import Residency, Waiter
from ..state.observer import MoveEnded, Observer
from ..state.records.kernel import KernelRecord
from ..state.records.ownership import owner_of
from ..state.registry import NodeState
from .past import Lane, Past, Window
from .report import ReportRefused

LOOK_EVERY_S = 1.0
READ_TIMEOUT_S = 60.0


@dataclass
class Freed:
    """One user's sum."""

    gpu_s: float = 0.0
    parks: int = 0


@dataclass(frozen=True)
class ParkedKernel:
    """A kernel that is parked, or hibernated. Times are monotonic seconds."""

    user: str
    gpus: int  # that it left
    since: float
    known_until: float | None = None  # of a hibernated one: when it was last told of

    def gpu_s(self, midnight: float, now: float) -> float:
        """Return for how long GPUs were without its memory since midnight."""
        until = now if self.known_until is None else min(self.known_until, now)
        return self.gpus * max(until - max(self.since, midnight), 0.0)


class Today(Observer):
    """The observer that keeps the sums."""

    def __init__(self, state: NodeState, *, wall: Callable[[], float] = time.time):
        self._state = state
        self._wall = wall
        self._day = self._today()
        self._sums: dict[str, Freed] = {}
        self._parked: dict[str, ParkedKernel] = {}  # by kernel
        self._in_ledger_until: dict[str, float] = {}  # by kernel, seconds since 1970
        self._is_complete = False  # the day before this controller is in the sums
        self._looked_at = 0.0

    async def restore(self, ledger: Path | None) -> None:
        """Add the ledger's part of the day; `of` returns None before."""
        midnight, until = self._midnight(), self._wall()
        try:
            if ledger is not None:
                past = await on_own_thread(
                    lambda: Past(ledger, Window(midnight, until), (), (), with_samples=False),
                    timeout_s=READ_TIMEOUT_S,
                )
                self._add(past)
        except ReportRefused:
            pass  # of a ledger that cannot be read the day has nothing
        finally:
            self._is_complete = True

    def of(self, user: str, now: float) -> dict[str, Any] | None:
        """Return one user's sum, for the API; None while it is not known. `now` is monotonic."""
        if not self._is_complete:
            return None
        self._begin_day()
        since = self._since_midnight(now)
        freed = self._sums.get(user, Freed())
        parked = [each for each in self._parked.values() if each.user == user]
        gpu_s = freed.gpu_s + sum(each.gpu_s(since, now) for each in parked)
        return {"freed_gpu_s": round(gpu_s), "parks": freed.parks}

    # ---- Observer

    def move_ended(self, kernel: KernelRecord, ended: MoveEnded) -> None:
        """See observer.Observer."""
        if ended.parks and ended.outcome == "ok":
            self._begin_day()
            self._sums.setdefault(owner_of(kernel), Freed()).parks += 1

    def looked(self, now: float, queue: Sequence[Waiter]) -> None:
        """Note which kernels have been parked or resumed since the last look."""
        if not self._is_complete or now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        self._begin_day()
        parked = {kernel.id: kernel for kernel in self._state.kernels.values() if _gpus_left(kernel)}
        for kernel_id in self._parked.keys() - parked.keys():
            is_here = kernel_id in self._state.kernels
            self._end(self._parked.pop(kernel_id), now, is_here=is_here)
        for kernel_id, kernel in parked.items():
            told_at = None if kernel.hibernated is None else kernel.hibernated.told_at
            if kernel_id in self._parked:
                self._parked[kernel_id] = replace(self._parked[kernel_id], known_until=told_at)
                continue
            moments = [process.parked_at for process in kernel.processes.values() if process.parked_at]
            since_ledger = now - (self._wall() - self._in_ledger_until.get(kernel_id, 0.0))
            since = max(since_ledger, *moments) if moments else now
            self._parked[kernel_id] = ParkedKernel(owner_of(kernel), _gpus_left(kernel), since, told_at)

    # ---- days

    def _end(self, parked: ParkedKernel, now: float, *, is_here: bool) -> None:
        """Add what a kernel gave back. `is_here`: it is known, and so was hibernated until now, if it was."""
        ended = replace(parked, known_until=None) if is_here else parked
        self._sums.setdefault(parked.user, Freed()).gpu_s += ended.gpu_s(self._since_midnight(now), now)

    def _begin_day(self) -> None:
        today = self._today()
        if today != self._day:
            self._day = today
            self._sums.clear()

    def _today(self) -> datetime.date:
        return datetime.datetime.fromtimestamp(self._wall()).date()

    def _midnight(self) -> float:
        return datetime.datetime.combine(self._today(), datetime.time()).timestamp()

    def _since_midnight(self, now: float) -> float:
        """Return the last midnight on the monotonic clock."""
        return now - (self._wall() - self._midnight())

    def _add(self, past: Past) -> None:
        """Add what the ledger has. A kernel that lives on is in it until it was last seen."""
        self._in_ledger_until = {kernel_id: kernel.seen for kernel_id, kernel in past.kernels.items()}
        for event in (each for events in past.moves_and_waits.values() for each in events):
            if event.kind == "park" and past.window.since <= event.at < past.window.until:
                self._sums.setdefault(event.user, Freed()).parks += 1
        for lane in (each for lanes in past.lanes().values() for each in lanes):
            self._sums.setdefault(lane.kernel.user, Freed()).gpu_s += _parked_s(lane)


def _gpus_left(kernel: KernelRecord) -> int:
    """Return how many GPUs are without the kernel's memory."""
    if kernel.residency not in (Residency.PARKED, Residency.QUEUED, Residency.HIBERNATED):
        return 0
    return sum(gpu.parked_bytes > 0 for gpu in kernel.by_gpu().values())


def _parked_s(lane: Lane) -> float:
    """Return for how long a GPU was without a kernel's memory: while it was parked, and while it then waited."""
    total, is_parked = 0.0, False
    for change, following in pairwise(lane.changes):
        is_parked = change.state is Residency.PARKED or (is_parked and change.state is Residency.QUEUED)
        total += following.at - change.at if is_parked else 0.0
    return total
