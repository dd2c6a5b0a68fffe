"""What the policy sees: a frozen picture of the node at one moment.

Made by `state.NodeState.snapshot` on every pass, by the property tests and by the planner.
Times are monotonic seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple


class Residency(str, Enum):
    """Where a kernel's GPU state is."""

    NONE = "none"
    RESIDENT = "resident"
    PARKING = "parking"
    PARKED = "parked"
    QUEUED = "queued"
    RESUMING = "resuming"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    uuid: str
    free_bytes: int  # NVML's figure, or without NVML an estimate from what succeeded and failed
    total_bytes: int | None = None  # None without NVML
    sampled_at: float = 0.0  # when the look that gave `free_bytes` began
    uncertain_bytes: int = 0  # how much our kernels' memory changed around then: `free_bytes` may miss that
    is_reclaiming: bool = False  # fell under the low watermark and has not reached the high one since
    is_outdated: bool = False  # a kernel came or left since: a newer figure comes in a moment
    index: int | None = None  # NVML's number, for what users are told

    @property
    def is_measured(self) -> bool:
        """Whether the figures are NVML's."""
        return self.total_bytes is not None


@dataclass(frozen=True, slots=True)
class RoomRequest:
    """An allocation that met a full GPU and waits for room."""

    key: tuple[int, int]  # the process (as numbered by the state) and the request's number
    gpu: str
    bytes: int
    since: float
    is_courtesy: bool = False  # before a kernel starts: idle kernels make room for it, those at work do not


@dataclass(frozen=True, slots=True)
class HostUse:
    """A kernel's use of host memory: what it keeps from its last park, and what its next one takes."""

    is_frugal: bool = False  # its shims keep to a park's budget and can be asked to give back what they keep
    kept_bytes: int = 0  # from its last park, for its next
    trimmable_bytes: int = 0  # … of that, what it can be asked to give back
    trimming_bytes: int = 0  # … of that, what it was asked to give back a moment ago
    kept_since: float = 0.0
    lot_bytes: int = 0  # of the lots it has, whatever is in them
    lots_most_bytes: int | None = (
        None  # no more lots: NVML bears out so much of its GPU memory; None: not known
    )
    park_takes_bytes: int | None = None  # probably, by its last park: zeros take nothing. None: unknown
    park_short_bytes: int = 0  # a park of what it has now was tried, and takes at least this
    budget_bytes: int | None = None  # what the park under way may take anew; None: no limit
    retry_at: float = (
        0.0  # parks were refused for want of it: nothing is said, or tried that is unlikely, before
    )
    copy_bytes: int = 0  # of a parked kernel's contents: free when it has come back, if it keeps nothing
    awaits_bytes: int = 0  # lots promised to its park under way, but for what its waiter gives back meanwhile
    spillable_bytes: int = 0  # parked contents in host memory that it can be told to write to disk
    spilling_bytes: int = 0  # … was told to a moment ago, and has not yet
    disk_bytes: int = 0  # on disk: parked contents, or what a resident kernel keeps there for its next park
    disk_kept_bytes: int = 0  # … of that, what a resident kernel can be told to forget


NO_HOST_USE = HostUse()


