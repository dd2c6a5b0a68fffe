"""Sees which parks came to nothing while somebody waited for them, and says so in the log.

A process can also say that it is parked, and give nothing, since it never had what its page said. Then NVML shows as
much in use as before, and what is nobody's by the pages has grown by it. That is looked at once, some time after the
park, in a figure that is newer; whatever else was given, or changed just then, is left out of it in favour of who
was parked. A program without a shim that took as much in the same second is taken for it: see lapses.py for how little
that harms.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from .lateness import is_late
from .records import KernelRecord, Move
from .settings import GIB
from .snapshot import Node
from .state import NodeState
from .wire import Status
from .words import duration_in_words

# Why an honest process is not parked.
EXCUSES = (Status.BUSY, Status.REVOKED, Status.NO_HOST_ROOM, Status.NOTHING)
PREEMPTS_WITHIN_S = 4.0  # an honest process at work waits for its next call and for the GPU (shim/src/park.c)
SHOWN_AFTER_S = 0.5  # NVML's figures then are the memory's that a park gave back
SAID_WITHIN_S = 3.0
LEAST_BYTES = 1 * GIB  # smaller parks are not looked at: other programs' memory changes by as much
GIVEN_PART = 0.25  # of what was to become free: with less, it was not there


@dataclass(frozen=True)
class _Parked:
    """A park that was done, by its own word."""

    kernel: KernelRecord
    move: Move
    at: float


class LapseWatch:
    """Fills the state's `Lapses`; asked by `Moves`."""

    def __init__(self, state: NodeState, log: logging.Logger):
        self._state = state
        self._log = log
        self._parked: list[_Parked] = []

    def park_begins(self, kernel: KernelRecord, move: Move) -> None:
        """Note by GPU what the kernel says it has, and what is nobody's of that which is in use."""
        if move.for_kernel is None or kernel.payer is None:
            return
        sizes = {uuid: gpu.resident_bytes for uuid, gpu in kernel.by_gpu().items()}
        move.claims = {
            uuid: (
                min(sizes[uuid], gpu.used_bytes),
                self._unmanaged(uuid) + self._state.gpus.changed_bytes(uuid),
            )
            for uuid, gpu in self._state.gpus.measured.items()
            if sizes.get(uuid, 0) >= LEAST_BYTES
        }

    def look(self, node: Node, now: float) -> None:
        """Count the parks that last so long that others are asked for room, too (lateness.py), and the hollow ones."""
        self._look_for_hollow(now)
        for seen in node.kernels:
            if not seen.is_moving or seen.moves_since is None:
                continue  # nearly all
            kernel = self._state.kernels.get(seen.id)
            move = None if kernel is None else kernel.move
            if kernel is None or move is None or not move.parks or move.for_kernel is None or move.is_late:
                continue
            if is_late(now - (PREEMPTS_WITHIN_S if move.preempts else 0.0), seen, node.speeds):
                move.is_late = True
                if self._state.lapses.failed(kernel.payer, move.began, now):
                    self._say(kernel, "it lasts too long", now)

    def park_ended(self, kernel: KernelRecord, move: Move, failed: tuple[Status, str] | None) -> None:
        """A park is over; `failed`: why it came to nothing."""
        if move.for_kernel is None or move.is_late or not kernel.processes:
            return
        lapses, now = self._state.lapses, time.monotonic()
        if failed is None:
            if move.claims:
                self._parked.append(_Parked(kernel, move, now))
            else:
                lapses.delivered(kernel.payer)
            return
        status, text = failed
        counts = lapses.excused if status in EXCUSES else lapses.failed
        if counts(kernel.payer, move.began, now):
            self._say(kernel, text, now)

    def _look_for_hollow(self, now: float) -> None:
        """Whether what was parked has become free. Where other memory changes just then, a later figure may say."""
        sample = self._state.gpus.sample
        for each in self._parked[:]:
            is_over = sample is None or now - each.at > SAID_WITHIN_S
            if sample is None:
                is_hollow: bool | None = False
            elif sample.began <= each.at + SHOWN_AFTER_S:
                is_hollow = False if is_over else None
            else:
                is_hollow = self._is_hollow(each.move.claims, is_over=is_over)
            if is_hollow is None:
                continue
            self._parked.remove(each)
            if not is_hollow:
                self._state.lapses.delivered(each.kernel.payer)
            elif self._state.lapses.failed(each.kernel.payer, each.move.began, now):
                self._say(each.kernel, "its memory is not free", now)

    def _is_hollow(self, claims: Mapping[str, tuple[int, int]], *, is_over: bool) -> bool | None:
        """Whether what is nobody's has grown on a GPU by what was to become free there; None: it cannot be said yet."""
        answer: bool | None = False
        for uuid in claims.keys() & self._state.gpus.measured.keys():
            size, before = claims[uuid]
            given = sum(entry.bytes for entry in self._state.reservations.entries if entry.gpu == uuid)
            grown = self._unmanaged(uuid) - before - given
            doubt = 0 if is_over else self._state.gpus.changed_bytes(uuid)
            if grown - doubt >= (1 - GIVEN_PART) * size:
                return True
            if grown >= (1 - GIVEN_PART) * size:
                answer = None
        return answer

    def _unmanaged(self, uuid: str) -> int:
        """What is in use on a GPU and none of our kernels', by their pages; less than nothing where they claim more."""
        gpus = self._state.gpus
        return gpus.measured[uuid].used_bytes - gpus.managed_bytes(uuid)

    def _say(self, kernel: KernelRecord, why: str, now: float) -> None:
        lasts = duration_in_words(self._state.lapses.behind_until(kernel.payer) - now)
        self._log.warning(
            "a park of %s for somebody came to nothing (%s): for %s others' kernels are asked first",
            kernel.id,
            why,
            lasts,
        )
