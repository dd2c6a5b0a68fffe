"""Reading a waiter back from disk, so that it can hand its host memory over; pure.

A waiter on disk has no host memory to hand over to its victims. Where the disk is full, nothing else makes room for
them either, and kernels behind it that are in host memory would change places for ever. So as much of it is read back
as it lacks for an exchange that hands over (hand_over.py), and other parked kernels are spilled in its place: in turn,
where what is free is less than that.
"""

from __future__ import annotations

from collections.abc import Iterable

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
        and plan.host.may_hand_over_after_reading(waiter, victims, size)
        and plan.read_back(waiter, victims, size)
    )
