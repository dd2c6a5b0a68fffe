"""What the controller remembers of each process and kernel; a cache of what pages, shims and servers say.

Kept by `state.NodeState` alone; everything else gets frozen snapshots or JSON.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from ..link.connection import Connection
from ..model.backoff import Backoff
from ..model.reasons import Cause, Refusal
from ..model.snapshot import Residency
from ..protocol.page import PageData, PageError, PageFlag, PageGpu, State
from ..protocol.wire import Hello, HelloFlag, Reply, Status
from ..system.mapped_page import Page
from ..system.peers import ProcessWatch


@dataclass
class Room:
    """An allocation of a process that asked for room."""

    gpu: str
    bytes: int
    since: float
    granted_at: float | None = None
    resident_before: int = 0  # what the process had on the GPU when it was granted


@dataclass
class Process:
    """One process with a shim. `connection` is None while it is silent or has just hung up."""

    key: int  # our own number; never a pid
    kernel_id: str
    hello: Hello
    page: Page
    data: PageData
    connection: Connection | None
    pid: int
    watch: ProcessWatch | None = None
    rooms: dict[int, Room] = field(default_factory=dict)
    silent_since: float | None = None
    is_stopped: bool = False  # silent, as opposed to having hung up
    said_dying: bool = False
    connected_at: float = 0.0
    started_at: float = 0.0  # seconds since the machine's start, where that is known
    told: tuple[int, int, str] | None = None  # the last NOTICE
    open_requests: int = 0
    seen_busy_at: float = 0.0  # when NVML last saw it compute
    queued_after: float = 0.0  # it began to wait after this, whatever its page says
    # what says that it is stuck (stuck.py)
    peer_uid: int | None = None  # whose it was when it connected
    parent: int | None = None  # when it connected; None: not known, or it had none of its own
    orphaned_at: float | None = None  # when another parent was seen first
    calls_changed_at: float = 0.0  # when it was last seen to begin a call
    failed_resumes: int = 0  # one after the other, for another reason than room
    failed_resume_text: str = ""
    is_told_stuck: bool = False  # its owner was told
    parked_at: float | None = None  # when it was last seen to have been parked, and brought back
    resumed_at: float | None = None
    borne_out_bytes: int | None = None  # of its resident memory, as NVML shows it; None: not looked at
    visible: (
        tuple[str, ...] | None
    ) = ()  # the GPUs that it was started to see (state/context_depth.py); None: all

    @property
    def is_parkable(self) -> bool:
        """Whether it can be told to park and has something to move with."""
        unparkable = self.hello.flags & HelloFlag.UNPARKABLE or self.data.flags & PageFlag.UNPARKABLE
        return self.connection is not None and not unparkable

    @property
    def drops_caches(self) -> bool:
        """Whether its frameworks can be asked to drop their caches."""
        return bool(self.data.flags & PageFlag.DROPS_CACHES) and self.data.state is State.RESIDENT

    @property
    def is_dying(self) -> bool:
        """Whether it is about to end."""
        return self.said_dying or bool(self.data.flags & PageFlag.DYING)

    @property
    def is_simulated(self) -> bool:
        """Whether its driver is the simulated one."""
        return bool(self.hello.flags & HelloFlag.SIMULATED or self.data.flags & PageFlag.SIMULATED)

    @property
    def resident_bytes(self) -> int:
        """What parking it would free."""
        return sum(gpu.resident_bytes for gpu in self.data.gpus)

    @property
    def last_activity(self) -> float:
        """When it was last seen to use the GPU."""
        called = self.data.last_activity or self.data.state_since or self.connected_at
        return max(called, self.seen_busy_at)

    @property
    def is_parked(self) -> bool:
        """Whether its memory is in the host's."""
        return self.data.state in (State.PARKED, State.QUEUED)

    @property
    def uses_gpu(self) -> bool:
        """Whether it has memory of a GPU, there or parked."""
        return any(gpu.resident_bytes or gpu.parked_bytes or any(gpu.fixed_bytes) for gpu in self.data.gpus)


BadPages = list[tuple[Process, PageError]]


def read_pages(processes: Iterable[Process], now: float) -> BadPages:
    """Read pages; the processes whose page is nonsense, for the caller to drop."""
    bad = []
    for process in processes:
        try:
            data = process.page.read()
        except PageError as error:
            bad.append((process, error))
            continue
        if data.calls != process.data.calls:
            process.calls_changed_at = now
        if data.parks != process.data.parks:
            process.parked_at = now
        if data.resumes != process.data.resumes:
            process.resumed_at = now
        process.data = data
    return bad


