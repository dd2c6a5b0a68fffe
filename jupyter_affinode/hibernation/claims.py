"""Which keeper deals with an image. A user may have several, on machines that share the store.

A claim is a lock on a file beside the image, which ends with its keeper. The file says on which machine processes of
the image may live: there alone can be told whether they do. It is empty while the image alone counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path

from .. import environment, private_folders
from .image import Image

TEXT_BYTES_MAX = 512


class Claimed(RuntimeError):
    """Another keeper deals with the image, or its processes may live on another machine; the message says which."""


class Claims:
    """A keeper's claims."""

    def __init__(self) -> None:
        """Begin with none."""
        self._held: dict[Path, int] = {}  # descriptors by the image's folder

    def take(self, image: Image) -> None:
        """Claim an image, which need not be there. Raises Claimed, and OSError where there are no locks."""
        if image.folder in self._held:
            return
        path = _file_of(image)
        private_folders.make_folder(path.parent, private_folders.IMAGES)
        descriptor = _locked(path)
        try:
            place = os.pread(descriptor, TEXT_BYTES_MAX, 0).decode(errors="replace")
            if place and not _is_here(place):
                raise Claimed(
                    f"its processes may live on {place.split()[0]}. If that machine has ended them, delete {path}"
                )
        except BaseException:
            os.close(descriptor)
            raise
        self._held[image.folder] = descriptor

    def note_here(self, image: Image) -> None:
        """Note that processes of the image may live on this machine, before one does."""
        self._note(image, f"{socket.gethostname()} {environment.boot_id()}")

    def note_nowhere(self, image: Image) -> None:
        """Note that the image alone counts. Where that cannot be written, only this machine takes it."""
        with contextlib.suppress(OSError):
            self._note(image, "")

    def _note(self, image: Image, text: str) -> None:
        descriptor = self._held.get(image.folder)
        if descriptor is None:
            return  # a keeper before had it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
        os.fsync(descriptor)

    def release(self, image: Image) -> None:
        """Give a claim up, where the image is no more."""
        descriptor = self._held.pop(image.folder, None)
        if descriptor is not None:
            with contextlib.suppress(OSError):
                _file_of(image).unlink()
            os.close(descriptor)

    def leave(self, image: Image) -> None:
        """Give a claim up, and leave the image as it is."""
        descriptor = self._held.pop(image.folder, None)
        if descriptor is not None:
            os.close(descriptor)


def _file_of(image: Image) -> Path:
    return image.folder.with_name(f".{image.folder.name}.claim")


def _locked(path: Path) -> int:
    """Return a descriptor of the file, locked. Raises Claimed and OSError."""
    while True:
        descriptor = os.open(path, environment.LOCK_FLAGS, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise Claimed("another keeper of yours deals with it, for another server") from None
        except FileNotFoundError:  # its last keeper has removed it
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_here(place: str) -> bool:
    """Return whether a note was made on this machine: now, or before it was started again."""
    host, _, boot = place.partition(" ")
    return host == socket.gethostname() or bool(boot and boot == environment.boot_id())
