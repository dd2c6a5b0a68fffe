"""How fast this machine parks and resumes, learnt from its own moves; the eviction cost is computed from it.

Each move tells how many bytes were copied and how long it took. By GPU and direction, the line that best fits the last
few dozen moves is kept: a fixed part and a rate. It begins as `Speed` assumes it, with the weight of less than a move,
and forgets slowly, so that a machine that became slower is noticed within some moves.

**First touches** are kept apart. A park that takes host memory which its process did not have yet waits for pages to be
found and zeroed: several times as long, and where a virtual machine's memory comes at its first use, for many seconds,
once. In the line, a few of them would make every later park look slow for dozens of moves. So the time beyond the line
is a figure of its own, by byte of such memory, of which each such park replaces half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ...model.snapshot import Speed
from ...protocol.page import PageData, State
from ..records.process import Process

FORGETS = 0.95  # what an older move counts beside the next
FRESH_PART = 0.1  # of what it copied: a park that took less than that anew is a later one
FRESH_FORGETS = 0.5  # what is known of first touches counts beside the next
FAST_BYTES_PER_S = 1e12  # nothing that is attached to a machine today is as fast
PRIOR_BYTES = 8 << 30
PRIOR_WEIGHT = 0.3  # of each of its two ends
PRIOR = Speed()


@dataclass
class Line:
    """Seconds over bytes, fitted by least squares with weights that fade."""

    fixed_s: float
    bytes_per_s: float
    _n: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def __post_init__(self) -> None:
        self._add(0.0, self.fixed_s, PRIOR_WEIGHT)
        self._add(float(PRIOR_BYTES), self.fixed_s + PRIOR_BYTES / self.bytes_per_s, PRIOR_WEIGHT)

    def says_s(self, copied_bytes: float) -> float:
        """Return how long a move of `copied_bytes` takes."""
        return self.fixed_s + copied_bytes / self.bytes_per_s

    def take(self, copied_bytes: int, seconds: float) -> None:
        """Add a move."""
        self._n, self._x, self._y = self._n * FORGETS, self._x * FORGETS, self._y * FORGETS
        self._xx, self._xy = self._xx * FORGETS, self._xy * FORGETS
        self._add(float(copied_bytes), seconds)
        self._fit()

    def _add(self, size: float, seconds: float, weight: float = 1.0) -> None:
        self._n += weight
        self._x += weight * size
        self._y += weight * seconds
        self._xx += weight * size * size
        self._xy += weight * size * seconds

    def _fit(self) -> None:
        """Fit the best line with no negative part: a move takes no less than nothing, and longer for more bytes."""
        spread = self._n * self._xx - self._x * self._x
        slope = (self._n * self._xy - self._x * self._y) / spread if spread > 0 else 0.0
        fixed = (self._y - slope * self._x) / self._n
        if slope < 1 / FAST_BYTES_PER_S:
            slope = 1 / FAST_BYTES_PER_S
            fixed = (self._y - slope * self._x) / self._n
        elif fixed < 0:
            fixed, slope = 0.0, self._xy / self._xx
        self.fixed_s, self.bytes_per_s = max(fixed, 0.0), 1 / max(slope, 1 / FAST_BYTES_PER_S)


@dataclass
class _Gpu:
    parks: Line = field(default_factory=lambda: Line(PRIOR.park_fixed_s, PRIOR.park_bytes_per_s))
    resumes: Line = field(default_factory=lambda: Line(PRIOR.resume_fixed_s, PRIOR.resume_bytes_per_s))
    first_touch_s_per_byte: float = 0.0

    def take_park(self, copied: int, fresh: int, seconds: float) -> None:
        """Add a park, of which `fresh` bytes went into host memory that was new to the process."""
        longer_s = seconds - self.parks.says_s(copied)
        if fresh > FRESH_PART * copied:
            new = max(longer_s, 0.0) / fresh
            self.first_touch_s_per_byte = (
                FRESH_FORGETS * self.first_touch_s_per_byte + (1 - FRESH_FORGETS) * new
            )
            if longer_s > 0:
                return  # else the machine is faster than the line says, fresh memory or not
        self.parks.take(copied, seconds)

    def speed(self) -> Speed:
        return Speed(
            self.parks.fixed_s,
            self.parks.bytes_per_s,
            self.resumes.fixed_s,
            self.resumes.bytes_per_s,
            self.first_touch_s_per_byte,
        )


class MoveSpeeds:
    """The running estimate, from the pages of processes; part of the state."""

    def __init__(self) -> None:
        self._gpus: dict[str, _Gpu] = {}
        self._speeds: dict[str, Speed] = {}
        # How many parks and resumes of a process were looked at, and the host memory that it had when last on the GPU.
        self._seen: dict[int, tuple[int, int, int]] = {}

    def learn(
        self,
        processes: Iterable[Process],
        sizes: Mapping[str, int] | None,
        lasted_s: Callable[[Process], float | None],
    ) -> list[tuple[int, float]]:
        """Learn from what was moved since the last look; return what was read from disk, and in how many seconds.

        `sizes`: of the GPUs that NVML knows, in bytes; None: there is no NVML, and nothing is learnt. `lasted_s`: how
        long the last move of a process was under way by our clock, in seconds; None: we commanded none. A page may
        claim anything, so a copy counts as no larger than the GPU and no longer than we saw it take.
        """
        seen, read = {}, []
        for process in processes:
            data = process.data
            parks, resumes, had = self._seen.get(process.key, (data.parks, data.resumes, 0))
            if sizes is not None and (data.parks, data.resumes) != (parks, resumes):
                longest_s = lasted_s(process)
                if longest_s is not None:
                    is_parked, is_resumed = data.parks > parks, data.resumes > resumes
                    self._learn(data, sizes, longest_s, had, parked=is_parked, resumed=is_resumed)
                    if is_resumed and data.last_resume_disk_bytes and data.last_resume is not None:
                        size = min(data.last_resume_disk_bytes, data.last_resume[0])
                        read.append((size, min(data.last_resume[1], longest_s)))
            if data.state is State.RESIDENT:
                had = max(data.retained_bytes, data.lot_bytes)
            seen[process.key] = (data.parks, data.resumes, had)
        self._seen = seen
        if sizes is not None and self._gpus.keys() - sizes.keys():
            self._gpus = {uuid: gpu for uuid, gpu in self._gpus.items() if uuid in sizes}
            self._speeds = {uuid: speed for uuid, speed in self._speeds.items() if uuid in sizes}
        return read

    def by_gpu(self) -> Mapping[str, Speed]:
        """Return the speeds of the GPUs with measured moves; cached, since it is asked for very often."""
        return self._speeds

    def _learn(
        self,
        data: PageData,
        sizes: Mapping[str, int],
        longest_s: float,
        had: int,
        *,
        parked: bool,
        resumed: bool,
    ) -> None:
        used = [gpu.uuid for gpu in data.gpus if gpu.resident_bytes or gpu.parked_bytes]
        if len(used) != 1 or used[0] not in sizes:
            return  # which of several GPUs was the slow one is not told
        most = sizes[used[0]]
        gpu = self._gpus.setdefault(used[0], _Gpu())
        if parked and data.last_park is not None:
            copied = min(data.last_park_copied_bytes, most)
            fresh = max(copied - max(had, data.lot_bytes), 0)
            gpu.take_park(copied, fresh, min(data.last_park[1], longest_s))
        if resumed and data.last_resume is not None and not data.last_resume_disk_bytes:
            size, seconds = data.last_resume
            gpu.resumes.take(min(max(size - data.last_park_zero_bytes, 0), most), min(seconds, longest_s))
        self._speeds = {**self._speeds, used[0]: gpu.speed()}


def park_copies(process: Process) -> int:
    """Return the bytes that a park of the process has to copy if as much stays unchanged as before its last one; else
    all.

    It may have written all of it since: that is seen only by looking.
    """
    data = process.data
    if data.last_park is None:
        return process.resident_bytes
    zeros, copied = data.last_park_zero_bytes, data.last_park_copied_bytes
    unchanged = max(data.last_park[0] - copied - zeros, 0)
    return max(process.resident_bytes - zeros - min(unchanged, data.retained_bytes), 0)


def resume_copies(process: Process) -> int:
    """Return the bytes that a resume copies: all that is not zeros."""
    size = sum(gpu.resident_bytes + gpu.parked_bytes for gpu in process.data.gpus)
    return max(size - process.data.last_park_zero_bytes, 0)