class Phase(Enum):
    """How far a move is. DIRECT has one step: every process's reply is its end."""

    DIRECT = "direct"
    PREPARING = "preparing"
    COMMITTING = "committing"
    ABORTING = "aborting"


@dataclass
class Move:
    """A park or resume of a kernel that is under way in its processes."""

    parks: bool
    reason: str
    began: float
    asked: bool
    phase: Phase = Phase.DIRECT
    epochs: dict[int, int] = field(
        default_factory=dict
    )  # those that were told: process key, epoch of the command
    pending: dict[int, int] = field(default_factory=dict)  # of these, whose last word is awaited
    to_context: bool = False  # PARK: the CUDA context too
    preempts: bool = False  # PARK: although it is at work
    prepared: set[int] = field(default_factory=set)  # of these, those that wait for COMMIT or ABORT
    lacks: dict[int, int] = field(default_factory=dict)  # … and the host memory that these lack, if told
    replies: dict[int, Reply] = field(default_factory=dict)  # the last words
    gone: set[int] = field(default_factory=set)
    failure: tuple[Status, str] | None = None  # why it was aborted
    decided_at: float | None = None
    for_kernel: str | None = None  # PARK: the kernel that waits for its memory
    claims: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # PARK: see failed_parks.py
    is_late: bool = False  # PARK: it lasts so long that this counted as a failure (failed_parks.py)
    is_given_up: bool = (
        False  # RESUME: nothing came of it for so long that its room is others' (reservations.py)
    )
    has_begun: bool = False  # … although NVML showed that it was taking it
    cause: Cause = Cause.OTHER
    from_context: bool = False  # RESUME: its CUDA context had gone too
    gpu: str | None = None  # RESUME: the other GPU that it is to come back on
    from_gpu: str | None = None  # … and the one that it left
    waited_s: float | None = None  # RESUME: in the queue, when it began
    exchange: Exchange | None = None  # that it is a part of
    in_part: bool = False  # PARK: of what another left on the GPU; there is nothing to prepare
    is_called_off: bool = False  # PARK: aborted in an exchange for a reason that is not its kernel's


@dataclass(eq=False)
class Exchange:
    """Kernels that leave the GPU while a waiter comes in (execution/exchanges.py)."""

    waiter_id: str
    parks: dict[str, Move] = field(default_factory=dict)  # by kernel
    is_decided: bool = False  # begun, or called off
    parked: set[str] = field(default_factory=set)  # the kernels that have left
    hands_over: bool = False  # the waiter gives them its host memory as it comes in


@dataclass
class CacheDrop:
    """The frameworks of a kernel were asked to drop their caches."""

    began: float
    pending: dict[int, int] = field(default_factory=dict)  # process key: epoch of the command


@dataclass
class SpillRecord:
    """Parked contents of a kernel are being written to disk."""

    began: float
    asked_bytes: int  # 0: what a resident kernel keeps there is forgotten
    before_bytes: int  # what its processes had on disk
    is_wanted: bool = False  # it waited for the GPU already
    pending: dict[int, int] = field(default_factory=dict)  # process key: epoch of the command
    written_bytes: int = 0  # by those that have answered
    failure: str | None = None  # what the disk said
    is_ended: bool = False  # they were told to end it
    progress_bytes: int = 0  # the most that was seen to be on disk
    progress_at: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """How a request of the user ended."""

    status: Status
    slug: Refusal | None  # None if it was done
    text: str


# Of a wish whose kernel has no process any more, or was shut down.
KERNEL_ENDED = Outcome(Status.REFUSED, Refusal.KERNEL_ENDED, "the kernel has ended")


@dataclass(frozen=True)
class Description:
    """What a server says of a kernel; None for what was not said."""

    name: str | None = None
    path: str | None = None
    language: str | None = None
    server: str | None = None
    priority: int | None = None  # of its kernelspec: lowers its class
    may_park: bool | None = None  # of its kernelspec; False: only by its user's own request


@dataclass
class Account:
    """Whose a kernel is, and what that entitles it to; from its connection and its grants."""

    owner: str | None = None  # on a controller of all users; None: the controller's own user
    name: str | None = None  # the owner's for users, and for rules that name users (rules.py)
    payer: str | None = (
        None  # the user whose limits it counts in: the owner, or the user that the owner's id is subordinate to
    )
    granted_at: float = 0.0  # when the newest of its grants was signed, in seconds since the epoch
    priority: int = 0  # of that grant; higher goes first
    caps: Mapping[str, float] = field(default_factory=dict)  # … the owner's limits, by name
    groups: tuple[str, ...] = ()  # … and the owner's groups, as rules name them


