"""A process with a shim as the controller sees it, step by step; it follows "Prepared moves" and "Exchanges" of
protocol.h.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from jupyter_affinode.node.identity.identity import OWN_USER
from jupyter_affinode.node.protocol.page import Depth, PageData, PageFlag, PageGpu, State
from jupyter_affinode.node.protocol.wire import CommandKind, MoveFlag, Reply, Status
from jupyter_affinode.node.state.gpus.context_depth import SPARE_BYTES
from jupyter_affinode.settings.policy import GIB

if TYPE_CHECKING:
    from model_node import Machine

CONTEXT = GIB // 2  # of a deep process


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
    deep: bool = False
    stays: bool = False  # it refuses to come back elsewhere
    fails: bool = False  # a park that streams ends when a part of it has gone
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
        work.to_context = bool(told.argument & MoveFlag.CONTEXT)
        assert self.deep or not work.to_context
        work.streams, work.before = bool(told.argument & MoveFlag.STREAM), self.here
        assert not work.streams or work.in_two_steps == parks
        if told.argument & MoveFlag.MIGRATE:
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
            self.outbox.append(Reply(work.epoch, work.kind, status, size, 0.1, ""))


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
