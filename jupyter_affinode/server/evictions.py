"""Does with this server's kernels what the controller asks for: shuts them down (`when_full="terminate_newest"`), or
has them hibernate.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

from ..client.errors import ControllerRefused, ControllerUnavailable
from ..client.kernel_messages import KernelMessages
from ..threads import on_own_thread
from .controller_watch import Kernel, NodeListener
from .hibernation import Hibernation, Refused

TELL_S = 5.0


class ControllerWishes(NodeListener):
    """Carries out the controller's `end_asked` and `hibernate_asked` for kernels that `owns` says are this server's.

    A kernel is shut down as from the menu: its exit handlers run, and the Jupyter server tells its front ends.
    The controller's notice and the kernel's last event tell the user why.
    """

    def __init__(
        self,
        manager: MappingKernelManager,
        owns: Callable[[str], bool],
        hibernation: Hibernation,
        log: logging.Logger,
    ):
        self._manager = manager
        self._owns = owns
        self._hibernation = hibernation
        self._log = log
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def kernel_changed(self, previous: Kernel | None, kernel: Kernel) -> None:
        """Do what the controller asks for."""
        kernel_id = kernel["id"]
        if kernel_id in self._tasks or not self._owns(kernel_id):
            return
        if reason := kernel.get("end_asked"):
            self._begin(kernel_id, self._end(kernel_id, reason))
        elif kernel.get("hibernate_asked") and not self._hibernation.is_away(kernel_id):
            self._begin(kernel_id, self._hibernate(kernel_id))

    def _begin(self, kernel_id: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="affinode-wish")
        self._tasks[kernel_id] = task
        task.add_done_callback(lambda done: self._tasks.pop(kernel_id, None))

    async def _end(self, kernel_id: str, reason: str) -> None:
        self._log.warning("Kernel %s is shut down: %s.", kernel_id, reason)
        try:
            await ensure_async(self._manager.shutdown_kernel(kernel_id))
        except Exception:  # the controller asks again later, or gives up
            self._log.exception("Kernel %s could not be shut down", kernel_id)

    async def _hibernate(self, kernel_id: str) -> None:
        try:
            await self._hibernation.hibernate(kernel_id)
        except Refused as refused:
            why = str(refused)
            with contextlib.suppress(ControllerUnavailable, ControllerRefused, asyncio.TimeoutError):
                await on_own_thread(
                    lambda: KernelMessages(kernel_id).refuse_to_hibernate(why), timeout_s=TELL_S
                )
