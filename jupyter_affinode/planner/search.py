"""Search: how many users a machine serves, the most for whom a cell's wait stays within a bound.

With one user more the others' sessions stay what they are (or a trace's users come again), so that waits grow with the
number but for chance. The answer is a number that was replayed and keeps the bound, while the next one that was
replayed (one more, or 2 % more of many) does not; below it, the bound is taken to be kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .model.results import Outcome
from .model.simulation import TooSlow
from .strategies import Plan

PART = 0.95  # of all cells wait no longer than the bound
STEP = 50  # the answer is found to within that part of it, 2 %, since replays of many users take long
PER_GPU_MAX = 256  # users; the model is not meant for machines that serve more
Say = Callable[[str, int, bool], None]  # way, users, whether the bound is kept


def most_users(plan: Plan, wait_s: float, say: Say, on_progress: Callable[[], None]) -> dict[str, Any]:
    """Return by way the most users, their outcome, and every number that was tried. Raises as `Plan.replay`."""
    found = {}
    for way in plan.ways:
        tried = _Tried(plan, wait_s, way, say, on_progress)
        most = tried.most()
        found[way] = {
            "users": most,
            "users_per_gpu": most / plan.machine.gpus,
            "outcome": tried.outcomes[most].as_dict() if most else None,
            "tried": {str(users): tried.kept[users] for users in sorted(tried.kept)},
        }
    return {"p95_wait_s": wait_s, "ways": found}


class _Tried:
    """One way of sharing, tried with different numbers of users."""

    def __init__(self, plan: Plan, wait_s: float, way: str, say: Say, on_progress: Callable[[], None]):
        self._plan, self._wait_s, self._way, self._say = plan, wait_s, way, say
        self._on_progress = on_progress
        self.outcomes: dict[int, Outcome] = {}
        self.kept: dict[int, bool] = {}

    def most(self) -> int:
        """Return the largest number that keeps the bound; 0 if one user alone does not."""
        limit = PER_GPU_MAX * self._plan.machine.gpus
        good, bad = 0, 1
        while self._keeps(bad):
            if bad >= limit:
                return bad
            good, bad = bad, min(bad * 2, limit)
        while bad - good > max(good // STEP, 1):
            middle = (good + bad) // 2
            if self._keeps(middle):
                good = middle
            else:
                bad = middle
        return good

    def _keeps(self, users: int) -> bool:
        plan = self._plan.with_users(users)
        sessions = plan.sessions()
        if not any(session.cells for session in sessions):
            self.kept[users] = True  # no session needed the GPU
            self.outcomes[users] = Outcome(self._way, self._way)
            return True
        plan.check(sessions)
        cells = sum(len(session.cells) for session in sessions)
        may_wait = cells - math.ceil(PART * cells)
        try:
            outcome = plan.replay(
                self._way, sessions, lambda *_: self._on_progress(), (self._wait_s, may_wait)
            )
        except TooSlow:
            self.kept[users] = False
        else:
            self.outcomes[users] = outcome
            is_whole = not any(
                name.startswith("cells ") for name in outcome.counts if name != "cells preempted"
            )
            self.kept[users] = is_whole and outcome.waits()["p95"] <= self._wait_s
        self._say(self._way, users, self.kept[users])
        return self.kept[users]
