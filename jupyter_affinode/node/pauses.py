"""How long kernels do nothing on the GPU between two uses of it, and whether their cells use it at all.

What `prediction.py` learns from. Lengths are kept as counts in buckets, each half an octave wide: years of history
are a few dozen numbers a kernel, and what a person did when cannot be read from them.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from .metering import Seen

SHORTEST_S = 5.0  # shorter pauses are part of the work: no time-out would park in them
BUCKETS_PER_OCTAVE = 2
BUCKETS = 32  # the last one holds all from 3.8 days on
ACTIVITY_IS_LATE_S = 0.3  # a shim samples its page every 100 ms, and we look at it every 250 ms


def bucket_of(length_s: float) -> int:
    """The bucket of a pause of SHORTEST_S and more."""
    return min(max(int(BUCKETS_PER_OCTAVE * math.log2(length_s / SHORTEST_S)), 0), BUCKETS - 1)


def bucket_begins_s(bucket: int) -> float:
    """The shortest pause in a bucket."""
    return float(SHORTEST_S * 2 ** (bucket / BUCKETS_PER_OCTAVE))


@dataclass
class _Cell:
    began: float
    ended: float | None = None
    used_cuda: bool = False


class PauseWatch:
    """Finds pauses by comparing moments of last activity; looked at about once a second."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def look(self, kernels: Iterable[Seen]) -> Iterator[tuple[Seen, float]]:
        """(kernel, length in seconds) of each pause of SHORTEST_S and more that ended since the last look."""
        before, self._last = self._last, {}
        for kernel in kernels:
            self._last[kernel.kernel_id] = kernel.last_activity
            length = kernel.last_activity - before.get(kernel.kernel_id, kernel.last_activity)
            if length >= SHORTEST_S:
                yield kernel, length


class CellWatch:
    """Follows cells from their beginning to their end, and tells whether the GPU was used meanwhile."""

    def __init__(self) -> None:
        self._open: dict[str, _Cell] = {}
        self._ended: list[tuple[str, _Cell]] = []

    def changed(self, kernel_id: str, is_open: bool, last_activity: float, now: float) -> None:
        """A cell began or ended; one that begins ends the one before it."""
        cell = self._open.pop(kernel_id, None)
        if cell is not None:
            cell.ended = now
            cell.used_cuda = cell.used_cuda or last_activity >= cell.began
            self._ended.append((kernel_id, cell))
        if is_open:
            self._open[kernel_id] = _Cell(now)

    def look(
        self, kernels: Iterable[Seen], living: Container[str], now: float
    ) -> Iterator[tuple[Seen, bool]]:
        """(kernel, whether it used CUDA) of the cells whose end is long enough ago to say so;
        only of kernels that use CUDA at all. `living` are the ids of all that are known.
        """
        seen = {kernel.kernel_id: kernel for kernel in kernels}
        for kernel_id, cell in [*self._open.items(), *self._ended]:
            kernel = seen.get(kernel_id)
            if kernel is not None:
                until = math.inf if cell.ended is None else cell.ended + ACTIVITY_IS_LATE_S
                is_inside = cell.began <= kernel.last_activity <= until
                cell.used_cuda = cell.used_cuda or is_inside
        waiting = []
        for kernel_id, cell in self._ended:
            if cell.ended is not None and now - cell.ended < ACTIVITY_IS_LATE_S:
                waiting.append((kernel_id, cell))
            elif kernel_id in seen:
                yield seen[kernel_id], cell.used_cuda
        self._ended = waiting
        self._open = {kernel_id: cell for kernel_id, cell in self._open.items() if kernel_id in living}
