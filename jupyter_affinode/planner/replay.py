"""Sessions under the controller's own policy: the same `decide()`, with a virtual clock and a model of the moves.

What is exact here and late or estimated on a real machine: NVML's figures, and when a shim's answer arrives.
A pass is made after every event, and at the moments at which time alone can change a decision; as these are the
policy's own business, also every few seconds while a kernel waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..node.model import actions
from ..node.model.gpu import NvmlGpu
from ..node.model.snapshot import Gpu, Host, Node, Residency, RoomRequest, Speed
from ..node.policy.decide import decide
from ..node.policy.placement import PLACED_LASTS_S, place
from ..settings.policy import Settings
from ..settings.rules import is_named, names, numbers, rule_for
from .event_queue import Shared
from .machine import Machine, Speeds
from .occupancy import Books
from .results import Outcome, Progress
from .sessions import ImpossiblePlan, Session
from .simulated_kernel import Sharer
from .simulation import Guest, ModelBroken, People
from .wakeups import Wakes

LEAST_S = 1e-6  # what a move is told to the policy to take at least


class Replay(People):
    """One machine with the controller; `changed` is the part of memory that changes between two parks."""

    def __init__(
        self,
        machine: Machine,
        speeds: Speeds,
        settings: Settings,
        sessions: Sequence[Session],
        *,
        changed: float = 1.0,
        rebuild_s: float = 0.0,
        every_event: bool = False,
        on_progress: Progress | None = None,
    ):
        """`rebuild_s`: what a person needs to build a kernel's state again when the policy ended it.
        `every_event`: decide even where no kernel waits and nothing runs low.
        """
        if settings.lot_bytes or settings.drop_caches_before_park:
            raise ImpossiblePlan("lot_bytes and drop_caches_before_park are not modelled: leave them off")
        if "@" in settings.quotas + settings.priorities:
            raise ImpossiblePlan("the planner knows no groups: use quotas and priorities with users' names")
        if not 0 <= changed <= 1:
            raise ImpossiblePlan(f"the part of memory that changes is between 0 and 1, not {changed}")
        machine.check(settings, sessions)
        super().__init__(machine, sessions, Outcome("affinode", "jupyter-affinode"), on_progress)
        self._speeds, self._settings, self._changed, self._rebuild_s = speeds, settings, changed, rebuild_s
        self._every_event = every_event
        self._uuids = [f"GPU-{number:02d}" for number in range(machine.gpus)]
        self._placed: dict[
            int, tuple[int, float]
        ] = {}  # kernels that have not used their GPU yet, and since when
        self._books = Books(machine)
        self._sharers: dict[int, Sharer] = {}
        self._by_id: dict[str, Sharer] = {}
        self._out = [Shared(self.timeline) for _ in self._uuids]  # each direction of a GPU's link
        self._in = [Shared(self.timeline) for _ in self._uuids]
        self._lost: set[int] = set()  # whose kernels were ended, and not used again yet
        self._is_reclaiming = [False] * machine.gpus
        self._rooms = 0
        known = Speed(
            LEAST_S, speeds.park_bytes_per_s, max(speeds.wake_s, LEAST_S), speeds.resume_bytes_per_s
        )
        self._known_speeds = dict.fromkeys(self._uuids, known)
        self._wakes = Wakes(self.timeline, self._books, settings, self._known_speeds)
        self._carry_out: dict[type, Callable[[Sharer, Any], None]] = {
            actions.Park: self._park,
            actions.RefusePark: self._refuse_park,
            actions.Trim: self._trim,
            actions.Resume: self._resume,
            actions.GrantRoom: self._grant,
            actions.DenyRoom: self._deny,
            actions.EndKernel: self._end_kernel,
        }

    # ---- what people do

    def wants(self, guest: Guest) -> None:
        """A cell calls CUDA."""
        if guest.number in self._lost:
            self._lost.discard(guest.number)
            self.outcome.losses += 1
            self.outcome.rebuild_s += self._rebuild_s
            self.timeline.after(self._rebuild_s, partial(self.wants, guest))
            return
        sharer = self._sharers.get(guest.number) or self._start(guest)
        self._books.touch(sharer)
        if sharer.residency is Residency.PARKING:
            self._revoke(sharer)
        if sharer.residency is Residency.PARKED:
            sharer.residency, sharer.wants_since = Residency.QUEUED, self.now
        elif sharer.residency in (Residency.NONE, Residency.RESIDENT):
            self._allocate(sharer)

    def idle(self, guest: Guest) -> None:
        """It has computed."""
        sharer = self._sharers.get(guest.number)
        if sharer is not None:
            self._books.touch(sharer)
            if sharer.computes_since is not None and not guest.is_computing:
                sharer.computes_since, sharer.last_activity = None, self.now

    def ends(self, guest: Guest) -> None:
        """Its processes end."""
        sharer = self._sharers.pop(guest.number, None)
        self._placed.pop(guest.number, None)
        if sharer is None:
            return
        number = self._uuids.index(sharer.gpu)
        for link in (self._out[number], self._in[number]):
            if sharer.id in link:
                link.stop(sharer.id)
        self._books.forget(sharer)
        self._wakes.forget(guest.number)
        del self._by_id[sharer.id]

    # ---- a pass of the controller

    def settle(self) -> None:
        """Look, decide, act."""
        node = self._look()
        if self._has_nothing_to_decide(node):
            return
        for action in decide(self.now, node, self._settings):
            carry_out = self._carry_out.get(type(action))
            if carry_out is None:
                raise ModelBroken(f"the planner does not know what {type(action).__name__} does: {action}")
            sharer = self._by_id[action.kernel_id]
            self._books.touch(sharer)
            carry_out(sharer, action)
        self._wakes.plan_next()

    def _look(self) -> Node:
        books = self._books
        books.renew(self._sharers, self.now)
        self.outcome.host_most_bytes = max(self.outcome.host_most_bytes, books.host_bytes)
        gpus = {}
        for number, uuid in enumerate(self._uuids):
            part = books.free[number] / self.machine.gpu_bytes
            if part < self._settings.low_watermark:
                self._is_reclaiming[number] = True
            elif part >= self._settings.high_watermark:
                self._is_reclaiming[number] = False
            reclaims = self._is_reclaiming[number]
            gpus[uuid] = Gpu(uuid, books.free[number], self.machine.gpu_bytes, self.now, 0, reclaims)
        host = Host(self.machine.host_bytes - books.host_bytes, {}, self.machine.host_bytes)
        seen, reserved = tuple(books.seen.values()), tuple(books.reserved.values())
        return Node(gpus, seen, host, reserved, speeds=self._known_speeds)

    def _has_nothing_to_decide(self, node: Node) -> bool:
        """Whether no kernel waits and nothing runs low; a test holds this against deciding all the same."""
        return not (
            self._every_event
            or self._books.waiting
            or any(self._is_reclaiming)
            or self._settings.park_when != "needed"
            or node.host.available_bytes < self._settings.host_reserve(node.host.total_bytes)
        )

    # ---- kernels

    def begins(self, guest: Guest) -> None:
        """Its kernel is started, and the controller says on which GPU."""
        node = self._look()
        newcomers: dict[str, int] = {}
        for number, since in self._placed.values():
            if self.now - since <= PLACED_LASTS_S:
                newcomers[self._uuids[number]] = newcomers.get(self._uuids[number], 0) + 1
        gpus = [self._as_nvml_shows(node, uuid) for uuid in self._uuids]
        guest.gpu = place(self.now, node, gpus, newcomers, self._settings)[0].index
        self._placed[guest.number] = guest.gpu, self.now

    def _as_nvml_shows(self, node: Node, uuid: str) -> NvmlGpu:
        total, free = self.machine.gpu_bytes, node.gpus[uuid].free_bytes
        return NvmlGpu(uuid, self._uuids.index(uuid), "GPU", total, total - free, free, None)

    def _start(self, guest: Guest) -> Sharer:
        """Its first call of CUDA."""
        self._placed.pop(guest.number, None)
        if guest.gpu is None:
            raise ModelBroken(f"{guest.session.id} was never placed")
        leaves = self._settings.depth == "context"
        sharer = Sharer(
            guest,
            self._uuids[guest.gpu],
            self.machine.context_bytes,
            leaves=leaves,
            changes=self._changed,
            gpus=self._uuids if self._settings.allow_migration else (),
        )
        person, settings = guest.session.person, self._settings
        sharer.priority = int(rule_for(numbers(settings.priorities), person) or 0)
        sharer.is_opted_out = is_named(names(settings.opt_out), person, ())
        sharer.started_at = sharer.last_activity = sharer.resident_since = self.now
        self._sharers[guest.number] = self._by_id[sharer.id] = sharer
        return sharer

    def _allocate(self, sharer: Sharer) -> None:
        """Take what the cell needs beside what it has, or ask for room; then compute."""
        self._books.touch(sharer)
        grow = sharer.guest.cell.bytes - sharer.held
        need = grow + (0 if sharer.has_context else sharer.context_bytes)
        sharer.residency = Residency.RESIDENT
        if need > 0 and need > self._books.room(sharer.guest.gpu or 0):
            self._rooms += 1
            sharer.room = RoomRequest((sharer.guest.number, self._rooms), sharer.gpu, need, self.now)
            self.outcome.counts["allocations that waited"] += 1
            return
        sharer.room, sharer.has_context = None, True
        sharer.held = sharer.guest.cell.bytes
        self._compute_cell(sharer)

    def _compute_cell(self, sharer: Sharer) -> None:
        sharer.computes_since = self.now
        if sharer.preempted_s is not None:
            left, sharer.preempted_s = sharer.preempted_s, None
            self.go_on(sharer.guest, left)
        else:
            self.compute(sharer.guest)

    # ---- what is decided

    def _park(self, sharer: Sharer, action: actions.Park) -> None:
        if sharer.residency is not Residency.RESIDENT:
            raise ModelBroken(f"{sharer.id} is to be parked and is {sharer.residency.value}")
        needs = max(sharer.held - sharer.kept, 0)
        if sharer.guest.is_computing and not action.preempts:
            self._refused(sharer, "busy")
            return
        if needs > action.budget_bytes:
            sharer.park_short = sharer.held
            self._refused(sharer, "no-host-memory")
            return
        if sharer.guest.is_computing:
            sharer.preempted_s = self.interrupt(sharer.guest)
            sharer.computes_since = None
            self.outcome.counts["cells preempted"] += 1
        sharer.residency, sharer.park_budget = Residency.PARKING, action.budget_bytes
        leaves = action.to_context
        took = self._speeds.park_s(sharer.held, sharer.kept, self._changed, context=leaves)
        link = self._out[sharer.guest.gpu or 0]
        link.begin(sharer.id, took, partial(self._parked, sharer, leaves))

    def _parked(self, sharer: Sharer, leaves: bool) -> None:
        self._books.touch(sharer)
        sharer.residency, sharer.left_gpu = Residency.PARKED, leaves
        sharer.has_parked, sharer.park_budget, sharer.park_short = True, None, 0
        sharer.park_backoff.succeed()
        sharer.host_backoff.succeed()
        self.outcome.counts["parks"] += 1
        self.outcome.moved_bytes += sharer.held
        if sharer.preempted_s is not None:  # its next call
            sharer.residency, sharer.wants_since = Residency.QUEUED, self.now

    def _revoke(self, sharer: Sharer) -> None:
        """A call meets a park that is under way: it does not wait, the park is given up."""
        self._out[sharer.guest.gpu or 0].stop(sharer.id)
        sharer.residency, sharer.park_budget = Residency.RESIDENT, None
        self._refused(sharer, "came-back")

    def _refuse_park(self, sharer: Sharer, action: actions.RefusePark) -> None:
        self._refused(sharer, action.slug)

    def _refused(self, sharer: Sharer, why: str) -> None:
        self.outcome.counts[f"parks refused: {why}"] += 1
        backoff = sharer.host_backoff if why == "no-host-memory" else sharer.park_backoff
        backoff.fail(self.now)

    def _trim(self, sharer: Sharer, action: actions.Trim) -> None:
        sharer.kept = min(sharer.kept, action.keep_bytes)
        self.outcome.counts["trims"] += 1

    def _resume(self, sharer: Sharer, action: actions.Resume) -> None:
        if sharer.residency not in (Residency.PARKED, Residency.QUEUED):
            raise ModelBroken(f"{sharer.id} is to be resumed and is {sharer.residency.value}")
        self._move_to(sharer, action)
        sharer.residency = Residency.RESUMING
        took = self._speeds.resume_s(sharer.held, context=sharer.left_gpu)
        self._in[sharer.guest.gpu or 0].begin(sharer.id, took, partial(self._resumed, sharer))

    def _move_to(self, sharer: Sharer, action: actions.Resume) -> None:
        """It may come back on another GPU, if its context has left too."""
        wanted = [uuid for uuid, size in action.reserved_bytes.items() if size]
        if not wanted or sharer.gpu in wanted:
            return
        if len(wanted) > 1 or wanted[0] not in self._uuids or not sharer.left_gpu:
            raise ModelBroken(f"{sharer.id} cannot come back on {', '.join(wanted)}")
        sharer.gpu, sharer.guest.gpu = wanted[0], self._uuids.index(wanted[0])
        self.outcome.counts["resumes on another GPU"] += 1

    def _resumed(self, sharer: Sharer) -> None:
        self._books.touch(sharer)
        sharer.residency, sharer.left_gpu = Residency.RESIDENT, False
        sharer.kept, sharer.kept_since = max(sharer.kept, sharer.held), self.now
        sharer.wants_since = None
        sharer.resume_backoff.succeed()
        sharer.resident_since = sharer.last_activity = self.now
        self.outcome.counts["resumes"] += 1
        self.outcome.moved_bytes += sharer.held
        if sharer.preempted_s is not None:
            self._compute_cell(sharer)
        elif sharer.guest.wanted_at is not None and sharer.room is None:
            self._allocate(sharer)

    def _grant(self, sharer: Sharer, action: actions.GrantRoom) -> None:
        if sharer.room is None or sharer.room.key != action.key:
            raise ModelBroken(f"{sharer.id} is granted room that it did not ask for")
        since = sharer.room
        self._allocate(sharer)
        if sharer.room is not None:
            raise ModelBroken(f"at {self.now:.3f} s {since.bytes} bytes were granted that are not free")

    def _deny(self, sharer: Sharer, action: actions.DenyRoom) -> None:
        sharer.room = None
        self.fail(sharer.guest, "out of memory")

    def _end_kernel(self, sharer: Sharer, action: actions.EndKernel) -> None:
        """Its state is lost; a cell that waits or computes fails, and the next one builds the state again."""
        guest = sharer.guest
        self.outcome.counts["kernels ended for others"] += 1
        self._lost.add(guest.number)
        if guest.is_computing or guest.wanted_at is not None:
            self.fail(guest, "ended for others")
        self.ends(guest)
