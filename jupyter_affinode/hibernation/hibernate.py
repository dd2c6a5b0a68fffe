"""A kernel into an image, and back. Each step says what is left if it fails, or if the keeper is killed there.

Into an image:
1. check: what stands against it is looked for. A failure from here to 5 leaves the kernel as it was, or parked; the
   image is given up.
2. begin: the image's folder is made.
3. leave_gpu: the shims write what was on the GPU, and leave their controller. Killed here: the next keeper gives the
   image up, and they come back.
4. dump: CRIU writes the processes and leaves them stopped; contents of memory are compressed meanwhile. Killed here:
   the next keeper waits for CRIU, and has them go on.
5. finish: all is on the disk, and the manifest makes the image whole. Killed here: processes and image are both there.
   As long as all processes live they count, since they have done nothing meanwhile.
6. end: the processes are ended. Killed here, and one has ended already: the image counts, and the rest is ended.

Back:
1. check: the image is compared with its manifest and this machine, and contents of memory are decompressed for CRIU. A
   failure here or in 3 leaves the image as it was. Killed here: what was decompressed is removed.
2. note: that it is being woken. Killed here: no process is there, so the image still counts.
3. restore: CRIU starts the processes and leaves them stopped. Killed here: the next keeper waits for CRIU and ends what
   is stopped, and the image counts again.
4. go_on: it is noted that they are whole, and they go on. Killed here: the next keeper has them go on.

Then the keeper lets the shims find their controller (Image.let_back). The image stays until what was on the GPU is back
and was compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import environment
from ..keeping.processes import ProcessName, lives, resident_bytes
from ..threads import joined
from . import criu, files, pages, tree
from .checks import objection_to_leaving, objection_to_rights, objection_to_writing
from .disk import in_words
from .image import Image, ImageRefused, Manifest
from .kernel_processes import Processes
from .machine import objection_to_waking
from .pages import Packed
from .seen import Seen
from .store import Bounds, objection_to_size

LOG = logging.getLogger("keeper")
INTO_IMAGE = ("check", "begin", "leave_gpu", "dump", "finish", "end")
BACK = ("check", "note", "restore", "go_on")
LOOK_EVERY_S = 0.05
NO_BOUNDS = Bounds()

OnStep = Callable[[str], None]


class CannotHibernate(RuntimeError):
    """A kernel was not hibernated, and goes on; the message says why."""


class CannotWake(RuntimeError):
    """An image was not woken, and stays; the message says why, and what to do."""


@dataclass(frozen=True)
class Recovered:
    """What a keeper finds of an image that it did not make. Without both: the kernel's processes live as before."""

    manifest: Manifest | None = None  # of an image in which the kernel is, or from which it was woken
    process: ProcessName | None = (
        None  # the kernel's, which was woken from it; None: the kernel is in the image
    )


def _no_step(name: str) -> None:
    pass


class _Steps:
    """What a way into an image, or back, has done, and how long that took."""

    def __init__(self, on_step: OnStep):
        self._on_step = on_step
        self._begun: list[tuple[str, float]] = []
        self._notes: list[str] = []

    def begin(self, name: str) -> None:
        """Begin the next step."""
        self._begun.append((name, time.monotonic()))
        self._on_step(name)

    def note(self, what: str) -> None:
        """Note how long a part of this step took."""
        name, began = self._begun[-1]
        self._notes.append(f"{what} in {name} {time.monotonic() - began:.2f}")

    def in_words(self) -> str:
        """Return the seconds that each step took."""
        ends = [*(began for _, began in self._begun[1:]), time.monotonic()]
        steps = [f"{name} {end - began:.2f}" for (name, began), end in zip(self._begun, ends, strict=True)]
        return f"{', '.join([*steps, *self._notes])} s"


