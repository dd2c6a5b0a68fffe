"""The doctor's checks of hibernation: whether kernels can be written to disk and woken here, and what lets them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from .. import environment
from ..hibernation import criu
from ..hibernation.disk import disk_of, encryption_of, objection_to_folder
from ..hibernation.image import ImageRefused
from ..hibernation.store import images_in
from .check import Check


def image_checks() -> Iterator[Check]:
    """Check what hibernating needs; nothing else does. Where no folder is named for images nothing is missing."""
    named = os.environ.get(environment.HIBERNATE_DIR, "")
    yield _criu(is_wanted=bool(named))
    if named:
        yield _folder(Path(named).expanduser().absolute())


def _criu(*, is_wanted: bool) -> Check:
    """Write a small process to disk and wake it."""
    try:
        version = asyncio.run(criu.try_out())
    except criu.CriuUnavailable as error:
        level = "warn" if is_wanted else "ok"
        text = f"kernels cannot hibernate here: {error}"
        return Check("hibernation", level, text, criu.advice(), is_detail=True)
    text = f"CRIU {version} wrote a process to disk and woke it"
    if not criu.is_privileged():
        text += "; kernels are woken until the machine is started again, or once it has run for as long"
    return Check("hibernation", "ok", text, is_detail=True)


def _folder(folder: Path) -> Check:
    disk = disk_of(folder)
    try:
        images_in(folder)
    except ImageRefused as refused:
        return Check("images", "warn", str(refused), f"mkdir -p -m 700 {folder}", is_detail=True)
    if folder.exists() and (objection := objection_to_folder(folder)):
        text = f"{folder} ({disk.kind}) can have no images: {objection}"
        return Check("images", "warn", text, "Name another folder as hibernate_dir.", is_detail=True)
    if disk.is_memory:
        text = f"{folder} is in host memory itself ({disk.kind}), and empty once the machine has been started again"
        return Check("images", "warn", text, "Name a folder on a disk as hibernate_dir.", is_detail=True)
    means = encryption_of(folder)
    if means is not None:
        return Check("images", "ok", f"{folder} is encrypted at rest ({means})", is_detail=True)
    unseen = "; whether its server encrypts it is not to be seen here" if disk.is_on_another_machine else ""
    return Check(
        "images",
        "ok",
        f"{folder} is not encrypted{unseen}: an image has all that its notebook had",
        "A folder with fscrypt, or a disk with dm-crypt, encrypts images, GPU memory included.",
        is_detail=True,
    )
