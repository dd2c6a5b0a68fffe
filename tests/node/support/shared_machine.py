"""People with notebooks share some GPUs under a virtual clock; what must never happen is looked for at each step.

Unlike `world.py`, figures are exact and every allocation that does not fit asks. What is random here is who does
what when: cells, pauses, holds, wishes, parks that are refused, kernels that are killed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from jupyter_affinode.node.model.actions import Action, DenyRoom, EndKernel, GrantRoom, Park, Resume
from jupyter_affinode.node.model.backoff import Backoff
from jupyter_affinode.node.model.reasons import Cause
from jupyter_affinode.node.model.snapshot import (
    Gpu,
    Host,
    Kernel,
    Node,
    Reservation,
    Residency,
    RoomRequest,
    Waiter,
)
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.queue import Turns, overtaking_s, waiters
from jupyter_affinode.settings.policy import Settings

STEP_S = 0.5
MOVE_S = 1.0


@dataclass
class Notebook:
    """A person's kernel: for each cell a pause before it and how long it computes. Sizes in bytes, by GPU."""

    id: str
    sizes: Mapping[str, int]
    cells: Sequence[tuple[float, float]]
    user: str = ""
    payer: str = ""
    priority: int = 0
    one_long_call: bool = (
        False  # its cells are one call each: nothing is seen of them but that it is in flight
    )
    started_at: float = 0.0
    at: int = 0  # which cell
    pause_until: float = 0.0
    computes_s: float = 0.0  # what is left of the open cell
    cell_open: bool = False
    residency: Residency = Residency.NONE
    moving_until: float | None = None
    preempted: bool = False
    wants_since: float | None = None
    room: RoomRequest | None = None
    granted: bool = False
    last_activity: float = 0.0
    resident_since: float = 0.0
    held_until: float | None = None
    park_asked: str | None = None
    backoff: Backoff = field(default_factory=Backoff)
    behind_until: float = 0.0
    denied: bool = False
    is_over: bool = False
    ended_for: str | None = None

    @property
    def computes(self) -> bool:
        """Whether a call is in flight: nothing may take its memory but a preemption."""
        return self.cell_open and self.residency is Residency.RESIDENT and self.room is None

    @property
    def is_moving(self) -> bool:
        """Whether a park or resume is under way."""
        return self.moving_until is not None

    @property
    def held(self) -> dict[str, int]:
        """What it has on the GPUs; a resuming one has its room from the start."""
        here = self.residency in (Residency.RESIDENT, Residency.PARKING, Residency.RESUMING)
        return dict(self.sizes) if here else {}

    def seen(self) -> Kernel:
        """For the snapshot."""
        here = self.residency in (Residency.RESIDENT, Residency.PARKING)
        away = self.residency in (Residency.PARKED, Residency.QUEUED, Residency.RESUMING)
        nothing: dict[str, int] = {}
        return Kernel(
            self.id,
            self.residency if self.residency is not Residency.NONE else Residency.RESIDENT,
            self.sizes if here else nothing,
            self.sizes if away else nothing,
            last_activity=self.last_activity,
            calls_in_flight=int(self.computes),
            cell_open=self.cell_open,
            held_until=self.held_until,
            is_moving=self.is_moving,
            wants_since=self.wants_since,
            rooms=(self.room,) if self.room is not None and not self.granted else (),
            park_asked=self.park_asked,
            retry_at=self.backoff.retry_at,
            retry_pause_s=self.backoff.pause_s,
            behind_until=self.behind_until,
            user=self.user,
            payer=self.payer,
            priority=self.priority,
            may_be_preempted=len(self.sizes) == 1,
            resident_since=self.resident_since,
            started_at=self.started_at,
            can_be_ended=True,
            is_ending=self.ended_for is not None,
        )


