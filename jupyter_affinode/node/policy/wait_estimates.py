"""What a waiter can be told: its place, why it waits, and when it will probably have the GPU; pure.

**Estimates** rest on what is known: what is under way, which kernels become eligible when if they stay idle, when
holds end, and with time slices when turns are over. For a waiter at place n on a GPU, the room must do for all before
it too. Where that never adds up there is no estimate: nothing says for how long a kernel at work goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...settings.policy import Settings
from ...units import bytes_in_words
from ..model.snapshot import Kernel, Node, Residency, Waiter
from .admission import is_hopeless
from .eligibility import LEAST_PAUSE_S, eligible_at
from .eviction_cost import park_s, resume_s
from .migration import may_migrate
from .preemption import preemptible_at
from .queue import in_turn, lines_of, waits_since
from .scheduling_pass import Plan

ITS_TURN = "it is its turn"
FULL = "the GPU is full until others have been idle for long enough"
FULL_IN_TURNS = "the GPU is full until others have had their turn, or have been idle for long enough"


@dataclass(frozen=True)
class Outlook:
    """For the person whose kernel waits."""

    place: int  # from 1, by kernels
    since: float
    reason: str  # in plain words; without figures that change by themselves
    estimate_s: float | None  # from now; None where none can be made


def outlooks(now: float, node: Node, settings: Settings) -> dict[str, Outlook]:
    """Every waiting kernel's outlook, by kernel, first in the queue first."""
    view = _View(now, node, settings)
    found: dict[str, Outlook] = {}
    ahead: dict[str, int] = {}  # by GPU: what those before need
    had = view.plan.turns  # all are taken to be served in turn
    for _, waiter in in_turn(view.plan.queue, had, now, settings):
        if waiter.kernel.id not in found:
            reason, moment = view.look(waiter, ahead)
            estimate_s = None if moment is None else max(moment - now, 0.0)
            found[waiter.kernel.id] = Outlook(len(found) + 1, waiter.since, reason, estimate_s)
        for uuid, need in waiter.needs.items():
            ahead[uuid] = ahead.get(uuid, 0) + need
        had.update(lines_of(waiter.kernel, waiter.needs))
    return found


