"""Blockers: which kernels keep a waiter from the GPUs that it waits for; pure.

A kernel is named only while it has memory there that the waiter needs, and only if it is one of a smallest set that has
enough: else a user would be told to release a kernel for nothing. Unmanaged programs are one blocker without an id.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ...settings.policy import GIB
from ..model.reasons import BlockerReason
from ..model.snapshot import Kernel, Residency, Waiter
from .scheduling_pass.compute_slots import is_at_work
from .scheduling_pass.plan import ON_THE_MOVE, Plan
from .victims.eviction_cost import park_s

BLOCKERS_MAX = 5
CHOICES_OF = 12  # of so many of the largest, the most important that suffice are chosen …
CHOSEN_MOST = 2  # … where so many suffice: 66 choices
CONTEXT_BYTES = GIB  # an upper bound of a CUDA context's size, which no page shows
# A waiter's user can do something about the first at once; the last are about to be parked anyway.
IMPORTANCE = (
    BlockerReason.HELD,
    BlockerReason.COMPUTING,
    BlockerReason.OPTED_OUT,
    BlockerReason.OUTSIDE,
    BlockerReason.IDLE,
    BlockerReason.MOVING,
)


@dataclass(frozen=True)
class Blocker:
    """One kernel, or all unmanaged programs."""

    kernel_id: str | None  # None: programs that are not managed
    why: BlockerReason
    free_at: float | None = None  # when its memory will be free if nothing changes; None: that cannot be said


class Blockers:
    """What has memory on each GPU, and why it stays; each kernel is looked at once."""

    def __init__(self, plan: Plan, parkable_at: Mapping[str, float]):
        """Prepare for a plan; `parkable_at`: when each kernel may be parked at the earliest if nothing changes."""
        self._plan = plan
        self._parkable_at = parkable_at
        self._found: dict[str, Blocker] = {}
        self._on: dict[str, list[tuple[int, Blocker]]] = {}

    def of(self, kernel: Kernel) -> Blocker:
        """Return the kernel as a blocker: why it stays on its GPU."""
        found = self._found.get(kernel.id)
        if found is None:
            found = self._found[kernel.id] = _blocker(self._plan, kernel, self._parkable_at.get(kernel.id))
        return found

    def on(self, uuid: str, waiter: Waiter, lacks: int) -> list[Blocker]:
        """Return a smallest set of what has the `lacks` bytes of a GPU that a waiter lacks there, the most important
        first: of several such sets, the one that its user can do most about. If all together have less, all are in the
        way.
        """
        others = (each for each in self._by_size(uuid) if each[1].kernel_id != waiter.kernel.id)
        found: list[tuple[int, Blocker]] = []
        left = lacks
        while left > 0 and (largest := next(others, None)) is not None:
            found.append(largest)
            left -= largest[0]
        if left <= 0 and len(found) <= CHOSEN_MOST:
            few = [*found, *itertools.islice(others, CHOICES_OF - len(found))]
            choices = itertools.combinations(sorted(few, key=lambda each: _rank(each[1])), len(found))
            found = next(list(each) for each in choices if sum(size for size, _ in each) >= lacks)
        return in_order([blocker for _, blocker in found[:CHOICES_OF]])

    def _by_size(self, uuid: str) -> list[tuple[int, Blocker]]:
        """Return what has memory on a GPU, the largest first."""
        found = self._on.get(uuid)
        if found is None:
            there = self._plan.candidates.resident_on([uuid])
            found = [(kernel.frees_bytes[uuid], self.of(kernel)) for kernel in there]
            if outside := self.outside_bytes(uuid):
                found.append((outside, Blocker(None, BlockerReason.OUTSIDE)))
            found.sort(key=lambda each: (-each[0], _rank(each[1])))
            self._on[uuid] = found
        return found

    def outside_bytes(self, uuid: str) -> int:
        """Return the bytes of a GPU that unmanaged programs surely have: all that is in use and no kernel's."""
        gpu = self._plan.node.gpus.get(uuid)
        if gpu is None or gpu.total_bytes is None:
            return 0
        managed = self._managed.get(uuid, 0) + gpu.uncertain_bytes
        return max(gpu.total_bytes - gpu.free_bytes - managed, 0)

    @cached_property
    def _managed(self) -> Mapping[str, int]:
        """Return the most that kernels may have of each GPU, with the contexts that stay."""
        found: dict[str, int] = defaultdict(int)
        for kernel in self._plan.node.kernels:
            parts = [kernel.resident_bytes, kernel.unmovable_bytes]
            if kernel.residency in ON_THE_MOVE:
                parts.append(kernel.parked_bytes)
            for part in parts:
                for uuid, size in part.items():
                    found[uuid] += size
            for uuid in kernel.resident_bytes.keys() | kernel.parked_bytes.keys():
                found[uuid] += CONTEXT_BYTES
        for reserved in self._plan.node.reservations:
            found[reserved.gpu] += reserved.bytes
        return found


def in_order(blockers: Iterable[Blocker]) -> list[Blocker]:
    """Return each blocker once, the most important first; of the same kind, the one that stays longest."""
    return sorted(dict.fromkeys(blockers), key=_rank)


def _rank(blocker: Blocker) -> tuple[int, float]:
    return IMPORTANCE.index(blocker.why), -(math.inf if blocker.free_at is None else blocker.free_at)


def _blocker(plan: Plan, kernel: Kernel, moment: float | None) -> Blocker:
    """Return why a kernel stays on its GPU, and until when if that can be said."""
    free_at = None
    if moment is not None:
        free_at = max(moment, plan.now) + park_s(kernel, plan.node.speeds)
    if not plan.is_free(kernel) or kernel.residency in ON_THE_MOVE:
        goes = kernel.residency is not Residency.RESUMING
        return Blocker(
            kernel.id, BlockerReason.MOVING, plan.now + park_s(kernel, plan.node.speeds) if goes else None
        )
    if kernel.is_opted_out or not kernel.is_parkable:
        return Blocker(kernel.id, BlockerReason.OPTED_OUT)
    works = is_at_work(plan.now, kernel, plan.settings)
    if kernel.is_held(plan.now) and (free_at is not None or not works):
        return Blocker(kernel.id, BlockerReason.HELD, free_at)
    if works or free_at is None:
        return Blocker(kernel.id, BlockerReason.COMPUTING, free_at)
    return Blocker(kernel.id, BlockerReason.IDLE, free_at)
