"""A kernel in an image: what is known of it, and its ports, which nobody else gets meanwhile."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..hibernation.disk import in_words
from ..hibernation.files import objection_to_files
from ..hibernation.image import Image, Manifest
from ..hibernation.machine import objection_to_waking
from ..hibernation.store import deletion_at
from .messages import Undelivered

OBJECTION_HOLDS_S = 5.0


@dataclass(frozen=True)
class Hibernated:
    """What is known of an image. `bytes`: its part of the disk, as it was made."""

    image: Image
    undelivered: Undelivered
    bytes: int
    manifest: Manifest
    _looked: list[tuple[float, str | None]] = field(
        default_factory=list, compare=False
    )  # the last look at `objection`

    @classmethod
    def of(cls, image: Image, manifest: Manifest) -> Hibernated:
        """Return what is known of an image. What is large of its manifest stays on the disk."""
        known = replace(manifest, record={}, undelivered={}, files={}, pages={})
        return cls(image, Undelivered.from_json(manifest.undelivered), image.bytes, known)

    @property
    def since(self) -> float:
        """When it was made, by the time of day."""
        return self.manifest.made_at

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

    def deleted_at(self, keep_s: float) -> float | None:
        """Return when it is deleted by age, by the time of day; None: never. `keep_s`: as its terms are now."""
        return deletion_at(self.since, keep_s, self.image.warned_at)

    def announced_end(self, keep_s: float) -> float | None:
        """Return when it is deleted by age, once that has been said."""
        return None if self.image.warned_at is None else self.deleted_at(keep_s)


class PortsHeld:
    """The ports of a hibernated kernel. Other programs are refused them, and nothing listens there."""

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
                    # From now on no other socket may be bound there, also with this option, as libzmq's have it.
                    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
                    self._sockets.append(held)
                except OSError:
                    held.close()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Let the kernel's own sockets be bound beside these, as CRIU restores them."""
        for held in self._sockets:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            yield
        finally:
            for held in self._sockets:
                with contextlib.suppress(OSError):
                    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)

    def free(self) -> None:
        """Let go of them."""
        for held in self._sockets:
            held.close()
