"""A virtual clock: events in the order of their moments, and work that shares one thing's speed."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Hashable

Step = Callable[[], None]
PRECISION_S = 1e-9  # of a moment; below it work is done


class Timeline:
    """Events by moment; those of one moment in the order in which they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Step]] = []
        self._numbers = itertools.count()

    @property
    def ahead(self) -> int:
        """Return how many events are to come."""
        return len(self._queue)

    def at(self, moment: float, step: Step) -> None:
        """Have `step` called at a moment; a past one counts as now."""
        heapq.heappush(self._queue, (max(moment, self.now), next(self._numbers), step))

    def after(self, seconds: float, step: Step) -> None:
        """Have `step` called after `seconds`."""
        self.at(self.now + seconds, step)

    def advance(self) -> bool:
        """Go to the next moment and do everything of it that is known by then; return False if nothing is left."""
        if not self._queue:
            return False
        self.now = self._queue[0][0]
        while self._queue and self._queue[0][0] <= self.now:
            heapq.heappop(self._queue)[2]()
        return True


class Shared:
    """Something that several do at a time at an equal rate each: a GPU's compute, a link's direction.

    One alone has a rate of 1. Its `demand` is the part of the whole that it uses at that rate. While all demands
    together are at most 1 none slows another; beyond, each has the rate 1 / (their sum).
    """

    def __init__(self, timeline: Timeline, demand: float = 1.0):
        """Prepare. `demand`: of work that is begun without one."""
        self._timeline = timeline
        self._demand = demand
        self._left: dict[Hashable, tuple[float, Step]] = {}  # seconds of work at a rate of 1, and what then
        self._demands: dict[Hashable, float] = {}
        self._since = 0.0
        self._epoch = 0  # what was put on the timeline before the last change is void
        self.busy_s = 0.0  # how much of the whole was used, in seconds of it

    def __contains__(self, key: Hashable) -> bool:
        return key in self._left

    def begin(self, key: Hashable, work_s: float, then: Step, demand: float | None = None) -> None:
        """Begin some work."""
        self._catch_up()
        self._left[key] = (work_s, then)
        self._demands[key] = self._demand if demand is None else demand
        self._next()

    def stop(self, key: Hashable) -> float:
        """Withdraw work; return what is left of it, in seconds of a rate of 1."""
        self._catch_up()
        left, _ = self._left.pop(key)
        del self._demands[key]
        self._next()
        return left

    @property
    def _rate(self) -> float:
        return 1.0 / max(1.0, math.fsum(self._demands.values()))

    def _catch_up(self) -> None:
        passed = self._timeline.now - self._since
        self._since = self._timeline.now
        if passed <= 0 or not self._left:
            return
        rate = self._rate
        self.busy_s += passed * rate * math.fsum(self._demands.values())
        for key, (left, then) in self._left.items():
            self._left[key] = (max(left - passed * rate, 0.0), then)

    def _next(self) -> None:
        self._epoch += 1
        if self._left:
            epoch, least = self._epoch, min(left for left, _ in self._left.values())
            self._timeline.after(least / self._rate, lambda: self._end(epoch))

    def _end(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        self._catch_up()
        least = min(left for left, _ in self._left.values())
        done = [key for key, (left, _) in self._left.items() if left <= least + PRECISION_S]
        steps = [self._left.pop(key)[1] for key in done]
        for key in done:
            del self._demands[key]
        self._next()
        for step in steps:
            step()
