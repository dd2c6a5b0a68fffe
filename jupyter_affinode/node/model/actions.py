"""The actions that `policy.decide` can return; the controller carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .reasons import Cause, Refusal


@dataclass(frozen=True)
class Park:
    """Take a kernel's GPU state to host memory."""

    kernel_id: str
    reason: str  # in words a user sees
    budget_bytes: int = 0  # the most new host memory that it may take
    lot_bytes: int = 0  # lent to it from the controller's lots, beside the budget
    to_context: bool = False  # the CUDA context too
    preempts: bool = False  # it is computing: its next call waits until it is resumed
    cause: Cause = field(default=Cause.OTHER, compare=False)
    for_kernel: str | None = field(default=None, compare=False)  # the kernel that waits for its memory
    exchanges: bool = False  # … and is resumed at the same time (policy/reclaim/exchange.py)
    hands_over: bool = False  # … and hands its host memory over (policy/reclaim/hand_over.py)


@dataclass(frozen=True)
class RefusePark:
    """Tell why a kernel that should be parked stays on the GPU."""

    kernel_id: str
    slug: Refusal
    reason: str
    figures: Mapping[str, int] = field(default_factory=dict, hash=False, compare=False)  # of it, in bytes


@dataclass(frozen=True)
class Trim:
    """Have a kernel release host memory that it retains for its next park, down to `keep_bytes`."""

    kernel_id: str
    keep_bytes: int
    reason: str


@dataclass(frozen=True)
class Spill:
    """Have a parked kernel write `bytes` of its host copy to disk; have a resident one (0 bytes) drop its retained copy
    on disk.
    """

    kernel_id: str
    bytes: int
    reason: str


@dataclass(frozen=True)
class Share:
    """Have a parked kernel share, in host memory, what its user's other kernels have, too."""

    kernel_id: str


@dataclass(frozen=True)
class ReadBack:
    """Have a parked kernel read `bytes` of its contents from disk into host memory, `lot_bytes` of them into lots."""

    kernel_id: str
    bytes: int
    reason: str
    lot_bytes: int = 0


@dataclass(frozen=True)
class Hibernate:
    """Have the server of a parked kernel, or its keeper, put all of it into an image on disk: `bytes` of GPU memory."""

    kernel_id: str
    bytes: int
    reason: str


@dataclass(frozen=True)
class GiveLots:
    """Lend lots to a kernel that is likely to be parked, so that it can register them with the GPU ahead of time."""

    kernel_id: str
    lot_bytes: int


@dataclass(frozen=True)
class MakeLots:
    """Touch lots of `bytes` for a kernel that is to be parked; a later pass parks it."""

    kernel_id: str
    bytes: int


@dataclass(frozen=True)
class DropCaches:
    """Ask a kernel's frameworks to empty their GPU caches; a later pass parks the kernel."""

    kernel_id: str
    reason: str


@dataclass(frozen=True)
class Resume:
    """Resume a kernel; `reserved_bytes` are reserved for it by GPU until it is resident."""

    kernel_id: str
    reserved_bytes: Mapping[str, int] = field(hash=False)
    reason: str
    cause: Cause = field(default=Cause.OTHER, compare=False)
    gpu: str | None = None  # migrate to this GPU; None: resume where it was


@dataclass(frozen=True)
class GrantRoom:
    """Tell a waiting allocation that there is room, so that it is tried again."""

    kernel_id: str
    key: tuple[int, int]  # of the RoomRequest
    gpu: str
    bytes: int


@dataclass(frozen=True)
class DenyRoom:
    """Tell a waiting allocation that there can be no room: the program sees its out-of-memory error."""

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
    | Share
    | ReadBack
    | Hibernate
    | GiveLots
    | MakeLots
    | DropCaches
    | Resume
    | GrantRoom
    | DenyRoom
    | EndKernel
)
