"""Records of what is under way in a kernel's processes, and of how requests ended.

A kernel has one operation at a time (`KernelRecord.operation`). Its participants are the kernel's processes, or, in an
exchange, the parks of other kernels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from ...model.actions import Park, Resume
from ...model.reasons import Refusal
from ...protocol.wire import CommandKind, Reply, Status

if TYPE_CHECKING:
    from .kernel import KernelRecord


class Phase(Enum):
    """How far an operation is. DIRECT has one step: every process's reply ends it."""

    DIRECT = "direct"
    PREPARING = "preparing"
    COMMITTING = "committing"
    ABORTING = "aborting"


@dataclass
class Participant:
    """A process that takes part in an operation."""

    epoch: int | None = None  # of its command; None: it is told when the others are to COMMIT
    is_prepared: bool = False  # it waits for COMMIT or ABORT …
    lacks_bytes: int = 0  # … and lacks that much host memory, if it said so
    reply: Reply | None = None  # its last
    is_lost: bool = False  # its last reply is not waited for any more
    had_bytes: int | None = None  # the host memory that it had before a spill, by the operating system

    @property
    def is_awaited(self) -> bool:
        """Return whether its last reply is still to come."""
        return self.reply is None and not self.is_lost


@dataclass(eq=False, kw_only=True)
class Operation:
    """Something that is under way in the processes of a kernel."""

    kernel: KernelRecord = field(repr=False)
    began: float
    command: CommandKind  # what its participants are told
    participants: dict[int, Participant] = field(default_factory=dict)  # by process
    phase: Phase = Phase.DIRECT
    decided_at: float | None = None  # when they were told to COMMIT or ABORT
    failure: tuple[Status, str] | None = None  # why it was aborted
    exchange: Exchange | None = None  # that it is a part of

    @property
    def awaited(self) -> dict[int, Participant]:
        """Return the participants whose last replies are to come."""
        return {key: each for key, each in self.participants.items() if each.is_awaited}

    @property
    def replies(self) -> dict[int, Reply]:
        """Return the last replies, by process."""
        return {key: each.reply for key, each in self.participants.items() if each.reply is not None}

    @property
    def lost(self) -> set[int]:
        """Return the processes that gave no last reply and will give none."""
        return {key for key, each in self.participants.items() if each.is_lost}

    @property
    def is_prepared(self) -> bool:
        """Return whether all participants wait for COMMIT or ABORT: how long it takes from now on is not their
        fault.
        """
        awaited = self.awaited.values()
        return self.phase is Phase.PREPARING and bool(awaited) and all(each.is_prepared for each in awaited)

    @property
    def is_over(self) -> bool:
        """Return whether no participant has anything left to do."""
        return not self.awaited


@dataclass(eq=False, kw_only=True)
class ParkMove(Operation):
    """A park."""

    command: CommandKind = CommandKind.PARK
    action: Park
    is_asked: bool  # its user asked for it
    in_part: bool = False  # it parks the rest of a partly parked kernel; there is nothing to prepare
    is_called_off: bool = False  # aborted in an exchange for a reason that is not its kernel's
    is_done: bool = False  # all processes that live are parked
    claims: Mapping[str, Claimed] = field(default_factory=dict)  # by GPU, see failed_moves.py
    is_late: bool = False  # it lasts so long that this counted as a failure (failed_moves.py)
    is_hollow: bool = False  # its memory is not free, whatever its shims say


@dataclass(eq=False, kw_only=True)
class ResumeMove(Operation):
    """A resume."""

    command: CommandKind = CommandKind.RESUME
    action: Resume
    from_gpu: str = ""  # where it was
    from_context: bool = False  # its CUDA context had been parked too
    waited_s: float | None = None  # in the queue, when it began
    # NVML showed no progress for so long that its reservation expired (reservations.py) …
    is_given_up: bool = False
    has_begun: bool = False  # … although NVML had shown progress


Move = ParkMove | ResumeMove


@dataclass(frozen=True)
class Claimed:
    """What a kernel has on a GPU before a park, to see afterwards whether that freed it."""

    bytes: int
    before_bytes: int  # in use by the pids of its processes, or by no kernel
    pids: frozenset[int] | None  # None: NVML does not name them


@dataclass(eq=False, kw_only=True)
class Exchange(Operation):
    """Kernels that prepare to leave the GPU while a waiter comes in: it is the waiter's operation until it is decided,
    then its resume is (execution/exchanges.py).
    """

    command: CommandKind = CommandKind.COMMIT
    parks: list[ParkMove] = field(default_factory=list)
    hands_over: bool = False  # the waiter hands its host memory over to them

    @property
    def under_way(self) -> list[ParkMove]:
        """Return the parks that have not ended."""
        return [park for park in self.parks if park.kernel.operation is park]

    @property
    def is_prepared(self) -> bool:
        """Return whether all parks wait for COMMIT or ABORT."""
        return all(park.is_prepared for park in self.parks)

    @property
    def is_over(self) -> bool:
        """Return whether it is decided; what it began goes on by itself."""
        return self.phase is not Phase.PREPARING


@dataclass(eq=False, kw_only=True)
class DiskTransfer(Operation):
    """A spill of a kernel's parked memory, its way back into host memory, or all of it into an image, for which its
    processes leave (execution/disk_transfers.py).
    """

    asked_bytes: int  # 0: a resident kernel's retained copy on disk is dropped
    before_bytes: int  # what its processes had on disk
    was_wanted: bool = False  # it waited for the GPU already
    # given back by those that have answered, by the operating system; None: that cannot be seen
    freed_bytes: int | None = 0
    problem: str | None = None  # what the disk said
    is_deception: bool = False  # it kept others waiting, and no disk was at fault
    progress_bytes: int = 0  # the most that was seen to have moved
    progress_at: float
    patience_s: float  # without progress for so long, others do not wait for it any more
    done: asyncio.Future[Outcome] | None = None  # of one into an image

    @property
    def hibernates(self) -> bool:
        """Return whether it goes into an image."""
        return self.command is CommandKind.HIBERNATE

    @property
    def reads(self) -> bool:
        """Return whether it goes from disk into host memory."""
        return self.command is CommandKind.READ_BACK

    @property
    def moved_bytes(self) -> int:
        """Return what those that have answered moved; their words have no more weight than what was asked for."""
        return min(sum(reply.bytes for reply in self.replies.values()), self.asked_bytes)


@dataclass(eq=False, kw_only=True)
class CacheDrop(Operation):
    """A request to a kernel's frameworks to drop their caches (execution/cache_drops.py)."""

    command: CommandKind = CommandKind.DROP_CACHES


@dataclass(eq=False, kw_only=True)
class Sharing(Operation):
    """A parked process shares host memory with its user's others (execution/sharing.py)."""

    command: CommandKind = CommandKind.SHARE
    seen: Seen  # what it goes by
    then: Callable[[], object] | None = None  # what waits for its end


@dataclass(frozen=True)
class Seen:
    """Up to when a parked process has looked at what its user's others have."""

    parks: int  # its own by then
    news: int  # how often the others had put something new there


@dataclass(frozen=True)
class Outcome:
    """How a user's request ended."""

    status: Status
    slug: Refusal | None  # None if it was done, or so already
    text: str

    @property
    def refusal(self) -> Refusal | None:
        """Return why it was refused; None also where nothing had to be moved, or could be: then it is so already."""
        return None if self.status in (Status.OK, Status.NOTHING) else self.slug


# Of a request whose kernel has no process any more, or was shut down.
KERNEL_ENDED = Outcome(Status.REFUSED, Refusal.KERNEL_ENDED, "the kernel has ended")
