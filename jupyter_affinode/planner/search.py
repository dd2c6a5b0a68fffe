"""Search: how many users a machine serves, the most for whom a cell's wait stays within a bound.

With one user more the others' sessions stay what they are (or a trace's users come again), so that waits grow with the
number but for chance. The answer is a number that was replayed and keeps the bound, while the next one that was
replayed (one more, or 2 % more of many) does not; below it, the bound is taken to be kept.
"""

from __future__ import annotations

import math
from typing import Any

from .model.results import Outcome
from .model.simulation import Say, TooSlow
from .strategies import Plan

PART = 0.95  # of all cells wait no longer than the bound
STEP = 50  # the answer is found to within that part of it, 2 %, since replays of many users take long
PER_GPU_MAX = 256  # users; the model is not meant for machines that serve more


def most_users(plan: Plan, wait_s: float, say: Say) -> dict[str, Any]:
    """Return by way the most users, their outcome, and every number that was tried. Raises as `Plan.replay`."""
    return {"p95_wait_s": wait_s, "ways": {way: _most_users(plan, way, wait_s, say) for way in plan.ways}}


def _most_users(plan: Plan, way: str, wait_s: float, say: Say) -> dict[str, Any]:
    """Find the largest number that keeps the bound; 0 if one user alone does not."""
    tried: dict[int, Outcome | None] = {}

    def keeps(users: int) -> bool:
        tried[users] = _outcome_within(plan.with_users(users), way, wait_s, say)
        say(f"{way}: {users} users: {'beyond' if tried[users] is None else 'within'} the bound")
        return tried[users] is not None

    limit = PER_GPU_MAX * plan.machine.gpus
    good, bad = 0, 1
    while good < limit and keeps(bad):
        good, bad = bad, min(bad * 2, limit)
    while bad - good > max(good // STEP, 1):
        middle = (good + bad) // 2
        if keeps(middle):
            good = middle
        else:
            bad = middle
    outcome = tried.get(good)
    return {
        "users": good,
        "users_per_gpu": good / plan.machine.gpus,
        "outcome": None if outcome is None else outcome.as_dict(),
        "tried": {str(users): tried[users] is not None for users in sorted(tried)},
    }


def _outcome_within(plan: Plan, way: str, wait_s: float, say: Say) -> Outcome | None:
    """Return the outcome for the plan's users; None if it does not keep the bound."""
    sessions = plan.sessions()
    cells = sum(len(session.cells) for session in sessions)
    if not cells:
        return Outcome(way, way)  # no session needed the GPU
    plan.check(sessions)
    try:
        outcome = plan.replay(way, sessions, say, (wait_s, cells - math.ceil(PART * cells)))
    except TooSlow:
        return None
    is_whole = not any(name.startswith("cells ") for name in outcome.counts if name != "cells preempted")
    return outcome if is_whole and outcome.waits()["p95"] <= wait_s else None
