"""Exchanges that hand over: the waiter's host memory goes to its victims, window after window; pure.

Where host memory is too short to park kernels for a waiter, the waiter's own copy makes the room. It is resumed while
they are parked, and releases what it no longer needs. So they can be parked if the free host memory and the waiter's
copy are enough, and a little is free to begin with. They get the rest as lots (state/host/lots.py).

A hand-over is not decided where host memory is enough, since then the waiter retains its copy for its next park. It
comes before anything is spilled to disk, or waits for other moves.

A kernel that was parked in part (an exchange ended early) can be a victim too: its calls wait anyway. So two kernels
that each have half of what the other needs can go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ...model.snapshot import Kernel, Residency, Waiter
from ..queue import AWAY
from ..scheduling_pass.plan import Plan
from .enough_victims import enough, what_is_left


def hand_over(
    plan: Plan,
    head: Waiter,
    missing: Mapping[str, int],
    candidates: Callable[[], Iterable[Kernel]],
    reason: str,
) -> bool:
    """Exchange the head with the best kernels that can be parked for it, where host memory allows no other way; return
    whether it is decided. `reason`: of their parks.
    """
    if head.room is not None or not may_resume_handing_over(plan, head.kernel) or plan.host.is_awaited:
        return False
    lacks = lacks_of(plan, head)

    def able() -> Iterator[Kernel]:
        rests = list(_parked_in_part(plan, head.kernel))
        yield from (kernel for kernel in rests if kernel.demoted_until <= plan.now)
        yield from filter(can_hand_over, candidates())
        yield from (kernel for kernel in rests if kernel.demoted_until > plan.now)

    def fits(kernel: Kernel) -> bool:
        """Return whether host memory may be enough for it alone; else a smaller one may do."""
        return not plan.host.for_hand_over(head.kernel, [kernel]).lacks

    for wanted in ({**lacks, **missing}, lacks):  # the margin is not worth a failure
        chosen = enough(plan, filter(fits, able()), wanted)
        if chosen and not what_is_left(plan, chosen, wanted) and plan.hand_over(head.kernel, chosen, reason):
            return True
    return False


def may_resume_handing_over(plan: Plan, kernel: Kernel) -> bool:
    """Return whether a waiter can hand over now."""
    is_due = kernel.resume_retry_at <= plan.now and kernel.served_after <= plan.now
    return kernel.residency is Residency.QUEUED and kernel.may_hand_over and is_due and plan.is_free(kernel)


def can_hand_over(kernel: Kernel) -> bool:
    """Return whether an eligible kernel can be parked in an exchange that hands over."""
    return kernel.may_hand_over and not kernel.may_park_context


def _parked_in_part(plan: Plan, but: Kernel) -> Iterator[Kernel]:
    """Yield the partly parked kernels as if what they have on the GPU were all."""
    for kernel in plan.candidates.parked_in_part:
        # A park that came to nothing does not show what the rest takes, so only time can tell.
        retry_at = max(kernel.retry_at, kernel.host.retry_at)
        can = kernel.may_hand_over and kernel.residency in AWAY and retry_at <= plan.now
        if can and kernel is not but and plan.is_free(kernel):
            yield kernel.rest


def lacks_of(plan: Plan, head: Waiter) -> dict[str, int]:
    """Return what the head lacks, without a margin."""
    needs = plan.limits.needs(head)
    room, incoming = plan.room, plan.incoming
    return {key: size - room.get(key, 0) - incoming.get(key, 0) for key, size in needs.items() if size}
