"""Bringing kernels back before they are used, into room that no kernel waits for."""

from __future__ import annotations

from ...model.reasons import Cause
from ...model.snapshot import Residency
from ..scheduling_pass.plan import Plan


def prefetch(plan: Plan) -> None:
    """Resume parked kernels whose next use of the GPU is expected, never at another's cost.

    No kernel waits; every GPU keeps more than its low watermark and is not being reclaimed up to the high one; no
    quota is exceeded, and one more kernel may compute there. So no kernel is parked for it, neither now nor by a later
    pass. With park_when="idle" free memory is meant for other programs, and the kernel would be parked again. A kernel
    whose CUDA context is parked, too, stays: the driver's restore is not tried for a cell that may not use the GPU
    (state/gpus/context_depth.py).
    """
    if plan.queue or plan.settings.park_when != "needed":
        return
    for kernel in plan.node.kernels:
        if kernel.expected_until <= plan.now or kernel.residency is not Residency.PARKED:
            continue
        if kernel.is_dying or kernel.context_bytes or not plan.is_free(kernel):
            continue
        if max(kernel.resume_retry_at, kernel.served_after) > plan.now:
            continue
        if plan.slots.lacking(kernel, kernel.resume_bytes):
            continue
        size = sum(kernel.resume_bytes.values())
        needs = {**kernel.resume_bytes, **dict.fromkeys(plan.limits.of(kernel.id), size)}
        if plan.fits(needs, 0) and all(_has_to_spare(plan, uuid, size) for uuid, size in needs.items()):
            plan.resume(kernel, needs, "it is about to be used", Cause.PREFETCH)


def _has_to_spare(plan: Plan, resource: str, size: int) -> bool:
    """Return whether a GPU stays above its low watermark without `size` bytes; True for a quota."""
    gpu = plan.node.gpus.get(resource)
    if gpu is None or not size:
        return True
    if gpu.is_reclaiming or gpu.total_bytes is None:
        return False
    spare = int(plan.settings.low_watermark * gpu.total_bytes) + plan.settings.margin_bytes
    return plan.room[resource] - size >= spare