async def hibernate(
    image: Image,
    pid: int,
    leave_gpu: Callable[[Path], Awaitable[bool]],
    about_to_end: Callable[[], None],
    *,
    bounds: Bounds = NO_BOUNDS,
    on_step: OnStep = _no_step,
    **known: Any,
) -> Manifest:
    """Write a kernel's processes to an image and end them. Raises CannotHibernate: then they go on.

    `leave_gpu` has the shims write what was on the GPU into the image's folder, and returns whether there was anything;
    it may raise CannotHibernate. `on_step` gets the name of each step of INTO_IMAGE as it begins. `known` is what the
    manifest says beside.
    """
    steps = _Steps(on_step)
    steps.begin("check")
    size = await _check(image, pid, bounds)
    processes: list[ProcessName] = []
    try:
        processes = tree.tree_of(pid)
        steps.begin("begin")
        image.begin()
        with image.held():
            image.name_semaphores(process.pid for process in processes)
            steps.begin("leave_gpu")
            has_cuda = await leave_gpu(image.folder)
            steps.begin("dump")
            packed = await _dump(image, pid, size, steps)
            steps.begin("finish")
            processes = tree.tree_of(pid)  # stopped now, so it is whole
            if objection := objection_to_leaving(process.pid for process in processes):
                raise CannotHibernate(objection)
            finish = functools.partial(
                image.finish,
                processes=processes,
                has_cuda=has_cuda,
                pages=packed,
                environ=_environ_of(processes[0].pid),
                **known,
            )
            (manifest,) = await _all_of(
                asyncio.to_thread(finish)
            )  # none may write when the image is given up
        if not lives(processes[0]):  # its server has noted that, and may have started it anew
            raise ProcessLookupError
    except BaseException as error:
        has_ended = bool(processes) and not lives(processes[0])
        with contextlib.suppress(ProcessLookupError):
            processes = tree.tree_of(pid)
        tree.go_on(processes)
        image.give_up()
        if has_ended and isinstance(error, Exception):
            why = f" ({error})" if isinstance(error, criu.CriuKilled) else ""
            raise CannotHibernate(f"its process ended meanwhile{why}") from None
        if isinstance(error, (criu.CriuFailed, ImageRefused, OSError)):
            raise CannotHibernate(in_words(error)) from None
        raise
    about_to_end()
    steps.begin("end")
    await tree.end(processes)
    LOG.info("into its image: %s", steps.in_words())
    return manifest


async def _dump(image: Image, pid: int, size: int, steps: _Steps) -> dict[str, Packed]:
    """Have CRIU write the processes, their memory compressed, and what is on the disk of the GPU's stay there."""
    resident = sum(resident_bytes([pid]).values())  # without what was on the GPU
    packing = image.packing()

    outer = Processes(process.pid for process in tree.tree_of(pid)).outer.values()
    external = sorted({each.external for each in outer} - {""})

    async def written(lock: int) -> None:
        is_written = False
        try:
            await criu.dump(pid, image.process_folder, lock, size, external)
            is_written = True
            steps.note("CRIU")
        finally:
            packing.end(is_in_vain=not is_written)

    with image.in_use() as lock, image.plain_pages(resident) as plain:
        plain.offer(pages.OFFERED)
        _, packed, _ = await _all_of(
            written(lock), asyncio.to_thread(packing.run), asyncio.to_thread(image.sync_gpu_memory)
        )
    return packed


async def _all_of(*works: Awaitable[Any]) -> list[Any]:
    """Wait for all, also where one fails or this is cancelled; return what they gave, or raise the first error."""
    together = asyncio.gather(*works, return_exceptions=True)
    try:
        found = await asyncio.shield(together)
    except asyncio.CancelledError:
        await together
        raise
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


async def _check(image: Image, pid: int, bounds: Bounds) -> int:
    """Return about how many bytes there are to write. Raises CannotHibernate if it is known that it would fail."""
    try:
        await criu.check()
        needs = sum(resident_bytes([pid]).values())
        await tree.until_reaped([process.pid for process in tree.tree_of(pid)])
        pids = [process.pid for process in tree.tree_of(pid)]
        objection = objection_to_size(image, needs, bounds) or objection_to_writing(pids)
    except ProcessLookupError:
        raise CannotHibernate("its process has ended") from None
    except (criu.CriuUnavailable, ImageRefused, OSError) as error:
        raise CannotHibernate(in_words(error)) from None
    if objection:
        raise CannotHibernate(objection)
    return needs


async def wake(image: Image, on_step: OnStep = _no_step) -> ProcessName:
    """Start an image's processes again, and return the kernel's own. Raises CannotWake: then the image is as it was.

    `on_step` gets the name of each step of BACK as it begins.
    """
    steps = _Steps(on_step)
    with contextlib.ExitStack() as until_awake:
        try:
            steps.begin("check")
            until_awake.enter_context(image.held())
            manifest = image.manifest()
            if objection := objection_to_waking(manifest.origin) or _objection_to_needed(manifest):
                raise CannotWake(objection)
            if found := await tree.free(manifest.ids):
                raise CannotWake(found)
            await criu.check()
            await asyncio.to_thread(image.verify, manifest)
            steps.note("compared")
            plain = until_awake.enter_context(image.plain_pages(manifest.plain_bytes))
            await _all_of(asyncio.to_thread(image.unpack, manifest, plain))
            steps.begin("note")
            image.note_waking()
        except (ImageRefused, criu.CriuUnavailable, OSError) as error:
            raise CannotWake(in_words(error)) from None
        processes = await _start(image, manifest, steps)
        tree.go_on(processes)
    LOG.info("out of its image: %s", steps.in_words())
    return processes[0]


def _objection_to_needed(manifest: Manifest) -> str | None:
    needed = manifest.needed
    return files.objection_to_files(needed, manifest.saved) or files.objection_to_locks(needed)


