"""Reclaim: which kernels are parked for a waiter; pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from ....units import bytes_in_words, duration_in_words
from ...model.reasons import Cause
from ...model.snapshot import Kernel, Waiter
from ..scheduling_pass.host_plan import HostMemory
from ..scheduling_pass.plan import Plan
from ..victims.candidates import can_be_parked
from .enough_victims import Victims, is_nothing, select_victims, subtract, what_is_left
from .exchange import is_exchange, is_for_later
from .hand_over import hand_over
from .preemption import make_room_when_full
from .read_back import read_back

# After that, the head no longer waits for moves on its GPU to end: a process may move for ever.
SETTLES_WITHIN_S = 10.0


def reclaim(plan: Plan, short: Mapping[str, int], head: Waiter, place: int) -> None:
    """Park enough kernels for the head of the queue on its resources; `place` is its place.

    First idle kernels, then waiters behind it with memory of their own, then those that the setting `when_full` names.
    Parks idle and blocked kernels even if that frees too little: they requeue behind the head, so it is served in the
    end. Parking blocked kernels loses nothing, and two that each hold half can go on.

    No kernel is parked if host memory is too short for all of them: then the head could not be served, and would block
    those that were parked for it. Where it will be enough once moves under way have ended, no other kernel is parked
    until then. Where it will not, the head blocks no other: a kernel that resumes releases host memory.
    """
    missing = dict(short)

    def candidates() -> Iterator[Kernel]:
        found = itertools.chain(
            plan.candidates.eligible_on(missing),
            plan.candidates.blocked_behind(place, missing),
            _barred_on(plan, missing, head),
        )
        return _behind_last(plan, found, missing)

    if plan.now - head.since < SETTLES_WITHIN_S:
        if plan.is_outdated(short):
            return
        if is_for_later(plan, head, short):
            _make_host_memory_ready(plan, candidates(), missing)
            return
    first = len(plan.actions)
    found = select_victims(plan, candidates(), missing)
    reason = f"room for {bytes_in_words(sum(head.needs.values()))}"
    if _needs_disk(plan, found, missing) and hand_over(plan, head, missing, candidates, reason):
        return
    found = _park_until(plan, found, missing, candidates, reason, Cause.ROOM, for_kernel=head.kernel.id)
    if is_exchange(plan, head, first):
        plan.exchange(head.kernel, first)
    is_for_start = head.room is not None and head.room.is_for_start
    if not is_nothing(missing) and not is_for_start:
        found = make_room_when_full(plan, missing, head) or found
    if found.memory is HostMemory.LATER:
        plan.host.is_awaited = True
    elif found.memory is HostMemory.SHORT and not read_back(plan, head, candidates()):
        plan.host.refuse(found.short)
        plan.barred.add(head.kernel.id)


def reclaim_watermark(plan: Plan) -> None:
    """Park eligible kernels while a GPU that fell below its low watermark has not reached the high one.

    Not while kernels move to or from it: in the midst of an exchange every GPU is nearly full.
    """
    for uuid, gpu in plan.node.gpus.items():
        if gpu.is_reclaiming and gpu.total_bytes is not None and plan.is_settled([uuid]):
            target = int(plan.settings.high_watermark * gpu.total_bytes)
            size = target - plan.room[uuid] - plan.incoming[uuid]
            _reclaim_all(plan, uuid, size, "GPU memory is low", Cause.LOW_MEMORY)


def keep_limits(plan: Plan) -> None:
    """Park eligible kernels of a user or group that has grown beyond its quota."""
    for limit in plan.limits.caps:
        size = -plan.room[limit] - plan.incoming.get(limit, 0)
        _reclaim_all(plan, limit, size, f"the limit of {limit} is exceeded", Cause.LIMIT)


def park_idle(plan: Plan) -> None:
    """Park all eligible kernels with park_when="idle"."""
    if plan.settings.park_when == "idle":
        for kernel in plan.candidates.eligible():
            if plan.is_free(kernel):  # it may have been asked to release host memory meanwhile
                idle = duration_in_words(plan.now - kernel.last_activity)
                plan.park(kernel, f"idle {idle}", Cause.IDLE)


def _behind_last(plan: Plan, kernels: Iterable[Kernel], missing: Mapping[str, int]) -> Iterator[Kernel]:
    """Yield the kernels, last those that are deprioritized after failed parks (failed_moves.py); none of these while
    parks of such kernels are under way that would be enough.
    """
    behind = []
    for kernel in kernels:
        if kernel.demoted_until > plan.now:
            behind.append(kernel)
        else:
            yield kernel
    if not plan.is_asked_of_demoted(missing):
        yield from behind


def _reclaim_all(plan: Plan, resource: str, size: int, reason: str, cause: Cause) -> None:
    """Park eligible kernels until `size` bytes of a resource will be free, or as far as host memory allows."""
    if size > 0:
        missing = {resource: size}

        def candidates() -> Iterable[Kernel]:
            return plan.candidates.eligible_on(missing)

        found = select_victims(plan, candidates(), missing, in_part=True)
        found = _park_until(plan, found, missing, candidates, reason, cause, in_part=True)
        if found.memory is HostMemory.SHORT:
            plan.host.refuse(found.short)


def _needs_disk(plan: Plan, victims: Victims, missing: Mapping[str, int]) -> bool:
    """Return whether victims do not suffice for what is missing unless others are spilled, or do not suffice at all."""
    chosen = victims.kernels
    if not chosen or what_is_left(plan, chosen, missing):
        return True
    return bool(plan.host.for_parks(chosen, to_disk=False).lacks)


def _park_until(
    plan: Plan,
    found: Victims,
    missing: dict[str, int],
    candidates: Callable[[], Iterable[Kernel]],
    reason: str,
    cause: Cause,
    *,
    for_kernel: str | None = None,
    in_part: bool = False,
) -> Victims:
    """Park the victims that were found, and others until nothing is missing any more; return the last.

    Each park leaves less host memory, so the next victims may have to be selected anew.
    """
    while True:
        parked = [
            kernel
            for kernel in found.kernels
            if plan.is_free(kernel) and plan.park(kernel, reason, cause, for_kernel=for_kernel)
        ]
        for kernel in parked:
            subtract(missing, plan.limits.frees(kernel))
        if len(parked) == len(found.kernels) or not parked:
            return found
        found = select_victims(plan, candidates(), missing, in_part=in_part)


def _make_host_memory_ready(plan: Plan, candidates: Iterable[Kernel], missing: Mapping[str, int]) -> None:
    """Have others release now what the next parks will lack: that takes as long as preparing a park."""
    for kernel in select_victims(plan, candidates, missing).kernels:
        plan.make_host_memory_ready(kernel, to_disk=False)


def _barred_on(plan: Plan, resources: Mapping[str, int], head: Waiter) -> Iterator[Kernel]:
    """Yield waiters ahead of the head that have memory and cannot be served."""
    for kernel in plan.candidates.resident_on(resources) if plan.barred else ():
        if kernel.id in plan.barred and kernel is not head.kernel and can_be_parked(kernel, plan.now):
            yield kernel
