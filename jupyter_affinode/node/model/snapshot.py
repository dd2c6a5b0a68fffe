"""The policy's input: a frozen picture of the machine at one moment.

`state.NodeState.snapshot` makes one for every pass; so do the property tests and the planner. Times are monotonic
seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from ...settings.policy import MIB

SLAB_BYTES = 32 * MIB  # the unit in which shims take host memory (shim/src/host/slabs.h)
SLACK_BYTES = 2 * SLAB_BYTES  # shims take memory by slabs, so a park may take somewhat more than it moves


class Residency(str, Enum):
    """Where a kernel's GPU state is."""

    NONE = "none"
    RESIDENT = "resident"
    PARKING = "parking"
    PARKED = "parked"
    QUEUED = "queued"
    RESUMING = "resuming"
    LOST = "lost"
    HIBERNATED = "hibernated"  # in an image on disk, with its processes


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    uuid: str
    free_bytes: int  # NVML's figure, or without NVML an estimate from what succeeded and failed
    total_bytes: int | None = None  # None without NVML
    sampled_at: float = 0.0  # when the look that gave `free_bytes` began
    # how much our kernels' memory changed around then, which `free_bytes` may not show
    uncertain_bytes: int = 0
    is_reclaiming: bool = False  # fell below the low watermark and has not reached the high one since
    is_outdated: bool = False  # a kernel was moved since: a newer figure comes in a moment
    index: int | None = None  # NVML's number, for texts

    @property
    def is_measured(self) -> bool:
        """Return whether the figures are NVML's."""
        return self.total_bytes is not None


@dataclass(frozen=True, slots=True)
class RoomRequest:
    """An allocation that found its GPU full and waits for room."""

    key: tuple[int, int]  # the process (as numbered by the state) and the request's number
    gpu: str
    bytes: int
    since: float
    is_for_start: bool = False  # for a kernel that has not started yet: no kernel is preempted for it


@dataclass(frozen=True, slots=True)
class HostUse:
    """A kernel's use of host memory: what it retains from its last park, and what its next one takes."""

    retained_bytes: int = 0  # retained from its last park for its next
    trimmable_bytes: int = 0  # … of that, what it can be asked to release
    # what it was asked to release a moment ago and has not yet: retained memory, or lots that are left empty
    trimming_bytes: int = 0
    retained_since: float = 0.0
    lot_bytes: int = 0  # of all lots that it has, empty or not
    # what a park probably takes, by its last one (zeros take nothing); None: unknown
    park_takes_bytes: int | None = None
    park_short_bytes: int = 0  # a park of its present memory was tried, and takes at least this
    budget_bytes: int | None = None  # the most new memory for the park under way; None: no limit
    # after refusals for lack of host memory: before, that is not repeated, nor unlikely parks tried
    retry_at: float = 0.0
    copy_bytes: int = 0  # the host copy of parked contents: free after a resume that retains nothing
    awaits_bytes: int = 0  # lots reserved for its park under way, less what its waiter hands over
    spillable_bytes: int = 0  # parked contents in host memory that it can be told to write to disk
    spilling_bytes: int = 0  # … of that, what it was told to write a moment ago and has not yet
    disk_bytes: int = 0  # on disk: parked contents, or a resident kernel's retained copy
    disk_retained_bytes: int = 0  # … of that, a retained copy that a resident kernel can be told to drop
    readable_bytes: int = 0  # … of that, what a parked kernel can be told to read into host memory
    reading_bytes: int = 0  # what it was told to read a moment ago and has not yet

    @property
    def ready_bytes(self) -> int:
        """Return what it has for its next park: what it retains, or its empty lots. Those that were lent a moment ago
        do not count as retained yet.
        """
        return max(self.retained_bytes - self.trimming_bytes, self.lot_bytes - self.copy_bytes, 0)


NO_HOST_USE = HostUse()


