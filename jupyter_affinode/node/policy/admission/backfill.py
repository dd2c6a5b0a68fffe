"""Backfill: when a waiter may be served before those ahead of it; pure.

A batch scheduler backfills by the run times that jobs declare (EASY: Lifka, "The ANL/IBM SP scheduling system", JSSPP
1995). Notebooks declare none, so nothing is assumed about when kernels are parked. A waiter goes first only if every
set of the GPU's kernels whose parking would make room for those ahead still does so beside it. That depends on sizes
alone. It holds as long as kernels are parked as a whole; a kernel that frees only a part of its memory may leave a
small gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ....settings.policy import MIB
from ...model.snapshot import Waiter
from ..scheduling_pass.plan import Plan

MOST_GRAINS = 1 << 22  # 8 TiB
GRAIN_BYTES = 2 * MIB  # kernels' memory comes in such pieces (shim/src/memory/blocks/block_table.c)


def delays_none(plan: Plan, needs: Mapping[str, int], ahead: Mapping[str, Waiter]) -> bool:
    """Return whether no waiter in `ahead` (by GPU, the first that waits for it) waits longer if `needs` are granted."""
    for uuid, head in ahead.items():
        lacks = head.needs[uuid] - plan.room[uuid]  # it is served without the margin in the end
        takes = needs[uuid] + plan.settings.margin_bytes
        if delays(lacks, takes, _parkable_bytes(plan, uuid, head)):
            return False
    return True


def delays(lacks: int, size: int, parkable: Iterable[int]) -> bool:
    """Return whether taking `size` away makes some subset of `parkable` too small that sufficed for `lacks`.

    Such a subset has a sum from `lacks` to just under `lacks + size`. Sums are kept as bits of one number, in grains
    rounded down; the rounding loses less than a grain for each kernel.
    """
    if size <= 0:
        return False
    grains = [max(each, 0) // GRAIN_BYTES for each in parkable]
    lowest = max(-(-lacks // GRAIN_BYTES) - len(grains), 0)
    highest = (lacks + size - 1) // GRAIN_BYTES  # in grains, the largest that may fall short
    if highest < lowest:
        return False
    if highest > MOST_GRAINS:
        return True  # no GPU is so large: never go before such a request
    sums, asked = 1, (1 << (highest + 1)) - 1
    for grain in grains:
        if grain <= highest:  # sums beyond it do not matter, and what a kernel says it has may be anything
            sums |= (sums << grain) & asked
    return bool((sums >> lowest) & ((1 << (highest - lowest + 1)) - 1))


def _parkable_bytes(plan: Plan, uuid: str, head: Waiter) -> list[int]:
    """Return the bytes that each kernel may free on a GPU, moves under way included; the head's own do not help it."""
    return [
        kernel.frees_bytes[uuid]
        for kernel in plan.candidates.resident_on([uuid])
        if kernel.id != head.kernel.id
    ]
