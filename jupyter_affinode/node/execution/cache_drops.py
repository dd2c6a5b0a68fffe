"""Cache drops before a park, where the setting says so: what frameworks only cache on the GPU need not be copied.

PyTorch and CuPy keep freed memory for later allocations, and a park would move it like any other. They are asked to
free it on the kernel's main thread, between cells; a kernel that does not answer soon is parked as it is. Dropping
caches makes CUDA calls, which the shim does not count as use of the GPU.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ...units import duration_in_words
from ..protocol.wire import CommandKind, Reply, Status
from ..state.records.kernel import KernelRecord
from ..state.records.moves import CacheDrop
from ..state.records.process import Process
from ..state.registry import NodeState

BEGINS_WITHIN_S = 1.0
LASTS_S = 2.0  # PyTorch frees a thousand blocks in some 50 ms


class CacheDrops:
    """Asks kernels to drop caches, and waits for a bounded time; the policy parks in its next pass."""

    def __init__(self, state: NodeState, log: logging.Logger, on_change: Callable[[], None]):
        self._state = state
        self._log = log
        self._on_change = on_change

    def begin(self, kernel: KernelRecord, reason: str) -> None:
        """Ask every process of the kernel that supports it."""
        drop = kernel.caches.drop = CacheDrop(time.monotonic())
        for process in kernel.connected():
            if process.drops_caches and process.connection is not None:
                drop.pending[process.key] = process.connection.command(
                    CommandKind.DROP_CACHES, reason=reason, lasts_s=BEGINS_WITHIN_S
                )
        self._end_if_done(kernel)

    def take_reply(self, process: Process, reply: Reply) -> None:
        """Take a process's answer; only the answer to the last request counts."""
        kernel = self._state.kernels[process.kernel_id]
        drop = kernel.caches.drop
        if drop is None or drop.pending.get(process.key) != reply.epoch:
            return
        if reply.status not in (Status.OK, Status.NOTHING):
            self._log.info("process %d dropped no caches: %s", process.pid, reply.status.name.lower())
        del drop.pending[process.key]
        self._end_if_done(kernel)

    def look(self, now: float) -> None:
        """Stop waiting for processes that are gone, or take too long."""
        for kernel in self._state.kernels.values():
            drop = kernel.caches.drop
            if drop is None:
                continue
            connected = {process.key for process in kernel.connected()}
            for key in list(drop.pending):
                if key not in connected or now - drop.began > LASTS_S:
                    del drop.pending[key]
            self._end_if_done(kernel)

    def _end_if_done(self, kernel: KernelRecord) -> None:
        drop = kernel.caches.drop
        if drop is None or drop.pending:
            return
        kernel.caches.drop = None
        self._state.refresh(time.monotonic())
        kernel.caches.dropped_at = max(
            (process.last_activity for process in kernel.processes.values()), default=None
        )
        took = duration_in_words(time.monotonic() - drop.began)
        self._log.info("%s was asked to drop caches before it is parked: %s", kernel.id, took)
        self._on_change()
