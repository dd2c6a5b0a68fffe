"""The record of each process: a cache of what its page and its shim report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...link.connection import Connection
from ...protocol.page import PageData, PageError, PageFlag, PageGpu, State
from ...protocol.wire import Hello
from ...system.host_memory import memory_of_process
from ...system.mapped_page import Page
from ...system.peers import ProcessWatch
from .operations import Seen

HOST_BYTES_LAST_S = 1.0  # what was read of a process's memory
SHOWN_HOST_BYTES_LAST_S = 10.0  # the same where it is only shown


@dataclass
class WaitingAllocation:
    """An allocation of a process that waits for room."""

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
    data: PageData  # what the page says, within the GPUs' sizes
    connection: Connection | None
    pid: int
    watch: ProcessWatch | None = None
    allocations: dict[int, WaitingAllocation] = field(default_factory=dict)
    silent_since: float | None = None
    is_stopped: bool = False  # silent, as opposed to having hung up
    said_dying: bool = False
    connected_at: float = 0.0
    started_at: float = 0.0  # seconds since the machine's start, where that is known
    told: tuple[int, int, str] | None = None  # the last NOTICE
    open_requests: int = 0
    # what it had of lots when it connected: no message says when it gives those back
    earlier_lot_bytes: int = 0
    seen_busy_at: float = 0.0  # when NVML last saw it compute
    queued_after: float = 0.0  # it began to wait after this, whatever its page says
    # what says that it is stuck (stuck.py)
    peer_uid: int | None = None  # whose it was when it connected
    parent: int | None = None  # when it connected; None: not known, or it had none of its own
    orphaned_at: float | None = None  # when another parent was seen first
    calls_changed_at: float = 0.0  # when it was last seen to begin a call
    failed_resumes: int = 0  # one after the other, for another reason than room
    is_told_stuck: bool = False  # its owner was told
    parked_at: float | None = None  # when it was last seen to have been parked, and brought back
    resumed_at: float | None = None
    # the host memory that it has by the operating system, for it alone; None: not looked at, or it cannot be seen
    host_bytes: int | None = None
    host_bytes_seen: tuple[float, int] = (
        -math.inf,
        0,
    )  # when that was looked at, and what its page showed then
    # of its memory by GPU, what NVML bears out (gpu_processes.py); None: there is no NVML
    borne_out: Mapping[str, int] | None = None
    said: PageData | None = None  # the page's own words, and the sizes that they were bounded by
    bounds: Mapping[str, int] | None = None
    shared: Seen | None = None  # when it last shared host memory; None: never, on this link
    # the GPUs that it was started to see (state/gpus/context_depth.py); None: all
    visible: tuple[str, ...] | None = ()

    @property
    def is_parkable(self) -> bool:
        """Return whether it can be told to park and can move its memory."""
        return self.connection is not None and not self.data.flags & PageFlag.UNPARKABLE

    @property
    def drops_caches(self) -> bool:
        """Return whether its frameworks can be asked to drop their caches."""
        return bool(self.data.flags & PageFlag.DROPS_CACHES) and self.data.state is State.RESIDENT

    @property
    def is_dying(self) -> bool:
        """Return whether it is about to end."""
        return self.said_dying or bool(self.data.flags & PageFlag.DYING)

    @property
    def is_simulated(self) -> bool:
        """Return whether its driver is the simulated one."""
        return bool(self.data.flags & PageFlag.SIMULATED)

    @property
    def resident_bytes(self) -> int:
        """Return the bytes that parking it would free."""
        return self.data.resident_bytes

    @property
    def verified_bytes(self) -> int | None:
        """Return how much of `resident_bytes` NVML bears out; None where there is no NVML."""
        shown = self.borne_out
        if shown is None:
            return None
        return sum(min(gpu.resident_bytes, shown.get(gpu.uuid, 0)) for gpu in self.data.gpus)

    @property
    def last_activity(self) -> float:
        """Return when it was last seen to use the GPU."""
        called = self.data.last_activity or self.data.state_since or self.connected_at
        return max(called, self.seen_busy_at)

    @property
    def retained_bytes(self) -> int:
        """Return the host memory that retained copies take: of what it shares, its part."""
        data = self.data
        others = 0 if self.is_parked else max(data.shared_bytes - data.shared_part_bytes, 0)
        return max(data.retained_bytes - others, 0)

    @property
    def is_parked(self) -> bool:
        """Return whether its memory is in the host's."""
        return self.data.state in (State.PARKED, State.QUEUED)

    @property
    def uses_gpu(self) -> bool:
        """Return whether it has memory of a GPU, resident or parked."""
        return any(gpu.in_all_bytes for gpu in self.data.gpus)

    def bytes_on(self, uuid: str) -> int:
        """Return what it has on a GPU now, movable or not."""
        return sum(gpu.on_gpu_bytes for gpu in self.data.gpus if gpu.uuid == uuid)


BadPages = list[tuple[Process, PageError]]


def read_host_bytes(processes: Iterable[Process], now: float, *, decides: bool) -> None:
    """Read from the operating system how much host memory the processes have. A process that has several links has
    its memory once. `decides`: spills are decided by the figures of processes with copies; else they are shown.
    """
    known = [process for process in processes if process.pid > 0]
    links = Counter(process.pid for process in known)
    for process in known:
        seen_at, copy_bytes = process.host_bytes_seen
        lasts_s = HOST_BYTES_LAST_S if decides and process.data.copy_bytes else SHOWN_HOST_BYTES_LAST_S
        if now - seen_at >= lasts_s or process.data.copy_bytes != copy_bytes:
            found = memory_of_process(process.pid)
            process.host_bytes = None if found is None else found // links[process.pid]
            process.host_bytes_seen = now, process.data.copy_bytes


def read_pages(processes: Iterable[Process], sizes: Mapping[str, int] | None, now: float) -> BadPages:
    """Read the pages; return the processes whose page is malformed, for the caller to drop. `sizes`: see `within`."""
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
        if data is not process.said or sizes != process.bounds:
            process.said, process.bounds = data, sizes
            process.data = within(data, sizes)
    return bad


def within(data: PageData, sizes: Mapping[str, int] | None) -> PageData:
    """Return what a page says, no more of each GPU than that has, and no more on disk than of memory: a page may claim
    anything, and users are shown it.

    `sizes` are bytes by GPU; None without NVML. What NVML does not know is bounded by the largest that it does.
    """
    gpus = data.gpus
    if sizes:
        largest = max(sizes.values())
        gpus = tuple(_within(gpu, sizes.get(gpu.uuid, largest)) for gpu in gpus)
    most = sum(gpu.resident_bytes + gpu.parked_bytes for gpu in gpus)
    disk, shared, part = (
        min(each, most) for each in (data.disk_bytes, data.shared_bytes, data.shared_part_bytes)
    )
    if gpus == data.gpus and (disk, shared, part) == (
        data.disk_bytes,
        data.shared_bytes,
        data.shared_part_bytes,
    ):
        return data
    return replace(data, gpus=gpus, disk_bytes=disk, shared_bytes=shared, shared_part_bytes=part)


def _within(gpu: PageGpu, size: int) -> PageGpu:
    if gpu.on_gpu_bytes <= size and gpu.parked_bytes <= size:
        return gpu
    resident = min(gpu.resident_bytes, size)
    left, unmovable = size - resident, []
    for each in gpu.unmovable_bytes:
        unmovable.append(min(each, left))
        left -= unmovable[-1]
    return replace(
        gpu,
        resident_bytes=resident,
        parked_bytes=min(gpu.parked_bytes, size),
        unmovable_bytes=tuple(unmovable),
    )
