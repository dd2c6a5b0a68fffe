"""The record of each kernel: a cache of what pages, shims and servers report.

Kept by `NodeState` (registry.py) alone; all other parts get frozen snapshots or JSON.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...identity.identity import Identity
from ...model.backoff import Backoff
from ...model.reasons import Cause, Refusal
from ...model.snapshot import Residency
from ...protocol.page import PageGpu, State
from .operations import KERNEL_ENDED, DiskTransfer, Exchange, Operation, Outcome, ParkMove, ResumeMove
from .process import Process

OTHER_VERSION_WORDS = {
    Refusal.OLDER_KERNEL: "it was started before an upgrade, and is not managed until it is restarted",
    Refusal.OLDER_CONTROLLER: "the controller was started before an upgrade, and manages it only once restarted",
}
OTHER_VERSION_LASTS_S = 10.0  # a refused shim tries again every two seconds
# Servers and keepers tell at least every 30 s which kernels are hibernated: two tellings may be lost, or another keeper
# may have to be started. By the monotonic clock, which stands still while the machine, and whatever tells, sleeps.
HIBERNATED_TOLD_S = 90.0
IMAGE_TAKES_S = 1800.0  # at most, once its processes have left


@dataclass(frozen=True)
class Description:
    """What a server reports of a kernel; None for what it did not report."""

    name: str | None = None
    path: str | None = None
    language: str | None = None
    server: str | None = None
    priority: int | None = None  # of its kernelspec: it lowers the class
    may_park: bool | None = None  # of its kernelspec; False: only by its user's own request
    hibernate_after_s: float | None = None  # parked; 0: only where there is need; None: it cannot hibernate
    hibernated_bytes: int | None = None  # of its image, which is whole; None: it is in none


@dataclass
class Account:
    """The user that a kernel belongs to, and what that user is entitled to; from its connection and its grants."""

    owner: str | None = None  # on a controller of all users; None: the controller's own user
    name: str | None = None  # the owner's name for users, and for rules that name users (rules.py)
    # the kernel counts in the limits of this user: the owner, or the user that the owner's id is subordinate to
    charged_user: str | None = None
    granted_at: float = 0.0  # when the newest of its grants was signed, in seconds since the epoch
    priority: int = 0  # of that grant; higher goes first
    caps: Mapping[str, float] = field(default_factory=dict)  # … the owner's limits, by name
    groups: tuple[str, ...] = ()  # … and the owner's groups, as rules name them
    account: str = ""  # … and of a batch system, "" without one, as is …
    job: str = ""

    def take_identity(self, identity: Identity) -> None:
        """Record the user of a connection, and what the newest grant allows."""
        self.owner, self.name, self.charged_user = identity.owner, identity.name, identity.charged_user
        if identity.granted_at is not None and identity.granted_at >= self.granted_at:
            self.granted_at, self.priority = identity.granted_at, identity.priority
            self.caps, self.groups = identity.caps, identity.groups
            self.account, self.job = identity.account, identity.job


@dataclass
class ServerSide:
    """What the kernel's Jupyter server reports of it, and whether that server is alive."""

    description: Description | None = None
    pid: int | None = None  # of the server that described it
    origin: str | None = None  # … or its origin (identity.py), where its pid cannot be seen
    is_heard: bool = False  # … and a client of that origin follows the events

    @property
    def is_there(self) -> bool:
        """Return whether the server that described it is alive, as far as that can be seen."""
        return self.pid is not None or self.is_heard


@dataclass
class Cell:
    """What the execution tracker reports of the kernel's cells."""

    is_tracked: bool = False  # there is a tracker that says when cells are open
    is_open: bool = False
    since: float | None = None  # when the open cell began; None: unknown
    id: str | None = None

    def heard(self, *, is_open: bool, cell_id: str | None, since: float | None) -> None:
        """Record a server's report of a cell that began at `since`.

        It may come late, after a park that was asked for in that cell or after it, since the server's report, a magic's
        request and a command line's take different paths. A tracker's first report may be about a cell that has been
        open for hours.
        """
        if is_open and not (self.is_open and cell_id == self.id):
            self.since = since
        self.is_tracked, self.is_open = True, is_open
        self.id = cell_id if is_open else None


@dataclass
class OpenRequests:
    """The user's open requests."""

    park: str | None = None  # why, in words
    park_until: float = 0.0  # "busy" is tried again until then
    park_again_at: float = 0.0
    park_done: asyncio.Future[Outcome] | None = None  # one for all clients that asked
    resume: bool = False
    resume_done: asyncio.Future[Outcome] | None = None


@dataclass
class AskedOfServer:
    """Something that the kernel's server, or its keeper, is asked to do with it."""

    reason: str | None = None  # None: it is not
    asked_at: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)  # the server did not do it


@dataclass
class AskedHibernation(AskedOfServer):
    """To put it into an image (execution/hibernations.py)."""

    until: float = 0.0  # it is to have begun
    is_last: bool = False  # the controller ends then