@dataclass(frozen=True, slots=True)
class Speed:
    """How long moves between a GPU and host memory take: a fixed time, and one in proportion to size.

    The defaults hold until this machine's own parks and resumes say better: a slow link, so that no kernel is
    moved lightly.
    """

    park_fixed_s: float = 0.05
    park_bytes_per_s: float = 8e9
    resume_fixed_s: float = 0.05
    resume_bytes_per_s: float = 8e9
    first_touch_s_per_byte: float = 0.0  # added where a park takes host memory that its process did not have

    def park_s(self, copied_bytes: float) -> float:
        """Return how long a park takes that copies `copied_bytes`."""
        return self.park_fixed_s + copied_bytes / self.park_bytes_per_s

    def resume_s(self, copied_bytes: float) -> float:
        """Return how long a resume takes that copies `copied_bytes`."""
        return self.resume_fixed_s + copied_bytes / self.resume_bytes_per_s


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel with all its processes."""

    id: str
    residency: Residency
    # movable, by GPU: no more than NVML bears out (state/gpus/gpu_processes.py)
    resident_bytes: Mapping[str, int] = field(default_factory=dict)
    parked_bytes: Mapping[str, int] = field(default_factory=dict)
    context_bytes: Mapping[str, int] = field(default_factory=dict)  # room that resuming it takes beside these
    may_park_context: bool = False  # its CUDA context may be parked too
    context_frees_bytes: Mapping[str, int] = field(default_factory=dict)  # … which frees so much, by GPU
    migration_targets: tuple[str, ...] = ()  # other GPUs that it may migrate to
    unmovable_bytes: Mapping[str, int] = field(default_factory=dict)  # unmovable, by GPU
    # of these, what a park in part left there: movable again once the rest is resumed
    left_bytes: Mapping[str, int] = field(default_factory=dict)
    last_activity: float = 0.0
    calls_in_flight: int = 0
    captures: int = 0
    cell_open: bool = False
    held_until: float | None = None
    is_parkable: bool = True
    # a process with memory is stopped or has lost its link: it may connect any moment
    is_out_of_reach: bool = False
    is_slow: bool = False  # its resume has begun, and its reservation has expired
    is_dying: bool = False
    is_split: bool = False  # some of its processes are parked, and do not ask for the GPU
    is_moving: bool = False  # a command is under way, or a process is in transition
    moves_since: float | None = None  # when the park or resume that is under way began
    wants_since: float | None = None  # a call waits at its closed gate, or the user asked for its resume
    rooms: tuple[RoomRequest, ...] = ()  # its allocations that wait for room
    park_requested: str | None = None  # the user's own request, in words for the log
    retry_at: float = 0.0  # not parked before, after refusals (a park that was asked for is tried at once)
    retry_pause_s: float = 0.0  # … which is so long after the last refusal
    # other users' kernels are parked first until then: its user's parks came to nothing
    demoted_until: float = 0.0
    resume_retry_at: float = 0.0
    # gets no room before: its user's kernels did not take what was reserved for them
    served_after: float = 0.0
    # no kernel is parked for its allocations before: they failed although there was room
    reclaim_after: float = 0.0
    allocations_fail: bool = False  # allocations failed again and again although there was room
    cgroups: tuple[str, ...] = ()  # the cgroups with a limit that count its parked memory, the nearest first
    can_drop_caches: bool = False  # its frameworks can be asked to: they were not since it last used the GPU
    user: str = ""  # its owner; "" if not known
    charged_user: str = ""  # the user that it counts for in the queue's order; "" on a user's own controller
    groups: tuple[str, ...] = ()  # of that user
    limit_bytes: int | None = None  # its user's cap of GPU memory by the grant; None: no such cap
    priority: int = 0  # its class: higher ones come first, see policy/queue.py
    is_opted_out: bool = False  # parked at its user's own request only
    # its owner lets it hibernate when it was parked for so long; inf: when host memory is short; None: it cannot now
    hibernates_after_s: float | None = None
    awake_since: float = 0.0  # all of its processes connected by then, as they do when they are woken
    parked_since: float = 0.0
    # one process on one GPU that shares no memory, with a shim that supports it
    may_be_preempted: bool = True
    may_resume_in_parts: bool = False  # it can be resumed in an exchange: one process, parked at memory depth
    # … in which host memory is handed over; also for its rest, if it was parked in part
    may_hand_over: bool = False
    resident_since: float = 0.0  # when it last came to the GPU
    started_at: float = 0.0  # of its oldest process; comparable with other kernels' only; NaN: not known
    can_be_ended: bool = False  # there is a server that can shut it down and tell its user
    is_ending: bool = False  # its server was asked to
    host: HostUse = field(default_factory=lambda: NO_HOST_USE)
    # what a park has to copy, by its last one; None: unknown, so all of it
    park_copies_bytes: int | None = None
    resume_copies_bytes: int | None = None  # … and what a resume has to
    disk_return_s: float = 0.0  # what reading from disk adds to a resume
    may_share: bool = False  # parked: it can be told to share, and was not since others had something new
    expected_until: float = 0.0  # its next use of the GPU is expected by then; 0: it is not

    @property
    def rest(self) -> Kernel:
        """Return a partly parked kernel as if its remaining GPU memory were all it has; what parking that takes is
        unknown, but it takes what is unused of the kernel's lots first.
        """
        unmovable = {uuid: size - self.left_bytes.get(uuid, 0) for uuid, size in self.unmovable_bytes.items()}
        host = replace(self.host, retained_bytes=0, park_takes_bytes=None, park_short_bytes=0)
        whole = replace(self, resident_bytes=self.left_bytes, parked_bytes={}, left_bytes={})
        return replace(whole, unmovable_bytes=unmovable, host=host)

    def is_held(self, now: float) -> bool:
        """Return whether a user's hold keeps it on the GPU."""
        return self.held_until is not None and self.held_until > now

    @property
    def footprint_bytes(self) -> int:
        """Return all its memory, wherever it is."""
        return sum(
            sum(part.values()) for part in (self.resident_bytes, self.parked_bytes, self.unmovable_bytes)
        )

    @property
    def resume_bytes(self) -> Mapping[str, int]:
        """Return the GPU memory that resuming it takes, by GPU."""
        if not self.context_bytes:
            return self.parked_bytes
        return {uuid: size + self.context_bytes.get(uuid, 0) for uuid, size in self.parked_bytes.items()}

    @property
    def movable_bytes(self) -> int:
        """Return the bytes that parking it would move to host memory, summed over GPUs."""
        return sum(self.resident_bytes.values())

    @property
    def takes_bytes(self) -> int:
        """Return the host memory that parking it probably takes, beside what it has for that already."""
        wants = self.movable_bytes
        if self.host.park_takes_bytes is not None:
            wants = min(wants, self.host.park_takes_bytes)
        return max(wants - self.host.ready_bytes, self.short_bytes)

    @property
    def short_bytes(self) -> int:
        """Return what of that a park which failed for lack of it takes for certain; it may have freed memory since."""
        wants = min(self.host.park_short_bytes, self.movable_bytes + SLACK_BYTES)
        return max(wants - self.host.ready_bytes, 0)

    def takes_within(self, budget_bytes: int | None, lot_bytes: int = 0) -> int:
        """Return the most that a park of it can take beside lots, with a budget (None: with none)."""
        most = max(self.movable_bytes - self.host.ready_bytes - lot_bytes, 0)
        return most if budget_bytes is None else min(most, budget_bytes)

    @property
    def context_copy_bytes(self) -> int:
        """Return the host memory that the driver takes for its CUDA context when that is parked too; no budget limits
        it.
        """
        return sum(self.context_frees_bytes.values()) if self.context_frees_bytes else 0

    @property
    def frees_bytes(self) -> Mapping[str, int]:
        """Return the bytes that parking it would free, by GPU."""
        context_frees = self.context_frees_bytes
        if not context_frees:
            return self.resident_bytes
        return {uuid: size + context_frees.get(uuid, 0) for uuid, size in self.resident_bytes.items()}


