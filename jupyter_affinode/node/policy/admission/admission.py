"""Admission: which waiters get room now, and which of them block others; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set

from ....units import bytes_in_words, duration_in_words
from ...model.actions import DenyRoom, GrantRoom
from ...model.reasons import Cause
from ...model.snapshot import Kernel, RoomRequest, Waiter
from ..queue import in_service_order, served_keys
from ..reclaim.preemption import preempt_for_slots
from ..reclaim.reclaim import reclaim
from ..scheduling_pass.plan import Plan
from .migration import migrate

DENY_AFTER_S = 0.5  # the shortest wait of an allocation before it is denied because it can never fit
LAST_RESERVES = 0  # the margin when no kernel is left that could be parked


def serve_queue(plan: Plan) -> None:
    """Give room to waiters in the queue's order (queue.py).

    No waiter overtakes another of the same GPU. A waiter does not block others if it could never be served as things
    are, if it has just failed, or if no kernel can be parked for it for lack of host memory (reclaim.py). A waiter for
    its own user's or group's quota does not block the GPU either; its share of the quota is reserved. A waiter for a
    compute slot blocks only those that need one too (compute_slots.py). Some may migrate (migration.py).
    """
    blocked: set[str] = set()  # GPUs for which a waiter waits in vain
    slotless: set[str] = set()  # … and those where one may not compute beside others
    for place, waiter in in_service_order(plan.queue, plan.served, plan.now, plan.settings):
        kernel = waiter.kernel
        if not plan.is_free(kernel) or kernel.served_after > plan.now:
            continue
        if waiter.room is None and _is_behind(waiter, slotless):
            if not migrate(plan, waiter, blocked | slotless):
                _block_behind(plan, slotless, waiter, reserves=False)
        elif _is_behind(waiter, blocked):
            if not migrate(plan, waiter, blocked | slotless):
                _block_behind(plan, blocked, waiter)
        elif is_unschedulable(plan, waiter):
            if waiter.room is not None:
                _deny_when_sure(plan, waiter, waiter.room)
            else:
                migrate(plan, waiter, blocked | slotless)
        elif waiter.room is None and kernel.resume_retry_at > plan.now:
            pass
        elif waiter.room is None and (lacking := plan.slots.lacking(kernel, waiter.needs)):
            if not migrate(plan, waiter, blocked | slotless):
                preempt_for_slots(plan, lacking, waiter)
                _block_behind(plan, slotless, waiter, reserves=False)
        else:
            needs = plan.limits.needs(waiter)
            if not _serve(plan, waiter, needs, place, blocked | slotless):
                is_passed = kernel.id in plan.barred or _lacks_limit_alone(plan, needs)
                _block_behind(plan, None if is_passed else blocked, waiter)


def _is_behind(waiter: Waiter, blocked: Set[str]) -> bool:
    """Return whether another waits ahead of the waiter for one of its GPUs."""
    return bool(blocked) and any(need and uuid in blocked for uuid, need in waiter.needs.items())


def is_unschedulable(plan: Plan, waiter: Waiter) -> bool:
    """Return whether the waiter would not fit even if every kernel that can be parked were parked."""
    is_resume = waiter.room is None
    if not is_resume and (waiter.kernel.allocations_fail or plan.limits.exceeded(waiter) is not None):
        return True
    for uuid, need in waiter.needs.items():
        unused = plan.unused.get(uuid)
        if unused is None or need <= unused:
            continue
        may_guess = is_resume and not plan.node.gpus[uuid].is_measured
        if not may_guess and need > _most(plan, waiter.kernel, uuid):
            return True
    return False


def _most(plan: Plan, kernel: Kernel, uuid: str) -> int:
    """Return the bytes that a kernel could have of a GPU if every other kernel were parked that can be."""
    own = kernel.frees_bytes.get(uuid, 0) if kernel.is_parkable and not kernel.is_opted_out else 0
    own += plan.reserved.get((kernel.id, uuid), 0)
    return plan.unused[uuid] + plan.candidates.parkable_bytes(uuid) - own


def _lacks_limit_alone(plan: Plan, needs: Mapping[str, int]) -> bool:
    """Return whether a waiter lacks nothing but room in its own user's or group's quota."""
    if not plan.limits:
        return False
    short = plan.shortage(needs)
    return bool(short) and len(plan.limits.among(short)) == len(short)


def _block_behind(plan: Plan, blocked: set[str] | None, waiter: Waiter, *, reserves: bool = True) -> None:
    """Have a waiter that is not served block those behind it on its GPUs (in `blocked`) and in its quotas."""
    if blocked is not None:
        blocked.update(uuid for uuid, need in waiter.needs.items() if need)
    if reserves:
        plan.limits.reserve(waiter, plan.room)


def _serve(plan: Plan, waiter: Waiter, needs: Mapping[str, int], place: int, taken: Collection[str]) -> bool:
    """Serve a waiter if there is room, else park others for it; return whether it was served. `taken`: GPUs for which
    others wait ahead of it.
    """
    if _is_too_fresh(plan, waiter):
        return False
    if not plan.fits(needs, plan.settings.margin_bytes):
        if migrate(plan, waiter, taken):
            return True
        short = plan.shortage(needs)
        if short and waiter.kernel.reclaim_after <= plan.now:
            own = plan.limits.among(short)  # no other user's kernels need be parked before these have room
            reclaim(plan, own or short, waiter, place)
        if any(plan.incoming.get(resource) for resource in needs):
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
        plan.take_room(needs)
        plan.served.update(served_keys(kernel, [room.gpu]))
    else:
        waited = duration_in_words(plan.now - waiter.since)
        plan.resume(kernel, needs, f"it waited {waited}", Cause.CELL)


def _is_too_fresh(plan: Plan, waiter: Waiter) -> bool:
    """Return whether an allocation has just failed: only a newer figure can show that there is room."""
    return waiter.room is not None and not _is_known_since(plan, waiter.room.gpu, waiter.since)


def _is_known_since(plan: Plan, uuid: str, moment: float) -> bool:
    """Return whether there is a figure of the GPU from `moment` or later; False for an unknown GPU."""
    gpu = plan.node.gpus.get(uuid)
    return gpu is not None and gpu.sampled_at >= moment


def _may_try_blindly(plan: Plan, waiter: Waiter, needs: Mapping[str, int]) -> bool:
    """Return whether a resume is worth a try without NVML: the room that others freed is unknown, and a failure costs
    only its pause.
    """
    if waiter.room is not None or any(gpu.is_measured for gpu in map(plan.node.gpus.get, needs) if gpu):
        return False
    return all(plan.room[key] >= needs[key] for key in plan.limits.of(waiter.kernel.id))


def _memory_may_return(plan: Plan, kernel: Kernel, room: RoomRequest) -> bool:
    """Return whether kernels that are out of reach, or long in resuming, have the missing memory and may be parked
    later.
    """
    if not plan.node.is_complete:
        return True
    away = plan.out_of_reach.get(room.gpu, 0)
    if not kernel.is_parkable and kernel.is_out_of_reach:
        away -= kernel.resident_bytes.get(room.gpu, 0)
    return away > 0 and room.bytes <= _most(plan, kernel, room.gpu) + away


def _deny_when_sure(plan: Plan, waiter: Waiter, room: RoomRequest) -> None:
    """Let the program see its out-of-memory error once figures newer than its request say so."""
    is_fresh = _is_known_since(plan, room.gpu, waiter.since)
    if not waiter.kernel.allocations_fail and not (is_fresh and plan.now - waiter.since >= DENY_AFTER_S):
        return
    exceeded = plan.limits.exceeded(waiter)
    if (
        exceeded is None
        and not waiter.kernel.allocations_fail
        and _memory_may_return(plan, waiter.kernel, room)
    ):
        return
    if exceeded is not None:
        name, cap = exceeded
        why = f"with {bytes_in_words(room.bytes)} more this kernel alone exceeds the limit of {name}"
        plan.act(DenyRoom(waiter.kernel.id, room.key, f"{why}, {bytes_in_words(cap)}", Cause.LIMIT))
        return
    why = f"{bytes_in_words(room.bytes)} cannot become free on this GPU, whatever is freed"
    cause = Cause.FAILED_AGAIN if waiter.kernel.allocations_fail else Cause.TOO_LARGE
    plan.act(DenyRoom(waiter.kernel.id, room.key, why, cause))
