"""The page: what a shim publishes about its process in a sealed memfd, parsed without trust.

Layout: `struct affinode_page` of shim/src/protocol.h. The shim writes, we only map it to read.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from .peer_clock import PeerClock
from .wire import LARGEST_BYTES, PROTOCOL_VERSION, gpu_uuid

PAGE_MAGIC = 0x47504641
PAGE_SIZE = 4096
MAX_GPUS = 8

HEAD = struct.Struct("=IHHiIIIQQQQIIII")  # magic … gpu_count
TAIL = struct.Struct("=8x8Q6Q5QIIQQ")  # calls … context_bytes
CALL_CLASSES = 8
GPU = struct.Struct("=16sQQ8Q")
DISK = struct.Struct("=QQQ")  # behind the GPUs: disk_bytes …
COUNTED = struct.Struct("=QI4x")  # counted_since_ns, entry_point_count
ENTRY_POINT = struct.Struct("=56sQ")
SHARED = struct.Struct("=QQ")  # behind the entry points: shared_bytes, shared_part_bytes
MAX_ENTRY_POINTS = 20
SEQUENCE = struct.Struct("=Q")
SEQUENCE_OFFSET = 24
HEARTBEAT = struct.Struct("=Q")
HEARTBEAT_OFFSET = 48
STEADY = (
    slice(0, 24),
    slice(32, 48),
    slice(56, None),
)  # all but `sequence` and `heartbeat_ns`, which always change
DISK_OFFSET = HEAD.size + TAIL.size + MAX_GPUS * GPU.size
COUNTED_OFFSET = DISK_OFFSET + DISK.size
SHARED_OFFSET = COUNTED_OFFSET + COUNTED.size + MAX_ENTRY_POINTS * ENTRY_POINT.size
USED_BYTES = SHARED_OFFSET + SHARED.size


class _Head(NamedTuple):
    """The fields of HEAD."""

    magic: int
    version: int
    size_of_gpu: int
    pid: int
    flags: int
    state: int
    want: int
    sequence: int
    state_since_ns: int
    last_activity_ns: int
    heartbeat_ns: int
    calls_in_flight: int
    captures: int
    epoch: int
    gpu_count: int


class _Tail(NamedTuple):
    """The fields of TAIL behind the counts of calls by class."""

    parks: int
    resumes: int
    park_ns: int
    park_bytes: int
    resume_ns: int
    resume_bytes: int
    copy_bytes: int
    retained_bytes: int
    copied_bytes: int
    zero_bytes: int
    mended_chunks: int
    depth: int
    context_gpu: int
    lot_bytes: int
    context_bytes: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return all fields that are bytes."""
        moved = self.park_bytes, self.resume_bytes, self.copied_bytes, self.zero_bytes
        return *moved, self.copy_bytes, self.retained_bytes, self.lot_bytes, self.context_bytes


class PageError(Exception):
    """The page is malformed; the message says why, for one log line."""


class State(enum.IntEnum):
    """`enum affinode_state`: where a process's GPU state is."""

    NONE = 0
    RESIDENT = 1
    PARKING = 2
    PARKED = 3
    QUEUED = 4
    RESUMING = 5
    LOST = 6


class UnmovableReason(enum.IntEnum):
    """`enum affinode_unmovable`: why bytes stay on the GPU when the rest is parked."""

    SMALL = 0
    MANAGED = 1
    MAPPED = 2
    POOL = 3
    ARRAY = 4
    SHARED = 5
    UNBACKED = 6
    DEVICE = 7


class CallClass(enum.IntEnum):
    """`enum affinode_class`."""

    HOST = 0
    QUERY = 1
    FREE = 2
    LAUNCH = 3
    COPY = 4
    ALLOC = 5
    SYNC = 6
    MODULE = 7


class Depth(enum.IntEnum):
    """`enum affinode_depth`: how deeply a process is parked."""

    NONE = 0
    MEMORY = 1  # device memory; the context stays
    CONTEXT = 2  # everything


