"""Migration: a waiter whose own GPU is full is resumed on another one of its kind that has room now; pure.

Room means its memory and its context, above the low watermark, and a free compute slot. No kernel is parked for it
there, and it comes after every waiter of that GPU that is ahead of it in the queue. Meanwhile it keeps its place at
home. So the bound of queue.py holds on both GPUs.
"""

from __future__ import annotations

from collections.abc import Collection

from ....units import duration_in_words
from ...model.reasons import Cause
from ...model.snapshot import Waiter
from ..scheduling_pass.plan import Plan


def may_migrate(waiter: Waiter) -> bool:
    """Return whether a waiter may be resumed on another GPU than its own."""
    return bool(waiter.kernel.migration_targets) and waiter.room is None and not waiter.kernel.rooms


def migrate(plan: Plan, waiter: Waiter, taken: Collection[str]) -> bool:
    """Resume a waiter on another GPU that has room now, the one with the most; return whether there is one.

    `taken`: GPUs for which others wait ahead of it.
    """
    kernel = waiter.kernel
    if not may_migrate(waiter) or kernel.resume_retry_at > plan.now:
        return False
    need = sum(waiter.needs.values())  # of one GPU: only such kernels may migrate
    choices = [
        waiter._replace(needs={uuid: need})
        for uuid in kernel.migration_targets
        if uuid not in taken and plan.room.get(uuid, 0) >= need + _stays_free(plan, uuid)
    ]
    choices = [
        there
        for there in choices
        if plan.fits(plan.limits.needs(there), 0) and not plan.slots.lacking(kernel, there.needs)
    ]
    if not choices:
        return False
    there = max(choices, key=lambda each: plan.room[next(iter(each.needs))])
    reason = f"it waited {duration_in_words(plan.now - waiter.since)}, and its own GPU is full"
    plan.resume(kernel, plan.limits.needs(there), reason, Cause.CELL, migration=there.needs)
    return True


def _stays_free(plan: Plan, uuid: str) -> int:
    """Return the bytes that a migration leaves free on a GPU: no kernel migrates to make a GPU run low."""
    gpu = plan.node.gpus.get(uuid)
    total = (gpu.total_bytes or 0) if gpu is not None else 0
    return int(plan.settings.low_watermark * total) + plan.settings.margin_bytes
