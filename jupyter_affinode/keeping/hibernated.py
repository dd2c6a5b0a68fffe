"""A kernel in an image: what is known of it, and what is reserved for it until it is woken."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..hibernation.disk import in_words
from ..hibernation.files import PORT, Known, objection_to_files
from ..hibernation.image import Image, Manifest
from ..hibernation.machine import objection_to_waking
from ..hibernation.store import deletion_at
from ..hibernation.terminals import TerminalsHeld
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

    def objection(self, reserved: Reserved | None) -> str | None:
        """Return why it could not be woken now, and what to do: another driver, a changed library; None: no reason.

        Panels ask often, and hundreds of files are looked at: what was found holds for a while. `reserved`: what is
        held for it.
        """
        if not self._looked or time.monotonic() - self._looked[0][0] > OBJECTION_HOLDS_S:
            needed = self.manifest.needed if reserved is None else reserved.others
            try:
                found = objection_to_waking(self.manifest.origin) or objection_to_files(
                    needed, self.manifest.saved
                )
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


class Reserved:
    """What a kernel gets back by its number, its ports and terminals: other programs are refused them meanwhile."""

    def __init__(self, connection: dict[str, Any], needed: Known):
        """Take what is free. `needed`: what its processes had open, its listening ports and terminals among it."""
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        ports = [(str(was[1]), int(was[2])) for was in needed.values() if was[:1] == [PORT]]
        if connection.get("transport", "tcp") == "tcp":
            ports += [
                (connection["ip"], number)
                for name, number in connection.items()
                if name.endswith("_port") and number
            ]
        for ip, port in dict.fromkeys(ports):
            self._take(ip, port)
        self._terminals = TerminalsHeld(needed)
        self._needed = needed

    def _take(self, ip: str, port: int) -> None:
        """Be bound to a port, with nothing that listens there."""
        held = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # beside its connections that end
        try:
            held.bind((ip, port))
        except OSError:
            held.close()
            return
        # From now on no other socket may be bound there, also with this option, as libzmq's have it.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        self._sockets[ip, port] = held

    @property
    def others(self) -> Known:
        """What the kernel's processes had open beside what is held here."""
        ports = {(ip, port) for ip, port in self._sockets}
        return {
            path: was
            for path, was in self._needed.items()
            if not (was[:1] == [PORT] and (str(was[1]), int(was[2])) in ports)
            and path not in self._terminals.names
        }

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Have the kernel's own processes get them, as CRIU starts these. They are taken anew where that fails."""
        self._terminals.free()
        for held in self._sockets.values():
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            yield
        finally:
            self.free()

    def free(self) -> None:
        """Let go of all."""
        self._terminals.free()
        while self._sockets:
            self._sockets.popitem()[1].close()
