"""Cache drops before a park, where the setting says so: what frameworks only cache on the GPU need not be copied.

PyTorch and CuPy keep freed memory for later allocations, and a park would move it like any other. They are asked to
free it on the kernel's main thread, between cells; a kernel that does not answer soon is parked as it is. Dropping
caches makes CUDA calls, which the shim does not count as use of the GPU.
"""

from __future__ import annotations

import time

from ...units import duration_in_words
from ..model.actions import DropCaches
from ..protocol.wire import Reply, Status
from ..state.records.kernel import KernelRecord
from ..state.records.operations import CacheDrop, Participant
from ..state.records.process import Process
from .kind import Kind

BEGINS_WITHIN_S = 1.0
LASTS_S = 2.0  # PyTorch frees a thousand blocks in some 50 ms


class CacheDrops(Kind[CacheDrop]):
    """Asks kernels to drop caches, and waits for a bounded time; the policy parks in its next pass."""

    def begin(self, kernel: KernelRecord, action: DropCaches) -> None:
        """Ask every process of the kernel that supports it."""
        drop = kernel.operation = CacheDrop(kernel=kernel, began=time.monotonic())
        for process in kernel.connected():
            if process.drops_caches and process.connection is not None:
                epoch = process.connection.command(
                    drop.command, reason=action.reason, lasts_s=BEGINS_WITHIN_S
                )
                drop.participants[process.key] = Participant(epoch)

    def take_reply(self, drop: CacheDrop, process: Process, reply: Reply) -> None:
        """Log that a process dropped none."""
        if reply.status not in (Status.OK, Status.NOTHING):
            self._log.info("process %d dropped no caches: %s", process.pid, reply.status.name.lower())

    def expire(self, drop: CacheDrop, now: float) -> None:
        """Stop waiting for processes that are gone, or take too long."""
        connected = {process.key for process in drop.kernel.connected()}
        for key, told in drop.awaited.items():
            told.is_lost = key not in connected or now - drop.began > LASTS_S

    def end(self, drop: CacheDrop) -> None:
        """Note up to when its use of the GPU is known: it is not asked again before it has used it."""
        kernel, now = drop.kernel, time.monotonic()
        self._state.refresh(now)
        kernel.caches_dropped_at = max(
            (process.last_activity for process in kernel.processes.values()), default=None
        )
        took = duration_in_words(now - drop.began)
        self._log.info("%s was asked to drop caches before it is parked: %s", kernel.id, took)
