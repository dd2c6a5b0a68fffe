"""What the keeper asks of the controller, and tells it, for a kernel that hibernates."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..client.errors import ControllerRefused, ControllerUnavailable
from ..client.kernel_messages import KernelMessages
from ..hibernation.hibernate import CannotHibernate
from ..hibernation.seen import Seen
from ..hibernation.tree import tree_of
from ..threads import on_own_thread
from .records import Record

LOOK_FOR_GPU_EVERY_S = 5.0
# A process that has just begun keeps its context for three seconds, one that asked NVML for ten.
PATIENCE_S, TRY_EVERY_S = 12.0, 0.25
TELL_S = 2.0  # a controller that does not answer is told the next time
SHIMS_PAGE = "/memfd:affinode-page"  # shim/src/state/status_page.c
GPU_IS_BACK = ("resident", "none")

T = TypeVar("T")


class GpuMemory:
    """Has a kernel's processes leave the GPU for an image, and finds out when they are back."""

    def __init__(self) -> None:
        """Have asked for nothing."""
        self._asked: asyncio.Future[int] | None = None

    async def settled(self) -> None:
        """Wait until what was asked for a hibernation that was stopped is answered: it writes into the same folder."""
        if self._asked is not None:
            await asyncio.wait([self._asked])
            self._asked = None

    async def leave(self, record: Record, folder: Path) -> bool:
        """Have the shims write what is on the GPU into a folder; return whether there was any process with CUDA.

        Raises CannotHibernate.
        """
        if not record.is_managed:
            return False
        loop = asyncio.get_running_loop()
        kernel, end = KernelMessages(record.kernel_id), loop.time() + PATIENCE_S
        shims = await asyncio.to_thread(count_shims, record.process.pid)
        is_asked = False
        while True:
            try:
                is_asked = await _answered(kernel.count_processes) >= shims
                if is_asked:
                    self._asked = asyncio.ensure_future(_answered(lambda: kernel.hibernate(folder)))
                    return await asyncio.shield(self._asked) > 0
                why = "a process of it has not found its controller: try again in a while"
            except ControllerRefused as refused:
                if refused.status == 404:
                    return False  # it has never used CUDA
                why = refused.message
            except ControllerUnavailable as error:
                if not shims:
                    return False
                if is_asked:  # its processes may be on their way: they are not asked twice
                    raise CannotHibernate(str(error)) from None
                why = str(error)  # it is being started
            if loop.time() > end:
                raise CannotHibernate(why)
            await asyncio.sleep(TRY_EVERY_S)

    async def until_back(self, record: Record) -> None:
        """Wait until what was on the GPU is there again, and was compared with its digests."""
        while True:
            await asyncio.sleep(LOOK_FOR_GPU_EVERY_S)
            with contextlib.suppress(ControllerUnavailable, ControllerRefused, ProcessLookupError):
                residency, connected = await _answered(KernelMessages(record.kernel_id).residency)
                # A controller that is new does not know all processes at once.
                shims = await asyncio.to_thread(count_shims, record.process.pid)
                if residency in GPU_IS_BACK and connected >= shims:
                    return


async def tell_bytes(record: Record, size: int | None) -> None:
    """Tell the controller what a kernel's image takes; None: the kernel runs."""
    if not record.is_managed:
        return

    def tell() -> None:
        KernelMessages(record.kernel_id).describe(hibernated_bytes=size)

    with contextlib.suppress(ControllerUnavailable, ControllerRefused, asyncio.TimeoutError):
        await on_own_thread(tell, timeout_s=TELL_S)


def tell_forget(record: Record) -> None:
    """Tell the controller that a kernel is no more."""
    if record.is_managed:
        with contextlib.suppress(ControllerUnavailable):
            KernelMessages(record.kernel_id).tell_forget()


async def _answered(ask: Callable[[], T]) -> T:
    return await on_own_thread(ask, timeout_s=None)


def count_shims(pid: int) -> int:
    """Return how many of a kernel's processes use CUDA: their shims have pages, whatever a new controller knows."""
    pages = set()
    for process in tree_of(pid):
        seen = Seen(process.pid)
        for number, target in seen.opened.items():
            if target.startswith(SHIMS_PAGE) and (status := seen.stat_of(number)) is not None:
                pages.add(status.st_ino)
    return len(pages)
