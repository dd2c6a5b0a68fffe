"""The policy's entry point: what to do now. Pure: no I/O, no clock, no randomness.

The same function runs in the controller, in the planner and, with a virtual clock, in the property tests. `queue.py`
has the order, `admission` which waiters get room, `reclaim` which kernels are parked for them, `victims` which may be
parked and at what cost, `resources` what there is beside GPU memory, `scheduling_pass` what one pass has decided.
"""

from __future__ import annotations

import math

from ...settings.policy import Settings
from ..model.actions import Action, Hibernate, RefusePark, Share, Spill
from ..model.reasons import Cause, Refusal
from ..model.snapshot import Kernel, Node, Residency
from .admission.admission import LAST_RESERVES, serve_queue
from .admission.prefetch import prefetch
from .queue import AWAY, waits_since
from .reclaim.reclaim import keep_limits, park_idle, reclaim_watermark
from .resources.disk import MAY_EVER
from .scheduling_pass.plan import Plan
from .victims import eviction_cost as victims
from .victims.eligibility import eligible_at


def decide(now: float, node: Node, settings: Settings) -> list[Action]:
    """Return what to do now, the most urgent first; never two actions for one kernel.

    `now` is monotonic seconds. Nothing is decided before the machine has settled: kernels whose shims have not
    connected yet may have the memory that a grant would give away.
    """
    if not node.is_settled:
        return []
    plan = Plan(now, node, settings)
    park_requested(plan)
    mend_parts(plan)
    serve_queue(plan)
    reclaim_watermark(plan)
    keep_limits(plan)
    park_idle(plan)
    mend_splits(plan)
    prefetch(plan)
    give_lots(plan)
    for action in plan.host.relieve():  # below the host's reserve, retained copies go first
        plan.act(action)
    hibernate_long_parked(plan)
    share_parked(plan)
    plan.say_refusals()
    return plan.actions


def park_requested(plan: Plan) -> None:
    """Park what users asked for, open cell or not."""
    asked = [
        (kernel, reason) for kernel in plan.node.kernels if (reason := kernel.park_requested) is not None
    ]
    for kernel, reason in asked:
        if kernel.residency is not Residency.RESIDENT or not plan.is_free(kernel):
            continue
        if kernel.is_parkable:
            plan.park(kernel, reason, Cause.ASKED)
        else:
            plan.act(RefusePark(kernel.id, Refusal.NOT_PARKABLE, "nothing of this kernel can be moved"))


def mend_parts(plan: Plan) -> None:
    """Resume kernels that were parked in part, before any waiter is served.

    A copy failed in an exchange (exchange.py), or an exchange that hands over ended early. There is room for the rest
    unless other kernels took it. If a kernel waits for that room, the rest is parked too.
    """
    for kernel in plan.node.kernels:
        if not kernel.left_bytes or kernel.is_dying or not plan.is_free(kernel):
            continue
        is_due = kernel.resume_retry_at <= plan.now and kernel.served_after <= plan.now
        if is_due and kernel.residency in AWAY and plan.fits(kernel.resume_bytes, LAST_RESERVES):
            cause = Cause.SPLIT if kernel.wants_since is None else Cause.CELL
            plan.resume(kernel, kernel.resume_bytes, "a part of it is on the GPU", cause)
        elif kernel.may_hand_over and max(kernel.retry_at, kernel.host.retry_at) <= plan.now:
            _park_rest(plan, kernel)


def _park_rest(plan: Plan, kernel: Kernel) -> None:
    """Park the rest of a partly parked kernel for a waiter ahead of it, if host memory allows."""
    waiting = (each for each in plan.queue if any(each.needs.get(uuid) for uuid in kernel.left_bytes))
    head = next(waiting, None)
    is_in_the_way = (
        head is not None and head.kernel is not kernel and not plan.fits(head.needs, LAST_RESERVES)
    )
    if head is None or not is_in_the_way or plan.is_outdated(head.needs):
        return
    if plan.host.for_parks([kernel.rest]).lacks:
        return
    plan.park(kernel.rest, "a part of it is on the GPU", Cause.ROOM, for_kernel=head.kernel.id)


def mend_splits(plan: Plan) -> None:
    """Resume the parked processes of a kernel whose other processes are on the GPU, where there is room for them.

    Kernels are moved whole, so a split comes from a killed controller, or from a process that began in a parked kernel.
    No kernel is parked for it and none waits for it: a process that needs the parked part makes a CUDA call and joins
    the queue.
    """
    if plan.queue:
        return
    for kernel in plan.node.kernels:
        if not kernel.is_split or kernel.is_dying or not plan.is_free(kernel):
            continue
        if kernel.resume_retry_at <= plan.now and plan.fits(kernel.resume_bytes, plan.settings.margin_bytes):
            reason = "its other processes are on the GPU"
            plan.resume(kernel, kernel.resume_bytes, reason, Cause.SPLIT)


def hibernate_long_parked(plan: Plan) -> None:
    """Have kernels hibernate that were parked for as long as their owners say, which bounds how often they do."""
    due = [
        kernel
        for kernel in filter(MAY_EVER, plan.node.kernels)
        if plan.now - kernel.parked_since >= (kernel.hibernates_after_s or math.inf)
    ]
    if not due:
        return
    written = {each.kernel_id: each.bytes for each in plan.actions if isinstance(each, Spill | Hibernate)}
    found = plan.host.disk.hibernates(due, plan.now, plan.is_free, written, least_awake_s=0.0)
    for kernel in due:
        if kernel.id in found:
            plan.act(Hibernate(kernel.id, sum(kernel.parked_bytes.values()), "it was parked for long"))


def share_parked(plan: Plan) -> None:
    """Have parked kernels that nothing asks for share host memory with their users' others, one of a user at a time."""
    users: set[str] = set()
    for kernel in plan.node.kernels if plan.settings.share_dir else ():
        is_wanted = kernel.wants_since is not None or kernel.cell_open or kernel.expected_until > plan.now
        if kernel.may_share and not (is_wanted or kernel.is_dying) and plan.is_free(kernel):
            if kernel.charged_user not in users:
                plan.act(Share(kernel.id))
            users.add(kernel.charged_user)


def give_lots(plan: Plan) -> None:
    """Lend lots ahead of time to kernels that may be parked and have none, the likeliest victims first.

    Registering 32 GiB with a GPU takes a second or more, and a user may ask for a park at any time.
    """
    if not plan.node.host.lot_bytes:
        return
    since = waits_since(plan.queue)
    without = [
        kernel
        for kernel in plan.node.kernels
        if plan.is_free(kernel)
        and not (kernel.host.lot_bytes or kernel.host.trimming_bytes)
        and eligible_at(kernel, plan.settings, waits_since=since) is not None
    ]
    for kernel in victims.in_order(plan.now, without, plan.node):
        plan.give_lots(kernel)
