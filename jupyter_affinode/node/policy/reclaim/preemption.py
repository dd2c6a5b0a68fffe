"""Preemption: what the setting `when_full` decides where no kernel on a full GPU is idle; pure.

`wait` does nothing. `time_slice` preempts the kernels that have had the GPU longest, each after `time_slice_s` at the
least, and only for a waiter: their next CUDA call waits until they are resumed. `terminate_newest` has the youngest
kernel's own server shut it down, for an older one: by the kernel's id, which that server knows, never by a process. Two
sorts of kernels are left alone: those whose server does not follow the controller's events, and those whose start time
is unknown (in another pid namespace, since before the controller's start). Neither setting touches kernels that are
held or opted out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter

from ....units import bytes_in_words, duration_in_words
from ...model.actions import EndKernel
from ...model.reasons import Cause
from ...model.snapshot import Kernel, Residency, Waiter
from ..queue import AWAY
from ..scheduling_pass.host_plan import HostMemory
from ..scheduling_pass.plan import Plan
from .enough_victims import Victims


def make_room_when_full(plan: Plan, missing: Mapping[str, int], head: Waiter) -> Victims | None:
    """Preempt busy kernels for the head of the queue, or none if that would not suffice.

    Return what is wrong with host memory, if anything is.
    """
    if plan.settings.when_full == "wait" or plan.limits.among(missing):
        return None
    margin = plan.settings.margin_bytes  # no kernel is preempted for that alone
    lacks = {resource: size - margin for resource, size in missing.items() if size > margin}
    if not lacks:
        return None
    if plan.settings.when_full == "time_slice":
        chosen = _sufficient(_with_slice_over(plan, lacks, head), lacks, attrgetter("resident_bytes"))
        return _preempt(plan, chosen, head) if chosen else None
    if plan.settings.when_full == "terminate_newest":
        _end_newest(plan, lacks, head)
    return None


def preemptible_at(kernel: Kernel, time_slice_s: float) -> float | None:
    """Return the moment from which the kernel may be preempted; None if time alone will not do.

    Never a kernel of several processes or GPUs: a process that runs on alone could wait for the rest.
    """
    if kernel.residency is not Residency.RESIDENT or not kernel.is_parkable or not kernel.movable_bytes:
        return None
    if (
        kernel.is_moving
        or kernel.is_dying
        or kernel.is_ending
        or kernel.is_opted_out
        or not kernel.may_be_preempted
    ):
        return None
    if kernel.rooms:
        return None  # it waits itself: before the head, or behind it and is parked anyway
    return max(kernel.resident_since + time_slice_s, kernel.retry_at, kernel.held_until or 0.0)


def preempt_for_slots(plan: Plan, gpus: Collection[str], head: Waiter) -> None:
    """Preempt enough kernels, with time slices, that the head of the queue may compute on `gpus`, or none.

    Kernels that are about to leave count as gone.
    """
    if plan.settings.when_full != "time_slice" or plan.slots.most is None:
        return
    lacks = {}
    computing: set[str] = set()
    for uuid in gpus:
        there = plan.slots.on(uuid, but=head.kernel)
        stays = [kernel for kernel in there if plan.is_free(kernel) or kernel.residency in AWAY]
        if len(stays) >= plan.slots.most:
            lacks[uuid] = len(stays) + 1 - plan.slots.most
            computing.update(kernel.id for kernel in stays)
    over = [kernel for kernel in _with_slice_over(plan, lacks, head) if kernel.id in computing]
    chosen = _sufficient(over, lacks, lambda kernel: dict.fromkeys(kernel.resident_bytes, 1))
    found = _preempt(plan, chosen, head) if chosen else None
    if found is not None and found.memory is HostMemory.LATER:
        plan.host.is_awaited = True
    elif found is not None:
        plan.host.refuse(found.short)


def _with_slice_over(plan: Plan, gpus: Collection[str], head: Waiter) -> list[Kernel]:
    """Return the kernels that may be preempted now, the longest on the GPU first."""
    time_slice_s = plan.settings.time_slice_s
    began_by, over = plan.now - time_slice_s, []
    for kernel in plan.candidates.resident_on(gpus):
        if kernel.resident_since > began_by or kernel is head.kernel:
            continue
        moment = preemptible_at(kernel, time_slice_s)
        if moment is not None and moment <= plan.now and plan.is_free(kernel):
            over.append(kernel)
    return sorted(
        over, key=lambda kernel: (kernel.demoted_until > plan.now, kernel.resident_since, kernel.id)
    )


def _preempt(plan: Plan, chosen: Sequence[Kernel], head: Waiter) -> Victims | None:
    """Preempt all the kernels for the head of the queue, or none; return what is wrong with host memory, if anything
    is.
    """
    found = plan.host.memory_for(chosen)
    if found in (HostMemory.LATER, HostMemory.SHORT):
        return Victims([], found, [max(chosen, key=plan.host.takes)])
    reason = f"its turn of {duration_in_words(plan.settings.time_slice_s)} is over and others wait"
    for kernel in chosen:
        plan.park(kernel, reason, Cause.TIME_SLICE, for_kernel=head.kernel.id, preempts=True)
    return None


def _end_newest(plan: Plan, lacks: Mapping[str, int], head: Waiter) -> None:
    if plan.now - head.since < plan.settings.time_slice_s:
        return
    here = plan.candidates.resident_on(lacks)
    if any(kernel.is_ending for kernel in here):
        return  # one at a time: meanwhile a kernel may become idle
    younger = [
        kernel
        for kernel in here
        if kernel.can_be_ended
        and kernel.started_at > head.kernel.started_at
        and not kernel.is_opted_out
        and not kernel.is_dying
        and not kernel.is_held(plan.now)
        and kernel is not head.kernel
        and plan.is_free(kernel)
    ]
    younger.sort(key=lambda kernel: (-kernel.started_at, kernel.id))
    for kernel in _sufficient(younger, lacks, _frees_when_ended)[:1]:
        waited = duration_in_words(plan.now - head.since)
        size = bytes_in_words(sum(head.needs.values()))
        reason = f"the GPU is full and this is its newest kernel: an older one has waited {waited} for {size}"
        plan.act(EndKernel(kernel.id, reason, Cause.FULL, head.kernel.id))
        plan.expect_end(kernel)


def _frees_when_ended(kernel: Kernel) -> Mapping[str, int]:
    frees, unmovable = kernel.frees_bytes, kernel.unmovable_bytes
    return {uuid: size + unmovable.get(uuid, 0) for uuid, size in frees.items() if size}


def _sufficient(
    kernels: Iterable[Kernel], lacks: Mapping[str, int], gives: Callable[[Kernel], Mapping[str, int]]
) -> list[Kernel]:
    """Return the first of the kernels that suffice together, each for what `gives` returns; [] if all together do
    not.
    """
    left = dict(lacks)
    chosen = []
    for kernel in kernels:
        given = gives(kernel)
        if any(given.get(uuid) for uuid in left):
            chosen.append(kernel)
            for uuid, size in list(left.items()):
                size -= given.get(uuid, 0)
                if size > 0:
                    left[uuid] = size
                else:
                    del left[uuid]
            if not left:
                return chosen
    return []