async def _start(image: Image, manifest: Manifest, steps: _Steps) -> list[ProcessName]:
    """Have CRIU start processes, and note that they are whole; they are stopped yet. Raises CannotWake: none lives."""
    is_started, put_back = False, list[Path]()
    try:
        put_back = files.put_back(manifest.saved, image.process_folder)
        steps.begin("restore")
        with image.in_use() as lock:
            await criu.restore(image.process_folder, lock, manifest.plain_bytes)
        is_started = True
        processes = tree.tree_of(manifest.processes[0].pid)
        if objection := objection_to_rights(process.pid for process in processes):
            raise CannotWake(objection)
        tree.bind_to_processors(manifest.processors)
        steps.begin("go_on")
        image.note_woken()
        return processes
    except BaseException as error:
        await joined(_end_half_woken(manifest, image, is_started=is_started))
        files.remove(put_back)
        why = ""
        if isinstance(error, (criu.CriuFailed, ImageRefused, OSError)):  # what was taken since says it better
            why = _objection_to_needed(manifest) or in_words(error)
        try:
            image.not_woken()
        except OSError as failed:  # the next keeper does that: no process of it lives
            why = f"{why or 'it was stopped'}; and its image cannot be put back as it was: {in_words(failed)}"
        if why:
            raise CannotWake(why) from None
        raise


async def recover(image: Image, process: ProcessName | None = None) -> Recovered:
    """Look at an image that no process of this keeper made, and have either it or the kernel's processes count.

    `process`: the kernel's own as it is in the keeper's records, if it lives. Waits for a CRIU that works on it yet.
    Raises ImageRefused.
    """
    with image.held():
        return await _recover(image, process)


async def _recover(image: Image, process: ProcessName | None) -> Recovered:
    await _until_criu_has_ended(image)
    if not (image.is_whole or image.is_being_woken or image.was_woken):
        if process is not None:
            tree.go_on(tree.tree_of(process.pid))
        image.give_up()
        return Recovered()
    manifest = image.manifest()
    pages.remove_plain(image.process_folder)  # which this release made
    if image.is_whole:
        living = [each for each in manifest.processes if lives(each)]
        if len(living) == len(manifest.processes):  # it was killed before it ended them
            tree.go_on(living)
            image.give_up()
            return Recovered()
        await tree.end(living)
        return Recovered(manifest)
    if image.is_being_woken or not _lives_again(manifest, process):
        await _end_half_woken(manifest, image, is_started=False)
        image.not_woken()
        return Recovered(manifest)
    processes = tree.tree_of(manifest.processes[0].pid)
    tree.go_on(processes)
    return Recovered(manifest, processes[0])


async def _until_criu_has_ended(image: Image) -> None:
    """Wait for a CRIU that a killed keeper started; one that hangs is ended."""
    end = time.monotonic() + criu.patience_for(image.bytes)
    while image.is_in_use():
        if time.monotonic() > end:
            criu.end_at(image.process_name)
        await asyncio.sleep(LOOK_EVERY_S)


async def _end_half_woken(manifest: Manifest, image: Image, *, is_started: bool) -> None:
    """End what CRIU started of an image, all of it or a part: a process that has a number of its is left alone."""
    first = manifest.processes[0].pid
    while True:
        found: dict[int, ProcessName] = {}
        for process in manifest.processes:
            if (is_started and process.pid == first) or _is_of_image(process.pid, manifest, image):
                with contextlib.suppress(ProcessLookupError):
                    found |= {each.pid: each for each in tree.tree_of(process.pid) if lives(each)}
        if not found:
            return
        await tree.end(list(found.values()))


def _is_of_image(pid: int, manifest: Manifest, image: Image) -> bool:
    """Return whether a process is one of the kernel's, or CRIU that is about to become one: it has the image open."""
    if not criu.is_own(pid):
        return False
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if os.fsencode(image.process_name) in words or (words == [b""] and criu.is_name(Seen(pid).name)):
            return True  # the second: it has no memory of CRIU's any more, and with CRIU's rights it shows no files
    return _has_mark(pid, manifest) or any(
        target.startswith(f"{image.folder}/") for target in Seen(pid).opened.values()
    )


def _lives_again(manifest: Manifest, process: ProcessName | None) -> bool:
    """Return whether the kernel's process runs that was started from an image; `process`: as the keeper knows it."""
    first = manifest.processes[0].pid
    is_known = process is not None and process.pid == first and lives(process)
    return is_known or _has_mark(first, manifest)


def _has_mark(pid: int, manifest: Manifest) -> bool:
    """Return whether a process was started for the kernel. A warm one was started under another name, one that is not
    managed under none: that has the environment of the first process.
    """
    if manifest.environ and _environ_of(pid) == manifest.environ:
        return True
    mark = f"{environment.KERNEL_ID}={manifest.record['kernel_id']}".encode()
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _environ_of(pid: int) -> str:
    """Return the digest of the environment that a process was started with; "" if it cannot be seen."""
    try:
        return hashlib.blake2b(Path(f"/proc/{pid}/environ").read_bytes(), digest_size=32).hexdigest()
    except OSError:
        return ""