@dataclass
class SharedMachine:
    """The machine, its people, and what they were decided on."""

    totals: Mapping[str, int]
    notebooks: list[Notebook]
    settings: Settings
    faults: random.Random | None = None  # None: nobody holds, asks, is refused or killed
    now: float = 1000.0
    actions: list[tuple[float, Action]] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)  # the longest, by kernel
    served: list[tuple[float, Waiter]] = field(default_factory=list)
    turns: Turns = field(default_factory=Turns)
    passed_by: dict[str, set[tuple[str, frozenset[str]]]] = field(
        default_factory=dict
    )  # by waiter: user, GPUs
    reserved: dict[str, Reservation] = field(default_factory=dict)  # of allocations, by kernel
    number: int = 0

    def __post_init__(self) -> None:
        for order, notebook in enumerate(self.notebooks):
            notebook.pause_until = self.now + notebook.cells[0][0]
            notebook.last_activity = notebook.started_at = self.now + order

    def free(self, uuid: str) -> int:
        """What is neither used nor promised to who is resuming."""
        return self.totals[uuid] - sum(notebook.held.get(uuid, 0) for notebook in self.notebooks)

    def snapshot(self) -> Node:
        """What the policy sees: NVML does not show yet what is resuming, so it is reserved."""
        reserved = [
            Reservation(notebook.id, uuid, size)
            for notebook in self.notebooks
            if notebook.residency is Residency.RESUMING
            for uuid, size in notebook.sizes.items()
        ]
        shown = {uuid: self.free(uuid) for uuid in self.totals}
        for each in reserved:
            shown[each.gpu] += each.bytes
        gpus = {uuid: Gpu(uuid, shown[uuid], total, self.now + 1) for uuid, total in self.totals.items()}
        kernels = tuple(notebook.seen() for notebook in self.notebooks if not notebook.is_over)
        reservations = (*reserved, *self.reserved.values())
        return Node(gpus, kernels, Host(1 << 50), reservations, turns=self.turns.seen())

    def step(self) -> None:
        """Everybody goes on; the policy looks, decides and is carried out; time passes."""
        if self.faults is not None:
            self._disturb(self.faults)
        for notebook in self.notebooks:
            if not notebook.is_over:
                self._live(notebook)
        node = self.snapshot()
        actions = decide(self.now, node, self.settings)
        self._check(node, actions)
        for action in actions:
            self.actions.append((self.now, action))
            self._apply(action)
        for uuid in self.totals:
            assert self.free(uuid) >= 0, f"{uuid} is over-committed"
        self.now += STEP_S

    @property
    def is_done(self) -> bool:
        """Whether everybody has had all their cells."""
        return all(notebook.is_over or notebook.at >= len(notebook.cells) for notebook in self.notebooks)

    # ---- what always holds

    def _check(self, node: Node, actions: Sequence[Action]) -> None:
        ids = [action.kernel_id for action in actions]
        assert len(ids) == len(set(ids)), "two actions for one kernel"
        assert decide(self.now, node, self.settings) == actions, "decided differently on the same"
        queue = waiters(node, self.settings)
        for action in actions:
            kernel = next(kernel for kernel in node.kernels if kernel.id == action.kernel_id)
            assert not kernel.is_moving and not kernel.is_ending
            if isinstance(action, Park):
                self._check_park(action, kernel, queue)
            elif isinstance(action, EndKernel):
                self._check_end(action, kernel, node)
        self._check_order(actions, queue)
        self._check_limits(actions)

    def _check_park(self, action: Park, kernel: Kernel, queue: Sequence[Waiter]) -> None:
        asked = kernel.park_asked is not None
        assert asked or kernel.held_until is None or kernel.held_until <= self.now, "a hold was not honoured"
        is_slice = self.settings.when_full == "time_slice" and action.preempts
        assert asked or not kernel.calls_in_flight or is_slice, "parked while busy"
        if self.settings.park_when == "needed":
            assert asked or queue or action.cause is Cause.LIMIT, "parked without need"
        if action.preempts:
            assert queue and kernel.may_be_preempted
            assert self.now - kernel.resident_since >= self.settings.time_slice_s, (
                "before its quantum was over"
            )

    def _check_end(self, action: EndKernel, kernel: Kernel, node: Node) -> None:
        head = next(each for each in node.kernels if each.id == action.for_kernel)
        assert self.settings.when_full == "terminate_newest"
        assert kernel.started_at > head.started_at, "an older kernel was ended for a younger"
        assert kernel.held_until is None or kernel.held_until <= self.now

    def _check_order(self, actions: Sequence[Action], queue: Sequence[Waiter]) -> None:
        """First come, first served within a class, and the bound on overtaking between classes.

        By moments and classes alone, whatever order the queue came in.
        """
        served = {action.kernel_id for action in actions if isinstance(action, Resume | GrantRoom | DenyRoom)}
        parked_now = {action.kernel_id for action in actions if isinstance(action, Park)}
        left = []
        for waiter in queue:
            kernel = waiter.kernel
            if kernel.id in served:
                self.served.append((self.now, waiter))
            elif not (kernel.is_moving or kernel.is_ending or kernel.id in parked_now):
                left.append(waiter)
        if self.settings.backfill or self.settings.quotas:
            return  # who waits for their own limit is passed by, and so is who is not delayed
        self._check_turns(queue, served, left)
        for waiter in queue:
            for other in left if waiter.kernel.id in served else ():
                if waiter.kernel.payer or other.kernel.payer:
                    continue
                if other.needs.keys() & waiter.needs.keys() and other.since < waiter.since:
                    assert other.kernel.priority < waiter.kernel.priority, "overtaken within a class"
                    assert waiter.since - other.since <= overtaking_s(self.settings), "overtaken too late"

    def _check_turns(self, queue: Sequence[Waiter], served: Set[str], left: Sequence[Waiter]) -> None:
        """The oldest waiter of a user, class and GPU is passed by each other user of the class once at most, by that
        user's kernels of each set of GPUs.
        """
        first: dict[tuple[str, int, str], Waiter] = {}
        for waiter in sorted(queue, key=lambda each: each.since):
            for uuid in waiter.needs:
                first.setdefault((waiter.kernel.payer, waiter.kernel.priority, uuid), waiter)
        for waiter in queue:
            if waiter.kernel.id not in served:
                continue
            self.passed_by.pop(waiter.kernel.id, None)
            for other in left:
                line = {uuid for uuid in waiter.needs if uuid in other.needs}
                is_first = all(
                    first[other.kernel.payer, other.kernel.priority, uuid] is other for uuid in other.needs
                )
                if not line or not is_first or waiter.kernel.priority != other.kernel.priority:
                    continue
                if other.kernel.payer == waiter.kernel.payer:
                    assert not other.kernel.payer or waiter.since <= other.since, "out of order"
                    self.passed_by.pop(other.kernel.id, None)
                    continue
                passed = self.passed_by.setdefault(other.kernel.id, set())
                if waiter.kernel.payer and other.kernel.payer:
                    turn = (waiter.kernel.payer, frozenset(waiter.needs))
                    assert turn not in passed, "a user was served twice before another"
                    passed.add(turn)

    def _check_limits(self, actions: Sequence[Action]) -> None:
        limit = self.settings.quotas
        if not limit:
            return
        most = int(limit.partition("=")[2])
        for user in {notebook.user for notebook in self.notebooks}:
            theirs = [each for each in self.notebooks if each.user == user and not each.is_over]
            have = {each.id: sum(each.held.values()) for each in theirs}
            for reservation in self.reserved.values():
                if reservation.kernel_id in have:
                    have[reservation.kernel_id] += reservation.bytes
            given = 0
            for action in actions:
                if action.kernel_id in have and isinstance(action, Resume):
                    given += sum(action.reserved_bytes.values())
                elif action.kernel_id in have and isinstance(action, GrantRoom):
                    given += action.bytes
            others = sum(have.values())
            assert not given or others == 0 or others + given <= most, "a user's limit was exceeded"

    # ---- what people and time do

    def _disturb(self, draw: random.Random) -> None:
        notebook = draw.choice(self.notebooks)
        if notebook.is_over:
            return
        what = draw.randrange(60)
        if what == 0:
            notebook.held_until = self.now + draw.choice((1.0, 5.0, 20.0))
        elif what == 1 and notebook.residency is Residency.RESIDENT:
            notebook.park_asked, notebook.held_until = "asked", None
        elif what == 2 and draw.random() < 0.2:
            self._forget(notebook)
        elif what == 3 and notebook.residency is Residency.PARKING:
            self._revoke(notebook)
        elif what == 5:
            for other in self.notebooks:
                if other.user == notebook.user:
                    other.behind_until = self.now + draw.choice((5.0, 60.0, 3600.0))
        elif what == 4:
            self.now += draw.choice((0.0, 3.0, 60.0))

    def _live(self, notebook: Notebook) -> None:
        if notebook.ended_for is not None:
            self._forget(notebook)
            return
        if notebook.moving_until is not None and self.now >= notebook.moving_until:
            notebook.moving_until = None
            if notebook.residency is Residency.PARKING:
                notebook.residency, notebook.preempted = Residency.PARKED, False
                notebook.backoff.succeed()
            else:
                self._is_resident(notebook)
        if notebook.held_until is not None and notebook.held_until <= self.now:
            notebook.held_until = None
        if not notebook.cell_open and notebook.at < len(notebook.cells) and self.now >= notebook.pause_until:
            notebook.cell_open, notebook.computes_s = True, notebook.cells[notebook.at][1]
        if notebook.cell_open:
            self._use_gpu(notebook)

    def _use_gpu(self, notebook: Notebook) -> None:
        if notebook.residency is Residency.PARKING and not notebook.preempted:
            self._revoke(notebook)  # its call came before everything was copied
        if notebook.residency is Residency.RESIDENT:
            if not notebook.one_long_call:
                notebook.last_activity = self.now
            notebook.computes_s -= STEP_S
            if notebook.computes_s <= 0:
                self._end_cell(notebook)
        elif notebook.residency is Residency.PARKED and notebook.wants_since is None:
            notebook.wants_since = self.now
        elif notebook.residency is Residency.NONE:
            self._allocate(notebook)

    def _allocate(self, notebook: Notebook) -> None:
        """Its first use: memory on its GPU, asked for where it does not fit. Groups have theirs from the start."""
        (uuid, size), *more = notebook.sizes.items()
        taken = sum(reservation.bytes for reservation in self.reserved.values() if reservation.gpu == uuid)
        fits = self.free(uuid) - taken >= size
        if notebook.granted:
            assert self.free(uuid) >= size, "granted what was not there"
            del self.reserved[notebook.id]
            notebook.room, notebook.granted = None, False
            self._is_resident(notebook)
        elif more or (fits and notebook.room is None and not self.settings.quotas):
            assert not more, "kernels of several GPUs begin parked"
            self._is_resident(notebook)
        elif notebook.room is None:
            self.number += 1
            notebook.room = RoomRequest((self.number, 1), uuid, size, self.now)

    def _is_resident(self, notebook: Notebook) -> None:
        if notebook.wants_since is not None:
            self.waits[notebook.id] = max(self.waits.get(notebook.id, 0.0), self.now - notebook.wants_since)
        notebook.residency, notebook.resident_since, notebook.wants_since = Residency.RESIDENT, self.now, None
        notebook.last_activity = self.now

    def _end_cell(self, notebook: Notebook) -> None:
        notebook.cell_open = False
        notebook.at += 1
        if notebook.at < len(notebook.cells):
            notebook.pause_until = self.now + notebook.cells[notebook.at][0]

    def _revoke(self, notebook: Notebook) -> None:
        notebook.residency, notebook.moving_until = Residency.RESIDENT, None
        notebook.backoff.fail(self.now)

    def _forget(self, notebook: Notebook) -> None:
        notebook.is_over, notebook.residency, notebook.moving_until = True, Residency.NONE, None
        self.reserved.pop(notebook.id, None)

    def _apply(self, action: Action) -> None:
        notebook = next(each for each in self.notebooks if each.id == action.kernel_id)
        if isinstance(action, Resume | GrantRoom):
            self.turns.take(notebook.payer, notebook.priority, notebook.sizes, self.now)
        if isinstance(action, Park):
            assert notebook.residency is Residency.RESIDENT
            notebook.residency, notebook.preempted = Residency.PARKING, action.preempts or notebook.computes
            notebook.moving_until, notebook.park_asked = self.now + MOVE_S, None
        elif isinstance(action, Resume):
            assert notebook.residency is Residency.PARKED
            notebook.residency, notebook.moving_until = Residency.RESUMING, self.now + MOVE_S
        elif isinstance(action, GrantRoom):
            assert notebook.room is not None
            notebook.granted = True
            self.reserved[notebook.id] = Reservation(notebook.id, action.gpu, action.bytes)
        elif isinstance(action, DenyRoom):
            notebook.denied = True
            self._forget(notebook)
        elif isinstance(action, EndKernel):
            notebook.ended_for = action.for_kernel
        else:
            raise AssertionError(action)


def parked(notebook: Notebook) -> Notebook:
    """One that was used before and is parked when the story begins."""
    return replace(notebook, residency=Residency.PARKED)
