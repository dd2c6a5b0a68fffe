"""Records of what is under way in a kernel's processes, and of how requests ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ...model.reasons import Cause, Refusal
from ...protocol.wire import Reply, Status


class Phase(Enum):
    """How far a move is. DIRECT has one step: every process's reply ends it."""

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
    # the processes that were told: key, epoch of the command
    epochs: dict[int, int] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)  # of these, those whose last reply is awaited
    to_context: bool = False  # PARK: the CUDA context too
    preempts: bool = False  # PARK: although it computes
    prepared: set[int] = field(default_factory=set)  # of these, those that wait for COMMIT or ABORT
    lacks: dict[int, int] = field(default_factory=dict)  # … and the host memory that these lack, if told
    replies: dict[int, Reply] = field(default_factory=dict)  # the last replies
    gone: set[int] = field(default_factory=set)
    failure: tuple[Status, str] | None = None  # why it was aborted
    decided_at: float | None = None
    for_kernel: str | None = None  # PARK: the kernel that waits for its memory
    claims: Mapping[str, Claimed] = field(default_factory=dict)  # PARK: by GPU, see failed_moves.py
    is_late: bool = False  # PARK: it lasts so long that this counted as a failure (failed_moves.py)
    is_hollow: bool = False  # PARK: its memory is not free, whatever its shims say
    # RESUME: NVML showed no progress for so long that its reservation expired (reservations.py)
    is_given_up: bool = False
    has_begun: bool = False  # … although NVML had shown progress
    cause: Cause = Cause.OTHER
    from_context: bool = False  # RESUME: its CUDA context had been parked too
    gpu: str | None = None  # RESUME: the GPU that it migrates to
    from_gpu: str | None = None  # … and from
    waited_s: float | None = None  # RESUME: in the queue, when it began
    exchange: Exchange | None = None  # that it is a part of
    in_part: bool = False  # PARK: of the rest of a partly parked kernel; there is nothing to prepare
    is_called_off: bool = False  # PARK: aborted in an exchange for a reason that is not its kernel's

    @property
    def is_prepared(self) -> bool:
        """Return whether all its processes wait for COMMIT or ABORT: how long it takes from now on is not their
        fault.
        """
        return self.phase is Phase.PREPARING and bool(self.pending) and self.pending.keys() == self.prepared


@dataclass(frozen=True)
class Claimed:
    """What a kernel has on a GPU before a park, to see afterwards whether that freed it."""

    bytes: int
    before_bytes: int  # in use by the pids of its processes, or by no kernel
    pids: frozenset[int] | None  # None: NVML does not name them


@dataclass(eq=False)
class Exchange:
    """Kernels that leave the GPU while a waiter comes in (execution/exchanges.py)."""

    waiter_id: str
    parks: dict[str, Move] = field(default_factory=dict)  # by kernel
    is_decided: bool = False  # begun, or called off
    parked: set[str] = field(default_factory=set)  # the kernels that have left
    hands_over: bool = False  # the waiter hands its host memory over to them


@dataclass
class CacheDrop:
    """A request to a kernel's frameworks to drop their caches."""

    began: float
    pending: dict[int, int] = field(default_factory=dict)  # process key: epoch of the command


@dataclass
class SpillRecord:
    """A spill of a kernel's parked memory that is under way, or its way back into host memory."""

    began: float
    asked_bytes: int  # 0: a resident kernel's retained copy on disk is dropped
    before_bytes: int  # what its processes had on disk
    is_wanted: bool = False  # it waited for the GPU already
    reads: bool = False  # from disk into host memory
    pending: dict[int, int] = field(default_factory=dict)  # process key: epoch of the command
    had_bytes: dict[int, int] = field(default_factory=dict)  # … and the host memory that it had before
    freed_bytes: int | None = (
        0  # … by the operating system, of those that have answered; None: that cannot be seen
    )
    moved_bytes: int = 0  # by those that have answered
    failure: str | None = None  # what the disk said
    is_deception: bool = False  # it kept others waiting, and no disk was at fault
    is_ended: bool = False  # they were told to end it
    is_unanswered: bool = False  # a process did not say how much it wrote
    progress_bytes: int = 0  # the most that was seen to have moved
    progress_at: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """How a user's request ended."""

    status: Status
    slug: Refusal | None  # None if it was done
    text: str


# Of a request whose kernel has no process any more, or was shut down.
KERNEL_ENDED = Outcome(Status.REFUSED, Refusal.KERNEL_ENDED, "the kernel has ended")
