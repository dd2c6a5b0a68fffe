"""Serving the queue: who gets room now, and who holds up whom; pure."""

from __future__ import annotations

from collections.abc import Mapping

from .actions import Cause, DenyRoom, GrantRoom, Resume
from .backfill import may_go_first
from .plan import Plan
from .reclaiming import reclaim
from .snapshot import RoomRequest, Waiter
from .words import bytes_in_words, duration_in_words

DENY_AFTER_S = 0.5  # the least that an allocation waits before "it can never fit" is believed
LAST_RESERVES = 0  # the margin when nobody is left who could yield


def serve_queue(plan: Plan) -> None:
    """Give room to whose turn it is first; nobody overtakes who waits for the same GPU, unless that delays nobody
    (backfill.py).

    Who could never be served as things are, or has just failed, does not hold up the others. Nor does who
    waits for their own user's or group's limit, but for those that share it.
    """
    heads: dict[str, Waiter] = {}  # by resource: who waits for it first, in vain
    for place, waiter in enumerate(plan.queue):
        if not plan.is_free(waiter.kernel):
            continue
        needs = plan.limits.needs(waiter)
        ahead = {each: heads[each] for each, need in needs.items() if need and each in heads}
        if ahead:
            if plan.settings.backfill and _may_be_served(plan, waiter) and may_go_first(plan, needs, ahead):
                _give(plan, waiter, needs)
            else:
                _stand(plan, heads, waiter, needs, ahead)
            continue
        if is_hopeless(plan, waiter):
            if waiter.room is not None:
                _deny_when_sure(plan, waiter, waiter.room)
            continue
        if waiter.room is None and waiter.kernel.resume_retry_at > plan.now:
            continue
        if not _serve(plan, waiter, needs, place):
            _stand(plan, heads, waiter, needs, plan.shortage(needs))


def is_hopeless(plan: Plan, waiter: Waiter) -> bool:
    """Whether it would not fit even if every kernel that can be moved yielded."""
    kernel = waiter.kernel
    if waiter.room is not None and kernel.hopeless:
        return True
    if plan.limits.exceeded(waiter) is not None:
        return True
    for uuid, need in waiter.needs.items():
        gpu = plan.node.gpus.get(uuid)
        if gpu is None or (waiter.room is None and not gpu.is_measured):
            continue
        most = gpu.free_bytes + gpu.uncertain_bytes
        if need <= most:
            continue
        own = kernel.resident_bytes.get(uuid, 0) if kernel.is_parkable and not kernel.is_opted_out else 0
        own += plan.reserved.get((kernel.id, uuid), 0)
        if need > most + plan.yieldable.get(uuid, 0) - own:
            return True
    return False


def _stand(
    plan: Plan,
    heads: dict[str, Waiter],
    waiter: Waiter,
    needs: Mapping[str, int],
    obstacles: Mapping[str, object],
) -> None:
    """A waiter that is not served holds up those behind it."""
    caps = plan.limits.caps
    only_limits = bool(obstacles) and all(resource in caps for resource in obstacles)
    for resource, need in needs.items():
        if need and (not only_limits or resource in caps):
            heads.setdefault(resource, waiter)


def _may_be_served(plan: Plan, waiter: Waiter) -> bool:
    """Whether nothing but room and those ahead of it is in its way."""
    if is_hopeless(plan, waiter):
        return False
    return not _is_too_fresh(plan, waiter) and (
        waiter.room is not None or waiter.kernel.resume_retry_at <= plan.now
    )


def _serve(plan: Plan, waiter: Waiter, needs: Mapping[str, int], place: int) -> bool:
    """Serve a waiter if there is room; else make others yield for it. False: it waits on."""
    if _is_too_fresh(plan, waiter):
        return False
    if not plan.fits(needs, plan.settings.margin_bytes):
        short = plan.shortage(needs)
        own = {resource: size for resource, size in short.items() if resource in plan.limits.caps}
        if short and waiter.kernel.reclaim_after <= plan.now:
            reclaim(plan, own or short, waiter, place)  # others need not yield before its own limit has room
        if any(plan.incoming.get(resource, 0) for resource in needs):
            return False
        if not plan.fits(needs, LAST_RESERVES) and not _may_try_blindly(plan, waiter, needs):
            return False
    _give(plan, waiter, needs)
    return True


def _give(plan: Plan, waiter: Waiter, needs: Mapping[str, int]) -> None:
    """Grant a waiter what it needs."""
    kernel, room = waiter.kernel, waiter.room
    if room is not None:
        plan.act(GrantRoom(kernel.id, room.key, room.gpu, room.bytes))
    else:
        waited = duration_in_words(plan.now - waiter.since)
        plan.act(Resume(kernel.id, kernel.resume_bytes, f"it waited {waited}", Cause.CELL))
    plan.take_room(needs)


def _is_too_fresh(plan: Plan, waiter: Waiter) -> bool:
    """Whether an allocation has just failed: only a figure that is newer can say that there is room."""
    return waiter.room is not None and plan.node.gpus[waiter.room.gpu].sampled_at < waiter.since


def _may_try_blindly(plan: Plan, waiter: Waiter, needs: Mapping[str, int]) -> bool:
    """Without NVML nobody knows of room that others gave back; a resume that fails costs only its pause."""
    if waiter.room is not None or any(gpu.is_measured for gpu in map(plan.node.gpus.get, needs) if gpu):
        return False
    return all(plan.room[key] >= needs[key] for key in plan.limits.of(waiter.kernel.id))


def _deny_when_sure(plan: Plan, waiter: Waiter, room: RoomRequest) -> None:
    """Let the program see its out-of-memory, once the figures that say so are newer than its request."""
    is_fresh = plan.node.gpus[room.gpu].sampled_at > waiter.since
    if not waiter.kernel.hopeless and not (is_fresh and plan.now - waiter.since >= DENY_AFTER_S):
        return
    exceeded = plan.limits.exceeded(waiter)
    if exceeded is not None:
        name, cap = exceeded
        why = f"with {bytes_in_words(room.bytes)} more this kernel alone exceeds the limit of {name}"
        plan.act(DenyRoom(waiter.kernel.id, room.key, f"{why}, {bytes_in_words(cap)}", Cause.LIMIT))
        return
    why = f"{bytes_in_words(room.bytes)} cannot become free on this GPU, whoever yields"
    cause = Cause.FAILED_AGAIN if waiter.kernel.hopeless else Cause.TOO_LARGE
    plan.act(DenyRoom(waiter.kernel.id, room.key, why, cause))
