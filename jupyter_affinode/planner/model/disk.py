"""A local disk for spilled memory when host memory is short (`spill_dir`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from ...node.model.snapshot import Host, Residency
from .event_queue import Shared, Timeline
from .results import HOUR_S
from .simulated_kernel import SimulatedKernel

DAY_HOURS = 24


class Disk:
    """Spills and reads, at the disk's rate for all together; a call of its kernel ends a spill."""

    def __init__(
        self,
        timeline: Timeline,
        limit_bytes: int,
        bytes_per_s: float,
        daily_bytes: int,
        on_written: Callable[[SimulatedKernel, int], None],
    ):
        self._timeline = timeline
        self._limit_bytes = limit_bytes
        self._bytes_per_s = bytes_per_s
        self._daily_bytes = daily_bytes
        self._on_written = on_written
        self._writes = Shared(timeline)
        self._reads = Shared(timeline)
        self._written: Counter[int] = Counter()  # bytes by hour

    def spill(self, kernel: SimulatedKernel, size: int) -> None:
        """Begin to write `size` bytes of a parked kernel."""
        kernel.spilling = min(size, kernel.movable - kernel.on_disk)
        self._writes.begin(kernel.id, kernel.spilling / self._bytes_per_s, partial(self._end, kernel, 0))

    def read(self, kernel: SimulatedKernel, size: int, done: Callable[[], None]) -> None:
        """Begin to read `size` bytes of a parked kernel into host memory, which is taken at once."""
        kernel.reading = min(size, kernel.on_disk)
        self._reads.begin(kernel.id, kernel.reading / self._bytes_per_s, partial(self._read, kernel, done))

    def _read(self, kernel: SimulatedKernel, done: Callable[[], None]) -> None:
        kernel.on_disk, kernel.reading = kernel.on_disk - kernel.reading, 0
        kernel.disk_return_s = self.return_s(kernel)
        done()

    def stop(self, kernel: SimulatedKernel) -> None:
        """End what the kernel writes or reads, if it does; what is written by then stays on disk, and so does all that
        it was to read.
        """
        if kernel.id in self._reads:
            self._reads.stop(kernel.id)
            kernel.reading = 0
        if kernel.id in self._writes:
            left_s = self._writes.stop(kernel.id)
            self._end(kernel, min(int(left_s * self._bytes_per_s), kernel.spilling))

    def return_s(self, kernel: SimulatedKernel) -> float:
        """Return how long reading back takes what it has on disk."""
        return kernel.on_disk / self._bytes_per_s

    def seen(self, host: Host, kernels: Iterable[SimulatedKernel]) -> Host:
        """Return what the policy sees of host memory, with the disk."""
        kernels = list(kernels)
        if not self._limit_bytes and not any(kernel.hibernates_after_s is not None for kernel in kernels):
            return host
        there = (kernel for kernel in kernels if kernel.residency is not Residency.HIBERNATED)
        used = sum(kernel.on_disk + kernel.spilling for kernel in there)
        free = max(self._limit_bytes - used, 0)
        first = int(self._timeline.now // HOUR_S) - DAY_HOURS
        today = sum(size for hour, size in self._written.items() if hour >= first)
        daily = max(self._daily_bytes - today, 0)
        return replace(host, disk_limit_bytes=self._limit_bytes, disk_free_bytes=free, disk_daily_bytes=daily)

    def _end(self, kernel: SimulatedKernel, left: int) -> None:
        written, kernel.spilling = kernel.spilling - left, 0
        kernel.on_disk += written
        kernel.disk_return_s = self.return_s(kernel)
        self._written[int(self._timeline.now // HOUR_S)] += written
        self._on_written(kernel, written)