@dataclass
class Ending(AskedOfServer):
    """To shut it down, mostly for another kernel (execution/evictions.py)."""

    for_kernel: str | None = None  # the waiter
    is_recalled: bool = False  # an earlier controller asked for it
    used_gpu: bool = True  # it is over when the kernel does so no longer


@dataclass
class MadeWay:
    """Other users' kernels were parked for a waiter, which NVML has not shown to use the room yet."""

    began: float
    asked_bytes: int
    before_bytes: int  # what NVML bore out of its memory then
    rooms: frozenset[tuple[int, int]]  # the allocations that waited then, by process and number …
    wants_since: float | None  # … or since when it had waited to be resumed
    ended_at: float | None = None  # since when it has not waited for these


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
    from_gpu: str | None = None  # the GPU that it left, if it migrated


@dataclass
class Past:
    """Sums and times of its processes that ended."""

    parks: int = 0
    resumes: int = 0
    calls: int = 0
    has_had_processes: bool = False
    empty_since: float | None = None  # it has no process
    peer_ended_at: float | None = None  # when the last process ended beside others with GPU memory


@dataclass
class HostRecord:
    """What is known of a kernel's host memory, and what was asked for of it. Times are monotonic seconds."""

    budget_bytes: int = 0  # of the park under way
    shares: dict[int, int] = field(default_factory=dict)  # of the budget, by process
    # a park was tried and takes at least this, by process
    short: dict[int, int] = field(default_factory=dict)
    short_activity: float = 0.0  # when the kernel had last used the GPU then
    trim_at: float = -math.inf  # when it was last asked to release what it retains
    trim_keep_bytes: int = 0  # … down to this
    # After parks refused for lack of host memory: until then that is not repeated, and unlikely parks are not tried.
    backoff: Backoff = field(default_factory=Backoff)
    spill_backoff: Backoff = field(default_factory=Backoff)  # transfers to or from disk that came to nothing
    spills_after: float = 0.0  # spills of its user's kernels kept others waiting in vain
    left_bytes: int | None = None  # what there was when a park failed although that should have been enough


@dataclass
class Hibernated:
    """That a kernel is hibernated, or its processes have left for its image. Times are monotonic seconds."""

    gpus: dict[str, PageGpu] | None  # what its processes had of each GPU when they left; None: not known
    told_at: float  # when that was so for certain
    until: float  # it is believed


