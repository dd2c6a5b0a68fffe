"""What each user's kernels freed since midnight, local time: parks, and GPU seconds without their memory.

A running sum, updated as kernels are parked and resumed. The part of the day before this controller is read from the
ledger once, at the start. What the ledger does not show, as of a kernel that ended while it was parked, is not counted.
"""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...threads import on_own_thread
from ..model.snapshot import Residency, Waiter
from ..state.observer import MoveEnded, Observer
from ..state.records.kernel import KernelRecord
from ..state.records.ownership import owner_of
from ..state.registry import NodeState
from .store import open_for_reading

LOOK_EVERY_S = 1.0
READ_TIMEOUT_S = 60.0
EVENTS = (
    "SELECT kernel_id, user, kind, at FROM events"
    " WHERE at >= ? AND at < ? AND kind IN ('park', 'resume') AND outcome = 'ok' ORDER BY at, id"
)

Event = tuple[str, str, str, float]  # kernel, user, "park" or "resume", seconds since the epoch


@dataclass
class Freed:
    """One user's sum."""

    gpu_s: float = 0.0
    parks: int = 0


@dataclass(frozen=True)
class Away:
    """A kernel that is parked."""

    user: str
    gpus: int  # that it left
    since: float  # monotonic seconds


class Today(Observer):
    """The observer that keeps the sums."""

    def __init__(self, state: NodeState, *, wall: Callable[[], float] = time.time):
        self._state = state
        self._wall = wall
        self._day = self._today()
        self._sums: dict[str, Freed] = {}
        self._away: dict[str, Away] = {}  # by kernel
        self._is_complete = False  # the day before this controller is in the sums
        self._looked_at = 0.0

    async def restore(self, ledger: Path | None) -> None:
        """Add the ledger's part of the day; `of` returns None before."""
        midnight, until = self._midnight(), self._wall()
        try:
            if ledger is not None:
                events = await on_own_thread(
                    lambda: _events(ledger, midnight, until), timeout_s=READ_TIMEOUT_S
                )
                self._add(events, midnight)
        finally:
            self._is_complete = True

    def of(self, user: str, now: float) -> dict[str, Any] | None:
        """Return one user's sum, for the API; None while it is not known. `now` is monotonic."""
        if not self._is_complete:
            return None
        self._begin_day()
        since = self._since_midnight(now)
        freed = self._sums.get(user, Freed())
        away = [each for each in self._away.values() if each.user == user]
        gpu_s = freed.gpu_s + sum(each.gpus * (now - max(each.since, since)) for each in away)
        return {"freed_gpu_s": round(gpu_s), "parks": freed.parks}

    # ---- Observer

    def move_ended(self, kernel: KernelRecord, ended: MoveEnded) -> None:
        """See observer.Observer."""
        if ended.parks and ended.outcome == "ok":
            self._begin_day()
            self._sums.setdefault(owner_of(kernel), Freed()).parks += 1

    def looked(self, now: float, queue: Sequence[Waiter]) -> None:
        """Note which kernels have been parked or resumed since the last look."""
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        self._begin_day()
        parked = {kernel.id: kernel for kernel in self._state.kernels.values() if _gpus_left(kernel)}
        for kernel_id in self._away.keys() - parked.keys():
            self._end(self._away.pop(kernel_id), now)
        for kernel_id in parked.keys() - self._away.keys():
            kernel = parked[kernel_id]
            moments = [process.parked_at for process in kernel.processes.values() if process.parked_at]
            self._away[kernel_id] = Away(owner_of(kernel), _gpus_left(kernel), max(moments, default=now))

    # ---- days

    def _end(self, away: Away, now: float) -> None:
        began = max(away.since, self._since_midnight(now))
        self._sums.setdefault(away.user, Freed()).gpu_s += away.gpus * max(now - began, 0.0)

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

    def _add(self, events: Iterable[Event], midnight: float) -> None:
        """Count parks, and the time parked before now: a kernel that only was resumed today had been parked before."""
        parked: dict[str, float] = {}
        for kernel_id, user, kind, at in events:
            freed = self._sums.setdefault(user, Freed())
            if kind == "park":
                freed.parks += 1
                parked[kernel_id] = at
            else:
                freed.gpu_s += max(at - parked.pop(kernel_id, midnight), 0.0)


def _gpus_left(kernel: KernelRecord) -> int:
    """Return how many GPUs are without the kernel's memory."""
    if kernel.residency not in (Residency.PARKED, Residency.QUEUED):
        return 0
    return sum(gpu.parked_bytes > 0 for gpu in kernel.by_gpu().values())


def _events(path: Path, midnight: float, until: float) -> list[Event]:
    """Read the parks and resumes since midnight; none from a ledger that cannot be read."""
    with contextlib.suppress(OSError, sqlite3.Error), contextlib.closing(open_for_reading(path)) as ledger:
        return [tuple(row) for row in ledger.execute(EVENTS, (midnight, until))]
    return []
