"""Keeps cullers from ending kernels that wait for the GPU or compute on it: both count as activity."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime, timedelta, timezone
from typing import Any

from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

from ..client.api import ControllerRefused, ControllerUnavailable
from .controller_watch import Kernel, NodeWatch

WAITING = ("queued", "resuming")
SETTING = "jupyter_affinode_last_activity"
MARK_S = 5.0
ASK_S = 10.0  # how often the controller is asked when kernels used the GPU, while one of ours is on it


class GpuActivity:
    """Marks the server, and those of its kernels that use the GPU or wait for it, as active every few seconds.

    A kernel's last use of the GPU counts as activity, since a cell that computes for hours may print nothing. A
    kernel that waits is active now, even without an open cell: a background thread may wait, or the cell's end was
    reported too early. A parked kernel ages as any idle kernel does.
    """

    def __init__(self, manager: MappingKernelManager, watch: NodeWatch, settings: dict[str, Any]):
        self._manager = manager
        self._watch = watch
        self._settings = settings
        self._asked_at = -math.inf

    async def mark(self) -> None:
        """Record the activity since the last mark; called every `MARK_S` seconds."""
        if not self._watch.available:
            return
        now = datetime.now(timezone.utc)
        used = await self._last_uses()
        for kernel_id, kernel in list(self._watch.kernels.items()):
            if kernel_id not in self._manager:
                continue
            if kernel["residency"] in WAITING:
                self._was_active(kernel_id, now)
            elif kernel_id in used:
                self._was_active(kernel_id, now - timedelta(seconds=used[kernel_id]))

    async def _last_uses(self) -> dict[str, float]:
        """Return by kernel how many seconds ago it used the GPU; the watch does not hear of figures that change by
        themselves."""
        now = asyncio.get_running_loop().time()
        known = self._watch.kernels.items()
        on_gpu = any(kernel["residency"] == "resident" and id in self._manager for id, kernel in known)
        if not on_gpu or now - self._asked_at < ASK_S:
            return {}
        self._asked_at = now
        try:
            kernels: list[Kernel] = await self._watch.client.kernels()
        except (ControllerUnavailable, ControllerRefused):  # the watch sees it too
            return {}
        return {
            kernel["id"]: kernel["idle_s"]
            for kernel in kernels
            if kernel["residency"] != "none" and kernel["idle_s"] is not None
        }

    def _was_active(self, kernel_id: str, moment: datetime) -> None:
        """Raise the activity times that the server's own culler reads of a kernel and a Hub's culler reads of the
        server."""
        kernel: Any = self._manager.get_kernel(kernel_id)
        if getattr(kernel, "last_activity", None) is not None:
            kernel.last_activity = max(kernel.last_activity, moment)
        # Jupyter Server takes the newest of all settings with such a name
        before = self._settings.get(SETTING)
        self._settings[SETTING] = moment if before is None else max(before, moment)
