"""Keeps cullers from ending who waits for the GPU: queued and resuming kernels count as activity."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

from .node_watch import NodeWatch

WAITING = ("queued", "resuming")
SETTING = "jupyter_affinode_last_activity"
MARK_S = 5.0


class WaitingActivity:
    """Marks, every few seconds, the server and its waiting kernels as active.

    A parked kernel is no activity: it may be culled as any idle kernel. One that waits is not idle, even when
    no cell is open (a background thread waits) or an end of a cell was seen too early.
    """

    def __init__(self, manager: MappingKernelManager, watch: NodeWatch, settings: dict[str, Any]):
        self._manager = manager
        self._watch = watch
        self._settings = settings

    def waiting(self) -> list[str]:
        """The ids of this server's kernels that wait for the GPU."""
        return [
            kernel_id
            for kernel_id, kernel in self._watch.kernels.items()
            if kernel["residency"] in WAITING and kernel_id in self._manager
        ]

    def mark(self) -> None:
        """Record the activity of now; called every `MARK_S` seconds while a controller answers."""
        waiting = self.waiting() if self._watch.available else []
        if not waiting:
            return
        now = datetime.now(timezone.utc)
        self._settings[SETTING] = now  # Jupyter Server takes the newest of all settings with such a name
        for kernel_id in waiting:
            kernel = self._manager.get_kernel(kernel_id)
            if hasattr(kernel, "last_activity"):  # what the server's own culler reads
                kernel.last_activity = now