@dataclass(frozen=True, slots=True)
class Speed:
    """How long moves between a GPU and host memory take: a fixed part, and one by size.

    The defaults hold until this machine's own parks and resumes say better: a slow link, so that no kernel is
    moved lightly.
    """

    park_fixed_s: float = 0.05
    park_bytes_per_s: float = 8e9
    resume_fixed_s: float = 0.05
    resume_bytes_per_s: float = 8e9
    first_touch_s_per_byte: float = (
        0.0  # beside that, where a park takes host memory that its process did not have
    )

    def park_s(self, copied_bytes: float) -> float:
        """How long a park takes that copies so much."""
        return self.park_fixed_s + copied_bytes / self.park_bytes_per_s

    def resume_s(self, copied_bytes: float) -> float:
        """How long a resume takes that copies so much."""
        return self.resume_fixed_s + copied_bytes / self.resume_bytes_per_s


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel with all its processes."""

    id: str
    residency: Residency
    resident_bytes: Mapping[str, int] = field(default_factory=dict)  # movable, by GPU
    parked_bytes: Mapping[str, int] = field(default_factory=dict)
    context_bytes: Mapping[str, int] = field(default_factory=dict)  # room that coming back takes beside these
    may_leave: bool = False  # its CUDA context may go too when it is parked
    leaves_bytes: Mapping[str, int] = field(default_factory=dict)  # … of which that frees so much, by GPU
    most_bytes: Mapping[str, int] = field(
        default_factory=dict
    )  # no more can become free; where it claims more
    elsewhere: tuple[str, ...] = ()  # other GPUs on which it may come back
    fixed_bytes: Mapping[str, int] = field(default_factory=dict)
    left_bytes: Mapping[str, int] = field(
        default_factory=dict
    )  # of these, what a park that failed half-way left there: movable again when the rest is back
    last_activity: float = 0.0
    calls_in_flight: int = 0
    captures: int = 0
    cell_open: bool = False
    held_until: float | None = None
    is_parkable: bool = True
    is_out_of_reach: bool = (
        False  # a process with memory is stopped or has lost its link: it may be back any moment
    )
    is_slow: bool = False  # it took memory for a resume that lasts so long that nothing is reserved for it
    is_dying: bool = False
    is_split: bool = False  # a part of its processes is parked, and does not ask for the GPU
    is_moving: bool = False  # a command is under way, or a process is in transition
    moves_since: float | None = None  # when the park or resume that is under way began
    wants_since: float | None = None  # a call waits at its closed gate, or the user asked for it back
    rooms: tuple[RoomRequest, ...] = ()
    park_asked: str | None = None  # the user's own request, in words for the log
    retry_at: float = 0.0  # no park before, after refusals (a park that was asked for is tried at once)
    retry_pause_s: float = 0.0  # … and how long after the last refusal that is
    behind_until: float = 0.0  # others' kernels are asked first until then: its user's parks came to nothing
    resume_retry_at: float = 0.0
    served_after: float = (
        0.0  # it is given no room before: its user's kernels did not take what was reserved for them
    )
    reclaim_after: float = (
        0.0  # until then no kernel is parked for its allocations: they failed although there was room
    )
    hopeless: bool = False  # allocations failed again and again although there was room
    cgroups: tuple[
        str, ...
    ] = ()  # whose headroom parking it uses: its own and those above it that have a limit
    can_drop_caches: bool = False  # its frameworks were not asked since it last used the GPU
    user: str = ""  # its owner; "" if not known
    payer: str = ""  # the user whose turns it takes; "" on a user's own controller, where there are no others
    groups: tuple[str, ...] = ()  # of that user
    limit_bytes: int | None = None  # GPU memory that its user's grant allows them in all; None: no such cap
    priority: int = 0  # its class: higher ones go first, see policy/queue.py
    is_opted_out: bool = False  # never parked but by its user's own request
    may_be_preempted: bool = True  # one process on one GPU that shares no memory, with a shim that knows how
    may_go_in_parts: bool = False  # its processes can be parked in an exchange …
    may_come_in_parts: bool = False  # … and resumed in one: one process, parked at memory depth
    may_hand_over: bool = False  # … in which host memory goes from one to the other; or so parked in part
    resident_since: float = 0.0  # since when it has had the GPU without a park in between
    started_at: float = 0.0  # its oldest process; comparable with other kernels' alone; NaN: not known
    can_be_ended: bool = False  # there is a server that can shut it down and tell its user
    is_ending: bool = False  # that was asked of the server
    host: HostUse = field(default_factory=lambda: NO_HOST_USE)
    park_copies_bytes: int | None = None  # what a park has to copy, by its last one; None: unknown, all of it
    resume_copies_bytes: int | None = None  # … and what the way back has
    disk_return_s: float = 0.0  # what reading back what it has on disk adds to the way back
    expected_until: float = 0.0  # its next use of the GPU is expected by then; 0: it is not

    @property
    def rest(self) -> Kernel:
        """Itself, parked in part, as if what it has on the GPU were all of it; what parking that takes is not known."""
        fixed = {uuid: size - self.left_bytes.get(uuid, 0) for uuid, size in self.fixed_bytes.items()}
        host = replace(self.host, kept_bytes=0, lot_bytes=0, park_takes_bytes=None, park_short_bytes=0)
        whole = replace(self, resident_bytes=self.left_bytes, parked_bytes={}, left_bytes={})
        return replace(whole, fixed_bytes=fixed, host=host)

    @property
    def footprint_bytes(self) -> int:
        """All its memory, wherever it is."""
        return sum(sum(part.values()) for part in (self.resident_bytes, self.parked_bytes, self.fixed_bytes))

    @property
    def resume_bytes(self) -> Mapping[str, int]:
        """Room that bringing it back takes."""
        if not self.context_bytes:
            return self.parked_bytes
        return {uuid: size + self.context_bytes.get(uuid, 0) for uuid, size in self.parked_bytes.items()}

    @property
    def movable_bytes(self) -> int:
        """What parking it would take to host memory, of all GPUs."""
        return sum(self.resident_bytes.values())

    @property
    def believed_bytes(self) -> Mapping[str, int]:
        """Its movable memory by GPU, as far as it can be true."""
        if not self.most_bytes:
            return self.resident_bytes
        return {
            uuid: min(size, self.most_bytes.get(uuid, size)) for uuid, size in self.resident_bytes.items()
        }

    @property
    def image_bytes(self) -> int:
        """Host memory that the driver takes for the CUDA context, if that goes too; no budget limits it."""
        return sum(self.leaves_bytes.values()) if self.leaves_bytes else 0

    @property
    def frees_bytes(self) -> Mapping[str, int]:
        """What parking it would free by GPU."""
        leaves = self.leaves_bytes
        if not leaves:
            return self.believed_bytes if self.most_bytes else self.resident_bytes
        return {uuid: size + leaves.get(uuid, 0) for uuid, size in self.believed_bytes.items()}


@dataclass(frozen=True, slots=True)
class Host:
    """The machine's memory, where parked bytes go."""

    available_bytes: int
    headroom_bytes: Mapping[str, int] = field(default_factory=dict)  # by cgroup, where there is a limit
    total_bytes: int = 0  # may grow while the machine runs
    limit_bytes: Mapping[str, int] = field(default_factory=dict)  # by cgroup
    lot_bytes: int = 0  # touched memory of the controller's that can be lent to a kernel that is parked
    makes_lots: bool = False  # as quickly as a process takes memory, and as much as parks need
    lot_cgroups: frozenset[str] = (
        frozenset()
    )  # those with a limit that lots count in, as the controller's memory
    disk_limit_bytes: int = 0  # parked contents on disk, of all kernels together; 0: none may go there
    disk_writable_bytes: int = (
        0  # what may be written there now: by the disk's room, and by what was written today
    )


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that was granted and is not (surely) in NVML's figure yet."""

    kernel_id: str
    gpu: str
    bytes: int
    is_taken: bool = False  # its shim's page shows the bytes already, only NVML's figure may not


@dataclass(frozen=True, slots=True)
class Node:
    """The machine."""

    gpus: Mapping[str, Gpu]
    kernels: tuple[Kernel, ...]
    host: Host
    reservations: tuple[Reservation, ...] = ()
    is_settled: bool = True  # long enough after the start that shims have said HELLO
    is_complete: bool = True  # … even those that were just waiting before they would try again
    speeds: Mapping[str, Speed] = field(default_factory=dict)  # by GPU, as measured here
    turns: Mapping[Line, float] = field(
        default_factory=dict
    )  # when each user was last served (policy/queue.py)


Line = tuple[str, int, str]  # a user (`Kernel.payer`), a priority class and a GPU


class Waiter(NamedTuple):
    """A place in the queue: a parked kernel that wants the GPU, or one allocation of a resident kernel.

    A tuple, since hundreds are made for each decision.
    """

    kernel: Kernel
    since: float
    needs: Mapping[str, int]  # bytes by GPU
    room: RoomRequest | None = None  # None: a resume
    order: float = 0.0  # its place in the queue: policy/queue.py
