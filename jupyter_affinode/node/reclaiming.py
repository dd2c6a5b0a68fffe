"""Making room: who yields for whom; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

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
    park = _park_for(plan, head)
    missing = dict(short)
    _park_until(plan, missing, enough(plan, plan.candidates.eligible_on(missing), missing), park)
    if _lacks(missing):
        _park_until(plan, missing, plan.candidates.blocked_behind(place, missing), park)
    if _lacks(missing):
        make_room_when_full(plan, missing, head)


def make_way(plan: Plan, missing: Mapping[str, int], chosen: Iterable[Kernel], head: Waiter) -> bool:
    """Park those that were chosen for the head of a line; whether that was decided of any of them."""
    left = dict(missing)
    _park_until(plan, left, chosen, _park_for(plan, head))
    return left != missing


def reclaim_watermark(plan: Plan) -> None:
    """Park who is eligible while a GPU that fell under its low watermark has not reached the high one."""

    def park(kernel: Kernel) -> bool:
        return plan.park(kernel, "GPU memory is low", Cause.LOW_MEMORY)

    for uuid, gpu in plan.node.gpus.items():
        if gpu.is_reclaiming and gpu.total_bytes is not None:
            target = int(plan.settings.high_watermark * gpu.total_bytes)
            _reclaim_all(plan, uuid, target - plan.room[uuid] - plan.incoming[uuid], park)


def keep_limits(plan: Plan) -> None:
    """Park who is eligible of a user or group that has grown beyond its limit."""
    for limit in plan.limits.caps:

        def park(kernel: Kernel, limit: str = limit) -> bool:
            return plan.park(kernel, f"the limit of {limit} is exceeded", Cause.LIMIT)

        _reclaim_all(plan, limit, -plan.room[limit] - plan.incoming.get(limit, 0), park)


def park_idle(plan: Plan) -> None:
    """With park_when="idle", park whoever is eligible."""
    if plan.settings.park_when == "idle":
        for kernel in plan.candidates.eligible():
            if plan.is_free(kernel):  # it may have been asked to give back host memory meanwhile
                idle = duration_in_words(plan.now - kernel.last_activity)
                plan.park(kernel, f"idle {idle}", Cause.IDLE)


def enough(plan: Plan, candidates: Iterable[Kernel], missing: Mapping[str, int]) -> list[Kernel]:
    """Of candidates in order of worth, those that suffice, without any that the others make needless."""
    left = {resource: size for resource, size in missing.items() if size > 0}
    chosen: list[Kernel] = []
    for kernel in candidates:
        if not _lacks(left):
            break
        if _helps(plan, kernel, left):
            chosen.append(kernel)
            _subtract(left, plan.limits.frees(kernel))
    needed: list[Kernel] = []
    for kernel in reversed(chosen):
        frees = plan.limits.frees(kernel)
        if all(size + frees.get(resource, 0) <= 0 for resource, size in left.items()):
            for resource in left:
                left[resource] += frees.get(resource, 0)
        else:
            needed.append(kernel)
    return needed[::-1]


def _park_for(plan: Plan, head: Waiter) -> Callable[[Kernel], bool]:
    """How somebody is parked for the head of a line."""
    reason = f"room for {bytes_in_words(sum(head.needs.values()))}"
    return lambda kernel: plan.park(kernel, reason, Cause.ROOM, for_kernel=head.kernel.id)


def _reclaim_all(plan: Plan, resource: str, size: int, park: Callable[[Kernel], bool]) -> None:
    """Park who is eligible until `size` bytes of a resource will be free."""
    if size > 0:
        missing = {resource: size}
        _park_until(plan, missing, enough(plan, plan.candidates.eligible_on(missing), missing), park)


def _park_until(
    plan: Plan, missing: dict[str, int], candidates: Iterable[Kernel], park: Callable[[Kernel], bool]
) -> None:
    """Park candidates in turn until nothing is missing any more; `park` says whether it will be."""
    for kernel in candidates:
        if not _lacks(missing):
            return
        if _helps(plan, kernel, missing) and plan.is_free(kernel) and park(kernel):
            _subtract(missing, plan.limits.frees(kernel))


def _lacks(missing: Mapping[str, int]) -> bool:
    return any(size > 0 for size in missing.values())


def _helps(plan: Plan, kernel: Kernel, missing: Mapping[str, int]) -> bool:
    frees = plan.limits.frees(kernel)
    return any(size > 0 and frees.get(resource) for resource, size in missing.items())


def _subtract(missing: dict[str, int], frees: Mapping[str, int]) -> None:
    for resource in missing:
        missing[resource] -= frees.get(resource, 0)