STATES, DEPTHS = frozenset(State), frozenset(Depth)


class PageFlag(enum.IntFlag):
    """`enum affinode_page_flags`. A test of one is an int, as with `HelloFlag`."""

    __and__ = __rand__ = int.__and__  # type: ignore[assignment]

    SIMULATED = 1
    UNPARKABLE = 2
    DYING = 4
    CANCELLING = 8
    DROPS_CACHES = 16
    INTEGRATED = 32  # a GPU's memory is the host's


@dataclass(frozen=True)
class PageGpu:
    """A process's memory on one GPU."""

    uuid: str
    resident_bytes: int  # movable, on the GPU now
    parked_bytes: int
    unmovable_bytes: tuple[int, ...]  # by UnmovableReason

    @classmethod
    def off_gpu(cls, uuid: str, size: int) -> PageGpu:
        """Return memory of which nothing is on the GPU."""
        return cls(uuid, 0, size, (0,) * len(UnmovableReason))

    @property
    def on_gpu_bytes(self) -> int:
        """Return what is on the GPU now, movable or not."""
        return self.resident_bytes + sum(self.unmovable_bytes)

    @property
    def in_all_bytes(self) -> int:
        """Return all of it, wherever it is."""
        return self.on_gpu_bytes + self.parked_bytes


@dataclass(frozen=True)
class PageData:
    """One consistent look at a page; times are seconds of our CLOCK_MONOTONIC, never in the future."""

    state: State
    state_since: float
    last_activity: float  # 0 if there was none yet
    flags: PageFlag
    want: int  # calls waiting at the closed gate
    calls_in_flight: int
    captures: int
    epoch: int  # of the last command that was begun
    parks: int
    resumes: int
    last_park: tuple[int, float] | None  # bytes, seconds
    last_resume: tuple[int, float] | None
    gpus: tuple[PageGpu, ...]
    copy_bytes: int = 0  # host memory that holds parked contents
    retained_bytes: int = 0  # host memory retained for the next park; TRIM releases it
    last_park_copied_bytes: int = 0  # of the last park's bytes; the rest had not changed since the one before
    last_park_zero_bytes: int = 0
    mended_chunks: int = 0  # chunks that were wrong after a resume's first copy, and right after another
    depth: Depth = Depth.NONE
    lot_bytes: int = 0  # of all lots that it has mapped
    context_bytes: int = 0  # at context depth: what its resume needs beside its parked bytes …
    context_gpu: str = ""  # … and of which GPU; "": an older shim does not say
    calls: tuple[int, ...] = ()  # how many there were of each class, enum affinode_class
    disk_bytes: int = 0  # contents on disk: parked ones, or a resident process's retained copy
    last_resume_disk_bytes: int = 0  # that came from disk
    counted_since: float | None = None  # while calls are counted by entry point
    entry_points: tuple[tuple[str, int], ...] = ()  # … those called most, and how often
    shared_bytes: int = 0  # contents or retained copies in host memory that other processes have, too
    shared_part_bytes: int = 0  # its part of the host memory that these take

    @cached_property
    def resident_bytes(self) -> int:
        """Return what can be moved and is on GPUs."""
        return sum([gpu.resident_bytes for gpu in self.gpus])


