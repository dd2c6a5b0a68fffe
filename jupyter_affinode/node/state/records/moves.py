"""What the controller remembers of what is under way in a kernel's processes, and of how requests ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ...model.reasons import Cause, Refusal
from ...protocol.wire import Reply, Status


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

    @property
    def is_prepared(self) -> bool:
        """Whether all its processes wait for COMMIT or ABORT: what it takes from now on is not their fault."""
        return self.phase is Phase.PREPARING and bool(self.pending) and self.pending.keys() == self.prepared


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
    is_unanswered: bool = False  # a process did not say how much it wrote
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
