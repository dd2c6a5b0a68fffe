"""The JSON of a wait: the place in the queue, the reason, and the blockers.

Another user's kernel is mentioned without its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..policy.wait_blockers import Blocker
from ..policy.wait_estimates import Outlook
from ..state.records.kernel import KernelRecord
from ..state.records.ownership import whose

Json = dict[str, Any]


def wait_json(
    kernel: KernelRecord, outlook: Outlook | None, kernels: Mapping[str, KernelRecord], now: float
) -> Json:
    """Return its place in the queue and its wait status; `outlook`: None while it does not wait."""
    if outlook is None:
        return {"place": None, "waiting_s": None, "wait_reason": None, "estimate_s": None, "wait": None}
    blockers = [_blocker_json(kernel, blocker, kernels, now) for blocker in outlook.blockers]
    return {
        "place": outlook.place,
        "waiting_s": round(max(now - outlook.since, 0.0), 3),
        "wait_reason": outlook.reason,
        "estimate_s": None if outlook.estimate_s is None else round(outlook.estimate_s, 1),
        "wait": {
            "code": outlook.code,
            "args": dict(outlook.arguments),
            "blockers": [blocker for blocker in blockers if blocker is not None],
        },
    }


def _blocker_json(
    kernel: KernelRecord, blocker: Blocker, kernels: Mapping[str, KernelRecord], now: float
) -> Json | None:
    """Return one blocker as the waiter's user may know it; None if it has gone since."""
    told = {
        "kernel_id": None,
        "own": False,
        "why": blocker.why,
        "free_in_s": None if blocker.free_at is None else round(max(blocker.free_at - now, 0.0), 1),
    }
    if blocker.kernel_id is None:
        return told
    other = kernels.get(blocker.kernel_id)
    if other is None or not other.processes:
        return None
    is_own = whose(kernel, other) == "own"
    return {**told, "kernel_id": other.id if is_own else None, "own": is_own}