class _View:
    """Which kernels may be parked when, by GPU, looked up once."""

    def __init__(self, now: float, node: Node, settings: Settings):
        self.plan = Plan(now, node, settings)
        self._found: dict[bool, Mapping[str, Sequence[tuple[float, int, Kernel]]]] = {}

    def look(self, waiter: Waiter, ahead: Mapping[str, int]) -> tuple[str, float | None]:
        """Why it waits and until when, if that can be said."""
        plan, kernel = self.plan, waiter.kernel
        if not plan.node.is_settled:
            return "the GPU's controller has just started", None
        if kernel.residency is Residency.RESUMING:
            return "it is being brought back", plan.now + resume_s(kernel, plan.node.speeds)
        if kernel.is_ending:
            return "it is being shut down", None
        if is_hopeless(plan, waiter) and not may_migrate(waiter):
            return self._hopeless_reason(waiter), None
        if kernel.served_after > plan.now:
            return "room that was reserved for your kernels was not taken, they are served again soon", None
        if waiter.room is None and kernel.resume_retry_at > plan.now:
            return "bringing it back failed a moment ago, it will be tried again", None
        limits = [
            key for key, short in plan.shortage(plan.limits.needs(waiter)).items() if key in plan.limits.caps
        ]
        if limits:
            return f"the limit of {limits[0]} is used by their other kernels", None
        latest, obstacles = self._gpus(waiter, ahead)
        if latest is not None and waiter.room is None:
            latest += resume_s(kernel, plan.node.speeds)
        reason = obstacles[0] if obstacles else ITS_TURN
        if any(ahead.get(uuid) for uuid, need in waiter.needs.items() if need):
            reason = f"others wait before it, and {reason}" if obstacles else "others wait before it"
        return reason, latest

    def _gpus(self, waiter: Waiter, ahead: Mapping[str, int]) -> tuple[float | None, list[str]]:
        """When all GPUs of which it needs a part will have room, and what it waits for on each."""
        moments, obstacles = [], []
        for uuid, need in waiter.needs.items():
            if need:
                moment, obstacle = self._gpu(uuid, need + ahead.get(uuid, 0), waiter)
                moments.append(moment)
                obstacles += [obstacle] if obstacle else []
        known = [moment for moment in moments if moment is not None]
        return max(known, default=self.plan.now) if len(known) == len(moments) else None, obstacles

    def _gpu(self, uuid: str, need: int, waiter: Waiter) -> tuple[float | None, str | None]:
        """When a GPU will have room for so much, and what it waits for there."""
        plan = self.plan
        lacks = need - plan.room.get(uuid, 0)
        if lacks <= 0:
            return plan.now, None
        lacks -= plan.incoming.get(uuid, 0)
        if lacks <= 0:
            return plan.now + self._slowest_move(uuid), "memory is being freed for it"
        yielding: list[Kernel] = []
        everything, is_host_full = lacks, False
        slices = plan.settings.when_full == "time_slice" and not (waiter.room and waiter.room.is_courtesy)
        for moment, size, kernel in self._yields(slices).get(uuid, ()):
            if kernel is waiter.kernel:
                continue
            if plan.host_lacks_room_for([*yielding, kernel]):
                is_host_full = True
                if size < everything or plan.host_lacks_room_for([kernel]):
                    continue
                lacks = size  # alone, then
            yielding.append(kernel)
            lacks -= size
            if lacks <= 0:
                at = max(moment, plan.now) + park_s(kernel, plan.node.speeds)
                if self._is_held(kernel) and kernel.held_until == moment:
                    whose = "another of your kernels" if _is_own(kernel, waiter) else "another user's kernel"
                    return at, f"{whose} holds the GPU"
                return at, FULL_IN_TURNS if slices else FULL
        if is_host_full:
            return (
                None,
                "the GPU is full, and host memory too, so no kernel can be parked until memory is freed",
            )
        return None, "the GPU is full, and its kernels are busy" + self._or_held(uuid, waiter)

    def _or_held(self, uuid: str, waiter: Waiter) -> str:
        """What a reason adds about holds of kernels on a GPU."""
        held = [kernel for kernel in self.plan.candidates.resident_on([uuid]) if self._is_held(kernel)]
        if not held:
            return ""
        return " or held by you" if all(_is_own(each, waiter) for each in held) else " or held by their users"

    def _is_held(self, kernel: Kernel) -> bool:
        return kernel.held_until is not None and kernel.held_until > self.plan.now

    def _is_at_work(self, kernel: Kernel) -> bool:
        """Whether a kernel used the GPU so lately that nothing says when it will stop: an open cell may only be
        loading what it computes next.
        """
        pause_s = self.plan.settings.contended_idle_timeout_s if kernel.cell_open else LEAST_PAUSE_S
        return self.plan.now - kernel.last_activity < pause_s

    def _slowest_move(self, uuid: str) -> float:
        moving = [
            kernel for kernel in self.plan.candidates.resident_on([uuid]) if not self.plan.is_free(kernel)
        ]
        return max((park_s(kernel, self.plan.node.speeds) for kernel in moving), default=0.0)

    def _hopeless_reason(self, waiter: Waiter) -> str:
        exceeded = self.plan.limits.exceeded(waiter)
        if exceeded is not None:
            return f"with this it would exceed the limit of {exceeded[0]}"
        size = bytes_in_words(sum(waiter.needs.values()))
        rest = (
            "kernels that are not parked have the rest"
            if self._stay(waiter)
            else "programs outside share the GPU"
        )
        return f"it needs {size}, more than can become free whatever is parked: {rest}"

    def _stay(self, waiter: Waiter) -> bool:
        """Whether kernels that opted out, or cannot be parked, have memory where it waits."""
        others = (
            each for each in self.plan.candidates.resident_on(waiter.needs) if each is not waiter.kernel
        )
        return any(kernel.is_opted_out or not kernel.is_parkable for kernel in others)

    def _yields(self, slices: bool) -> Mapping[str, Sequence[tuple[float, int, Kernel]]]:
        """By GPU: when each kernel may be parked at the earliest if nothing changes, and what that frees; `slices`:
        kernels at work may, too.
        """
        if slices not in self._found:
            self._found[slices] = self._find_yields(slices)
        return self._found[slices]

    def _find_yields(self, slices: bool) -> Mapping[str, Sequence[tuple[float, int, Kernel]]]:
        plan, settings = self.plan, self.plan.settings
        since = waits_since(plan.queue)
        found: dict[str, list[tuple[float, int, Kernel]]] = {}
        for kernel in plan.node.kernels:
            moment = None
            if not self._is_at_work(kernel):
                moment = eligible_at(kernel, settings, waits_since=since, speeds=plan.node.speeds)
            if slices:
                turn_ends = preemptible_at(kernel, settings.time_slice_s)
                moments = [each for each in (moment, turn_ends) if each is not None]
                moment = min(moments, default=None)
            if moment is not None:
                for uuid, size in kernel.frees_bytes.items():
                    if size:
                        found.setdefault(uuid, []).append((moment, size, kernel))
        for entries in found.values():
            entries.sort(key=lambda entry: (entry[0], entry[2].id))
        return found


def _is_own(kernel: Kernel, waiter: Waiter) -> bool:
    """Whether a kernel is the waiter's own user's."""
    return kernel.payer == waiter.kernel.payer
