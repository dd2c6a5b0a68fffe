"""Kernels of the keeper that are in images: the way there, the way back, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..client.errors import ControllerRefused, ControllerUnavailable
from ..client.kernel_messages import KernelMessages
from ..hibernation import hibernate as images
from ..hibernation.claims import Claimed, Claims
from ..hibernation.disk import in_words
from ..hibernation.files import objection_to_files
from ..hibernation.hibernate import CannotHibernate, CannotWake
from ..hibernation.image import Image, ImageRefused, Manifest
from ..hibernation.machine import objection_to_waking
from ..hibernation.seen import Seen
from ..hibernation.store import Bounds, deletion_at, image_of, images_in, notice_s
from ..hibernation.tree import tree_of
from ..threads import on_own_thread
from ..units import bytes_in_words
from .earlier_folder import folder_of, stand_in_for
from .kept_kernel import CLOSED, KeptKernel
from .messages import Undelivered
from .processes import ProcessName, lives
from .records import IMAGE, PROCESS, Owner, Record, from_json, to_json

LOOK_FOR_GPU_EVERY_S = 5.0
OBJECTION_HOLDS_S = 5.0
SETTLES_S = 1.0  # from a cell's last message until the keeper has read it
# A process that has just begun keeps its context for three seconds, one that asked NVML for ten.
PATIENCE_S, TRY_EVERY_S = 12.0, 0.25
TELL_S = 2.0  # a controller that does not answer is told by the server
SHIMS_PAGE = "/memfd:affinode-page"  # shim/src/state/status_page.c
GPU_IS_BACK = ("resident", "none")


@dataclass(frozen=True)
class Hibernated:
    """A kernel in an image. `since`: when that was made, by the time of day."""

    record: Record
    image: Image
    since: float
    undelivered: Undelivered
    bytes: int
    manifest: Manifest
    _looked: list[tuple[float, str | None]] = field(
        default_factory=list, compare=False
    )  # the last look at `objection`

    @property
    def has_cuda(self) -> bool:
        """Whether it had memory on a GPU."""
        return self.manifest.has_cuda

    @property
    def objection(self) -> str | None:
        """Why it could not be woken now, and what to do: another driver, a changed library; None: nothing is known.

        Panels ask often, and hundreds of files are looked at: what was found holds for a while.
        """
        if not self._looked or time.monotonic() - self._looked[0][0] > OBJECTION_HOLDS_S:
            needed, saved = self.manifest.needed, self.manifest.saved
            try:
                found = objection_to_waking(self.manifest.origin) or objection_to_files(needed, saved)
            except OSError as error:  # a file that an upgrade replaces at this moment
                found = in_words(error)
            self._looked[:] = [(time.monotonic(), found)]
        return self._looked[0][1]

    @property
    def deleted_at(self) -> float | None:
        """When its image is deleted by age, by the time of day; None: never."""
        return deletion_at(self.since, self.record.image_keep_s, self.image.warned_at)

    @property
    def announced_end(self) -> float | None:
        """When its image is deleted by age, once that has been said."""
        return None if self.image.warned_at is None else self.deleted_at

    def view(self) -> dict[str, Any]:
        """Return what a client is told of it."""
        return {
            "record": to_json(self.record),
            "kept_since": self.since,
            "state": CLOSED,
            "quiet_s": time.time() - self.since,
            "bytes": self.bytes,
            "deleted_at": self.announced_end,
            "objection": self.objection,
        }


class PortsHeld:
    """Ports of a hibernated kernel, which no other program gets meanwhile; nothing listens at them."""

    def __init__(self, connection: dict[str, Any]):
        """Take those that are free."""
        self._sockets: list[socket.socket] = []
        if connection.get("transport", "tcp") != "tcp":
            return
        for name, number in connection.items():
            if name.endswith("_port") and number:
                held = socket.socket()
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # beside its connections that end
                try:
                    held.bind((connection["ip"], number))
                    self._sockets.append(held)
                except OSError:
                    held.close()

    def free(self) -> None:
        """Let go of them, for the kernel."""
        for held in self._sockets:
            held.close()


class HibernatedKernels:
    """All that are known. What another keeper left in a store is known from `look_in` on."""

    def __init__(self, log: logging.Logger):
        """Begin with none."""
        self._log = log
        self._claims = Claims()
        self._left_alone: dict[str, str] = {}  # why images are not taken, by the names of their folders
        self._known: dict[str, Hibernated] = {}
        self._looking = asyncio.Lock()
        self._at_work: set[str] = (
            set()
        )  # kernels whose image is being written, or looked at: no other may delete it
        self._bringing_gpu_back: dict[str, asyncio.Task[None]] = {}
        self._ports: dict[str, PortsHeld] = {}
        self._moving: dict[str, Image] = {}  # images of kernels that are on their way into them, or back
        self._beyond_stopping: set[str] = set()
        self._deleting: set[asyncio.Task[None]] = set()

    def __contains__(self, kernel_id: str) -> bool:
        return kernel_id in self._known

    def __iter__(self) -> Iterator[Hibernated]:
        return iter(list(self._known.values()))

    def get(self, kernel_id: str) -> Hibernated:
        """Return one. Raises KeyError."""
        return self._known[kernel_id]

    def why_not(self, kernel_id: str) -> str:
        """Return why a kernel cannot be woken that is none of these."""
        found = (self._left_alone.get(name) for name in (image_of(Path(), kernel_id).folder.name, ""))
        return next(
            filter(None, found), "there is no image of it: `jupyter affinode kept` lists those there are"
        )

    def of(self, owner: Owner) -> list[Hibernated]:
        """Return those that servers of this name and root folder may have."""
        return [each for each in self if each.record.owner.is_served_by(owner)]

    async def look_in(self, store: str, living: Container[str]) -> list[tuple[Hibernated, Record]]:
        """Find a store's images; `living` are kernels whose processes the keeper has.

        Return, as `wake` does, the kernels that an earlier keeper woke and had not noted yet.
        """
        woken = []
        async with self._looking:
            try:
                found = images_in(Path(store))
            except ImageRefused as refused:
                self._log.error("no kernel is woken: %s", refused)
                self._left_alone[""] = str(refused)
                return []
            self._left_alone.pop("", None)
            for image in found:
                if image.folder.name in living or any(each.image.folder == image.folder for each in self):
                    continue
                if not self._may_take(image):
                    continue
                try:
                    recovered = await images.recover(image)
                    if recovered.manifest is not None:
                        self._take_manifest(image, recovered.manifest)
                        if recovered.process is None:
                            self._claims.note_nowhere(image)
                        else:
                            kernel_id = recovered.manifest.record["kernel_id"]
                            woken.append(self._has_woken(kernel_id, recovered.process))
                    else:
                        self._claims.release(image)
                except (ImageRefused, ValueError, LookupError, OSError) as refused:
                    self._log.error("the image %s cannot be used: %s", image.folder, refused)
                    self._left_alone[image.folder.name] = in_words(refused)
                    self._claims.leave(image)
        self.end_old()
        return woken

    def _may_take(self, image: Image) -> bool:
        """Claim an image; return False where another keeper has it, which is said once."""
        name = image.folder.name
        try:
            self._claims.take(image)
        except (Claimed, OSError) as refused:
            if name not in self._left_alone:
                self._log.info("the image %s is left alone: %s", image.folder, refused)
            self._left_alone[name] = in_words(refused)
            return False
        self._left_alone.pop(name, None)
        return True

    async def look_at_image_of(self, record: Record) -> bool:
        """See to what an earlier keeper, which was killed, left of a living kernel's image.

        Return whether the kernel is in its image now, since it had ended the kernel's processes in part.
        """
        image = image_of(Path(record.hibernate_dir), record.kernel_id)
        if not image.folder.exists() or not self._may_take(image):
            return False
        with self._alone_with(record.kernel_id):
            try:
                recovered = await images.recover(image, record.process)
            except (ImageRefused, OSError) as refused:
                self._log.error("the image %s cannot be used: %s", image.folder, refused)
                return False
            if recovered.manifest is None:
                return False
            if recovered.process is None:
                self._claims.note_nowhere(image)
                self._take_manifest(image, recovered.manifest)
                return True
            image.let_back()
            image.let_speak()
            if recovered.manifest.has_cuda:
                self._await_gpu(record.kernel_id, record.process.pid, image)
            else:
                self._give_up(image)
            return False

    @contextlib.contextmanager
    def _alone_with(self, kernel_id: str) -> Iterator[None]:
        self._at_work.add(kernel_id)
        try:
            yield
        finally:
            self._at_work.discard(kernel_id)

    def can_stop(self, kernel_id: str) -> bool:
        """Return whether a kernel that is on its way can stay where it was."""
        return kernel_id in self._moving.keys() - self._beyond_stopping

    def progress(self, kernel_id: str) -> dict[str, Any] | None:
        """Return how many bytes its image has by now; None for a kernel that is not on its way."""
        image = self._moving.get(kernel_id)
        return None if image is None else {"bytes": image.bytes, "can_stop": self.can_stop(kernel_id)}

    @contextlib.contextmanager
    def _on_its_way(self, kernel_id: str, image: Image) -> Iterator[None]:
        self._moving[kernel_id] = image
        try:
            yield
        finally:
            del self._moving[kernel_id]
            self._beyond_stopping.discard(kernel_id)

    async def hibernate(self, kernel: KeptKernel) -> Hibernated:
        """Put an idle kernel into an image, and end its processes. Raises CannotHibernate.

        No server passes messages on to it meanwhile.
        """
        record = kernel.record
        if not record.hibernate_dir:
            raise CannotHibernate("its server was started without a folder for images (hibernate_dir)")
        if record.connection.get("transport") == "ipc":
            raise CannotHibernate(
                "it is connected by Unix sockets: start the server with KernelManager.transport=tcp"
            )
        if not await kernel.is_idle_within(SETTLES_S):
            raise CannotHibernate("a cell runs")
        image = image_of(Path(record.hibernate_dir), record.kernel_id)
        try:
            self._claims.take(image)
            self._claims.note_here(image)
        except (Claimed, OSError) as refused:
            raise CannotHibernate(f"its image cannot be made: {in_words(refused)}") from None
        if (task := self._bringing_gpu_back.pop(record.kernel_id, None)) is not None:
            task.cancel()  # of the image that it was woken from
        began = time.monotonic()
        undelivered, was_kept = kernel.undelivered(), kernel.is_kept
        asleep = replace(record, place=IMAGE, folder=folder_of(record.process.pid))

        def about_to_end() -> None:
            self._beyond_stopping.add(record.kernel_id)
            kernel.close()

        try:
            with self._alone_with(record.kernel_id), self._on_its_way(record.kernel_id, image):
                manifest = await images.hibernate(
                    image,
                    record.process.pid,
                    lambda folder: self._leave_gpu(record, folder),
                    about_to_end,
                    bounds=Bounds(record.image_bytes_max, record.image_spare_bytes),
                    record=to_json(asleep),
                    undelivered=undelivered.to_json(),
                )
        except BaseException:
            if not image.folder.exists():
                self._claims.release(image)
            elif image.was_woken and lives(record.process):  # it was refused before anything was done
                self._await_gpu(record.kernel_id, record.process.pid, image)
            await self._tell_bytes(record, None)  # its processes may have left already, and it may have none
            raise
        self._claims.note_nowhere(image)
        hibernated = self._take(image, asleep, undelivered, manifest)
        if was_kept:
            await self._tell_bytes(record, hibernated.bytes)
        self._log.info(
            "kernel %s is hibernated: %s in %.1f s",
            record.kernel_id,
            bytes_in_words(hibernated.bytes),
            time.monotonic() - began,
        )
        return hibernated

    async def wake(self, kernel_id: str, *, tells: bool) -> tuple[Hibernated, Record]:
        """Start a kernel's processes again; return what it was, and its record as it is now. Raises CannotWake.

        `tells`: it is told to the controller here, since no server has the kernel.
        """
        image, began = self._known[kernel_id].image, time.monotonic()
        try:
            self._claims.note_here(image)
            stand_in_for(self._known[kernel_id].record.folder)
        except OSError as error:
            raise CannotWake(f"it cannot be prepared: {in_words(error)}") from None
        self._free_ports(kernel_id)
        try:
            with self._on_its_way(kernel_id, image):
                process = await images.wake(image)
        except BaseException:
            self._ports[kernel_id] = PortsHeld(self._known[kernel_id].record.connection)
            if image.is_whole:
                self._claims.note_nowhere(image)
            raise
        self._log.info("kernel %s is awake after %.1f s", kernel_id, time.monotonic() - began)
        hibernated, record = self._has_woken(kernel_id, process)
        if tells and not hibernated.has_cuda:  # else its processes tell the controller themselves
            await self._tell_bytes(record, None)
        return hibernated, record

    def _has_woken(self, kernel_id: str, process: ProcessName) -> tuple[Hibernated, Record]:
        hibernated = self._known.pop(kernel_id)
        self._free_ports(kernel_id)
        hibernated.image.let_back()
        if hibernated.has_cuda:
            self._await_gpu(kernel_id, process.pid, hibernated.image)
        return hibernated, replace(hibernated.record, process=process, place=PROCESS)

    def _free_ports(self, kernel_id: str) -> None:
        if (held := self._ports.pop(kernel_id, None)) is not None:
            held.free()

    def _await_gpu(self, kernel_id: str, pid: int, image: Image) -> None:
        self._bringing_gpu_back[kernel_id] = asyncio.get_running_loop().create_task(
            self._until_gpu_is_back(kernel_id, pid, image)
        )

    def is_heard(self, hibernated: Hibernated) -> None:
        """Let a kernel that was woken publish its output, since it is heard. Without GPU memory its image goes."""
        if hibernated.record.kernel_id in self:
            return  # it has ended again, and the image counts
        hibernated.image.let_speak()
        if not hibernated.has_cuda:
            self._give_up(hibernated.image)

    def _give_up(self, image: Image) -> None:
        image.give_up()
        self._claims.release(image)

    def end(self, kernel_id: str) -> None:
        """Delete a kernel's image."""
        hibernated = self._known.pop(kernel_id)
        self._free_ports(kernel_id)
        self._give_up(hibernated.image)
        if hibernated.record.is_managed:
            with contextlib.suppress(ControllerUnavailable):
                KernelMessages(kernel_id).tell_forget()

    def has_ended(self, record: Record, *, was_wanted: bool) -> None:
        """Delete what is left of a kernel whose process has ended.

        One that ended by itself before its GPU memory was back and compared can be woken again.
        """
        task = self._bringing_gpu_back.pop(record.kernel_id, None)
        if task is not None:
            task.cancel()
        if not record.hibernate_dir or record.kernel_id in self or record.kernel_id in self._at_work:
            return
        image = image_of(Path(record.hibernate_dir), record.kernel_id)
        if image.was_woken and not was_wanted:
            self._log.error(
                "kernel %s ended before its GPU memory was back: its image stays, %s",
                record.kernel_id,
                image.folder,
            )
            try:
                image.not_woken()
                self._take_manifest(image, image.manifest())
                self._claims.note_nowhere(image)
            except (OSError, ImageRefused, ValueError) as error:
                self._log.error("%s is there, and cannot be used now: %s", image.folder, error)
        elif image.folder.exists():
            self._give_up(image)

    def let_go(self, record: Record) -> None:
        """Delete the image of a kernel that lives on as another, beside other work: many GiB take a while."""
        task = self._bringing_gpu_back.pop(record.kernel_id, None)
        if task is not None:
            task.cancel()
        image = image_of(Path(record.hibernate_dir), record.kernel_id) if record.hibernate_dir else None
        if image is None or not image.folder.exists():
            return
        image.be_nothing()
        self._at_work.add(record.kernel_id)

        async def delete() -> None:
            with self._alone_with(record.kernel_id):
                await asyncio.to_thread(image.give_up)
            self._claims.release(image)

        deleting = asyncio.get_running_loop().create_task(delete())
        self._deleting.add(deleting)
        deleting.add_done_callback(self._deleting.discard)

    def _take_manifest(self, image: Image, manifest: Manifest) -> None:
        undelivered = Undelivered.from_json(manifest.undelivered)
        self._take(image, from_json(manifest.record), undelivered, manifest)

    def _take(self, image: Image, record: Record, undelivered: Undelivered, manifest: Manifest) -> Hibernated:
        # What is large is on the disk.
        known = replace(manifest, record={}, undelivered={}, files={}, pages={})
        taken = Hibernated(record, image, manifest.made_at, undelivered, image.bytes, known)
        self._known[record.kernel_id] = taken
        self._ports[record.kernel_id] = PortsHeld(record.connection)
        return taken

    def end_old(self) -> None:
        """Delete images by age, and say so before."""
        for each in self:
            if each.record.kernel_id in self._moving:
                continue
            deleted_at = each.deleted_at
            if deleted_at is None or (wait_s := deleted_at - time.time()) > notice_s(
                each.record.image_keep_s
            ):
                continue
            if each.image.warned_at is None:
                self._log.warning(
                    "the image of kernel %s will be deleted by age in %.1f hours: wake it to keep it",
                    each.record.kernel_id,
                    wait_s / 3600,
                )
                with contextlib.suppress(OSError):
                    each.image.note_warned()
            elif wait_s <= 0:
                age_days = (time.time() - each.since) / 86400
                self._log.warning(
                    "the image of kernel %s is deleted: it is %.0f days old",
                    each.record.kernel_id,
                    age_days,
                )
                self.end(each.record.kernel_id)

    async def _tell_bytes(self, record: Record, size: int | None) -> None:
        """Tell the controller what a kernel's image takes; None: the kernel runs."""
        if not record.is_managed:
            return

        def tell() -> None:
            KernelMessages(record.kernel_id).describe(hibernated_bytes=size)

        with contextlib.suppress(ControllerUnavailable, ControllerRefused, asyncio.TimeoutError):
            await on_own_thread(tell, timeout_s=TELL_S)

    async def _leave_gpu(self, record: Record, folder: Path) -> bool:
        if not record.is_managed:
            return False
        kernel, end = KernelMessages(record.kernel_id), time.monotonic() + PATIENCE_S
        shims = await asyncio.to_thread(_count_shims, record.process.pid)
        is_asked = False
        while True:
            try:
                is_asked = await on_own_thread(kernel.count_processes, timeout_s=None) >= shims
                if is_asked:
                    return await on_own_thread(lambda: kernel.hibernate(folder), timeout_s=None) > 0
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
            if time.monotonic() > end:
                raise CannotHibernate(why)
            await asyncio.sleep(TRY_EVERY_S)

    async def _until_gpu_is_back(self, kernel_id: str, pid: int, image: Image) -> None:
        """Keep the image until what was on the GPU is there again, and was compared with its digests."""
        while True:
            await asyncio.sleep(LOOK_FOR_GPU_EVERY_S)
            with contextlib.suppress(ControllerUnavailable, ControllerRefused, ProcessLookupError):
                residency, connected = await on_own_thread(
                    KernelMessages(kernel_id).residency, timeout_s=None
                )
                # A controller that is new does not know all processes at once.
                if residency in GPU_IS_BACK and connected >= await asyncio.to_thread(_count_shims, pid):
                    break
        await asyncio.to_thread(image.keep_gpu_file)
        del self._bringing_gpu_back[kernel_id]


def _count_shims(pid: int) -> int:
    """Return how many of a kernel's processes use CUDA: their shims have pages, whatever a new controller knows."""
    pages = set()
    for process in tree_of(pid):
        seen = Seen(process.pid)
        for number, target in seen.opened.items():
            if target.startswith(SHIMS_PAGE) and (status := seen.stat_of(number)) is not None:
                pages.add(status.st_ino)
    return len(pages)


__all__ = ["CannotHibernate", "CannotWake", "Hibernated", "HibernatedKernels"]
