"""Results of a replay: waits, memory held, losses; and their figures."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

HOUR_S = 3600.0


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the least value that at least `part` of all are not above, of an ordered sequence that is not empty."""
    return ordered[max(math.ceil(part * len(ordered)) - 1, 0)]


@dataclass
class Outcome:
    """One way of sharing, replayed."""

    way: str  # "affinode", "reservation", "culling", "sharing"
    title: str
    # of each cell that ended well: for its memory
    waits_s: array[float] = field(default_factory=lambda: array("d"))
    alone_s: float = 0.0  # what all cells would compute with a GPU of their own
    computed_s: float = 0.0  # … and took beside others
    held_s: float = 0.0  # without parking: GPU-seconds that no other session could have
    held_computing_s: float = 0.0  # … of these, while the session computed or built lost state again
    gpus_most: float = 0.0  # … and how many whole GPUs that was at most
    open_s: float = 0.0  # while at least one session was open
    ended_s: float = 0.0  # when the last session had ended
    sessions: int = 0
    sessions_most: int = 0  # at a time
    losses: int = 0  # kernels whose state was lost: culled or terminated, and used again later
    rebuild_s: float = 0.0  # that users spent on building that state again
    counts: Counter[str] = field(default_factory=Counter)  # parks, resumes, refusals, …
    moved_bytes: int = 0
    spilled_bytes: int = 0  # written to a disk
    gpu_busy: float = 0.0  # the part of the GPUs' compute that was used while sessions were open
    host_most_bytes: int = 0

    @property
    def cells(self) -> int:
        """Return how many cells ran to their end."""
        return len(self.waits_s)

    def waits(self) -> dict[str, float]:
        """Return the waits of cells that need the GPU, in seconds."""
        ordered = sorted(self.waits_s)
        if not ordered:
            return {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}
        return {
            "p50": quantile(ordered, 0.50),
            "p95": quantile(ordered, 0.95),
            "p99": quantile(ordered, 0.99),
            "max": ordered[-1],
        }

    @property
    def slowdown(self) -> float:
        """Return how many times longer cells computed because others computed beside them."""
        return self.computed_s / self.alone_s if self.alone_s else 1.0

    @property
    def reclaimable_share(self) -> float:
        """Return the part of the held GPU-seconds in which their session did not compute; 0 where none are held."""
        return max(1.0 - self.held_computing_s / self.held_s, 0.0) if self.held_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON; times in seconds, sizes in bytes."""
        return {
            "way": self.way,
            "title": self.title,
            "cells": self.cells,
            "wait_s": self.waits(),
            "hours_waited": math.fsum(self.waits_s) / HOUR_S,
            "slowdown": self.slowdown,
            "alone_hours": self.alone_s / HOUR_S,
            "computed_hours": self.computed_s / HOUR_S,
            "gpu_hours_held": self.held_s / HOUR_S,
            "reclaimable_share": self.reclaimable_share,
            "gpus_held_at_a_time": self.gpus_most,
            "open_hours": self.open_s / HOUR_S,
            "ended_s": self.ended_s,
            "sessions": self.sessions,
            "sessions_at_a_time": self.sessions_most,
            "losses": self.losses,
            "rebuild_hours": self.rebuild_s / HOUR_S,
            "counts": dict(sorted(self.counts.items())),
            "moved_bytes": self.moved_bytes,
            "spilled_bytes": self.spilled_bytes,
            "gpu_busy": self.gpu_busy,
            "host_most_bytes": self.host_most_bytes,
        }
