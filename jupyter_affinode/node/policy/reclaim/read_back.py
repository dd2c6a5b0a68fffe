"""Reading a waiter back from disk, so that it can hand its host memory over; pure.

A waiter on disk has no host memory to hand over to its victims. Where the disk is full, nothing else makes room for
them either, and kernels behind it that are in host memory would change places for ever. So as much of it is read back
as it lacks for an exchange that hands over (hand_over.py), and other parked kernels are spilled in its place: in turn,
where what is free is less than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...model.snapshot import Kernel, Waiter
from ..scheduling_pass.plan import Plan
from .enough_victims import enough, what_is_left
from .hand_over import can_hand_over, lacks_of, may_resume_handing_over


def read_back(plan: Plan, head: Waiter, candidates: Iterable[Kernel]) -> bool:
    """Read back what the head lacks to hand over to the best of the candidates, or make host memory ready for that;
    return whether it can be served so.
    """
    waiter = head.kernel
    if head.room is not None or not waiter.host.readable_bytes or not may_resume_handing_over(plan, waiter):
        return False
    lacks = lacks_of(plan, head)
    victims = enough(plan, filter(can_hand_over, candidates), lacks)
    if not victims or what_is_left(plan, victims, lacks):
        return False
    size = min(plan.host.room.lacks_to_hand_over(waiter, victims), waiter.host.readable_bytes)
    return (
        bool(size)
        and _can_hand_over_then(plan, waiter, victims, size)
        and plan.read_back(waiter, victims, size)
    )


def _can_hand_over_then(plan: Plan, waiter: Kernel, victims: Sequence[Kernel], size: int) -> bool:
    """Return whether the waiter could hand over if it had `size` bytes of its contents in host memory, not on disk."""
    host, use = plan.node.host, waiter.host
    headroom = {
        cgroup: left - size if cgroup in waiter.cgroups else left
        for cgroup, left in host.headroom_bytes.items()
    }
    host = replace(
        host,
        available_bytes=host.available_bytes - size,
        headroom_bytes=headroom,
        disk_free_bytes=host.disk_free_bytes + size,
    )
    use = replace(
        use,
        copy_bytes=use.copy_bytes + size,
        disk_bytes=use.disk_bytes - size,
        readable_bytes=use.readable_bytes - size,
    )
    then = replace(waiter, host=use)
    kernels = tuple(then if each is waiter else each for each in plan.node.kernels)
    plan_then = Plan(plan.now, replace(plan.node, kernels=kernels, host=host), plan.settings)
    return plan_then.may_hand_over(then, victims, later=True) and _own_places_suffice(
        plan_then, then, victims
    )


def _own_places_suffice(plan: Plan, waiter: Kernel, victims: Sequence[Kernel]) -> bool:
    """Return whether the cgroups of the waiter and the victims may have what is not handed over as lots."""
    room = plan.host.room
    wanted = dict.fromkeys(room.own_places(waiter), 1)  # it is counted there already
    for victim in victims:
        for place in room.own_places(victim):
            wanted[place] = wanted.get(place, 0) + room.begins_with([victim])
    short = room.shortage(wanted, plan.host.retained.coming)
    short = plan.host.retained.left(short, [waiter, *victims]) if short else short
    return not room.without_passing(short)