@dataclass(frozen=True, slots=True)
class Host:
    """The machine's memory, where parked bytes go."""

    available_bytes: int
    headroom_bytes: Mapping[str, int] = field(default_factory=dict)  # by cgroup with a limit
    total_bytes: int = 0  # may grow while the machine runs
    limit_bytes: Mapping[str, int] = field(default_factory=dict)  # by cgroup
    lot_bytes: int = 0  # touched memory of the controller's that can be lent
    makes_lots: bool = False  # the controller makes lots as quickly as a process takes memory
    # those with a limit in which lots count, as the controller's memory
    lot_cgroups: frozenset[str] = frozenset()
    disk_limit_bytes: int = 0  # parked contents on disk, of all kernels together; 0: none may go there
    disk_free_bytes: int = 0  # the room that the disk has, beside what is being written
    disk_daily_bytes: int = 0  # what may be written in 24 hours
    # … and what each charged user's kernels wrote of it
    disk_written_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that was granted and is not (surely) in NVML's figure yet."""

    kernel_id: str
    gpu: str
    bytes: int
    is_taken: bool = False  # the page shows the bytes already, and only NVML's figure may not


@dataclass(frozen=True, slots=True)
class Node:
    """The machine."""

    gpus: Mapping[str, Gpu]
    kernels: tuple[Kernel, ...]
    host: Host
    reservations: tuple[Reservation, ...] = ()
    is_settled: bool = True  # long enough after the start for shims to have connected
    is_complete: bool = True  # … even those that were waiting before another try
    speeds: Mapping[str, Speed] = field(default_factory=dict)  # by GPU, as measured here
    # when each user was last served (policy/queue.py)
    last_served: Mapping[ServedKey, float] = field(default_factory=dict)
    # how long kernels were unused between two uses, the shortest first (pauses.py)
    pauses_s: tuple[float, ...] = ()


ServedKey = tuple[str, int, str]  # a user (`Kernel.charged_user`), a priority class and a GPU


class Waiter(NamedTuple):
    """A place in the queue: a parked kernel that wants the GPU, or one allocation of a resident kernel.

    A tuple, since hundreds are made for each decision.
    """

    kernel: Kernel
    since: float
    needs: Mapping[str, int]  # bytes by GPU
    room: RoomRequest | None = None  # None: a resume
    order: float = 0.0  # its place in the queue: policy/queue.py