@dataclass
class ServerSide:
    """What the kernel's Jupyter server says of it, and whether that server lives."""

    description: Description | None = None
    pid: int | None = None  # of the server that described it
    place: str | None = None  # … or its place (identity.py), where its pid cannot be seen
    is_heard: bool = False  # … and a client in that place follows the events

    @property
    def is_there(self) -> bool:
        """Whether the server that described it lives, as far as that can be seen."""
        return self.pid is not None or self.is_heard


@dataclass
class Cell:
    """What the execution tracker says of the kernel's cells."""

    is_tracked: bool = False  # there is a tracker that says when cells are open
    is_open: bool = False
    since: float | None = None  # when the open cell began; None: unknown
    id: str | None = None

    def heard(self, *, is_open: bool, cell_id: str | None, since: float | None) -> None:
        """Take a server's word on a cell that began at `since`.

        It may come late, after a park that was asked for in that cell or after it, since the server's word, a magic's
        request and a command line's go different ways; and the first word of a tracker may be about a cell that has
        been open for hours.
        """
        if is_open and not (self.is_open and cell_id == self.id):
            self.since = since
        self.is_tracked, self.is_open = True, is_open
        self.id = cell_id if is_open else None


@dataclass
class Asked:
    """The user's wishes for now."""

    park: str | None = None  # why, in words
    park_until: float = 0.0  # "busy" is tried again until then
    park_again_at: float = 0.0
    park_done: asyncio.Future[Outcome] | None = None  # one for all clients that asked
    resume: bool = False
    resume_done: asyncio.Future[Outcome] | None = None


@dataclass
class Ending:
    """Its server is to shut it down for another kernel."""

    reason: str | None = None  # None: it is not
    asked_at: float = 0.0
    for_kernel: str | None = None  # the waiter
    is_recalled: bool = False  # an earlier controller asked for it
    backoff: Backoff = field(default_factory=Backoff)  # the server did not do it


@dataclass
class Failures:
    """What went wrong with its moves, and until when that is not tried again."""

    refusal: str | None = None  # why it was not parked last
    refusal_code: Refusal | None = None  # the same for programs
    refusal_args: Mapping[str, int] = field(default_factory=dict)
    context_refusal: str | None = None  # what the shim said when it was parked last: why its context stayed
    park: Backoff = field(default_factory=Backoff)
    resume: Backoff = field(default_factory=Backoff)
    migration: dict[str, Backoff] = field(default_factory=dict)  # by GPU
    room: Backoff = field(default_factory=Backoff)  # allocations that failed with room granted


@dataclass
class LastMove:
    """The last park or resume that ended."""

    ended_at: float = 0.0
    lasted_s: float | None = None  # None: there was none
    from_gpu: str | None = None  # the GPU that it had left, if it came back on another one


@dataclass
class Past:
    """What is left of its processes that ended."""

    parks: int = 0
    resumes: int = 0
    calls: int = 0
    has_had_processes: bool = False
    empty_since: float | None = None  # it has no process
    peer_ended: tuple[int, float] | None = None  # the last that ended beside others with GPU memory; when


@dataclass
class Caches:
    """What its frameworks only cache on the GPU."""

    drop: CacheDrop | None = None  # under way
    dropped_at: float | None = None  # when it had last used the GPU, at the last one


@dataclass
class HostRecord:
    """Part of a `KernelRecord`; written by `host_care` and `Moves`. Times are monotonic seconds."""

    budget_bytes: int | None = None  # of the park under way; None: no limit
    shares: dict[int, int] = field(default_factory=dict)  # of the budget, by process
    short: dict[int, int] = field(
        default_factory=dict
    )  # a park was tried and takes at least this, by process
    short_activity: float = 0.0  # when the kernel had last used the GPU then
    trim_at: float = -math.inf  # when it was last asked to give back what it keeps
    trim_keep_bytes: int = 0  # … down to this
    # Parks refused for want of host memory: nothing is said of it before, or tried that is unlikely.
    backoff: Backoff = field(default_factory=Backoff)
    spill: SpillRecord | None = None  # under way
    spill_backoff: Backoff = field(default_factory=Backoff)  # it came to nothing
    left_bytes: int | None = None  # what there was when a park failed that should have had enough


