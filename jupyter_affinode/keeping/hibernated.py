"""Kernels of the keeper that are in images: the way there, the way back, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..client.errors import ControllerRefused, ControllerUnavailable
from ..client.kernel_messages import KernelMessages
from ..hibernation import hibernate as images
from ..hibernation.hibernate import CannotHibernate, CannotWake
from ..hibernation.image import Image, ImageRefused, Manifest, image_of, images_in
from ..threads import on_own_thread
from ..units import bytes_in_words
from .kept_kernel import KeptKernel
from .messages import Undelivered
from .records import IMAGE, PROCESS, Owner, Record, from_json, to_json

LOOK_FOR_GPU_EVERY_S = 5.0
SETTLES_S = 1.0  # from a cell's last message until the keeper has read it
# A process that has just begun keeps its context for three seconds, one that asked NVML for ten.
PATIENCE_S, TRY_EVERY_S = 12.0, 1.0
GPU_IS_BACK = ("resident", "none")


@dataclass(frozen=True)
class Hibernated:
    """A kernel in an image. `since`: when that was made, by the time of day."""

    record: Record
    image: Image
    since: float
    undelivered: Undelivered
    bytes: int


class HibernatedKernels:
    """All that are known. What another keeper left in a store is known from `look_in` on."""

    def __init__(self, log: logging.Logger):
        """Begin with none."""
        self._log = log
        self._known: dict[str, Hibernated] = {}
        self._bringing_gpu_back: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, kernel_id: str) -> bool:
        return kernel_id in self._known

    def __iter__(self) -> Iterator[Hibernated]:
        return iter(list(self._known.values()))

    def get(self, kernel_id: str) -> Hibernated:
        """Return one. Raises KeyError."""
        return self._known[kernel_id]

    def of(self, owner: Owner) -> list[Hibernated]:
        """Return those that servers of this name and root folder may have."""
        return [each for each in self if each.record.owner == owner]

    async def look_in(self, store: str, living: set[str]) -> None:
        """Find a store's images; `living` are kernels whose processes the keeper has."""
        try:
            found = images_in(Path(store))
        except ImageRefused as refused:
            self._log.error("no kernel is woken: %s", refused)
            return
        for image in found:
            if image.folder.name in living or any(each.image.folder == image.folder for each in self):
                continue
            try:
                manifest = await images.recover(image)
                if manifest is not None:
                    self._take_manifest(image, manifest)
            except (ImageRefused, ValueError, OSError) as refused:
                self._log.error("the image %s cannot be used: %s", image.folder, refused)
        self._end_old()

    async def hibernate(self, kernel: KeptKernel) -> Hibernated:
        """Put a kernel that is kept and idle into an image, and end its processes. Raises CannotHibernate."""
        record = kernel.record
        if not record.hibernate_dir:
            raise CannotHibernate("its server was started without a folder for images (hibernate_dir)")
        if not await kernel.is_idle_within(SETTLES_S):
            raise CannotHibernate("a cell runs")
        if record.connection.get("transport") == "ipc":
            raise CannotHibernate(
                "it is connected by Unix sockets: start the server with KernelManager.transport=tcp"
            )
        image = image_of(Path(record.hibernate_dir), record.kernel_id)
        if (task := self._bringing_gpu_back.pop(record.kernel_id, None)) is not None:
            task.cancel()  # of the image that it was woken from
        began = time.monotonic()
        undelivered = kernel.undelivered()
        asleep = replace(record, place=IMAGE)
        manifest = await images.hibernate(
            image,
            record.process.pid,
            lambda folder: self._leave_gpu(record, folder),
            kernel.close,
            record=to_json(asleep),
            undelivered=undelivered.to_json(),
        )
        if record.is_managed:
            with contextlib.suppress(ControllerUnavailable):
                KernelMessages(record.kernel_id).tell_forget()
        hibernated = self._take(image, asleep, undelivered, manifest.made_at)
        self._log.info(
            "kernel %s is hibernated: %s in %.1f s",
            record.kernel_id,
            bytes_in_words(hibernated.bytes),
            time.monotonic() - began,
        )
        return hibernated

    async def wake(self, kernel_id: str) -> tuple[Hibernated, Record]:
        """Start a kernel's processes again; return what it was, and its record as it is now. Raises CannotWake."""
        hibernated, began = self._known[kernel_id], time.monotonic()
        process = await images.wake(hibernated.image)
        del self._known[kernel_id]
        record = replace(hibernated.record, process=process, place=PROCESS)
        if hibernated.image.was_woken:
            self._bringing_gpu_back[kernel_id] = asyncio.get_running_loop().create_task(
                self._until_gpu_is_back(kernel_id, hibernated.image)
            )
        self._log.info("kernel %s is awake after %.1f s", kernel_id, time.monotonic() - began)
        return hibernated, record

    def end(self, kernel_id: str) -> None:
        """Delete a kernel's image."""
        self._known.pop(kernel_id).image.give_up()

    def has_ended(self, record: Record, *, was_wanted: bool) -> None:
        """Delete what is left of a kernel whose process has ended.

        One that ended by itself before its GPU memory was back and compared can be woken again.
        """
        task = self._bringing_gpu_back.pop(record.kernel_id, None)
        if task is not None:
            task.cancel()
        if not record.hibernate_dir or record.kernel_id in self:
            return
        image = image_of(Path(record.hibernate_dir), record.kernel_id)
        if image.was_woken and not was_wanted:
            self._log.error(
                "kernel %s ended before its GPU memory was back: its image stays, %s",
                record.kernel_id,
                image.folder,
            )
            with contextlib.suppress(OSError, ImageRefused, ValueError):
                image.not_woken()
                self._take_manifest(image, image.manifest())
        elif image.folder.exists():
            image.give_up()

    def _take_manifest(self, image: Image, manifest: Manifest) -> None:
        undelivered = Undelivered.from_json(manifest.undelivered)
        self._take(image, from_json(manifest.record), undelivered, manifest.made_at)

    def _take(self, image: Image, record: Record, undelivered: Undelivered, since: float) -> Hibernated:
        taken = Hibernated(record, image, since, undelivered, image.bytes)
        self._known[record.kernel_id] = taken
        return taken

    def _end_old(self) -> None:
        for each in self:
            age_s = time.time() - each.since
            if each.record.image_keep_s and age_s > each.record.image_keep_s:
                self._log.warning(
                    "the image of kernel %s is deleted: it is %.0f days old",
                    each.record.kernel_id,
                    age_s / 86400,
                )
                self.end(each.record.kernel_id)

    async def _leave_gpu(self, record: Record, folder: Path) -> bool:
        if not record.is_managed:
            return False
        kernel, end = KernelMessages(record.kernel_id), time.monotonic() + PATIENCE_S
        while True:
            try:
                return await on_own_thread(lambda: kernel.hibernate(folder), timeout_s=None) > 0
            except ControllerRefused as refused:
                if refused.status == 404:
                    return False  # it has never used CUDA
                if time.monotonic() > end:
                    raise CannotHibernate(refused.message) from None
            except ControllerUnavailable as error:
                raise CannotHibernate(str(error)) from None
            await asyncio.sleep(TRY_EVERY_S)

    async def _until_gpu_is_back(self, kernel_id: str, image: Image) -> None:
        """Keep the image until what was on the GPU is there again, and was compared with its digests."""
        while True:
            await asyncio.sleep(LOOK_FOR_GPU_EVERY_S)
            with contextlib.suppress(ControllerUnavailable, ControllerRefused):
                if await on_own_thread(KernelMessages(kernel_id).residency, timeout_s=None) in GPU_IS_BACK:
                    break
        await asyncio.to_thread(image.keep_gpu_file)
        del self._bringing_gpu_back[kernel_id]


__all__ = ["CannotHibernate", "CannotWake", "Hibernated", "HibernatedKernels"]
