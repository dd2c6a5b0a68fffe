"""All kernels of a user that the keeper knows, and the folders in which it looks for more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ..hibernation import hibernate as images
from ..hibernation.claims import Claimed, Claims
from ..hibernation.disk import in_words
from ..hibernation.image import Image, ImageRefused
from ..hibernation.store import image_of, images_in
from ..time_of_day import since_boot_s
from .at_controller import tell_bytes
from .life import Lease, Life, Means
from .life_table import State
from .processes import lives
from .records import FOLDER_NAME, Owner, Record, Records
from .terms import terms_of

REMEMBERED_ENDS = 1000
NO_SUCH_KERNEL = "there is no such kernel: `jupyter affinode kept` lists those there are"


class NoSuchKernel(LookupError):
    """The keeper does not know the kernel; the message says so to a person."""


class Lives:
    """The lives of a user's kernels, by their ids."""

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
        self.means = Means(Records(folder / FOLDER_NAME), Claims(), log, self._changed)
        self._all: dict[str, Life] = {}
        self._left_alone: dict[str, str] = {}  # why images are of no kernel, by the names of their folders
        self._looking = asyncio.Lock()
        # Kernels that ended while they were kept, and when, after the machine's start.
        self._ends: dict[str, tuple[Record, float]] = {}

    def __iter__(self) -> Iterator[Life]:
        return iter(list(self._all.values()))

    def __contains__(self, kernel_id: object) -> bool:
        return kernel_id in self._all

    def find(self, kernel_id: str) -> Life | None:
        """Return a kernel's life; None for one that is not known."""
        return self._all.get(kernel_id)

    def get(self, kernel_id: str) -> Life:
        """Return a kernel's life. Raises NoSuchKernel."""
        life = self._all.get(kernel_id)
        if life is None:
            raise NoSuchKernel(self._why_not(kernel_id))
        return life

    def _why_not(self, kernel_id: str) -> str:
        found = (self._left_alone.get(name) for name in (image_of(Path(), kernel_id).folder.name, ""))
        return next(filter(None, found), NO_SUCH_KERNEL)

    def of(self, owner: Owner) -> list[Life]:
        """Return the kernels that a server of this name and root folder may take."""
        return [
            life
            for life in self
            if life.lease is None
            and life.state not in (State.GONE, State.ENDING)
            and life.record.owner.is_served_by(owner)
        ]

    @property
    def have_processes(self) -> bool:
        """Whether a kernel would end with the keeper, or be without one."""
        return any(life.kernel is not None or life.is_moving for life in self._all.values())

    # ---- what an earlier keeper left

    def read_records(self) -> None:
        """Know the kernels that an earlier keeper knew, as FOUND where more is to be looked at."""
        for record in list(self.means.records.all(self._log)):
            self._know(record)

    def _know(self, record: Record) -> Life:
        life = Life(record, self.means)
        self._all[life.id] = life
        if lives(record.process):
            life.find_process()
        has_image = bool(record.hibernate_dir) and life.image.folder.exists()
        if life.kernel is not None and not has_image:
            life.state = State.RUNS
        return life

    async def look_at_found(self) -> None:
        """Begin to look at what an earlier keeper left; what runs and has no server is kept."""
        for life in self:
            if life.state is State.FOUND:
                life.begin_look()
        runs = [life for life in self if life.state is State.RUNS]
        for life in runs:
            if life.has_server:
                life.begin_keeping()
        await asyncio.gather(*(life.keep() for life in runs if not life.has_server))

    async def look_in(self, store: str | None) -> None:
        """Know the kernels of a store's images, and return when each of them was looked at."""
        if not store:
            return
        async with self._looking:
            try:
                found = images_in(Path(store))
            except ImageRefused as refused:
                self._log.error("no kernel is woken: %s", refused)
                self._left_alone[""] = str(refused)
                return
            self._left_alone.pop("", None)
            known = {life.image.folder for life in self if life.record.hibernate_dir}
            for image in found:
                if image.folder not in known:
                    await self._look_at(image)
        self.look_at_ages()

    async def _look_at(self, image: Image) -> None:
        name = image.folder.name
        try:
            if not (image.is_whole or image.is_being_woken or image.was_woken):
                return await self._give_up(image)
            record = terms_of(image)
            if record.kernel_id in self._all:
                return  # it lives, with another image
            # A folder may have been moved, or be seen from another machine by another path.
            life = Life(_at(record, image), self.means)
        except (ImageRefused, OSError) as refused:
            if self._left_alone.get(name) != in_words(refused):
                self._log.error("the image %s cannot be used: %s", image.folder, in_words(refused))
            self._left_alone[name] = in_words(refused)
            return
        self._left_alone.pop(name, None)
        self._all[life.id] = life
        life.begin_look()
        await life.settled()

    async def _give_up(self, image: Image) -> None:
        """Delete what is left of an image that no keeper makes any more."""
        try:
            self.means.claims.take(image)
        except (Claimed, OSError):
            return
        await images.recover(image)
        self.means.claims.release(image)

    # ---- kernels that run

    def add(self, record: Record) -> Life:
        """Know a kernel whose process runs. Raises ProcessLookupError if that has ended."""
        life = self.find(record.kernel_id) or self._know(record)
        if life.kernel is None and not life.is_out:
            self._drop(life)
            raise ProcessLookupError(f"kernel {record.kernel_id} has ended")
        if life.state is State.FOUND:
            life.begin_look()
        return life

    async def update(self, record: Record, lease: Lease) -> Life:
        """Note what adopting a server's kernel takes, now or after a change. Raises ProcessLookupError."""
        life = self.find(record.kernel_id)
        if life is None and not lives(record.process):
            await self.look_in(record.hibernate_dir)
            life = self.find(record.kernel_id)
            if life is None:
                raise ProcessLookupError(f"kernel {record.kernel_id} has ended")
        life = life or self.add(record)
        if life.lease is not lease:
            await life.take(lease)
        await life.update(record)
        return life

    async def are_left(self, lease: Lease) -> None:
        """Keep the kernels of a server whose connection has ended."""
        await asyncio.gather(*(life.lost(lease) for life in self if life.lease is lease))

    # ---- ends

    def _changed(self, life: Life) -> None:
        """See to a kernel whose state has changed."""
        if self._all.get(life.id) is not life:
            return
        life.show()
        if life.state is not State.GONE:
            return
        if life.record.warm:
            self._drop(life)
            self._on_warm_end(life.id)
        elif life.ended_why is not None:
            self._drop(life)
            if life.lease is None:
                self._leave_nothing(life)
        elif life.lease is None:  # else its server starts it anew, or says that it is gone
            self._drop(life)
            self._leave_nothing(life)
            self._log.warning("kernel %s ended while no server had it", life.id)
            self._ends[life.id] = (life.record, since_boot_s())
            while len(self._ends) > REMEMBERED_ENDS:
                del self._ends[next(iter(self._ends))]

    def _drop(self, life: Life) -> None:
        del self._all[life.id]
        self.means.records.remove(life.id)
        self._on_fewer()

    def _leave_nothing(self, life: Life) -> None:
        """Remove the files of a kernel that has ended without a server."""
        files = [life.record.connection_file, *life.record.sockets]
        grant = life.at_hub.grant_file if life.at_hub is not None else ""
        if grant and grant not in {other.at_hub.grant_file for other in self if other.at_hub is not None}:
            files.append(grant)  # the server's, which had no other kernel
        for path in files:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def take_ends(self, owner: Owner) -> list[tuple[Record, float]]:
        """Return, once, which kept kernels of an owner ended, and when, by the time of day."""
        started = time.time() - since_boot_s()
        ended = [
            (record, started + at) for record, at in self._ends.values() if record.owner.is_served_by(owner)
        ]
        for record, _ in ended:
            del self._ends[record.kernel_id]
        return ended

    # ---- in time

    def look_at_ages(self) -> None:
        """Delete images by age, and say so before."""
        for life in self:
            life.look_at_age()

    async def look(self) -> None:
        """See to kernels in images: to their age, to claims that may be free, and that the controller knows them."""
        self.look_at_ages()
        for life in self:
            if life.state is State.ELSEWHERE:
                life.begin_look()
            elif life.state is State.IN_IMAGE:
                life.show()
                if life.lease is None:  # a server tells of its own
                    await tell_bytes(life.record, life.written_bytes)


def _at(record: Record, image: Image) -> Record:
    """Return a record with the folder in which its image was found."""
    return replace(record, hibernate_dir=str(image.folder.parent))
