"""A kernel into an image, and back. Each step says what is left if it fails, or if the keeper is killed there.

Into an image:
1. The image is begun. A failure from here to 4 leaves the kernel as it was, parked; the image is given up.
2. The shims write what was on the GPU, and leave their controller. Killed here: the next keeper gives the image up, and
   they come back.
3. CRIU writes the processes and leaves them stopped. Killed here: the next keeper has them go on.
4. All is on the disk, and the manifest makes the image whole. Killed here: processes and image are both there. The
   processes count: they have done nothing since.
5. The processes are ended.

Back:
1. The image is compared with its manifest and this machine, but for contents of memory. A failure here or in 3 leaves
   the image as it was.
2. It is noted that it is being woken. Killed here: no process is there, so the image still counts.
3. CRIU starts the processes and leaves them stopped, while contents of memory are compared. Killed here: the next
   keeper ends what is stopped, and the image counts again.
4. The shims find their controller. The image stays until what was on the GPU is back and was compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from .. import environment
from ..keeping.processes import ProcessName, name_of, resident_bytes
from ..units import bytes_in_words
from . import criu, tree
from .image import Image, ImageRefused, Manifest, objection_to_waking

LOG = logging.getLogger("keeper")
SPARE_BYTES = 256 << 20  # of the disk, that stay free


class CannotHibernate(RuntimeError):
    """A kernel was not hibernated, and goes on; the message says why."""


class CannotWake(RuntimeError):
    """An image was not woken, and stays; the message says why, and what to do."""


async def hibernate(
    image: Image,
    pid: int,
    leave_gpu: Callable[[Path], Awaitable[bool]],
    about_to_end: Callable[[], None],
    **known: Any,
) -> Manifest:
    """Write a kernel's processes to an image and end them. Raises CannotHibernate: then they go on.

    `leave_gpu` has the shims write what was on the GPU into the image's folder, and returns whether there was anything;
    it may raise CannotHibernate. `known` is what the manifest says beside.
    """
    try:
        await criu.check()
        processes = tree.tree_of(pid)
        _find_room(image.folder, pid)
        image.begin()
    except (criu.CriuUnavailable, OSError) as error:
        raise CannotHibernate(str(error)) from None
    times = [time.monotonic()]
    try:
        has_cuda = await leave_gpu(image.folder)
        times.append(time.monotonic())
        await criu.dump(pid, image.process_folder)
        times.append(time.monotonic())
        processes = tree.tree_of(pid)  # stopped now, so it is whole
        manifest = await asyncio.to_thread(
            image.finish,
            processes=processes,
            ids=sorted({thread for process in processes for thread in tree.threads_of(process.pid)}),
            has_cuda=has_cuda,
            **known,
        )
    except BaseException as error:
        tree.go_on(processes)
        image.give_up()
        if isinstance(error, (criu.CriuFailed, OSError)):
            raise CannotHibernate(str(error)) from None
        raise
    times.append(time.monotonic())
    steps = zip(("GPU memory written", "processes written", "on the disk"), times, times[1:], strict=False)
    LOG.info("%s", ", ".join(f"{what} in {end - begin:.2f} s" for what, begin, end in steps))
    about_to_end()
    await tree.end(processes)
    return manifest


async def wake(image: Image) -> ProcessName:
    """Start an image's processes again, and return the kernel's own. Raises CannotWake: then the image is as it was."""
    try:
        manifest = image.manifest()
        if objection := objection_to_waking(manifest):
            raise CannotWake(objection)
        if found := await tree.free(manifest.ids):
            raise CannotWake(f"its process id {found[0]} is {found[1]}'s now: try again when that has ended")
        began = time.monotonic()
        await asyncio.to_thread(image.verify, manifest, pages=False)
        image.note_woken()
    except (ImageRefused, criu.CriuUnavailable, OSError) as error:
        raise CannotWake(str(error)) from None
    comparing = asyncio.get_running_loop().create_task(asyncio.to_thread(image.verify, manifest, pages=True))
    try:
        await criu.restore(image.process_folder)
        await comparing
        processes = tree.tree_of(manifest.processes[0].pid)
    except BaseException as error:
        with contextlib.suppress(Exception):
            await comparing
        if _lives_again(manifest):  # else another process may have the number
            with contextlib.suppress(ProcessLookupError):
                await tree.end(tree.tree_of(manifest.processes[0].pid))
        image.not_woken()
        if isinstance(error, (criu.CriuFailed, ImageRefused, OSError)):
            raise CannotWake(str(error)) from None
        raise
    tree.go_on(processes)
    LOG.info("compared and started in %.2f s", time.monotonic() - began)
    image.let_back()
    if not manifest.has_cuda:
        image.give_up()
    return processes[0]


async def recover(image: Image) -> Manifest | None:
    """Look at an image that no process of this keeper made; return its manifest if the kernel is in it.

    None: its processes live. What was begun and never became whole is given up. Raises ImageRefused.
    """
    if not (image.is_whole or image.was_woken):
        image.give_up()
        return None
    manifest = image.manifest()
    if any(_lives(process) for process in manifest.processes):  # it was killed before it ended them
        tree.go_on(manifest.processes)
        image.give_up()
        return None
    if image.was_woken:
        if _lives_again(manifest) and not image.is_away:
            return None
        if _lives_again(manifest):  # started, but not compared: it has done nothing yet
            await tree.end(tree.tree_of(manifest.processes[0].pid))
        image.not_woken()
    return manifest


def _lives(process: ProcessName) -> bool:
    try:
        return name_of(process.pid) == process
    except ProcessLookupError:
        return False


def _lives_again(manifest: Manifest) -> bool:
    """Return whether the kernel's process runs that was started from an image."""
    mark = f"{environment.KERNEL_ID}={manifest.record['kernel_id']}".encode()
    try:
        return mark in Path(f"/proc/{manifest.processes[0].pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _find_room(folder: Path, pid: int) -> None:
    """Raise OSError if the disk has no room for what a process and its session have in host memory."""
    above = next(each for each in (folder, *folder.parents) if each.exists())
    needs = sum(resident_bytes([pid]).values()) + SPARE_BYTES
    free = shutil.disk_usage(above).free
    if free < needs:
        free_text, needs_text = bytes_in_words(free), bytes_in_words(needs)
        raise OSError(f"the disk of {above} has {free_text} free, and the image may need {needs_text}")
