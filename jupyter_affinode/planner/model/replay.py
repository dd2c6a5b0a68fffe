"""Replay of sessions under the controller's own policy: the same `decide()`, with a virtual clock and a model of the
moves.

Two things are exact here and late or estimated on a real machine: NVML's figures, and when a shim's answer arrives. A
pass is made after every event, and at the moments at which time alone can change a decision; as these are the policy's
own business, also every few seconds while a kernel waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ...node.model import actions
from ...node.model.gpu import NvmlGpu
from ...node.model.pauses import Pauses
from ...node.model.snapshot import Gpu, Host, Node, Residency, RoomRequest, Speed
from ...node.policy.decide import decide
from ...node.policy.placement import PLACED_LASTS_S, place
from ...settings.policy import Settings
from ...settings.rules import is_named, names, numbers, rule_for
from .disk import Disk
from .event_queue import Shared
from .exchanges import Exchange
from .machine import Machine, Speeds
from .occupancy import Books
from .results import Outcome
from .sessions import ImpossiblePlan, Session
from .simulated_kernel import SimulatedKernel
from .simulation import LiveSession, ModelBroken, Say, SimulatedUsers
from .wakeups import Wakes

LEAST_S = 1e-6  # what a move is told to the policy to take at least


class Replay(SimulatedUsers):
    """One machine with the controller. All of a kernel's memory changes between two parks."""

    def __init__(
        self,
        machine: Machine,
        speeds: Speeds,
        settings: Settings,
        sessions: Sequence[Session],
        *,
        rebuild_s: float = 0.0,
        every_event: bool = False,
        exchanges: bool = True,
        say: Say | None = None,
    ):
        """Prepare. `rebuild_s`: the time that a user needs to build a kernel's state again when the policy ended it.
        `every_event`: decide even where no kernel waits and nothing runs low. `exchanges`: kernels can take part in
        exchanges.
        """
        if settings.lot_bytes or settings.drop_caches_before_park:
            raise ImpossiblePlan("lot_bytes and drop_caches_before_park are not modelled: leave them off")
        if "@" in settings.quotas + settings.priorities:
            raise ImpossiblePlan("the planner knows no groups: use quotas and priorities with users' names")
        machine.check(settings, sessions)
        super().__init__(machine, sessions, Outcome("affinode", "jupyter-affinode"), say)
        self._speeds, self._settings, self._rebuild_s = speeds, settings, rebuild_s
        self._every_event = every_event
        self._may_exchange = exchanges and settings.depth == "memory"
        self._leaving: dict[str, list[SimulatedKernel]] = {}  # by waiter, of what is decided in this pass
        self._taking: dict[str, int] = {}  # what each of them takes of host memory, by kernel
        self._sizes = machine.gpu_sizes()
        self._uuids = list(self._sizes)
        # kernels that have not used their GPU yet, and since when
        self._placed: dict[int, tuple[int, float]] = {}
        self._books = Books(machine)
        self._pauses = Pauses()
        self._kernels: dict[int, SimulatedKernel] = {}
        self._by_id: dict[str, SimulatedKernel] = {}
        self._out = {uuid: Shared(self.timeline) for uuid in self._uuids}  # each direction of a GPU's link
        self._in = {uuid: Shared(self.timeline) for uuid in self._uuids}
        daily_bytes = settings.spill_daily_bytes
        rate = speeds.disk_bytes_per_s
        self._disk = Disk(self.timeline, machine.disk_bytes, rate, daily_bytes, self._spilled)
        self._lost: set[int] = set()  # whose kernels were ended, and not used again yet
        self._is_reclaiming = dict.fromkeys(self._uuids, False)
        self._rooms = 0
        touch_s = max(1 / speeds.first_park_bytes_per_s - 1 / speeds.park_bytes_per_s, 0.0)
        resume_s = max(speeds.wake_s, LEAST_S)
        known = Speed(LEAST_S, speeds.park_bytes_per_s, resume_s, speeds.resume_bytes_per_s, touch_s)
        self._known_speeds = dict.fromkeys(self._uuids, known)
        self._wakes = Wakes(self.timeline, self._books, settings, self._known_speeds, self._pauses)
        self._carry_out: dict[type, Callable[[SimulatedKernel, Any], None]] = {
            actions.Park: self._park,
            actions.RefusePark: self._refuse_park,
            actions.Trim: self._trim,
            actions.Spill: self._spill,
            actions.ReadBack: self._read_back,
            actions.Hibernate: self._hibernate,
            actions.Resume: self._resume,
            actions.GrantRoom: self._grant,
            actions.DenyRoom: self._deny,
            actions.EndKernel: self._end_kernel,
        }

    # ---- what users do

    def wants(self, live: LiveSession) -> None:
        """Have the cell compute, or its kernel wait: the cell calls CUDA."""
        if live.number in self._lost:
            self._lost.discard(live.number)
            self.outcome.losses += 1
            self.outcome.rebuild_s += self._rebuild_s
            self.timeline.after(self._rebuild_s, partial(self.wants, live))
            return
        kernel = self._kernels.get(live.number) or self._start(live)
        self._books.touch(kernel)
        self._disk.stop(kernel)
        if kernel.computes_since is None and kernel.wants_since is None and kernel.room is None:
            self._pauses.add(kernel.user, self.now - kernel.last_activity)
        if kernel.residency is Residency.PARKING and kernel.exchange is not None:
            kernel.wants_since = self.now  # its call waits
        elif kernel.residency is Residency.PARKING:
            self._revoke(kernel)
        if kernel.residency is Residency.PARKED:
            kernel.residency, kernel.wants_since = Residency.QUEUED, self.now
        elif kernel.residency is Residency.HIBERNATED:
            self.timeline.after(self._speeds.image_wake_s, partial(self._woken, kernel))
        elif kernel.residency in (Residency.NONE, Residency.RESIDENT):
            self._allocate(kernel)

    def idle(self, live: LiveSession) -> None:
        """Note that the cell has computed."""
        kernel = self._kernels.get(live.number)
        if kernel is not None:
            self._books.touch(kernel)
            if kernel.computes_since is not None and not live.is_computing:
                kernel.computes_since, kernel.last_activity = None, self.now

    def ends(self, live: LiveSession) -> None:
        """End the session's kernel."""
        kernel = self._kernels.pop(live.number, None)
        self._placed.pop(live.number, None)
        if kernel is None:
            return
        for link in (self._out[kernel.on[0]], self._in[kernel.on[0]]):
            if kernel.id in link:
                link.stop(kernel.id)
        self._disk.stop(kernel)
        if kernel.exchange is not None:
            if kernel.exchange.waiter is not None:
                self._books.touch(kernel.exchange.waiter)
            kernel.exchange.leave(kernel)
        self._books.forget(kernel)
        self._wakes.forget(live.number)
        del self._by_id[kernel.id]

    # ---- a pass of the controller

    def settle(self) -> None:
        """Look, decide, act."""
        node = self._snapshot()
        if self._has_nothing_to_decide(node):
            return
        self.act(node, decide(self.now, node, self._settings))
        self._wakes.plan_next()

    def act(self, node: Node, decided: Sequence[actions.Action]) -> None:
        """Carry out what was decided on a snapshot."""
        for action in decided:
            carry_out = self._carry_out.get(type(action))
            if carry_out is None:
                raise ModelBroken(f"the planner does not know what {type(action).__name__} does: {action}")
            kernel = self._by_id[action.kernel_id]
            self._books.touch(kernel)
            carry_out(kernel, action)
        self._begin_exchanges(decided)

    def _snapshot(self) -> Node:
        books = self._books
        books.renew(self._kernels, self.now)
        self.outcome.host_most_bytes = max(self.outcome.host_most_bytes, books.host_bytes)
        gpus = {}
        for uuid, total in self._sizes.items():
            part = books.free[uuid] / total
            if part < self._settings.low_watermark:
                self._is_reclaiming[uuid] = True
            elif part >= self._settings.high_watermark:
                self._is_reclaiming[uuid] = False
            gpus[uuid] = Gpu(uuid, books.free[uuid], total, self.now, 0, self._is_reclaiming[uuid])
        reserved = tuple(chain.from_iterable(books.reserved.values()))
        return Node(
            gpus,
            tuple(each for each in books.seen.values() if each.residency is not Residency.HIBERNATED),
            self._host(),
            reserved,
            speeds=self._known_speeds,
            pauses_s=self._pauses.lengths_s,
        )

    def _host(self) -> Host:
        host = Host(self.machine.host_bytes - self._books.host_bytes, {}, self.machine.host_bytes)
        return self._disk.seen(host, self._kernels.values())

    def _has_nothing_to_decide(self, node: Node) -> bool:
        """Return whether no kernel waits and nothing runs low; a test compares this with deciding all the same."""
        return not (
            self._every_event
            or self._books.waiting
            or any(self._is_reclaiming.values())
            or self._settings.park_when != "needed"
            or self.machine.hibernate_after_s is not None
            or node.host.available_bytes < self._settings.host_reserve(node.host.total_bytes)
        )

    # ---- kernels

    def begins(self, live: LiveSession) -> None:
        """Start the session's kernel and place it on a GPU."""
        node = self._snapshot()
        newcomers: dict[str, int] = {}
        for number, since in self._placed.values():
            if self.now - since <= PLACED_LASTS_S:
                newcomers[self._uuids[number]] = newcomers.get(self._uuids[number], 0) + 1
        gpus = [self._as_nvml_shows(node, uuid) for uuid in self._uuids]
        live.gpu = place(self.now, node, gpus, newcomers, self._settings)[0].index
        self._placed[live.number] = live.gpu, self.now

    def _as_nvml_shows(self, node: Node, uuid: str) -> NvmlGpu:
        total, free = self._sizes[uuid], node.gpus[uuid].free_bytes
        return NvmlGpu(uuid, self._uuids.index(uuid), "GPU", total, total - free, free, None)

    def _start(self, live: LiveSession) -> SimulatedKernel:
        """Make the kernel at its first CUDA call."""
        self._placed.pop(live.number, None)
        if live.gpu is None:
            raise ModelBroken(f"{live.session.id} was never placed")
        leaves = self._settings.depth == "context"
        kernel = SimulatedKernel(
            live,
            (self._uuids[live.gpu],),
            self.machine.context_bytes,
            leaves=leaves,
            gpus=self._uuids if self._settings.allow_migration else (),
        )
        kernel.may_exchange = self._may_exchange
        user, settings = live.session.user, self._settings
        kernel.priority = int(rule_for(numbers(settings.priorities), user) or 0)
        kernel.is_opted_out = is_named(names(settings.opt_out), user, ())
        kernel.started_at = kernel.last_activity = kernel.resident_since = kernel.awake_since = self.now
        after_s = self.machine.hibernate_after_s
        kernel.hibernates_after_s = math.inf if after_s == 0 else after_s
        self._kernels[live.number] = self._by_id[kernel.id] = kernel
        return kernel

    def _allocate(self, kernel: SimulatedKernel) -> None:
        """Take what the cell needs beside what it has, or ask for room; then compute."""
        self._books.touch(kernel)
        grow = kernel.live.cell.bytes - kernel.held
        need = grow + (0 if kernel.has_context else kernel.context_bytes)
        kernel.residency = Residency.RESIDENT
        if need > 0 and not self._may_take(kernel, need):
            self._rooms += 1
            kernel.room = RoomRequest((kernel.live.number, self._rooms), kernel.on[0], need, self.now)
            self.outcome.counts["allocations that waited"] += 1
            return
        kernel.room, kernel.has_context = None, True
        kernel.held = kernel.live.cell.bytes
        self._compute_cell(kernel)

    def _may_take(self, kernel: SimulatedKernel, need: int) -> bool:
        """Return whether an allocation succeeds without asking for room."""
        return need <= self._books.room(kernel.on)

    def _compute_cell(self, kernel: SimulatedKernel) -> None:
        kernel.computes_since = self.now
        if kernel.preempted_s is not None:
            left, kernel.preempted_s = kernel.preempted_s, None
            self.go_on(kernel.live, left)
        else:
            self.compute(kernel.live)

    # ---- what is decided

    def _park(self, kernel: SimulatedKernel, action: actions.Park) -> None:
        if kernel.residency is not Residency.RESIDENT:
            raise ModelBroken(f"{kernel.id} is to be parked and is {kernel.residency.value}")
        needs = max(kernel.movable - kernel.retained, 0)
        if kernel.live.is_computing and not action.preempts:
            self._refused(kernel, "busy")
            return
        if needs > action.budget_bytes and not action.hands_over:
            kernel.park_short = kernel.movable
            self._refused(kernel, "no-host-memory")
            return
        if kernel.live.is_computing:
            kernel.preempted_s = self.interrupt(kernel.live)
            kernel.computes_since = None
            self.outcome.counts["cells preempted"] += 1
        kernel.residency, kernel.park_budget = Residency.PARKING, action.budget_bytes
        kernel.moves_since, kernel.trimming = self.now, 0
        kernel.parks_s = self._speeds.park_s(kernel.movable, kernel.retained, context=action.to_context)
        kernel.retained = max(kernel.retained, kernel.movable)  # host memory is taken as the park goes on
        if action.exchanges and action.for_kernel is not None:
            self._leaving.setdefault(action.for_kernel, []).append(kernel)
            self._taking[kernel.id] = needs
        else:
            self._begin_park(kernel, action.to_context)

    def _begin_park(self, kernel: SimulatedKernel, to_context: bool) -> None:
        parked = partial(self._parked, kernel, to_context)
        self._out[kernel.on[0]].begin(kernel.id, kernel.parks_s, parked)

    def _begin_exchanges(self, decided: Sequence[actions.Action]) -> None:
        """Resume waiters while their victims are parked; only park the victims if one of them stays, or if other
        kernels were given room that the waiter needs.
        """
        leaving, self._leaving = self._leaving, {}
        takes, self._taking = self._taking, {}
        for waiter_id, victims in leaving.items():
            parks = [each for each in decided if isinstance(each, actions.Park) and each.exchanges]
            waiter = self._by_id[waiter_id]
            room = self._books.room(waiter.on) + sum(victim.held for victim in victims)
            is_short = room < waiter.resume_bytes()
            hands_over = any(park.hands_over for park in parks if park.for_kernel == waiter_id)
            if is_short or len(victims) < sum(park.for_kernel == waiter_id for park in parks):
                for victim in victims:
                    if hands_over:  # there is no host memory for it
                        victim.retained -= takes[victim.id]
                        victim.residency, victim.park_budget = Residency.RESIDENT, None
                    else:
                        self._begin_park(victim, False)
                continue
            self._disk.stop(waiter)
            exchange = Exchange(waiter, victims, self._exchanged, takes=takes if hands_over else None)
            for kernel in (waiter, *victims):
                kernel.exchange = exchange
                self._books.touch(kernel)
            waiter.residency, waiter.moves_since = Residency.RESUMING, self.now
            out_s = sum(victim.parks_s for victim in victims)
            exchange.begin((self._out, self._in), self._speeds, out_s, self._resume_s(waiter))

    def _exchanged(self, victims: list[SimulatedKernel], waiter: SimulatedKernel | None) -> None:
        for victim in victims:
            victim.exchange = None
            self._parked(victim, False)
            if victim.wants_since is not None:
                victim.residency = Residency.QUEUED
        if waiter is not None:
            exchange, waiter.exchange = waiter.exchange, None
            keeps = exchange is None or not exchange.hands_over
            self._resumed(waiter, keeps=keeps)
            self.outcome.counts["exchanges that handed over"] += not keeps
        self.outcome.counts["exchanges"] += 1

    def _parked(self, kernel: SimulatedKernel, leaves: bool) -> None:
        self._books.touch(kernel)
        kernel.residency, kernel.left_gpu, kernel.parked_since = Residency.PARKED, leaves, self.now
        kernel.has_parked, kernel.park_budget, kernel.park_short = True, None, 0
        kernel.park_backoff.succeed()
        kernel.host_backoff.succeed()
        self.outcome.counts["parks"] += 1
        self.outcome.moved_bytes += kernel.movable
        if kernel.preempted_s is not None:  # its next call
            kernel.residency, kernel.wants_since = Residency.QUEUED, self.now

    def _revoke(self, kernel: SimulatedKernel) -> None:
        """Give up a park under way, which a call meets."""
        self._out[kernel.on[0]].stop(kernel.id)
        kernel.residency, kernel.park_budget = Residency.RESIDENT, None
        self._refused(kernel, "came-back")

    def _refuse_park(self, kernel: SimulatedKernel, action: actions.RefusePark) -> None:
        self._refused(kernel, action.slug)

    def _refused(self, kernel: SimulatedKernel, why: str) -> None:
        self.outcome.counts[f"parks refused: {why}"] += 1
        backoff = kernel.host_backoff if why == "no-host-memory" else kernel.park_backoff
        backoff.fail(self.now)

    def _trim(self, kernel: SimulatedKernel, action: actions.Trim) -> None:
        kernel.retained = min(kernel.retained, action.keep_bytes)
        self.outcome.counts["trims"] += 1

    def _spill(self, kernel: SimulatedKernel, action: actions.Spill) -> None:
        self._check_is_at_rest(kernel)
        self._disk.spill(kernel, action.bytes)
        self.outcome.counts["spills"] += 1

    def _read_back(self, kernel: SimulatedKernel, action: actions.ReadBack) -> None:
        self._check_is_at_rest(kernel)
        self._disk.read(kernel, action.bytes, partial(self._books.touch, kernel))
        self.outcome.counts["reads back from disk"] += 1

    def _check_is_at_rest(self, kernel: SimulatedKernel) -> None:
        is_away = kernel.residency in (Residency.PARKED, Residency.QUEUED)
        if not is_away or kernel.spilling or kernel.reading:
            raise ModelBroken(f"{kernel.id} is to go to disk or back and is {kernel.residency.value}")

    def _spilled(self, kernel: SimulatedKernel, written: int) -> None:
        self._books.touch(kernel)
        self.outcome.spilled_bytes += written
        if kernel.goes_into_image:
            kernel.goes_into_image = False
            if kernel.on_disk >= kernel.movable and kernel.live.wanted_at is None:
                kernel.residency, kernel.retained, kernel.left_gpu = Residency.HIBERNATED, 0, True
                self.outcome.counts["hibernations"] += 1

    def _hibernate(self, kernel: SimulatedKernel, action: actions.Hibernate) -> None:
        """Write all of a kernel that is in host memory; its processes take no time beside that."""
        self._check_is_at_rest(kernel)
        kernel.goes_into_image = True
        self._disk.spill(kernel, kernel.movable)

    def _woken(self, kernel: SimulatedKernel) -> None:
        """Have a kernel wait for the GPU that was hibernated when it was used; what it had there is on the disk."""
        if self._by_id.get(kernel.id) is kernel:
            self._books.touch(kernel)
            kernel.residency, kernel.wants_since = Residency.QUEUED, self.now
            kernel.awake_since = kernel.parked_since = self.now

    def _resume(self, kernel: SimulatedKernel, action: actions.Resume) -> None:
        if kernel.residency not in (Residency.PARKED, Residency.QUEUED):
            raise ModelBroken(f"{kernel.id} is to be resumed and is {kernel.residency.value}")
        self._move_to(kernel, action)
        kernel.residency = Residency.RESUMING
        kernel.moves_since = self.now
        self._in[kernel.on[0]].begin(kernel.id, self._resume_s(kernel), partial(self._resumed, kernel))

    def _resume_s(self, kernel: SimulatedKernel) -> float:
        resume_s = self._speeds.resume_s(kernel.movable, context=kernel.left_gpu)
        return resume_s + self._disk.return_s(kernel)

    def _move_to(self, kernel: SimulatedKernel, action: actions.Resume) -> None:
        """Migrate the kernel if the resume is on another GPU, which its context must allow."""
        wanted = [uuid for uuid, size in action.reserved_bytes.items() if size]
        if not wanted or kernel.on[0] in wanted:
            return
        if len(wanted) > 1 or wanted[0] not in self._uuids or not kernel.left_gpu:
            raise ModelBroken(f"{kernel.id} cannot come back on {', '.join(wanted)}")
        kernel.on, kernel.live.gpu = (wanted[0],), self._uuids.index(wanted[0])
        self.outcome.counts["resumes on another GPU"] += 1

    def _resumed(self, kernel: SimulatedKernel, *, keeps: bool = True) -> None:
        self._books.touch(kernel)
        kernel.residency, kernel.left_gpu = Residency.RESIDENT, False
        kernel.retained = max(kernel.retained, kernel.movable) - kernel.on_disk if keeps else 0
        kernel.on_disk, kernel.disk_return_s, kernel.retained_since = 0, 0.0, self.now
        kernel.wants_since = None
        kernel.resume_backoff.succeed()
        kernel.resident_since = kernel.last_activity = self.now
        self.outcome.counts["resumes"] += 1
        self.outcome.moved_bytes += kernel.movable
        if kernel.preempted_s is not None:
            self._compute_cell(kernel)
        elif kernel.live.wanted_at is not None and kernel.room is None:
            self._allocate(kernel)

    def _grant(self, kernel: SimulatedKernel, action: actions.GrantRoom) -> None:
        if kernel.room is None or kernel.room.key != action.key:
            raise ModelBroken(f"{kernel.id} is granted room that it did not ask for")
        since = kernel.room
        self._allocate(kernel)
        if kernel.room is not None:
            raise ModelBroken(f"at {self.now:.3f} s {since.bytes} bytes were granted that are not free")

    def _deny(self, kernel: SimulatedKernel, action: actions.DenyRoom) -> None:
        kernel.room = None
        self.fail(kernel.live, "out of memory")

    def _end_kernel(self, kernel: SimulatedKernel, action: actions.EndKernel) -> None:
        """Lose the kernel's state: a cell that waits or computes fails, and the next one builds the state again."""
        live = kernel.live
        self.outcome.counts["kernels ended for others"] += 1
        self._lost.add(live.number)
        if live.is_computing or live.wanted_at is not None:
            self.fail(live, "ended for others")
        self.ends(live)
