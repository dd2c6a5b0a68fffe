"""Sees which parks came to nothing while a waiter waited for them, and says so in the log.

A victim is chosen by what pages say, and any user can write a page. So each failure puts all kernels of its user behind
other users', for ten seconds at first (user_back_off.py). A failure is a park that was refused for whatever reason, was
not answered, lasts far longer than it should (`eviction_cost.is_late`), whatever comes of it, or after which NVML shows
as much in use as before. That a kernel is at work again is an honest answer, and the pause is short enough for it.

To be behind is no gain but that of being parked later, which a kernel that refuses parks has anyway. And a user that
makes other users' parks fail only has its own kernels asked first.
"""

from __future__ import annotations

import logging
import time

from ...settings.policy import GIB
from ...units import duration_in_words
from ..model.snapshot import Node
from ..policy.victims.eviction_cost import is_late
from ..protocol.wire import Status
from ..state.records.kernel import KernelRecord
from ..state.records.moves import Move
from ..state.registry import NodeState

PREEMPTS_WITHIN_S = (
    4.0  # an honest process at work waits for its next call and for the GPU (shim/src/mover/park.c)
)
SHOWN_AFTER_S = 0.5  # NVML's figures then are the memory's that a park gave back
LEAST_BYTES = 1 * GIB  # smaller parks are not looked at: other programs' memory changes by as much
HOLLOW_PART = 0.75  # of what was to become free and is still in use: then it was not there


class FailedParks:
    """Fills the state's back-off of users whose parks failed; asked by `Moves`."""

    def __init__(self, state: NodeState, log: logging.Logger):
        self._state = state
        self._log = log
        self._parked: list[tuple[KernelRecord, Move, float]] = []  # by their own word, and when

    def park_begins(self, kernel: KernelRecord, move: Move) -> None:
        """Note by GPU what the kernel says it has, and how much of what is in use belongs to no kernel."""
        if move.for_kernel is None or kernel.account.payer is None:
            return
        sizes = {uuid: gpu.resident_bytes for uuid, gpu in kernel.by_gpu().items()}
        move.claims = {
            uuid: (min(sizes[uuid], gpu.used_bytes), self._unmanaged(uuid))
            for uuid, gpu in self._state.gpus.measured.items()
            if sizes.get(uuid, 0) >= LEAST_BYTES
        }

    def look(self, node: Node, now: float) -> None:
        """Count the parks that last so long that others are asked for room, too, and the hollow ones."""
        self._look_for_hollow()
        for seen in node.kernels:
            if not seen.is_moving or seen.moves_since is None:
                continue  # nearly all
            kernel = self._state.kernels.get(seen.id)
            move = None if kernel is None else kernel.move
            if kernel is None or move is None or not move.parks or move.for_kernel is None or move.is_late:
                continue
            if move.in_part or move.is_prepared or move.is_called_off:
                continue  # it waits for others that prepare, or waited for them
            if is_late(now - (PREEMPTS_WITHIN_S if move.preempts else 0.0), seen, node.speeds):
                move.is_late = True
                self._count(kernel, move, "it lasts too long", now)

    def park_ended(self, kernel: KernelRecord, move: Move, failed: tuple[Status, str] | None) -> None:
        """A park is over; `failed`: why it came to nothing."""
        if move.for_kernel is None or move.is_late or not kernel.processes:
            return
        now = time.monotonic()
        if failed is not None:
            self._count(kernel, move, failed[1], now)
        elif move.claims:
            self._parked.append((kernel, move, now))

    def _look_for_hollow(self) -> None:
        """Whether what was parked has become free, by the first figure that can say so."""
        sample = self._state.gpus.sample
        for each in self._parked[:]:
            kernel, move, parked_at = each
            if sample is not None and sample.began <= parked_at + SHOWN_AFTER_S:
                continue
            self._parked.remove(each)
            if sample is not None and self._is_hollow(move):
                self._count(kernel, move, "its memory is not free", sample.began)

    def _is_hollow(self, move: Move) -> bool:
        """Whether what belongs to no kernel has grown by what was to become free, less what others were given.

        A program without a shim that took as much in the same second is taken for it: little comes of that.
        """
        for uuid in move.claims.keys() & self._state.gpus.measured.keys():
            size, before = move.claims[uuid]
            given = sum(entry.bytes for entry in self._state.reservations.entries if entry.gpu == uuid)
            if self._unmanaged(uuid) - before - given >= HOLLOW_PART * size:
                return True
        return False

    def _unmanaged(self, uuid: str) -> int:
        """What is in use on a GPU and none of our kernels', by their pages; less than nothing where they claim more."""
        gpus = self._state.gpus
        return gpus.measured[uuid].used_bytes - gpus.managed_bytes(uuid)

    def _count(self, kernel: KernelRecord, move: Move, why: str, now: float) -> None:
        if self._state.failed_parks.failed(kernel.account.payer, move.began, now):
            lasts = duration_in_words(self._state.failed_parks.until(kernel.account.payer) - now)
            self._log.warning(
                "a park of %s for a waiter came to nothing (%s): for %s other users' kernels are asked first",
                kernel.id,
                why,
                lasts,
            )
