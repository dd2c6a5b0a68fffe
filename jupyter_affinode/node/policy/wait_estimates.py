"""Wait status: a waiter's place, why it waits, and when it has the GPU at the latest; pure.

**Estimates** are upper bounds while nothing changes. They rest on what is known: which moves are under way, when
kernels become eligible if they stay idle, when holds end, and when time slices are over. For the waiter at place n on a
GPU there must be room for all before it too, and kernels are parked for it when those have been served. Where that
never adds up there is no estimate: nothing tells for how long a kernel goes on computing. Waiters without
a compute slot (compute_slots.py), and those behind them, get none either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...settings.policy import Settings
from ..model.reasons import BlockerReason, WaitReason
from ..model.snapshot import Kernel, Node, Residency, Waiter
from .admission.admission import is_unschedulable
from .admission.migration import may_migrate
from .queue import in_service_order, served_keys
from .reclaim.preemption import preemptible_at
from .resources.quotas import GROUP
from .scheduling_pass.compute_slots import is_at_work
from .scheduling_pass.plan import Plan
from .victims.eligibility import eligible_at
from .victims.eviction_cost import park_s, resume_s
from .wait_blockers import BLOCKERS_MAX, Blocker, Blockers, in_order

Parkable = tuple[float, int, Kernel]  # when, how much, which
ParkableByGpu = Mapping[str, Sequence[Parkable]]  # by GPU
Parks = Mapping[str, Sequence[tuple[float, float]]]  # by GPU: when one may begin, how long it takes

PASSES_S = 1.0  # time of each step beside its moves: NVML's next figure, and the passes until a decision


@dataclass(frozen=True)
class WaitEstimate:
    """What the user of a waiting kernel is told; the words are in `views/waits.py`."""

    position: int  # in the queue, from 1, by kernels
    since: float
    code: WaitReason
    estimate_s: float | None  # from now; None where none can be made
    arguments: Mapping[str, int | str] = field(default_factory=dict)
    blockers: tuple[Blocker, ...] = ()  # what is in the way, the most important first


class Explanation(NamedTuple):
    """Why a kernel waits, and until when if that can be said."""

    code: WaitReason
    until: float | None = None
    blockers: Sequence[Blocker] = ()


def estimate_waits(now: float, node: Node, settings: Settings) -> dict[str, WaitEstimate]:
    """Return every waiting kernel's status, by kernel, in queue order."""
    view = _View(now, node, settings)
    found: dict[str, WaitEstimate] = {}
    ahead: dict[str, int] = {}  # by GPU: what those before need
    had = view.plan.served  # all count as served in order
    for _, waiter in in_service_order(view.plan.queue, had, now, settings):
        if waiter.kernel.id not in found:
            explanation = view.explain(waiter, ahead)
            found[waiter.kernel.id] = WaitEstimate(
                len(found) + 1,
                waiter.since,
                explanation.code,
                None if explanation.until is None else max(explanation.until - now, 0.0),
                view.arguments(waiter, explanation.code),
                tuple(in_order(explanation.blockers)[:BLOCKERS_MAX]),
            )
        if not view.waits_in_vain(waiter):  # else others are served before it
            for uuid, need in waiter.needs.items():
                ahead[uuid] = ahead.get(uuid, 0) + need
            view.note(waiter)
        had.update(served_keys(waiter.kernel, waiter.needs))
    return found


