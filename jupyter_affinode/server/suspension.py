"""Frees the GPU when the server's job is suspended: Slurm sends SIGTSTP two seconds before it stops all processes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from logging import Logger
from typing import Any

from ..client.api import ControllerRefused, ControllerUnavailable
from .controller_watch import NodeWatch


class Suspension:
    """Has all kernels of the server parked at SIGTSTP. At a terminal, Ctrl-Z stops the server as any program."""

    def __init__(self, kernels: Callable[[], list[str]], watch: NodeWatch, log: Logger):
        """`kernels` returns the ids of the server's kernels."""
        self._kernels = kernels
        self._watch = watch
        self._log = log
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self) -> None:
        """Take the signal. Called when the loop runs."""
        if sys.stdin is not None and sys.stdin.isatty():
            return
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, self._suspended)

    def _suspended(self) -> None:
        kernels = self._kernels()
        self._log.info("SIGTSTP: %d kernels are parked, before this server is stopped.", len(kernels))
        for kernel_id in kernels:
            task = asyncio.get_running_loop().create_task(self._park(kernel_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _park(self, kernel_id: str) -> None:
        try:
            await self._watch.client.park(kernel_id)
        except ControllerRefused as refused:
            self._log.info("Kernel %s is not parked: %s", kernel_id, refused)
        except ControllerUnavailable as error:
            self._log.warning("Kernel %s is not parked: %s", kernel_id, error)

    def end(self) -> None:
        """Leave the signal."""
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTSTP)