def parse_page(raw: bytes, now: float, clock: PeerClock | None = None) -> PageData:
    """Parse and check the bytes of a page; raises PageError and nothing else.

    `clock`: that of the process, whose times are in the page; None: ours.
    """
    clock = clock or PeerClock()
    if len(raw) < USED_BYTES:
        raise PageError(f"a page of {len(raw)} bytes")
    head = _Head._make(HEAD.unpack_from(raw))
    _check_head(head)
    rest = TAIL.unpack_from(raw, HEAD.size)
    tail = _Tail._make(rest[CALL_CLASSES:])
    disk = DISK.unpack_from(raw, DISK_OFFSET)
    shared = SHARED.unpack_from(raw, SHARED_OFFSET)
    _plausible(*tail.sizes, *disk, *shared)
    if tail.depth not in DEPTHS:
        raise PageError(f"a page with depth {tail.depth}")
    gpus = tuple(_gpu(raw, index) for index in range(head.gpu_count))
    if len({gpu.uuid for gpu in gpus}) != len(gpus):
        raise PageError("a page that names a GPU twice")
    return PageData(
        state=State(head.state),
        state_since=min(clock.ours_s(head.state_since_ns), now),
        last_activity=min(clock.ours_s(head.last_activity_ns), now),
        flags=PageFlag(head.flags & 0x3F),
        want=head.want,
        calls_in_flight=head.calls_in_flight,
        captures=head.captures,
        epoch=head.epoch,
        parks=tail.parks,
        resumes=tail.resumes,
        last_park=(tail.park_bytes, tail.park_ns / 1e9) if tail.parks else None,
        last_resume=(tail.resume_bytes, tail.resume_ns / 1e9) if tail.resumes else None,
        gpus=gpus,
        copy_bytes=tail.copy_bytes,
        retained_bytes=tail.retained_bytes,
        last_park_copied_bytes=tail.copied_bytes,
        last_park_zero_bytes=tail.zero_bytes,
        lot_bytes=tail.lot_bytes,
        mended_chunks=tail.mended_chunks,
        depth=Depth(tail.depth),
        context_bytes=tail.context_bytes,
        context_gpu=gpus[tail.context_gpu - 1].uuid if 0 < tail.context_gpu <= len(gpus) else "",
        calls=tuple(rest[:CALL_CLASSES]),
        disk_bytes=disk[0],
        last_resume_disk_bytes=disk[2],
        shared_bytes=shared[0],
        shared_part_bytes=shared[1],
        **_counted(raw, now, clock),
    )


def _counted(raw: bytes, now: float, clock: PeerClock) -> dict[str, Any]:
    """Return the counts of calls by entry point."""
    since_ns, count = COUNTED.unpack_from(raw, COUNTED_OFFSET)
    if count > MAX_ENTRY_POINTS:
        raise PageError(f"a page with {count} entry points")
    if not since_ns:
        return {}
    begin = COUNTED_OFFSET + COUNTED.size
    found = (ENTRY_POINT.unpack_from(raw, begin + index * ENTRY_POINT.size) for index in range(count))
    points = tuple((_name(name), calls) for name, calls in found)
    return {"counted_since": min(clock.ours_s(since_ns), now), "entry_points": points}


def _name(raw: bytes) -> str:
    """Return an entry point's name. Raises PageError."""
    name = raw.partition(b"\0")[0]
    if not name.isalnum() and not name.replace(b"_", b"").isalnum():
        raise PageError("a page with an entry point that has no name")
    return name.decode("ascii")


def _check_head(head: _Head) -> None:
    if head.magic != PAGE_MAGIC or head.version != PROTOCOL_VERSION or head.size_of_gpu != GPU.size:
        raise PageError(
            f"a page with magic {head.magic:#x}, version {head.version}, {head.size_of_gpu} bytes a GPU"
        )
    if head.state not in STATES:
        raise PageError(f"a page with state {head.state}")
    if head.gpu_count > MAX_GPUS:
        raise PageError(f"a page with {head.gpu_count} GPUs")


def _gpu(raw: bytes, index: int) -> PageGpu:
    raw_uuid, resident, parked, *unmovable = GPU.unpack_from(raw, HEAD.size + TAIL.size + index * GPU.size)
    _plausible(resident, parked, *unmovable)
    return PageGpu(gpu_uuid(raw_uuid), resident, parked, tuple(unmovable))


def _plausible(*sizes: int) -> None:
    largest = max(sizes)
    if largest > LARGEST_BYTES:
        raise PageError(f"a page with a size of {largest} bytes")