class _View:
    """Which kernels may be parked when, by GPU, looked up once."""

    def __init__(self, now: float, node: Node, settings: Settings):
        self.plan = Plan(now, node, settings)
        self._found: dict[tuple[bool, bool], tuple[ParkableByGpu, Parks, Blockers]] = {}
        self._sinces = [waiter.since for waiter in self.plan.queue]
        self._granted: dict[str, float] = {}  # by GPU: when those looked at have had what they need
        self._slotless: set[str] = set()  # GPUs where one of those looked at may not compute yet
        # by GPU: kernels that will compute there before those looked at next
        self._waiters_on: dict[str, set[str]] = {}
        for waiter in self.plan.queue:
            if waiter.room is not None:  # it needs no slot, but it takes one
                self.note(waiter)

    def waits_in_vain(self, waiter: Waiter) -> bool:
        """Return whether a waiter has no room however many kernels are parked: it holds up no other."""
        return is_unschedulable(self.plan, waiter) and not may_migrate(waiter)

    def explain(self, waiter: Waiter, ahead: Mapping[str, int]) -> Explanation:
        """Return why a waiter waits, and until when if that can be said."""
        plan, kernel = self.plan, waiter.kernel
        if not plan.node.is_settled:
            return Explanation(WaitReason.STARTING)
        if kernel.residency is Residency.RESUMING:
            return Explanation(WaitReason.MOVING, plan.now + resume_s(kernel, plan.node.speeds))
        if kernel.is_ending:
            return Explanation(WaitReason.ENDING)
        if self.waits_in_vain(waiter):
            return self._unschedulable(waiter)
        if kernel.served_after > plan.now or (waiter.room is None and kernel.resume_retry_at > plan.now):
            return Explanation(WaitReason.RETRY)
        if self._limit(waiter) is not None:
            return Explanation(WaitReason.LIMIT)
        explanations = [
            self._gpu(uuid, need + ahead.get(uuid, 0), waiter) for uuid, need in waiter.needs.items() if need
        ]
        is_behind = any(ahead.get(uuid) for uuid, need in waiter.needs.items() if need)
        full = self._full_of_computing(waiter, is_behind)
        if full is not None:
            explanations = [full, *(each._replace(until=None) for each in explanations)]
        latest = self._grant(waiter, explanations)
        if latest is not None and waiter.room is None:
            latest += resume_s(kernel, plan.node.speeds)
        code = next((each.code for each in explanations if each.code is not WaitReason.TURN), WaitReason.TURN)
        if is_behind:
            code = WaitReason.OTHERS_FIRST
            if latest is not None and kernel.movable_bytes:  # it may be parked for them, and resumed for this
                latest += park_s(kernel, plan.node.speeds) + resume_s(kernel, plan.node.speeds) + PASSES_S
        return Explanation(code, latest, [blocker for each in explanations for blocker in each.blockers])

    def note(self, waiter: Waiter) -> None:
        """Count a waiter as computing before those that are looked at next."""
        if self.plan.slots.most is not None:
            for uuid in (*waiter.needs, *waiter.kernel.migration_targets):
                self._waiters_on.setdefault(uuid, set()).add(waiter.kernel.id)

    def _full_of_computing(self, waiter: Waiter, is_behind: bool) -> Explanation | None:
        """Return the reason of a waiter that lacks a compute slot, or comes after one that does; None for others.

        Nothing tells when the others stop computing. An allocation needs no slot, unless its kernel may be parked for
        waiters before it.
        """
        slots, kernel = self.plan.slots, waiter.kernel
        if slots.most is None:
            return None
        beside = {}
        for uuid in waiter.needs:
            there = {each.id for each in slots.on(uuid, but=kernel)}
            beside[uuid] = len(self._waiters_on.get(uuid, set()) - there - {kernel.id})
        resumes = waiter.room is None or (is_behind and kernel.movable_bytes)
        is_late = resumes and slots.lacking(kernel, waiter.needs, beside)
        if not is_late and self._slotless.isdisjoint(waiter.needs):
            return None
        self._slotless |= waiter.needs.keys()
        lacking = slots.lacking(kernel, waiter.needs) if waiter.room is None else []
        if not lacking:
            return Explanation(WaitReason.TURN)
        blockers = self._parkable(self.plan.settings.when_full == "time_slice", waiter)[2]
        return Explanation(
            WaitReason.COMPUTE, None, [blockers.of(each) for each in slots.on(lacking[0], but=kernel)]
        )

    def _grant(self, waiter: Waiter, explanations: Sequence[Explanation]) -> float | None:
        """Return when the waiter will be given room on all its GPUs, if that can be said; those behind it are served
        afterwards.
        """
        known = [each.until for each in explanations if each.until is not None]
        if len(known) < len(explanations):
            return None
        granted = max(known, default=self.plan.now) + PASSES_S
        for uuid, need in waiter.needs.items():
            if need:
                self._granted[uuid] = max(granted, self._granted.get(uuid, 0.0))
        return granted

    def arguments(self, waiter: Waiter, code: WaitReason) -> Mapping[str, int | str]:
        """Return what a sentence about the wait needs: its size, and which quota is used up."""
        found: dict[str, int | str] = {"bytes": sum(waiter.needs.values())}
        limit = None
        if code is WaitReason.LIMIT:
            exceeded = self.plan.limits.exceeded(waiter)
            limit = self._limit(waiter) if exceeded is None else exceeded[0]
        if limit is not None:
            found["limit"] = "group" if limit.startswith(GROUP) else "user"
            found |= {"group": limit[len(GROUP) :]} if limit.startswith(GROUP) else {}
        if code is WaitReason.COMPUTE:
            (uuid, *_) = self.plan.slots.lacking(waiter.kernel, waiter.needs)
            found["kernels"] = len(self.plan.slots.on(uuid, but=waiter.kernel))
            index = self.plan.node.gpus[uuid].index if uuid in self.plan.node.gpus else None
            found |= {} if index is None else {"gpu": index}
        return found

    def _limit(self, waiter: Waiter) -> str | None:
        """Return the name of the waiter's user or group quota that has no room for it."""
        limits = self.plan.limits
        short = self.plan.shortage(limits.needs(waiter)) if limits else {}
        return next((key for key in short if key in limits.caps), None)

    def _gpu(self, uuid: str, need: int, waiter: Waiter) -> Explanation:
        """Return when a GPU will have `need` bytes free, and what the waiter waits for there."""
        plan = self.plan
        slices = plan.settings.when_full == "time_slice" and not (waiter.room and waiter.room.is_for_start)
        parkable, parks, blockers = self._parkable(slices, waiter)
        begins = max(plan.now, self._granted.get(uuid, 0.0))
        lacks = need - plan.room.get(uuid, 0)
        may_park = parks.get(uuid, ())
        if lacks <= 0:
            return Explanation(WaitReason.TURN, self._with_margin(-lacks, begins, may_park))
        arrives = plan.now + self._slowest_move(uuid)
        lacks -= plan.incoming.get(uuid, 0)
        if lacks <= 0:
            until = self._with_margin(-lacks, max(begins, arrives), may_park)
            moving = [blockers.of(kernel) for kernel in self._moving(uuid)[:BLOCKERS_MAX]]
            return Explanation(WaitReason.MOVING, until, moving)
        chosen: list[Kernel] = []
        sizes: dict[str, int] = {}
        everything, is_host_full = lacks, False
        for moment, size, kernel in parkable.get(uuid, ()):
            if kernel is waiter.kernel:
                continue
            if plan.host.lacks_room_for([*chosen, kernel]):
                is_host_full = True
                if size < everything or plan.host.lacks_room_for([kernel]):
                    continue
                lacks, chosen = size, []  # alone, then
            chosen.append(kernel)
            sizes[kernel.id] = size
            lacks -= size
            if lacks <= 0:
                begins = max(moment, begins, waiter.kernel.reclaim_after)
                at = max(begins + _slowest_s(begins, may_park), arrives)
                at = self._with_margin(-lacks, at, may_park)
                if slices:  # preemption leaves the margin out: what is idle by then may be parked for it
                    at = _last_end(begins, at, may_park)
                needed = [blockers.of(each) for each in _fewest(chosen, sizes, everything)]
                is_last_held = kernel.is_held(plan.now) and kernel.held_until == moment
                return Explanation(WaitReason.HELD if is_last_held else WaitReason.FULL, at, needed)
        if is_host_full:
            return Explanation(WaitReason.HOST_MEMORY)
        found = blockers.on(uuid, waiter, everything)
        return Explanation(_code_of(found), None, found)

    def _with_margin(self, left: int, at: float, parks: Sequence[tuple[float, float]]) -> float:
        """Return until when a waiter waits that will have room at `at` and `left` bytes beside it: idle kernels are
        parked for a margin.
        """
        return at if left >= self.plan.settings.margin_bytes else at + _slowest_s(at, parks)

    def _moving(self, uuid: str) -> list[Kernel]:
        return [
            kernel for kernel in self.plan.candidates.resident_on([uuid]) if not self.plan.is_free(kernel)
        ]

    def _slowest_move(self, uuid: str) -> float:
        return max((park_s(kernel, self.plan.node.speeds) for kernel in self._moving(uuid)), default=0.0)

    def _unschedulable(self, waiter: Waiter) -> Explanation:
        if self.plan.limits.exceeded(waiter) is not None:
            return Explanation(WaitReason.LIMIT)
        stay = [kernel for kernel in self._others(waiter) if kernel.is_opted_out or not kernel.is_parkable]
        *_, blockers = self._parkable(slices=False, waiter=waiter)
        found = [blockers.of(kernel) for kernel in stay[:BLOCKERS_MAX]]
        is_outside = any(blockers.outside_bytes(uuid) for uuid in waiter.needs)
        if is_outside:
            found.append(Blocker(None, BlockerReason.OUTSIDE))
        code = WaitReason.OUTSIDE if is_outside and not stay else WaitReason.TOO_LARGE
        return Explanation(code, None, found)

    def _others(self, waiter: Waiter) -> list[Kernel]:
        return [each for each in self.plan.candidates.resident_on(waiter.needs) if each is not waiter.kernel]

    def _parkable(self, slices: bool, waiter: Waiter) -> tuple[ParkableByGpu, Parks, Blockers]:
        """Return by GPU when each kernel may be parked at the earliest if nothing changes and what that frees, which
        parks may begin at all, and the kernels as blockers. `slices`: kernels at work may be parked too.

        A kernel is parked the sooner the longer a waiter has waited. The waiters that came first may be served
        meanwhile, so for all but the first the figures are those of the last to come.
        """
        is_first = waiter.since <= min(self._sinces)
        key = slices, is_first
        if key not in self._found:
            since = min(self._sinces) if is_first else max(self._sinces)
            parkable, parks = self._find_parkable(slices, since)
            moments = {kernel.id: moment for each in parkable.values() for moment, _, kernel in each}
            self._found[key] = parkable, parks, Blockers(self.plan, moments)
        return self._found[key]

    def _find_parkable(self, slices: bool, since: float) -> tuple[ParkableByGpu, Parks]:
        """Return the same for waiters since `since`.

        A kernel that used the GPU just now is not counted on, but may be parked if it stays idle.
        """
        plan, settings = self.plan, self.plan.settings
        speeds, pauses_s = plan.node.speeds, plan.node.pauses_s
        parkable: dict[str, list[Parkable]] = {}
        parks: dict[str, list[tuple[float, float]]] = {}
        for kernel in plan.node.kernels:
            idle = eligible_at(kernel, settings, waits_since=since, speeds=speeds, pauses_s=pauses_s)
            slice_ends = preemptible_at(kernel, settings.time_slice_s) if slices else None
            counted_on = [slice_ends] if is_at_work(plan.now, kernel, settings) else [idle, slice_ends]
            # For a waiter before, too, which may have waited for longer.
            longest = min(self._sinces)
            first = eligible_at(kernel, settings, waits_since=longest, speeds=speeds, pauses_s=pauses_s)
            soonest = min((moment for moment in (first, slice_ends) if moment is not None), default=None)
            moment = min((moment for moment in counted_on if moment is not None), default=None)
            for uuid, size in kernel.frees_bytes.items():
                if size and soonest is not None:
                    parks.setdefault(uuid, []).append((soonest, park_s(kernel, speeds)))
                if size and moment is not None:
                    parkable.setdefault(uuid, []).append((moment, size, kernel))
        for entries in parkable.values():
            entries.sort(key=lambda entry: (entry[0], entry[2].id))
        return parkable, parks


