"""Making room: who yields for whom; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .actions import Cause
from .full import make_room_when_full
from .plan import Plan
from .snapshot import Kernel, Waiter
from .words import bytes_in_words, duration_in_words


def reclaim(plan: Plan, short: Mapping[str, int], head: Waiter, place: int) -> None:
    """Park enough for the head of a line, which is at `place` in the queue: who is idle, then who waits behind
    it with memory of its own, then whoever the setting `when_full` names.

    Parks what there is of the first two even if it is not enough: whoever comes back queues behind the head, so
    it is served in the end. Those behind are blocked, parking them loses nothing, and two that each hold half
    can go on.
    """
    missing = dict(short)
    reason, whom = f"room for {bytes_in_words(sum(head.needs.values()))}", head.kernel.id
    idle = [kernel for kernel in plan.eligible_on(missing) if kernel is not head.kernel]
    _park_until(plan, missing, enough(plan, idle, missing), reason, Cause.ROOM, whom)
    if any(size > 0 for size in missing.values()):
        _park_until(plan, missing, _blocked_behind(plan, head, place, missing), reason, Cause.ROOM, whom)
    if any(size > 0 for size in missing.values()):
        make_room_when_full(plan, missing, head)


def reclaim_watermark(plan: Plan) -> None:
    """Park who is eligible while a GPU that fell under its low watermark has not reached the high one."""
    for uuid, gpu in plan.node.gpus.items():
        if gpu.is_reclaiming and gpu.total_bytes is not None:
            target = int(plan.settings.high_watermark * gpu.total_bytes)
            missing = {uuid: target - plan.room[uuid] - plan.incoming[uuid]}
            if missing[uuid] > 0:
                chosen = enough(plan, plan.eligible_on(missing), missing)
                _park_until(plan, missing, chosen, "GPU memory is low", Cause.LOW_MEMORY)


def keep_limits(plan: Plan) -> None:
    """Park who is eligible of a user or group that has grown beyond its limit."""
    for resource in plan.limits.caps:
        missing = {resource: -plan.room[resource] - plan.incoming.get(resource, 0)}
        if missing[resource] > 0:
            chosen = enough(plan, plan.eligible_on(missing), missing)
            _park_until(plan, missing, chosen, f"the limit of {resource} is exceeded", Cause.LIMIT)


def park_idle(plan: Plan) -> None:
    """With park_when="idle", park whoever is eligible."""
    if plan.settings.park_when == "idle":
        for kernel in plan.eligible():
            if plan.is_free(kernel):  # it may have been asked to give back host memory meanwhile
                idle = duration_in_words(plan.now - kernel.last_activity)
                plan.park(kernel, f"idle {idle}", Cause.IDLE)


def enough(plan: Plan, candidates: Sequence[Kernel], missing: Mapping[str, int]) -> list[Kernel]:
    """Of candidates in order of worth, those that suffice, without any that the others make needless."""
    left = {resource: size for resource, size in missing.items() if size > 0}
    chosen: list[Kernel] = []
    for kernel in candidates:
        frees = plan.limits.frees(kernel)
        if any(size > 0 and frees.get(resource) for resource, size in left.items()):
            chosen.append(kernel)
            for resource in left:
                left[resource] -= frees.get(resource, 0)
    for kernel in reversed(chosen[:]):
        frees = plan.limits.frees(kernel)
        if all(left[resource] + frees.get(resource, 0) <= 0 for resource in left):
            chosen.remove(kernel)
            for resource in left:
                left[resource] += frees.get(resource, 0)
    return chosen


def _park_until(
    plan: Plan,
    missing: dict[str, int],
    candidates: Iterable[Kernel],
    reason: str,
    cause: Cause,
    for_kernel: str | None = None,
) -> None:
    """Park candidates in turn until nothing is missing any more."""
    for kernel in candidates:
        frees = plan.limits.frees(kernel)
        helps = any(size > 0 and frees.get(resource) for resource, size in missing.items())
        if helps and plan.is_free(kernel) and plan.park(kernel, reason, cause, for_kernel=for_kernel):
            for resource in missing:
                missing[resource] -= frees.get(resource, 0)


def _blocked_behind(plan: Plan, head: Waiter, place: int, missing: Mapping[str, int]) -> list[Kernel]:
    """Kernels that wait behind the head for room and hold memory themselves, the latest first."""
    behind = []
    for first, last, kernel in plan.waiting_residents(missing):
        held = kernel.held_until is not None and kernel.held_until > plan.now
        busy = kernel.calls_in_flight or kernel.captures or kernel.retry_at > plan.now
        is_bound = held or busy or kernel.is_opted_out or not kernel.is_parkable
        if first > place and kernel is not head.kernel and not is_bound and plan.is_free(kernel):
            behind.append((last, kernel))
    behind.sort(key=lambda each: -each[0])
    return [kernel for _, kernel in behind]
