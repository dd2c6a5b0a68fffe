"""How much GPU memory was held, used and given back, as bytes times seconds; arithmetic alone.

For one kernel on one GPU, over a stretch of time:

*held*        the bytes that its processes have on the GPU by their shims' pages, movable or not, times how long.
              The CUDA context itself (about 0.6 GiB on an H200) is not in it: the pages do not know its size.
*used*        the part of held while the kernel was at work: a CUDA call was in flight, a graph was being captured,
              or the last activity that its shim saw was less than ACTIVITY_LASTS_S ago. A GPU that works long at
              something launched before, without any call, is counted only while a call waits for it.
*idle-held*   held less used: memory that no other kernel could have, and that did nothing.
*given back*  the bytes that were parked in host memory, times how long: what others could have of the GPU
              meanwhile. Of a hibernated kernel, what it had: until it was last told of, or until it woke here. It
              may have woken on another machine since, or have been deleted.

Durations are differences of the monotonic clock, so that setting the machine's clock makes no second twice or
never. The day is the UTC day of the wall clock at the time; a stretch over midnight is split there. The pages
are looked at about once a second, and what one look found is taken to last until the next: a kernel that comes,
goes or moves in between is wrong by a second at most. A pause of more than GAP_MAX_S between two looks (the
controller was stopped) counts for no user and is left out of the measured seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

ACTIVITY_LASTS_S = 1.0
GAP_MAX_S = 30.0
DAY_S = 86400


@dataclass(frozen=True)
class Seen:
    """A kernel at one look. Times are monotonic seconds."""

    kernel_id: str
    user: str  # no two users have the same
    user_name: str  # as it is displayed
    last_activity: float
    is_calling: bool  # a call is in flight, or a capture open
    held_bytes: Mapping[str, int] = field(hash=False)  # by GPU, movable or not
    parked_bytes: Mapping[str, int] = field(hash=False)
    account: str = ""  # of a batch system, as is …
    job: str = ""
    known_until: float | None = None  # a hibernated one: when it was last told of; None: it is seen to be so

    def is_using(self, now: float) -> bool:
        """Return whether it is at work."""
        return self.is_calling or now - self.last_activity < ACTIVITY_LASTS_S


@dataclass
class ByteSeconds:
    """Bytes times seconds; see the module for what each means."""

    held: float = 0.0
    used: float = 0.0
    given_back: float = 0.0

    @property
    def idle_held(self) -> float:
        """Return the bytes times seconds held without being used."""
        return self.held - self.used

    def add(self, other: ByteSeconds, share: float = 1.0) -> None:
        """Add a share of another sum."""
        self.held += other.held * share
        self.used += other.used * share
        self.given_back += other.given_back * share


@dataclass(frozen=True)
class UsageKey:
    """The user, day and GPU of a sum, and the job in which it came about."""

    day: int  # days since 1970-01-01 UTC
    user: str
    gpu: str
    account: str = ""  # "": of no batch system
    job: str = ""


@dataclass
class Usage:
    """What was measured since the last `take`."""

    by_key: dict[UsageKey, ByteSeconds] = field(default_factory=dict)
    measured_s: dict[int, float] = field(default_factory=dict)  # by day

    def add(self, other: Usage) -> None:
        """Add another's sums."""
        for key, sums in other.by_key.items():
            self.by_key.setdefault(key, ByteSeconds()).add(sums)
        for day, seconds in other.measured_s.items():
            self.measured_s[day] = self.measured_s.get(day, 0.0) + seconds


class Meter:
    """Adds up what kernels held from look to look."""

    def __init__(self) -> None:
        self._usage = Usage()
        self._seen: dict[str, Seen] = {}
        self._looked_at: float | None = None
        self._counted_until: dict[str, float] = {}  # of hibernated kernels

    def count(self, now: float, wall: float, kernels: Iterable[Seen]) -> list[tuple[Seen, str, ByteSeconds]]:
        """Count the time since the last look; `wall` is the wall clock's seconds at `now`.

        Return what was counted by kernel and GPU, for callers that sum it up otherwise.
        """
        began, self._looked_at = self._looked_at, now
        before, self._seen = self._seen, {kernel.kernel_id: kernel for kernel in kernels}
        if began is None or not 0 < now - began <= GAP_MAX_S:
            self._counted_until = dict.fromkeys(self._counted_until, now)
            return []
        for day, share in day_shares(wall - (now - began), wall):
            self._usage.measured_s[day] = self._usage.measured_s.get(day, 0.0) + share * (now - began)
        counted = []
        for kernel in before.values():
            after = self._seen.get(kernel.kernel_id)
            since, until = self._stretch(kernel, after, began, now)
            for gpu, sums in _held(kernel, after, since, until):
                counted.append((kernel, gpu, sums))
                for day, share in day_shares(wall - (now - since), wall - (now - until)):
                    key = UsageKey(day, kernel.user, gpu, kernel.account, kernel.job)
                    self._usage.by_key.setdefault(key, ByteSeconds()).add(sums, share)
        self._counted_until = {each: at for each, at in self._counted_until.items() if each in self._seen}
        return counted

    def _stretch(self, before: Seen, after: Seen | None, began: float, now: float) -> tuple[float, float]:
        """Return what of the time up to `now` is counted of a kernel. `began`: the last look."""
        if before.known_until is None:
            return began, now
        since = self._counted_until.setdefault(before.kernel_id, began)
        if after is None:
            return since, since
        if after.known_until is None:  # it has woken
            del self._counted_until[before.kernel_id]
            return since, now
        until = self._counted_until[before.kernel_id] = min(max(after.known_until, since), now)
        return since, until

    def take(self) -> Usage:
        """Return what was counted since the last take, and reset it."""
        usage, self._usage = self._usage, Usage()
        return usage


def day_shares(began: float, ended: float) -> Iterator[tuple[int, float]]:
    """Yield the UTC days of a stretch of the wall clock, each with its share of it; shares add up to 1."""
    length = ended - began
    first, last = math.floor(began / DAY_S), math.floor(ended / DAY_S)
    if first == last or length <= 0:
        yield last, 1.0
        return
    for day in range(first, last + 1):
        inside = min(ended, (day + 1) * DAY_S) - max(began, day * DAY_S)
        if inside > 0:
            yield day, inside / length


def used_seconds(before: Seen, after: Seen | None, began: float, ended: float) -> float:
    """Return how much of a stretch the kernel was at work, by what two looks know of its activity."""
    if before.is_calling and (after is None or after.is_calling):
        return ended - began
    moments = [before.last_activity] + ([after.last_activity] if after is not None else [])
    covered, until = 0.0, began
    for moment in sorted(moments):
        start, end = max(moment, until), min(moment + ACTIVITY_LASTS_S, ended)
        if end > start:
            covered, until = covered + end - start, end
    return covered


def _held(before: Seen, after: Seen | None, began: float, ended: float) -> Iterator[tuple[str, ByteSeconds]]:
    length, used = ended - began, used_seconds(before, after, began, ended)
    for gpu in before.held_bytes.keys() | before.parked_bytes.keys():
        held, parked = before.held_bytes.get(gpu, 0), before.parked_bytes.get(gpu, 0)
        if held or parked:
            yield gpu, ByteSeconds(held * length, held * used, parked * length)
