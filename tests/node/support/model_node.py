"""A machine of model processes and one real controller's heart, step by step under a virtual clock.

The shims follow "Prepared moves" and "Exchanges" of protocol.h; every message, every piece of work and every time-out
is a step of its own, so that a test can put them in any order. `NodeState`, `Moves` and `decide` are the real ones.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_affinode.node.execution import (
    cache_drops,
    exchanges,
    failed_parks,
    group_commit,
    moves,
    notices,
    spills,
    user_requests,
)
from jupyter_affinode.node.execution.moves import Moves
from jupyter_affinode.node.identity.identity import OWN_USER
from jupyter_affinode.node.model.actions import Park, RefusePark, Resume
from jupyter_affinode.node.model.gpu import NvmlGpu
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.protocol.page import Depth, PageData, PageFlag, PageGpu, State
from jupyter_affinode.node.protocol.wire import CommandKind, Hello, HelloFlag, MoveFlag, Reply, Status
from jupyter_affinode.node.state.context_depth import SPARE_BYTES
from jupyter_affinode.node.state.observer import Observers
from jupyter_affinode.node.state.records import Process
from jupyter_affinode.node.state.registry import NodeState
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.node.system.nvml import NvmlSample
from jupyter_affinode.settings.policy import GIB, Settings

STEP_S = 0.25
CONTEXT = GIB // 2  # of a deep process
SETTINGS = Settings(idle_timeout_s=2.0, margin_bytes=0, host_reserve_bytes=0)
QUIET = logging.Logger("model", level=logging.CRITICAL)


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    @classmethod
    def for_moves(cls, patch: pytest.MonkeyPatch) -> Clock:
        """The clock that the modules about moves read from now on."""
        clock = cls()
        for module in (
            cache_drops,
            exchanges,
            failed_parks,
            group_commit,
            moves,
            notices,
            spills,
            user_requests,
        ):
            patch.setattr(module, "time", clock)
        return clock

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self.now


@dataclass
class Told:
    """A command on its way."""

    kind: CommandKind
    epoch: int
    request: int
    argument: int
    text: str


@dataclass
class Work:
    """A move under way in a shim."""

    kind: CommandKind
    epoch: int
    in_two_steps: bool
    to_context: bool = False
    streams: bool = False
    before: dict[str, int] | None = None  # a resume that streams: what was on the GPU when it began
    gpu: str | None = None  # a resume: on that one, not where it was
    is_prepared: bool = False
    is_committed: bool = False
    is_awaited: bool = True  # by the controller that commanded it


@dataclass(eq=False)
class Shim:
    """One process; sizes in units, by GPU. One that is `deep` takes its context along, and comes back anywhere."""

    machine: Machine
    kernel_id: str
    pid: int
    sizes: dict[str, int]
    prepares: bool = True
    deep: bool = False
    stays: bool = False  # it refuses to come back elsewhere
    exchanges: bool = False
    fails: bool = False  # a park that streams ends when a part of it has gone
    more_flags: int = 0  # of HELLO
    here: dict[str, int] | None = None  # on the GPU, while that is not all or nothing
    depth: Depth = Depth.NONE
    state: State = State.RESIDENT
    work: Work | None = None
    is_called: bool = False
    is_busy: bool = False
    is_alive: bool = True
    parks: int = 0
    resumes: int = 0
    epoch: int = 0
    last_activity: float = 0.0
    inbox: deque[Told] = field(default_factory=deque)
    outbox: deque[Reply | str] = field(default_factory=deque)
    connection: Any = None
    key: int | None = None

    def __repr__(self) -> str:
        return f"{self.kernel_id}/{self.pid} {self.state.name}"

    @property
    def holds(self) -> bool:
        """Whether its memory is on the GPU, or room for it is its own."""
        work = self.work
        resuming = work is not None and work.kind is CommandKind.RESUME and work.is_prepared
        return self.state in (State.RESIDENT, State.PARKING) or resuming

    @property
    def takes(self) -> dict[str, int]:
        """What it has of each GPU, its context included, or what room is its own."""
        work = self.work
        context = CONTEXT if self.deep and self.sizes else 0
        if self.here is not None and not (work is not None and work.is_prepared):
            return dict(self.here)
        if self.here is not None and work is not None and work.streams:
            return dict(self.here)
        if work is not None and work.gpu is not None and work.is_prepared:
            return {work.gpu: self._all + context}
        if self.holds:
            return {uuid: size + context for uuid, size in self.sizes.items()}
        return dict.fromkeys(self.sizes, 0 if self.depth is Depth.CONTEXT else context)

    @property
    def _all(self) -> int:
        return sum(self.sizes.values())

    # ---- what the controller reads and calls

    @property
    def inode(self) -> tuple[int, int]:
        """Of the page's file."""
        return 0, self.pid

    @property
    def last(self) -> PageData:
        """The page."""
        return self.read()

    def read(self) -> PageData:
        """The page."""
        here = self.state in (State.RESIDENT, State.PARKING)
        on_gpu = self.here if self.here is not None else self.sizes if here else {}
        gpus = tuple(
            PageGpu(uuid, on_gpu.get(uuid, 0), size - on_gpu.get(uuid, 0), (0,) * 8)
            for uuid, size in self.sizes.items()
        )
        return PageData(
            self.state,
            self.last_activity,
            self.last_activity,
            PageFlag(0),
            int(self.is_called),
            0,
            0,
            self.epoch,
            0,
            self.parks,
            self.resumes,
            None,
            None,
            gpus,
            depth=self.depth,
            context_bytes=CONTEXT if self.depth is Depth.CONTEXT else 0,
        )

    def close(self) -> None:
        """Nothing to unmap."""

    # ---- its steps

    def hear(self) -> None:
        """Take one command."""
        told = self.inbox.popleft()
        work = self.work
        if told.kind in (CommandKind.PARK, CommandKind.RESUME):
            self.epoch = told.epoch
            self._begin(told)
        elif work is not None and work.epoch == told.request and work.in_two_steps:
            if told.kind is CommandKind.ABORT and not work.is_committed:
                self._end(Status.REVOKED)
            elif told.kind is CommandKind.COMMIT and work.is_prepared:
                work.is_committed = True

    def go_on(self) -> None:
        """The next piece of its move: copies, room, the end."""
        work = self.work
        assert work is not None
        if work.gpu is not None and self.stays:
            self._end(Status.REFUSED)
        elif work.streams and work.kind is CommandKind.RESUME:
            self._come_in(work)
        elif work.streams and work.is_committed:
            self._go_out()
        elif work.kind is CommandKind.RESUME and not work.is_prepared and not self._has_room(work):
            self.machine.found_no_room += 1
            self._end(Status.NO_GPU_ROOM)
        elif self.depth is Depth.CONTEXT and not work.is_prepared:
            work.is_prepared = work.is_committed = True  # its room is its own, and to copy is left
        elif work.is_committed or not work.in_two_steps:
            self._end(Status.OK)
        elif not work.is_prepared:
            work.is_prepared = True
            self._say(work, Status.PREPARED)

    def _go_out(self) -> None:
        """A half of what is left, and then the rest."""
        if self.here is None:
            self.here = {uuid: size // 2 for uuid, size in self.sizes.items()}
        elif self.fails:
            self._end(Status.FAILED)
        else:
            self._end(Status.OK)

    def _come_in(self, work: Work) -> None:
        """As far as there is room."""
        here = dict(self.here or {})
        for uuid, lacks in self.lacks.items():
            here[uuid] = here.get(uuid, 0) + min(lacks, max(self.machine.free(uuid), 0))
        self.here = here
        if not any(self.lacks.values()):
            self._end(Status.OK)

    @property
    def lacks(self) -> dict[str, int]:
        """What is not on the GPU."""
        return {uuid: size - (self.here or {}).get(uuid, 0) for uuid, size in self.sizes.items()}

    @property
    def may_give_up(self) -> bool:
        """Whether it waits for room: AFFINODE_STREAM_MS may be over."""
        work = self.work
        comes = work is not None and work.streams and work.kind is CommandKind.RESUME
        return comes and not self.can_go_on

    def give_up(self) -> None:
        """They are over."""
        self._end(Status.NO_GPU_ROOM)

    def _has_room(self, work: Work) -> bool:
        if self.depth is not Depth.CONTEXT:
            return self.machine.fits(self.lacks)
        (home,) = self.sizes
        return self.machine.fits({work.gpu or home: CONTEXT + max(self._all, SPARE_BYTES)})

    @property
    def can_go_on(self) -> bool:
        """Whether its move is at work, not waiting for a decision."""
        work = self.work
        if work is not None and work.streams and work.kind is CommandKind.RESUME:
            return any(size and self.machine.free(uuid) > 0 for uuid, size in self.lacks.items())
        return work is not None and (not work.is_prepared or work.is_committed)

    def call(self) -> None:
        """The program calls CUDA."""
        self.last_activity = self.machine.clock.now
        work = self.work
        if self.state is State.PARKING and work is not None and not work.is_prepared:
            self._end(Status.REVOKED)
        elif self.state is State.PARKING or self.state is State.PARKED:
            self.is_called = True
            if self.state is State.PARKED:
                self.state = State.QUEUED
            self.outbox.append("want")

    @property
    def may_lose_patience(self) -> bool:
        """Whether a call waits at the gate of its prepared park."""
        work = self.work
        return self.is_called and self.state is State.PARKING and work is not None and not work.is_committed

    def lose_patience(self) -> None:
        """AFFINODE_PREPARED_CALL_MS are over."""
        self._end(Status.REVOKED)

    def lose_link(self) -> None:
        """The controller is gone, after what is in the inbox."""
        while self.inbox:
            self.hear()
        self.connection = self.key = None
        self.outbox.clear()
        work = self.work
        if work is None:
            return
        work.is_awaited = False  # the next controller's numbers are others
        if work.kind is CommandKind.RESUME and work.is_prepared:
            work.is_committed = True  # carried out
        elif work.kind is CommandKind.PARK and work.in_two_steps and not work.is_committed:
            self._end(Status.REVOKED)
        elif not work.is_prepared:
            work.in_two_steps = False  # no controller is there to agree with

    def _begin(self, told: Told) -> None:
        parks = told.kind is CommandKind.PARK
        work = Work(told.kind, told.epoch, bool(told.argument & MoveFlag.PREPARE))
        assert self.prepares or not work.in_two_steps
        work.to_context = bool(told.argument & MoveFlag.CONTEXT)
        assert self.deep or not work.to_context
        work.streams, work.before = bool(told.argument & MoveFlag.STREAM), self.here
        assert not work.streams or (self.exchanges and work.in_two_steps == parks)
        if told.argument & MoveFlag.ELSEWHERE:
            work.gpu = told.text
            assert not parks and self.deep and self.sizes.keys() != {work.gpu} and not work.in_two_steps
        ready = self.state is State.RESIDENT if parks else self.state in (State.PARKED, State.QUEUED)
        if self.work is not None:
            self._say(work, Status.BUSY)
        elif not ready or not self.sizes:
            self._say(work, Status.NOTHING)
        elif parks and self.is_busy:
            self._say(work, Status.BUSY)
        else:
            self.work = work
            self.state = State.PARKING if parks else State.RESUMING

    def _end(self, status: Status) -> None:
        work, self.work = self.work, None
        assert work is not None
        parks, done = work.kind is CommandKind.PARK, status is Status.OK
        if not parks and done:
            self.machine.check_room(self, work)
        is_in_part = parks and not done and self.here is not None
        self.machine.exchanged += work.streams and done and not parks
        self.machine.parked_in_part += is_in_part
        if not is_in_part:
            self.here = None if done else work.before
        if done:
            self.depth = Depth.NONE if not parks else Depth.CONTEXT if work.to_context else Depth.MEMORY
        if done and work.gpu is not None:
            self.sizes = {work.gpu: self._all}
            self.machine.moved_elsewhere += 1
        self.parks += parks and done
        self.resumes += not parks and done
        if parks == done or is_in_part:
            self.state = State.QUEUED if self.is_called else State.PARKED
        else:
            self.state, self.is_called = State.RESIDENT, False
        self._say(work, status)

    def _say(self, work: Work, status: Status) -> None:
        if self.connection is not None and work.is_awaited:
            size = sum(self.sizes.values())
            self.outbox.append(Reply(1, work.epoch, work.kind, status, size, 0.1, ""))


class Link:
    """What `Moves` sends commands with."""

    def __init__(self, shim: Shim, numbers: itertools.count[int]):
        self.peer = SimpleNamespace(pid=shim.pid, uid=0)
        self.identity = OWN_USER
        self._shim = shim
        self._numbers = numbers

    def command(
        self,
        kind: CommandKind,
        *,
        request: int = 0,
        argument: int = 0,
        reason: str = "",
        lasts_s: float | None = None,
    ) -> int:
        """As Connection.command; a deadline is never missed here."""
        epoch = next(self._numbers)
        self._shim.inbox.append(Told(kind, epoch, request, argument, reason))
        return epoch


class Machine:
    """GPUs of some size, shims, and a controller that may be killed."""

    shim_type = Shim

    def __init__(self, clock: Clock, totals: dict[str, int], settings: Settings = SETTINGS):
        self.settings = settings
        self.moved_elsewhere = self.found_no_room = self.exchanged = self.parked_in_part = 0
        self.clock = clock
        self.totals = totals
        self.shims: list[Shim] = []
        self._pids = itertools.count(10_000_000)  # no pid of this machine
        self.new_controller()

    def new_controller(self) -> None:
        """One that knows nothing."""
        self.state = NodeState(self.settings, HostMemory(1 << 50, 1 << 50))
        self.moves = Moves(self.state, QUIET, lambda: None, Observers(QUIET), self.promise)

    def start(
        self,
        kernel_id: str,
        sizes: dict[str, int],
        *,
        prepares: bool = True,
        deep: bool = False,
        exchanges: bool = False,
        state: State = State.RESIDENT,
    ) -> Shim:
        """A process that has its memory, if there is room for it."""
        pid = next(self._pids)
        shim = self.shim_type(self, kernel_id, pid, sizes, prepares, deep, last_activity=self.clock.now)
        shim.exchanges, shim.state = exchanges, state
        if not self.fits(shim.takes):
            shim.sizes = {}
        self.shims.append(shim)
        self.connect(shim)
        return shim

    def connect(self, shim: Shim) -> None:
        """HELLO."""
        shim.connection = Link(shim, itertools.count(1))
        flags = HelloFlag.PREPARES if shim.prepares else HelloFlag(0)
        flags |= HelloFlag.CONTEXT | HelloFlag.ELSEWHERE if shim.deep else HelloFlag(0)
        flags |= HelloFlag.EXCHANGES if shim.exchanges else HelloFlag(0)
        flags |= HelloFlag(shim.more_flags)
        hello = Hello(1, shim.pid, flags, 1, 1, shim.kernel_id, "model", "0")
        process = self.state.add_process(shim.connection, hello, shim, self.clock.now)  # type: ignore[arg-type]
        shim.key = process.key
        process.visible = None  # there is no such process that could be asked
        self.state.refresh(self.clock.now)
        self.moves.process_came(process)

    def process(self, shim: Shim) -> Process:
        """The controller's record."""
        return self.state.kernels[shim.kernel_id].processes[shim.key or 0]

    def deliver(self, shim: Shim) -> None:
        """The controller takes one message of a shim."""
        said = shim.outbox.popleft()
        if isinstance(said, Reply):
            self.moves.take_reply(self.process(shim), said)
        else:
            self.moves.process_wants(self.process(shim))

    def end_process(self, shim: Shim) -> None:
        """The process is killed."""
        process = self.process(shim)
        self.shims.remove(shim)
        shim.is_alive, process.connection = False, None
        kernel = self.state.kernels[shim.kernel_id]
        self.state.remove_process(process, self.clock.now)
        self.moves.process_gone(process, kernel)

    def kill_controller(self, reached: Callable[[int], int]) -> None:
        """Its last messages may not have been sent: of n in an inbox, `reached(n)` arrive."""
        for shim in self.shims:
            arrive = reached(len(shim.inbox))
            while len(shim.inbox) > arrive:
                shim.inbox.pop()
            shim.lose_link()
        self.new_controller()
        for shim in self.shims:
            self.connect(shim)

    def pass_time(self, seconds: float = STEP_S) -> None:
        """A pass of the controller."""
        now = self.clock.now = self.clock.now + seconds
        free = {uuid: self.free(uuid) for uuid in self.totals}
        gpus = tuple(
            NvmlGpu(uuid, index, "model", total, total - free[uuid], free[uuid], None, self._pids_on(uuid))
            for index, (uuid, total) in enumerate(self.totals.items())
        )
        self.state.gpus.take(NvmlSample(now, "0", gpus), self.settings)
        self.state.refresh(now)
        node = self.state.snapshot(now, is_settled=True)
        self.moves.look_at_promises(node, now)
        for action in decide(now, node, self.settings):
            kernel = self.state.kernels[action.kernel_id]
            if isinstance(action, Park):
                self.moves.park(
                    kernel,
                    action.reason,
                    self.budget_bytes(action),
                    to_context=action.to_context,
                    for_kernel=action.for_kernel,
                    exchanges=action.exchanges,
                    hands_over=action.hands_over,
                )
            elif isinstance(action, Resume):
                self.moves.resume(kernel, action.reserved_bytes, action.reason, action.cause, action.gpu)
            else:
                assert isinstance(action, RefusePark), action
                self.moves.refuse_park(kernel, Status.REFUSED, action.slug, action.reason)
        self.moves.look_for_lost_replies(now)

    def promise(self, process: Process, size: int) -> None:
        """No process waits for host memory."""

    def budget_bytes(self, action: Park) -> int | None:
        """There is host memory enough for all."""

    def free(self, uuid: str) -> int:
        """Of a GPU."""
        free = self.totals[uuid] - sum(shim.takes.get(uuid, 0) for shim in self.shims)
        assert free >= 0 or not any(shim.deep for shim in self.shims), "more than the GPU has"
        return free

    def _pids_on(self, uuid: str) -> frozenset[int] | None:
        """The processes that NVML lists, where it does."""
        if self.settings.depth != "context":
            return None
        return frozenset(shim.pid for shim in self.shims if shim.takes.get(uuid))

    def fits(self, sizes: dict[str, int]) -> bool:
        """Whether there is room."""
        return all(self.free(uuid) >= size for uuid, size in sizes.items())

    def check_room(self, shim: Shim, work: Work) -> None:
        """What is resumed has its room already, or (in one step) finds it now."""
        has_room = work.is_prepared or work.streams or shim.holds or self.fits(shim.lacks)
        assert has_room, "more than the GPU has"
        assert all(self.free(uuid) >= 0 for uuid in self.totals), "more than the GPU has"

    def settle_one(self, shim: Shim) -> None:
        """Let what is under way in one shim come to its end."""
        while shim.inbox or shim.outbox or shim.can_go_on:
            if shim.inbox:
                shim.hear()
            elif shim.outbox:
                self.deliver(shim)
            else:
                shim.go_on()

    def settle_all(self) -> None:
        """The same in all shims."""
        for shim in self.shims:
            self.settle_one(shim)

    def check(self) -> None:
        """Fail unless what always holds holds."""
        assert all(self.free(uuid) >= 0 for uuid in self.totals), "more than the GPU has"
        moving = (State.PARKING, State.RESUMING)
        assert all(shim.state in moving for shim in self.shims if shim.work is not None)

    def check_at_rest(self) -> None:
        """Fail if anything is under way, reserved or half done."""
        self.check()
        assert not [kernel for kernel in self.state.kernels.values() if kernel.move or kernel.exchange]
        assert not self.state.reservations.entries
        for shim in self.shims:
            assert shim.work is None
            assert shim.state in (State.RESIDENT, State.PARKED), "it waits for ever"
            if shim.here is not None:
                assert not self.fits(shim.lacks), "a part of it is on the GPU, and there is room for the rest"

    def settle(self) -> None:
        """Let everything that is under way come to its end, and time pass, until nothing moves any more."""
        for shim in self.shims:
            shim.is_busy = False
        for _ in range(80):
            self.settle_all()
            for shim in self.shims:
                if shim.may_lose_patience:
                    shim.lose_patience()
                if shim.may_give_up:
                    shim.give_up()
            self.pass_time(2.0)
