"""Who waits for a full GPU may come back on another one of its kind; pure.

**When.** A kernel that waits for its own GPU, where there is no room now, is resumed on another one that has room:
for its memory and its context, above the low watermark. Failing that, and unless its own GPU's room is on its way,
idle kernels yield where that is the least trouble, there or at home; at home, where it is the same.

**First come, first served** holds on that GPU too. Nobody comes from elsewhere while anybody ahead in the queue waits
for it. Once kernels yield there for somebody from elsewhere, that one heads its line, in the place that its turn gives
it, and keeps its place at home. Of those from elsewhere none passes another: a GPU that one of them could not be given
is not given to the next. Only who waits for a GPU of their own is not held up by somebody from elsewhere for whom
there is no room: they have their own line. So the bound of policy/queue.py holds in every line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ...units import duration_in_words
from ..model.actions import Cause
from ..model.snapshot import Kernel, Waiter
from .eviction_cost import trouble
from .reclaim import make_way
from .scheduling_pass import HostMemory, Plan
from .victim_selection import what_is_left, who_yields


class Found(Enum):
    """What was found elsewhere."""

    NOTHING = "nothing"
    ROOM = "room"  # it is being resumed there
    COMING = "coming"  # others yield there, and it waits for that


@dataclass
class Lines:
    """Who waits where, as far as the queue has been gone through."""

    heads: dict[str, Waiter] = field(default_factory=dict)  # by GPU: who waits for it first, in vain
    closed: set[str] = field(default_factory=set)  # GPUs that somebody from elsewhere could not be given


def look_elsewhere(plan: Plan, waiter: Waiter, lines: Lines, *, is_first: bool) -> Found:
    """Serve a waiter on another GPU, or have room made for it there, if that is better than waiting at home.

    `is_first`: nobody is before it at home, so room that is made there is for it.
    """
    if not waiter.kernel.elsewhere:
        return Found.NOTHING  # most of hundreds: at once
    choices = [
        there
        for there in elsewhere(waiter, lines.heads.keys() | lines.closed)
        if _could_fit(plan, there)  # else it would hold up for ever whom there is room for
    ]
    if not choices:
        return Found.NOTHING
    fitting = [there for there in choices if plan.fits(plan.limits.needs(there), beside(plan, _gpu(there)))]
    if fitting:
        _resume(plan, max(fitting, key=lambda there: plan.room[_gpu(there)]))
        return Found.ROOM
    short = plan.shortage(plan.limits.needs(waiter))
    is_on_its_way = is_first and not short
    if is_on_its_way or plan.limits.among(short):
        return Found.NOTHING  # it does not wait for a GPU
    there = _with_room_to_come(plan, waiter, choices, short if is_first else None)
    if there is None:
        if not any(_is_barred(plan, there) for there in choices):
            lines.closed.update(map(_gpu, choices))
        return Found.NOTHING
    lines.heads[_gpu(there)] = there
    return Found.COMING


def elsewhere(waiter: Waiter, taken: Collection[str] = ()) -> list[Waiter]:
    """The waiter as if it waited for each of the other GPUs that it may come back on, but for those in `taken`."""
    if not waiter.kernel.elsewhere or waiter.room is not None or waiter.kernel.rooms:
        return []
    need = sum(waiter.needs.values())  # of one GPU: only such kernels may go elsewhere
    return [waiter._replace(needs={uuid: need}) for uuid in waiter.kernel.elsewhere if uuid not in taken]


def _with_room_to_come(
    plan: Plan, waiter: Waiter, choices: list[Waiter], short: Mapping[str, int] | None
) -> Waiter | None:
    """Where room is on its way already; else where others yield for it with less trouble than at home.

    `short`: what is missing at home; None: others are before it there.
    """
    lacking = {_gpu(there): _lacks(plan, there) for there in choices}
    for there in choices:
        if lacking[_gpu(there)] <= 0:
            return there
    _, at_home = _cheapest(plan, waiter.kernel, short) if short is not None else ([], None)
    best: tuple[float, Waiter, list[Kernel]] | None = None
    for there in choices:
        chosen, cost = _cheapest(plan, waiter.kernel, {_gpu(there): lacking[_gpu(there)]})
        if cost is not None and (at_home is None or cost < at_home) and (best is None or cost < best[0]):
            best = cost, there, chosen
    if best is None:
        return None
    _, there, chosen = best
    missing = {_gpu(there): lacking[_gpu(there)]}
    return there if make_way(plan, missing, chosen, there) else None


def _cheapest(plan: Plan, kernel: Kernel, missing: Mapping[str, int]) -> tuple[list[Kernel], float | None]:
    """The idle kernels that would yield, and how much trouble (eviction_cost.py) that is; None: they are not enough."""
    idle = (each for each in plan.candidates.eligible_on(missing) if each is not kernel)
    chosen, _ = who_yields(plan, idle, missing)
    if what_is_left(plan, chosen, missing):
        return [], None
    return chosen, sum(trouble(plan.now, each, plan.node) for each in chosen)


def _is_barred(plan: Plan, there: Waiter) -> bool:
    """Whether nobody yields there for want of host memory: it would not be given back while others are held up."""
    missing = {_gpu(there): _lacks(plan, there)}
    return who_yields(plan, plan.candidates.eligible_on(missing), missing)[1] is HostMemory.SHORT


def _resume(plan: Plan, there: Waiter) -> None:
    kernel, waited = there.kernel, duration_in_words(plan.now - there.since)
    reason = f"it waited {waited}, and its own GPU is full"
    plan.resume(kernel, plan.limits.needs(there), reason, Cause.CELL, elsewhere=there.needs)


def _lacks(plan: Plan, there: Waiter) -> int:
    """What is missing on a GPU when everything under way is done."""
    uuid = _gpu(there)
    coming = plan.room.get(uuid, 0) + plan.incoming.get(uuid, 0)
    return there.needs[uuid] + beside(plan, uuid) - coming


def beside(plan: Plan, uuid: str) -> int:
    """What stays free of a GPU beside somebody from elsewhere, in bytes: nobody comes to make a GPU run low."""
    gpu = plan.node.gpus.get(uuid)
    total = (gpu.total_bytes or 0) if gpu is not None else 0
    return int(plan.settings.low_watermark * total) + plan.settings.margin_bytes


def _could_fit(plan: Plan, there: Waiter) -> bool:
    """Whether the GPU is large enough for it, were it empty."""
    gpu = plan.node.gpus.get(_gpu(there))
    return gpu is not None and (
        gpu.total_bytes is None or there.needs[gpu.uuid] + beside(plan, gpu.uuid) <= gpu.total_bytes
    )


def _gpu(there: Waiter) -> str:
    (uuid,) = there.needs
    return uuid
