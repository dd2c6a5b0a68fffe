"""The kernels that the keeper knows: where each is, which server has it, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from ..time_of_day import since_boot_s
from .hibernated import HibernatedKernels
from .kept_kernel import KeptKernel
from .records import FOLDER_NAME, Owner, Record, Records

REMEMBERED_ENDS = 1000


class KnownKernels:
    """A user's kernels that a server has or had: in `running` those with a process, in `hibernated` those in images."""

    def __init__(
        self,
        folder: Path,
        log: logging.Logger,
        on_warm_end: Callable[[str], None],
        on_fewer: Callable[[], None],
    ):
        """Begin with none. Call `on_warm_end` with the id of a warm kernel that ended, `on_fewer` when any has gone."""
        self._log = log
        self._on_warm_end = on_warm_end
        self._on_fewer = on_fewer
        self.records = Records(folder / FOLDER_NAME)
        self.running: dict[str, KeptKernel] = {}
        self.servers: dict[asyncio.StreamWriter, set[str]] = {}  # and the ids of their kernels
        self.ended_under_server: dict[str, Record] = {}
        self.hibernated = HibernatedKernels(log)
        # Kernels that ended while they were kept, and when, after the machine's start.
        self._ends: dict[str, tuple[Record, float]] = {}

    def read_records(self) -> None:
        """Know the kernels that an earlier keeper knew; note which of them have ended since."""
        for record in list(self.records.all(self._log)):
            if self.know(record) is not None:
                continue
            if record.hibernate_dir:  # it may be in an image by now
                self.records.remove(record.kernel_id)
            else:
                self.note_end(record)

    def server_of(self, kernel_id: str) -> asyncio.StreamWriter | None:
        """Return the connection of the server that has a kernel."""
        return next((writer for writer, had in self.servers.items() if kernel_id in had), None)

    def know(self, record: Record) -> KeptKernel | None:
        """Return a kernel, which is new or has a newer record; None if its process has ended."""
        kernel = self.running.get(record.kernel_id)
        if kernel is not None and kernel.record.process == record.process:
            kernel.belongs_to(record)
            return kernel
        if kernel is not None:
            self.drop(record.kernel_id)
        try:
            kernel = KeptKernel(record, self._ended, self._log)
        except ProcessLookupError:
            return None
        self.running[record.kernel_id] = kernel
        return kernel

    def write(self, record: Record) -> None:
        """Write a kernel's record, for a later keeper."""
        try:
            self.records.write(record)
        except OSError as error:  # a full disk, for example: it is in memory
            self._log.error("kernel %s would be lost with this keeper: %s", record.kernel_id, error)

    def _ended(self, kernel: KeptKernel) -> None:
        kernel_id = kernel.record.kernel_id
        if self.running.get(kernel_id) is not kernel:
            return
        self.hibernated.has_ended(kernel.record, was_wanted=kernel.dying is not None)
        kernel.close()
        del self.running[kernel_id]  # or `drop` would take its end for wanted, and delete an image that stays
        if kernel_id in self.hibernated and not kernel.record.warm:  # its image counts again
            self.records.remove(kernel_id)
        elif kernel.record.warm:
            self.drop(kernel_id)
            self._on_warm_end(kernel_id)
        elif kernel.is_kept:
            self.note_end(kernel.record, was_wanted=kernel.dying is not None)
            self.drop(kernel_id)
            self._remove_grant(kernel)
        else:  # its server restarts it, or says that it is gone, unless that ends at the same time
            self.ended_under_server[kernel_id] = kernel.record
        self._on_fewer()

    def note_end(self, record: Record, *, was_wanted: bool = False) -> None:
        """Leave nothing of a kernel that ended without a server, and have the next one say so."""
        for path in (record.connection_file, *record.sockets):
            with contextlib.suppress(OSError):
                os.unlink(path)
        self.records.remove(record.kernel_id)
        if was_wanted or record.warm:
            return
        self._log.warning("kernel %s ended while no server had it", record.kernel_id)
        self._ends[record.kernel_id] = (record, since_boot_s())
        while len(self._ends) > REMEMBERED_ENDS:
            del self._ends[next(iter(self._ends))]

    def _remove_grant(self, kernel: KeptKernel) -> None:
        """Remove the grant of the server that a kernel had, if it was the server's last kernel."""
        file = kernel.at_hub.grant_file if kernel.at_hub is not None else ""
        others = {other.at_hub.grant_file for other in self.running.values() if other.at_hub is not None}
        if file and file not in others:
            with contextlib.suppress(OSError):
                os.unlink(file)

    def take_ends(self, owner: Owner) -> list[tuple[Record, float]]:
        """Return, once, which kept kernels of an owner ended, and when, by the time of day."""
        started = time.time() - since_boot_s()
        ended = [
            (record, started + at) for record, at in self._ends.values() if record.owner.is_served_by(owner)
        ]
        for record, _ in ended:
            del self._ends[record.kernel_id]
        return ended

    def drop(self, kernel_id: str) -> None:
        """Forget a kernel, its record, and which server has it. The process may go on."""
        kernel = self.running.pop(kernel_id, None)
        if kernel is not None:
            kernel.close()
            self.hibernated.has_ended(kernel.record, was_wanted=True)
        self.ended_under_server.pop(kernel_id, None)
        self.records.remove(kernel_id)
        for had in self.servers.values():
            had.discard(kernel_id)
        self._on_fewer()

    def has_hibernated(self, kernel_id: str) -> None:
        """Note that a kernel's image is whole, and its process gone."""
        self.running.pop(kernel_id, None)  # if it has not been noticed that its process ended
        self._ends.pop(kernel_id, None)
        self.records.remove(kernel_id)
        self._on_fewer()
