"""The folder that has a user's images: which are in it, how much they may take, and when they go by age."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .. import private_folders
from ..units import bytes_in_words
from .disk import in_words
from .image import Image, ImageRefused

SPARE_BYTES = 256 << 20
WARNED_FOR_S = 86400.0  # at most, before an image is deleted by age
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
PATH_BYTES_MAX = 160  # of an image's folder: the shim gets it with a message (AFFINODE_TEXT_SIZE)


@dataclass(frozen=True)
class Bounds:
    """How much space images may take.

    `most_bytes`: all of this user's; 0: any. `spare_bytes`: what stays free on the disk, whatever users take: where
    they share a disk it is the bound for all.
    """

    most_bytes: int = 0
    spare_bytes: int = SPARE_BYTES


def images_in(store: Path) -> list[Image]:
    """Return the images of a store; [] if there is none.

    Raises ImageRefused if others may enter it, or put another folder in its place, once it is made.
    """
    try:
        private_folders.verify_way_to(store, private_folders.IMAGES)
        with private_folders.opened(store, private_folders.IMAGES) as at:
            return [
                Image(store / path.name)
                for path in sorted(at.iterdir())
                if path.is_dir() and not path.is_symlink()
            ]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ImageRefused(in_words(error)) from None


def image_of(store: Path, kernel_id: str) -> Image:
    """Return the place of a kernel's image. An id that is no plain name, as "..", is given one."""
    if PLAIN_NAME.fullmatch(kernel_id):
        return Image(store / kernel_id)
    return Image(
        store / f"kernel-{hashlib.sha256(kernel_id.encode(errors='surrogatepass')).hexdigest()[:40]}"
    )


def taken_bytes(images: Iterable[Image]) -> int:
    """Return what images take together: what they share counts once."""
    found = {(file.st_dev, file.st_ino): file.st_blocks * 512 for image in images for file in image.files()}
    return sum(found.values())


def objection_to_size(image: Image, needs_bytes: int, bounds: Bounds) -> str | None:
    """Return why an image of that size may not be written, and what to do; None if it may. Raises ImageRefused."""
    store = image.folder.parent
    if len(str(image.folder).encode()) > PATH_BYTES_MAX:
        return (
            f"the path of its image is too long ({image.folder}): choose a hibernate_dir with a shorter one"
        )
    above = next(each for each in (store, *store.parents) if each.exists())
    free, needs = shutil.disk_usage(above).free, needs_bytes + bounds.spare_bytes
    if free < needs:
        return (
            f"the disk of {above} has {bytes_in_words(free)} free, and the image may need {bytes_in_words(needs_bytes)}"
            f" where {bytes_in_words(bounds.spare_bytes)} stay free: delete something there, or an image"
        )
    others = taken_bytes(each for each in images_in(store) if each.folder != image.folder)
    if bounds.most_bytes and others + needs_bytes > bounds.most_bytes:
        return (
            f"your images may take {bytes_in_words(bounds.most_bytes)} together: they take {bytes_in_words(others)},"
            f" and this one may need {bytes_in_words(needs_bytes)}. Wake or shut down a hibernated kernel first"
        )
    return None


def deletion_at(made_at: float, keep_s: float, warned_at: float | None) -> float | None:
    """Return when an image is deleted by age, by the time of day; None: never.

    Not before it has been said for a while: a keeper that looks seldom may find an image that is old already.
    """
    if not keep_s:
        return None
    return max(made_at + keep_s, (time.time() if warned_at is None else warned_at) + notice_s(keep_s))


def notice_s(keep_s: float) -> float:
    """Return how long before its end by age it is said that an image is deleted."""
    return min(WARNED_FOR_S, keep_s / 10)