@dataclass
class KernelRecord:
    """One kernel."""

    id: str  # unique here; on a controller of all users it begins with the owner's
    account: Account = field(default_factory=Account)
    processes: dict[int, Process] = field(default_factory=dict)
    server: ServerSide = field(default_factory=ServerSide)
    cell: Cell = field(default_factory=Cell)
    asked: Asked = field(default_factory=Asked)
    ending: Ending = field(default_factory=Ending)
    held_until: float | None = None
    focus_at: float | None = None  # when its notebook was last turned to
    is_cancelling: bool = False
    placed: tuple[str, float] | None = None  # the GPU that it was told to use, and when
    move: Move | None = None
    exchange: Exchange | None = None  # others prepare to leave the GPU for it
    exchange_failed: bool = False  # since it was resumed last, one was called off: others are parked first
    last_move: LastMove = field(default_factory=LastMove)
    failures: Failures = field(default_factory=Failures)
    past: Past = field(default_factory=Past)
    caches: Caches = field(default_factory=Caches)
    host: HostRecord = field(default_factory=HostRecord)
    cgroups: tuple[str, ...] = ()  # paths of the limits above its processes
    # what is shown
    wants_since: float | None = None
    residency: Residency = Residency.NONE
    residency_since: float = 0.0
    resident_since: float = 0.0  # without a park in between; one that was revoked does not count
    reason: str | None = None
    reason_code: Cause | None = None  # the same for programs; of a resume too
    reason_args: dict[str, str] = field(default_factory=dict)

    def because(self, words: str | None, code: Cause | None, **arguments: str) -> None:
        """Remember why its residency changes: in words, where there is more to say than that it was used."""
        self.reason, self.reason_code, self.reason_args = words, code, arguments

    @property
    def calls(self) -> int:
        """How many CUDA calls passed the gates of its processes."""
        return self.past.calls + sum(sum(process.data.calls) for process in self.processes.values())

    @property
    def parks(self) -> int:
        """How often a process of the kernel was parked."""
        return self.past.parks + sum(process.data.parks for process in self.processes.values())

    @property
    def resumes(self) -> int:
        """How often a process of the kernel was resumed."""
        return self.past.resumes + sum(process.data.resumes for process in self.processes.values())

    def describe(self, **description: Any) -> None:
        """Remember what a server says; only what is named changes."""
        self.server.description = replace(self.server.description or Description(), **description)

    def connected(self) -> list[Process]:
        """The processes that can be told something."""
        return [process for process in self.processes.values() if process.connection is not None]

    def by_gpu(self) -> dict[str, PageGpu]:
        """The kernel's memory on each GPU, its processes' added up."""
        sums: dict[str, PageGpu] = {}
        for process in self.processes.values():
            for gpu in process.data.gpus:
                sums[gpu.uuid] = _added(sums.get(gpu.uuid), gpu)
        return sums

    def main_gpu(self) -> str:
        """The GPU on which it has, or had, most; "" for none."""
        gpus = self.by_gpu()
        return max(
            gpus,
            key=lambda uuid: (
                gpus[uuid].resident_bytes + gpus[uuid].parked_bytes + sum(gpus[uuid].fixed_bytes)
            ),
            default="",
        )

    def residency_now(self) -> Residency:
        """The processes' states as one: what is lost or in transition shows first, then what waits."""
        states = {process.data.state for process in self.processes.values()}
        for state, residency in FIRST_SHOWN.items():
            if state in states:
                return residency
        holds_memory = any(
            process.data.state is State.RESIDENT and process.resident_bytes
            for process in self.processes.values()
        )
        if State.PARKED in states and (self.asked.resume or not holds_memory):
            return Residency.QUEUED if self.asked.resume else Residency.PARKED
        return Residency.RESIDENT if State.RESIDENT in states else Residency.NONE


FIRST_SHOWN: Mapping[State, Residency] = {
    State.LOST: Residency.LOST,
    State.RESUMING: Residency.RESUMING,
    State.PARKING: Residency.PARKING,
    State.QUEUED: Residency.QUEUED,
}


def _added(first: PageGpu | None, second: PageGpu) -> PageGpu:
    if first is None:
        return second
    fixed = tuple(a + b for a, b in zip(first.fixed_bytes, second.fixed_bytes, strict=True))
    return PageGpu(
        first.uuid,
        first.resident_bytes + second.resident_bytes,
        first.parked_bytes + second.parked_bytes,
        fixed,
    )
