"""Sees which parks came to nothing while somebody waited for them, and says so in the log."""

from __future__ import annotations

import logging
import time

from .lateness import is_late
from .records import KernelRecord, Move
from .snapshot import Node
from .state import NodeState
from .wire import Status
from .words import duration_in_words

# Why an honest process is not parked.
EXCUSES = (Status.BUSY, Status.REVOKED, Status.NO_HOST_ROOM, Status.NOTHING)


class LapseWatch:
    """Fills the state's `Lapses`; asked by `Moves`."""

    def __init__(self, state: NodeState, log: logging.Logger):
        self._state = state
        self._log = log

    def look(self, node: Node, now: float) -> None:
        """Count the parks that last so long that others are asked for room, too (lateness.py)."""
        for seen in node.kernels:
            if not seen.is_moving or seen.moves_since is None:
                continue  # nearly all
            kernel = self._state.kernels.get(seen.id)
            move = None if kernel is None else kernel.move
            if kernel is None or move is None or not move.parks or move.for_kernel is None or move.is_late:
                continue
            if is_late(now, seen, node.speeds):
                move.is_late = True
                if self._state.lapses.failed(kernel.payer, move.began, now):
                    self._say(kernel, "it lasts too long", now)

    def park_ended(self, kernel: KernelRecord, move: Move, failed: tuple[Status, str] | None) -> None:
        """A park is over; `failed`: why it came to nothing."""
        if move.for_kernel is None or move.is_late or not kernel.processes:
            return
        lapses, now = self._state.lapses, time.monotonic()
        if failed is None:
            lapses.delivered(kernel.payer)
            return
        status, text = failed
        counts = lapses.excused if status in EXCUSES else lapses.failed
        if counts(kernel.payer, move.began, now):
            self._say(kernel, text, now)

    def _say(self, kernel: KernelRecord, why: str, now: float) -> None:
        lasts = duration_in_words(self._state.lapses.behind_until(kernel.payer) - now)
        self._log.warning(
            "a park of %s for somebody came to nothing (%s): for %s others' kernels are asked first",
            kernel.id,
            why,
            lasts,
        )
