"""The disk for spilled memory: its room, what was written in the last 24 hours, and how fast it is."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from .... import private_folders
from ....settings.policy import MIB, Settings

LOOKS_APART_S = 1.0
HOUR_S = 3600.0
DAY_HOURS = 24
SPARE_PART = 20  # a twentieth of the disk is left to others
PRIOR_BYTES_PER_S = 5e8  # until this disk has been used
FORGETS = 0.5  # what is known of a rate counts beside the next measurement
LEAST_S = 0.001
PLAUSIBLE_BYTES_PER_S = (1e7, 3e10)  # of any disk; a page may show any figure

Written = Mapping[str, Mapping[int, int]]  # by user: MiB, rounded up, by the hour of the monotonic clock


class Disk:
    """The room for spilled memory, by the settings and by what the disk has."""

    def __init__(self) -> None:
        self.limit_bytes = 0  # of all kernels together; 0: none may
        self.problem: str | None = None  # why the folder cannot be used
        self._free_bytes = 0
        self._taken_bytes = 0  # by all files on it
        self._daily_bytes = 0
        self._folder = ""
        self._looked_at = -LOOKS_APART_S
        self._written: dict[str, dict[int, int]] = {}  # bytes by hour, of each user
        self._read_rate: float | None = None
        self._write_rate: float | None = None

    def measure(self, settings: Settings, used_bytes: int, now: float, log: logging.Logger) -> None:
        """Measure the room; `used_bytes`: what kernels have there already, by their pages."""
        self._daily_bytes = settings.spill_daily_bytes
        if not settings.spill_dir:
            self.limit_bytes, self.problem = 0, None
            return
        if settings.spill_dir != self._folder or now - self._looked_at >= LOOKS_APART_S:
            self._folder, self._looked_at = settings.spill_dir, now
            self._measure(log)
        limit, used_bytes = settings.spill_limit_bytes, min(used_bytes, self._taken_bytes)
        self.limit_bytes = (self._free_bytes + used_bytes) // 2 if limit is None else limit
        if self.problem is not None:
            self.limit_bytes = 0

    def _measure(self, log: logging.Logger) -> None:
        problem = None
        try:
            private_folders.verify_folder(Path(self._folder), private_folders.SHARED)
            room = os.statvfs(self._folder)
        except OSError as error:
            problem = str(error)
        else:
            self._taken_bytes = (room.f_blocks - room.f_bfree) * room.f_frsize
            spare = room.f_blocks * room.f_frsize // SPARE_PART
            self._free_bytes = max(room.f_bavail * room.f_frsize - spare, 0)
        if problem not in (None, self.problem):
            log.warning("parked memory cannot go to disk: %s", problem)
        self.problem = problem

    def free_bytes(self, under_way_bytes: int) -> int:
        """Return the room that the disk has beside what is being written."""
        return max(self._free_bytes - under_way_bytes, 0) if self.limit_bytes else 0

    @property
    def daily_bytes(self) -> int:
        """Return what may be written in 24 hours, there and to images."""
        return self._daily_bytes

    # ---- what was written

    def written_by(self, now: float) -> Mapping[str, int]:
        """Return what each user's kernels wrote in the last 24 hours, by whole hours, as they said. What is under way
        counts as written.
        """
        first = int(now // HOUR_S) - DAY_HOURS
        lately = (
            (user, {hour: size for hour, size in hours.items() if hour >= first})
            for user, hours in self._written.items()
        )
        self._written = {user: hours for user, hours in lately if hours}
        return {user: sum(hours.values()) for user, hours in self._written.items()}

    def written_bytes(self, now: float) -> int:
        """Return what all users' kernels wrote in the last 24 hours."""
        return sum(self.written_by(now).values())

    def begin_writing(self, user: str, size: int, now: float) -> None:
        """Count what a spill may write: its process goes on though a controller, or the kernel, is killed."""
        self._count(user, int(now // HOUR_S), size)

    def end_writing(self, user: str, asked_bytes: int, written_bytes: int, began: float) -> None:
        """Count what a spill that has answered wrote."""
        if int(began // HOUR_S) in self._written.get(user, {}):
            self._count(user, int(began // HOUR_S), written_bytes - asked_bytes)

    def _count(self, user: str, hour: int, size: int) -> None:
        hours = self._written.setdefault(user, {})
        hours[hour] = hours.get(hour, 0) + size

    @property
    def stored_bytes(self) -> Written:
        """Return what the next controller is to know."""
        stored = {
            user: {hour: -(-size // MIB) for hour, size in hours.items() if size}
            for user, hours in self._written.items()
        }
        return {user: hours for user, hours in stored.items() if hours}

    def recall(self, written: object, now: float) -> None:
        """Take what an earlier controller counted, as far as it is plausible."""
        for user, hours in written.items() if isinstance(written, dict) else ():
            if isinstance(hours, dict):
                for hour, size in _plausible(hours, now):
                    self._count(str(user), hour, size * MIB)

    # ---- how fast it is

    @property
    def read_bytes_per_s(self) -> float:
        """Return how fast spilled memory is read, by the last resumes; before the first, as fast as it was written."""
        return self._read_rate or self._write_rate or PRIOR_BYTES_PER_S

    def take_written(self, size: int, seconds: float) -> None:
        """Learn from a spill that wrote `size` bytes."""
        self._write_rate = _learnt(self._write_rate, size / max(seconds, LEAST_S))

    def take_read(self, size: int, seconds: float) -> None:
        """Learn from a resume that read `size` bytes."""
        self._read_rate = _learnt(self._read_rate, size / max(seconds, LEAST_S))


def _plausible(hours: Mapping[object, object], now: float) -> Iterator[tuple[int, int]]:
    """Yield (hour, size) of those that are no nonsense."""
    for hour, size in hours.items():
        is_past = str(hour).isascii() and str(hour)[:9].isdigit() and int(str(hour)[:9]) <= now // HOUR_S
        if is_past and isinstance(size, int) and 0 < size < 1 << 40:
            yield int(str(hour)[:9]), size


def _learnt(known: float | None, new: float) -> float:
    new = min(max(new, PLAUSIBLE_BYTES_PER_S[0]), PLAUSIBLE_BYTES_PER_S[1])
    return new if known is None else FORGETS * known + (1 - FORGETS) * new