@dataclass
class KernelRecord:
    """One kernel."""

    id: str  # unique here; on a controller of all users it begins with the owner's
    account: Account = field(default_factory=Account)
    processes: dict[int, Process] = field(default_factory=dict)
    server: ServerSide = field(default_factory=ServerSide)
    cell: Cell = field(default_factory=Cell)
    requests: OpenRequests = field(default_factory=OpenRequests)
    ending: Ending = field(default_factory=Ending)
    hibernation: AskedHibernation = field(default_factory=AskedHibernation)
    held_until: float | None = None
    focus_at: float | None = None  # when its user last opened the notebook or typed in it
    is_cancelling: bool = False
    placed: tuple[str, float] | None = None  # the GPU that it was told to use, and when
    # a shim of another version said HELLO in its name: which is older, and when that was
    refused: tuple[Refusal, float] | None = None
    operation: Operation | None = None  # under way in its processes, or that others prepare for it
    exchange_failed: bool = False  # one was called off since its last resume: its victims are parked first
    last_move: LastMove = field(default_factory=LastMove)
    failures: Failures = field(default_factory=Failures)
    made_way: MadeWay | None = None
    past: Past = field(default_factory=Past)
    # when it had last used the GPU, at the last time that its frameworks were asked to drop their caches
    caches_dropped_at: float | None = None
    host: HostRecord = field(default_factory=HostRecord)
    cgroups: tuple[str, ...] = ()  # paths of the limits above its processes
    hibernated: Hibernated | None = None
    # what is shown
    wants_since: float | None = None
    residency: Residency = Residency.NONE
    residency_since: float = 0.0
    resident_since: float = 0.0  # without a park in between; one that was revoked does not count
    busy_percent: int | None = None  # of the GPU that it keeps busiest, by NVML; None: not known
    reason: str | None = None
    reason_code: Cause | None = None  # the same for programs; of a resume too
    reason_args: dict[str, str] = field(default_factory=dict)

    def because(self, words: str | None, code: Cause | None, **arguments: str) -> None:
        """Record why its residency changes: in words, where there is more to say than that it was used."""
        self.reason, self.reason_code, self.reason_args = words, code, arguments

    @property
    def move(self) -> ParkMove | ResumeMove | None:
        """Return the park or resume under way."""
        return self.operation if isinstance(self.operation, ParkMove | ResumeMove) else None

    @property
    def park(self) -> ParkMove | None:
        """Return the park under way."""
        return self.operation if isinstance(self.operation, ParkMove) else None

    @property
    def disk_transfer(self) -> DiskTransfer | None:
        """Return the spill or the read from disk under way."""
        return self.operation if isinstance(self.operation, DiskTransfer) else None

    @property
    def awaits_exchange(self) -> bool:
        """Return whether others prepare to leave the GPU for it: nothing is under way in its own processes yet."""
        return isinstance(self.operation, Exchange)

    def end_park_request(self, outcome: Outcome) -> None:
        """Answer the client that asked for a park; a kernel without processes has ended, whatever came of the park."""
        self.requests.park = None
        done, self.requests.park_done = self.requests.park_done, None
        if done is not None:
            done.set_result(outcome if self.processes else KERNEL_ENDED)

    def end_resume_request(self, outcome: Outcome) -> None:
        """Answer the client that asked for a resume, in the same way."""
        self.requests.resume = False
        done, self.requests.resume_done = self.requests.resume_done, None
        if done is not None:
            done.set_result(outcome if self.processes else KERNEL_ENDED)

    def other_version(self, now: float) -> Refusal | None:
        """Return which is older, the controller or the kernel, if its shim speaks another version of the protocol."""
        if self.refused is None or now - self.refused[1] > OTHER_VERSION_LASTS_S:
            return None
        return self.refused[0]

    @property
    def calls(self) -> int:
        """Return how many CUDA calls passed the gates of its processes."""
        return self.past.calls + sum(sum(process.data.calls) for process in self.processes.values())

    @property
    def parks(self) -> int:
        """Return how often a process of the kernel was parked."""
        return self.past.parks + sum(process.data.parks for process in self.processes.values())

    @property
    def resumes(self) -> int:
        """Return how often a process of the kernel was resumed."""
        return self.past.resumes + sum(process.data.resumes for process in self.processes.values())

    def describe(self, **description: Any) -> None:
        """Record what a server reports; only what is named changes."""
        self.server.description = replace(self.server.description or Description(), **description)

    def connected(self) -> list[Process]:
        """Return the processes that have a connection."""
        return [process for process in self.processes.values() if process.connection is not None]

    @property
    def image_bytes(self) -> int | None:
        """Return what its image takes on disk, as its server or keeper tells; None: it is in none that is whole."""
        return None if self.server.description is None else self.server.description.hibernated_bytes

    @property
    def may_hibernate(self) -> bool:
        """Return whether its server, or keeper, says that it can be put into an image."""
        said = self.server.description
        return said is not None and said.hibernate_after_s is not None

    @property
    def is_hibernated(self) -> bool:
        """Return whether it is in an image, or its processes have left for one."""
        return self.hibernated is not None

    def leave_for_image(self, now: float) -> None:
        """Note that its processes leave, and that what they have of GPUs goes into an image."""
        gpus = {gpu.uuid: PageGpu.off_gpu(gpu.uuid, gpu.in_all_bytes) for gpu in self.by_gpu().values()}
        self.hibernated = Hibernated(gpus, now, now + IMAGE_TAKES_S)

    def note_hibernated(self, now: float) -> None:
        """Note that its server, or keeper, says that it is: for a while, unless it is said again."""
        gpus = None if self.hibernated is None else self.hibernated.gpus
        self.hibernated = Hibernated(gpus, now, now + HIBERNATED_TOLD_S)

    def note_awake(self) -> None:
        """Note that it is in no image, whatever was told."""
        self.hibernated = None
        if self.image_bytes is not None:
            self.describe(hibernated_bytes=None)

    def by_gpu(self) -> dict[str, PageGpu]:
        """Return the kernel's memory of each GPU, summed over its processes; of a hibernated one, in its image."""
        if self.hibernated is not None and self.hibernated.gpus is not None:
            return self.hibernated.gpus
        sums: dict[str, PageGpu] = {}
        for process in self.processes.values():
            for gpu in process.data.gpus:
                sums[gpu.uuid] = _added(sums.get(gpu.uuid), gpu)
        return sums

    def main_gpu(self) -> str:
        """Return the GPU on which it has, or had, most memory; "" for none."""
        gpus = self.by_gpu()
        return max(gpus, key=lambda uuid: gpus[uuid].in_all_bytes, default="")

    def residency_now(self) -> Residency:
        """Return the processes' states as one: what is lost or in transit shows first, then what waits."""
        if self.is_hibernated:
            return Residency.HIBERNATED
        states = {process.data.state for process in self.processes.values()}
        for state, residency in FIRST_SHOWN.items():
            if state in states:
                return residency
        holds_memory = any(
            process.data.state is State.RESIDENT and process.resident_bytes
            for process in self.processes.values()
        )
        if State.PARKED in states and (self.requests.resume or not holds_memory):
            return Residency.QUEUED if self.requests.resume else Residency.PARKED
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
    unmovable = tuple(a + b for a, b in zip(first.unmovable_bytes, second.unmovable_bytes, strict=True))
    return PageGpu(
        first.uuid,
        first.resident_bytes + second.resident_bytes,
        first.parked_bytes + second.parked_bytes,
        unmovable,
    )
