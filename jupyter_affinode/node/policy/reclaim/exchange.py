"""Exchanges: kernels leave the GPU while a waiter comes in, so that the link is used both ways at once; pure.

An exchange is decided as parks with `Park.exchanges`; they stand for the waiter's resume too. The victims first
prepare, which can be undone. When all have, and `room_to_begin` still confirms the room, the victims are parked and the
waiter is resumed at the same moment; its room is reserved from then on (execution/exchanges.py). Else all stay, and the
policy decides anew.

All other cases are a park, and a resume in a later pass: an allocation, a kernel of several processes, a waiter or a
victim at context depth, a preempted victim, caches that are dropped first, host memory that others must release first,
or room that the victims alone do not make. (Where others have none to release, the waiter hands over its own:
hand_over.py.)
"""

from __future__ import annotations

from collections.abc import Mapping

from ....settings.policy import Settings
from ...model.actions import Park
from ...model.snapshot import Kernel, Node, Residency, Waiter
from ..scheduling_pass.plan import Plan
from .hand_over import may_resume_handing_over


def is_exchange(plan: Plan, head: Waiter, first: int) -> bool:
    """Return whether the actions from number `first` on are parks that make all the room that the waiter lacks."""
    if head.room is not None or not _may_resume(plan, head.kernel) or len(plan.actions) == first:
        return False
    by_id = {kernel.id: kernel for kernel in plan.node.kernels}
    for action in plan.actions[first:]:
        if not isinstance(action, Park) or action.to_context or action.preempts:
            return False
        victim = by_id[action.kernel_id]
        if victim.residency is not Residency.RESIDENT:
            return False
        if victim.demoted_until > plan.now:  # it might break the exchange off for all others
            return False
    return plan.will_fit(plan.limits.needs(head))


def is_for_later(plan: Plan, head: Waiter, short: Mapping[str, int]) -> bool:
    """Return whether an exchange for the waiter should begin later: other kernels are moving to or from one of its
    GPUs.

    Two exchanges at once share the link, and both end when the second would have ended after the first.
    """
    may = _may_resume(plan, head.kernel) or may_resume_handing_over(plan, head.kernel)
    return head.room is None and may and not plan.is_settled(short)


def room_to_begin(
    now: float, node: Node, settings: Settings, kernel_id: str, *, hands_over: bool = False
) -> Mapping[str, int] | None:
    """Return the room to reserve for a waiter that comes in now, that of kernels which are about to leave included.

    None: it does not wait any more, there would not be enough, or as many kernels compute there as may. `hands_over`:
    it gives them its host memory.
    """
    plan = Plan(now, node, settings)
    waiter = next((each for each in plan.queue if each.kernel.id == kernel_id and each.room is None), None)
    # All victims are prepared, whichever user's they are.
    if waiter is None or not plan.will_fit(plan.limits.needs(waiter), with_doubtful=True):
        return None
    if not (may_resume_handing_over if hands_over else _may_resume)(plan, waiter.kernel):
        return None
    if plan.slots.lacking(waiter.kernel, waiter.needs):
        return None
    return waiter.kernel.resume_bytes


def _may_resume(plan: Plan, kernel: Kernel) -> bool:
    """Return whether a waiter can be resumed in an exchange now."""
    is_due = kernel.resume_retry_at <= plan.now and kernel.served_after <= plan.now
    is_parked = kernel.residency is Residency.QUEUED and not kernel.left_bytes
    return is_parked and is_due and kernel.may_resume_in_parts and plan.is_free(kernel)
