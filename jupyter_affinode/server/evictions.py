"""Shuts kernels of this server down where the controller asks for it (`when_full="terminate_newest"`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from jupyter_core.utils import ensure_async
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

from .controller_watch import Kernel, NodeListener


class KernelEnds(NodeListener):
    """Carries out the controller's `end_asked` for kernels that `owns` says are this server's.

    The kernel is shut down as from the menu: its exit handlers run, and the Jupyter server tells its front ends.
    The controller's notice and the kernel's last event tell the user why.
    """

    def __init__(self, manager: MappingKernelManager, owns: Callable[[str], bool], log: logging.Logger):
        self._manager = manager
        self._owns = owns
        self._log = log
        self._ending: dict[str, asyncio.Task[None]] = {}

    def kernel_changed(self, previous: Kernel | None, kernel: Kernel) -> None:
        """Shut a kernel down if the controller asks for that."""
        kernel_id, reason = kernel["id"], kernel.get("end_asked")
        if reason and kernel_id not in self._ending and self._owns(kernel_id):
            task = asyncio.get_running_loop().create_task(self._end(kernel_id, reason), name="affinode-end")
            self._ending[kernel_id] = task

    async def _end(self, kernel_id: str, reason: str) -> None:
        self._log.warning("Kernel %s is shut down: %s.", kernel_id, reason)
        try:
            await ensure_async(self._manager.shutdown_kernel(kernel_id))
        except Exception:  # the controller asks again later, or gives up
            self._log.exception("Kernel %s could not be shut down", kernel_id)
        finally:
            self._ending.pop(kernel_id, None)
