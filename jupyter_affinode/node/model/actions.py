"""What `policy.decide` can answer; carried out by the controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .reasons import Cause, Refusal


@dataclass(frozen=True)
class Park:
    """Take a kernel's GPU state to host memory."""

    kernel_id: str
    reason: str  # in words a user sees
    budget_bytes: int = 0  # host memory that it may take anew at most
    lot_bytes: int = 0  # handed to it from the controller's lots, beside that
    to_context: bool = False  # the CUDA context too
    preempts: bool = False  # it is busy: its next call waits until it has its turn again
    cause: Cause = field(default=Cause.OTHER, compare=False)
    for_kernel: str | None = field(default=None, compare=False)  # the kernel that waits for its memory
    exchanges: bool = False  # … and that comes in while this one goes out (policy/reclaim/exchange.py)
    hands_over: bool = False  # … and gives this one its host memory meanwhile (policy/reclaim/hand_over.py)


@dataclass(frozen=True)
class RefusePark:
    """A kernel that should be parked cannot be: it stays, and the reason is told."""

    kernel_id: str
    slug: Refusal
    reason: str
    figures: Mapping[str, int] = field(default_factory=dict, hash=False, compare=False)  # of it, in bytes


@dataclass(frozen=True)
class Trim:
    """Have a kernel give back host memory that it keeps for its next park, down to `keep_bytes`."""

    kernel_id: str
    keep_bytes: int
    reason: str


@dataclass(frozen=True)
class Spill:
    """Have a parked kernel write so much of what it has in host memory to disk; a resident one (0 bytes) forget what is
    only kept on disk for its next park.
    """

    kernel_id: str
    bytes: int
    reason: str


@dataclass(frozen=True)
class GiveLots:
    """Hand lots to a kernel that is likely to be parked, so that it can have them ready for the GPU by then."""

    kernel_id: str
    lot_bytes: int


@dataclass(frozen=True)
class MakeLots:
    """Have lots of so many bytes ready for a kernel that is to be parked; it is parked in a later pass."""

    kernel_id: str
    bytes: int


@dataclass(frozen=True)
class DropCaches:
    """Ask a kernel's frameworks to drop what they only cache on the GPU; it is parked in a later pass."""

    kernel_id: str
    reason: str


@dataclass(frozen=True)
class Resume:
    """Bring a kernel back; `reserved_bytes` by GPU are its own until it is resident."""

    kernel_id: str
    reserved_bytes: Mapping[str, int] = field(hash=False)
    reason: str
    cause: Cause = field(default=Cause.OTHER, compare=False)
    gpu: str | None = None  # on this GPU, not the one that it left; None: where it was


@dataclass(frozen=True)
class GrantRoom:
    """There is room for an allocation: it is tried again."""

    kernel_id: str
    key: tuple[int, int]  # of the RoomRequest
    gpu: str
    bytes: int


@dataclass(frozen=True)
class DenyRoom:
    """There can be no room for an allocation: the program sees its out-of-memory."""

    kernel_id: str
    key: tuple[int, int]
    reason: str
    cause: Cause = field(default=Cause.OTHER, compare=False)


@dataclass(frozen=True)
class EndKernel:
    """Have the kernel's own Jupyter server shut it down and tell its user why."""

    kernel_id: str
    reason: str
    cause: Cause = field(default=Cause.OTHER, compare=False)
    for_kernel: str | None = field(default=None, compare=False)


Action = (
    Park
    | RefusePark
    | Trim
    | Spill
    | GiveLots
    | MakeLots
    | DropCaches
    | Resume
    | GrantRoom
    | DenyRoom
    | EndKernel
)
