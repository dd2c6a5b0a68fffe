"""Host memory and disk for parked memory, on the machine and below each cgroup's limit."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ...model.snapshot import Host
from ...system.host_memory import CgroupMemory, HostMemory, Known, cgroup_limits
from ..records.kernel import KernelRecord
from .disk import Disk
from .host_lending import try_with_more
from .host_usage import on_disk_bytes


class HostFigures:
    """The machine's memory, the limits above kernels, the controller's lots, and the disk."""

    def __init__(self, memory: HostMemory):
        self.memory = memory
        self.limits: dict[str, CgroupMemory] = {}  # by path; as old as `memory`
        self.lots_ready_bytes = 0  # what the controller's lots can give
        self.lots_held: dict[int, int] = {}  # … and gave, by process
        self.lots_promised: dict[int, int] = {}  # … and reserved for parks under way, by process
        self.lot_cgroups: frozenset[str] = frozenset()
        self.makes_lots = False
        self.disk = Disk()

    def read_limits(self, kernels: Iterable[KernelRecord]) -> None:
        """Read the memory limits above all kernels, before a decision.

        A figure that is not read anew is dropped: kernels that share a cgroup must not go by what was left when one of
        them was looked at last.
        """
        known: Known = {}
        self.limits = {}
        own = {limit.path: limit for limit in cgroup_limits(os.getpid(), known=known)}
        self.lot_cgroups = frozenset(own)
        kernels = list(kernels)
        for kernel in kernels:
            found = _limits(kernel, known)
            kernel.cgroups = tuple(found)
            self.limits.update(found)
        self.limits.update(own)
        for kernel in kernels:
            if kernel.host.left_bytes is not None:
                try_with_more(kernel, self.left_for(kernel))

    def left_for(self, kernel: KernelRecord) -> int:
        """Return the most host memory that a park of the kernel could take, the reserve and unused lots included."""
        lots = self.lots_ready_bytes
        inside = [
            self.limits[path].headroom_bytes + (lots if path in self.lot_cgroups else 0)
            for path in kernel.cgroups
            if path in self.limits
        ]
        return min([self.memory.available_bytes + lots, *inside])

    def picture(self, kernels: Iterable[KernelRecord], now: float) -> Host:
        """Return the host for the policy's snapshot."""
        transfers = (kernel.disk_transfer for kernel in kernels)
        spilling_bytes = sum(
            each.asked_bytes - each.moved_bytes for each in transfers if each is not None and not each.reads
        )
        return Host(
            self.memory.available_bytes,
            {path: limit.headroom_bytes for path, limit in self.limits.items()},
            self.memory.total_bytes,
            {path: limit.limit_bytes for path, limit in self.limits.items()},
            self.lots_ready_bytes,
            self.makes_lots,
            self.lot_cgroups,
            self.disk.limit_bytes,
            self.disk.free_bytes(spilling_bytes),
            self.disk.daily_bytes,
            self.disk.written_by(now),
        )


def disk_used_bytes(kernels: Iterable[KernelRecord]) -> int:
    """Return what the kernels have on disk."""
    return sum(map(on_disk_bytes, kernels))


def _limits(kernel: KernelRecord, known: Known) -> dict[str, CgroupMemory]:
    """Return the limits above the kernel's processes, by path; pids that we cannot see have none."""
    pids = [process.pid for process in kernel.processes.values() if process.pid > 0]
    return {limit.path: limit for pid in pids for limit in cgroup_limits(pid, known=known)}