def _slowest_s(by: float, parks: Sequence[tuple[float, float]]) -> float:
    """Return the duration of the longest park that may have begun by then."""
    return max((lasts_s for begins, lasts_s in parks if begins <= by), default=0.0)


def _last_end(begins: float, at: float, parks: Sequence[tuple[float, float]]) -> float:
    """Return when the last park ends that may begin from `begins` until `at`, or until another such park ends."""
    for may_begin, lasts_s in sorted(parks):
        if may_begin <= at:
            at = max(at, max(may_begin, begins) + lasts_s)
    return at


def _fewest(chosen: Sequence[Kernel], sizes: Mapping[str, int], lacks: int) -> list[Kernel]:
    """Return the fewest of the chosen kernels that have what is missing, the last chosen first: without it the others
    do not.
    """
    *others, last = chosen
    needed, left = [last], lacks - sizes[last.id]
    for kernel in sorted(others, key=lambda each: -sizes[each.id]):
        if left <= 0:
            break
        needed.append(kernel)
        left -= sizes[kernel.id]
    return needed


def _code_of(blockers: Sequence[Blocker]) -> WaitReason:
    """Return the reason code of a wait whose end is unknown."""
    found = {blocker.why for blocker in blockers}
    if BlockerReason.COMPUTING in found or BlockerReason.IDLE in found or not found:
        return WaitReason.COMPUTING
    if BlockerReason.HELD in found:
        return WaitReason.HELD
    if BlockerReason.MOVING in found:
        return WaitReason.MOVING
    return WaitReason.OUTSIDE if BlockerReason.OUTSIDE in found else WaitReason.TOO_LARGE
