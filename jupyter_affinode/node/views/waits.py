"""The JSON of a wait: the place in the queue, the reason, and the kernels in the way.

A user is told the name and the id of a kernel in the way only where it is the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...printable import printable
from ...time_of_day import clock_in_words
from ...units import bytes_in_words
from ..model.reasons import BlockerReason, WaitReason
from ..model.snapshot import Residency
from ..policy.wait_blockers import Blocker
from ..policy.wait_estimates import WaitEstimate
from ..state.records.kernel import KernelRecord
from ..state.records.ownership import own_or_other

Json = dict[str, Any]

NAME_BYTES = 40  # of a notebook's name in a reason: the shim has 192 bytes for the whole text
NAMES_BLOCKER = frozenset({WaitReason.COMPUTING, WaitReason.HELD, WaitReason.FULL})
# Without figures that change by themselves. `NAMES_BLOCKER`: what is said once the first blocker has ended.
WAIT_IN_WORDS = {
    WaitReason.TURN: "it is its turn",
    WaitReason.FULL: "the GPU is full until kernels on it have been idle for long enough",
    WaitReason.COMPUTING: "the GPU is full, and its kernels are computing",
    WaitReason.COMPUTE: "computing on {gpu}: {kernels}, as many as allowed",
    WaitReason.HELD: "the GPU is full, and a kernel is kept there",
    WaitReason.HOST_MEMORY: "the GPU is full, and so is the machine's RAM: nothing can be freed",
    WaitReason.MOVING: "memory is being freed for it",
    WaitReason.LIMIT: "the limit of {limit} has no room for it",
    WaitReason.TOO_LARGE: "it needs {size}, more than can become free",
    WaitReason.STARTING: "the GPU's controller has just started",
    WaitReason.RETRY: "it is tried again in a moment",
    WaitReason.OTHERS_FIRST: "others wait before it",
    WaitReason.OUTSIDE: "programs outside Jupyter have the memory that it needs",
    WaitReason.ENDING: "it is being shut down",
}
WHY_IN_WORDS = {
    BlockerReason.COMPUTING: "is computing",
    BlockerReason.HELD: "is kept on the GPU",
    BlockerReason.IDLE: "is freed when it has been idle for long enough",
    BlockerReason.OPTED_OUT: "is never freed",
    BlockerReason.MOVING: "is being moved",
    BlockerReason.OUTSIDE: "uses the GPU",
}


def wait_json(
    kernel: KernelRecord, estimate: WaitEstimate | None, kernels: Mapping[str, KernelRecord], now: float
) -> Json:
    """Return a kernel's place in the queue and what its user is told of the wait; without an `estimate`, nothing."""
    if estimate is None:
        return {"place": None, "waiting_s": None, "wait_reason": None, "estimate_s": None, "wait": None}
    told = [(blocker, _blocker_json(kernel, blocker, kernels, now)) for blocker in estimate.blockers]
    there = [(blocker, found) for blocker, found in told if found is not None]
    reason = _wait_in_words(kernel, estimate)
    if there and estimate.code in NAMES_BLOCKER:
        reason = _blocker_in_words(there[0][0], kernels, now, is_own=there[0][1]["own"])
    return {
        "place": estimate.position,
        "waiting_s": round(max(now - estimate.since, 0.0), 3),
        "wait_reason": reason,
        "estimate_s": None if estimate.estimate_s is None else round(estimate.estimate_s, 1),
        "wait": {
            "code": estimate.code,
            "args": dict(estimate.arguments),
            "blockers": [found for _, found in there],
        },
    }


def _wait_in_words(kernel: KernelRecord, estimate: WaitEstimate) -> str:
    if estimate.code is WaitReason.MOVING and kernel.residency is Residency.RESUMING:
        return "it is being brought back"
    found = estimate.arguments
    count = found.get("kernels")
    return WAIT_IN_WORDS[estimate.code].format(
        size=bytes_in_words(int(found.get("bytes", 0))),
        limit=f"group {found['group']}" if "group" in found else "its user",
        gpu=f"GPU {found['gpu']}" if "gpu" in found else "the GPU",
        kernels="1 kernel" if count == 1 else f"{count} kernels",
    )


def _blocker_json(
    kernel: KernelRecord, blocker: Blocker, kernels: Mapping[str, KernelRecord], now: float
) -> Json | None:
    """Return a blocker as the waiter's user may know it; None if it has ended since."""
    told: Json = {
        "kernel_id": None,
        "own": False,
        "why": blocker.why,
        "free_in_s": None if blocker.free_at is None else round(max(blocker.free_at - now, 0.0), 1),
        "held_until": None,
    }
    if blocker.kernel_id is None:
        return told
    other = kernels.get(blocker.kernel_id)
    if other is None or not other.processes:
        return None
    is_own = own_or_other(kernel, other) == "own"
    if blocker.why is BlockerReason.HELD and other.held_until is not None:
        told["held_until"] = clock_in_words(other.held_until - now)
    return {**told, "kernel_id": other.id if is_own else None, "own": is_own}


def _blocker_in_words(
    blocker: Blocker, kernels: Mapping[str, KernelRecord], now: float, *, is_own: bool
) -> str:
    """Return which kernel is in the way, and why it has the GPU, without figures that change by themselves."""
    if blocker.kernel_id is None:
        return "a program outside Jupyter uses the GPU"
    other = kernels[blocker.kernel_id]
    name = _own_name(other) if is_own else "another user's notebook"
    if blocker.why is BlockerReason.HELD and other.held_until is not None:
        ends = "; `%gpu_release` there ends that" if is_own else ""
        return f"{name} is kept on the GPU until {clock_in_words(other.held_until - now)}{ends}"
    return f"{name} {WHY_IN_WORDS[blocker.why]}"


def _own_name(kernel: KernelRecord) -> str:
    """Return a notebook's name, shortened to NAME_BYTES; users choose it, so it may have any characters."""
    path = kernel.server.description and kernel.server.description.path
    if not path:
        return "another notebook of yours"
    name = printable(path.rsplit("/", 1)[-1])
    if len(name.encode()) <= NAME_BYTES:
        return name
    return name.encode()[: NAME_BYTES - 3].decode(errors="ignore") + "…"
