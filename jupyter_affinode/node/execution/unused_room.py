"""Unused room: finds room that was reserved for kernels which did not take it, and logs that.

While it was reserved, others waited for it. So the kernels of such a user get no room for a second, and twice as long
each time (user_back_off.py). A user with many processes that never take what they ask for keeps others waiting for
seconds now and then; an honest kernel that was stopped at a bad moment hardly notices.
"""

from __future__ import annotations

import logging

from ...units import duration_in_words
from ..state.gpus.reservations import Reserved
from ..state.records.kernel import KernelRecord
from ..state.registry import NodeState

PROMPT_S = 1.0  # a resume that fails sooner keeps hardly anything from others


class UnusedRoom:
    """Fills the state's back-off of users that do not take their room, for `Moves`."""

    def __init__(self, state: NodeState, log: logging.Logger):
        self._state = state
        self._log = log

    def look(self, now: float) -> None:
        """Count the expired reservations; others may have the room by now."""
        expired, self._state.reservations.expired = self._state.reservations.expired, []
        for entry in expired:
            kernel = self._state.kernels.get(entry.kernel_id)
            if kernel is None:
                continue
            if entry.room is None and kernel.move is not None:
                kernel.move.is_given_up = True
                kernel.move.has_begun |= entry.is_borne_out
            if not entry.is_borne_out:
                self._count(kernel, entry, now)

    def resume_failed(self, kernel: KernelRecord, reserved: list[Reserved], now: float) -> None:
        """Count a failed resume, unless it failed at once or had taken its room."""
        is_unused = reserved and not any(entry.is_borne_out for entry in reserved)
        if is_unused and now - reserved[0].began > PROMPT_S:
            self._count(kernel, reserved[0], now)

    def _count(self, kernel: KernelRecord, entry: Reserved, now: float) -> None:
        if self._state.unused_room.failed(kernel.account.payer, entry.began, now):
            self._log.warning(
                "%s did not take the GPU memory that was reserved for it: its user's kernels are given none for %s",
                kernel.id,
                duration_in_words(self._state.unused_room.until(kernel.account.payer) - now),
            )
