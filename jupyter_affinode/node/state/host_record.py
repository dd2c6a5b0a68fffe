"""What is remembered of a kernel's host memory beside what its pages say."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..model.backoff import Backoff


@dataclass
class HostRecord:
    """Part of a `KernelRecord`; written by `host_care` and `Moves`. Times are monotonic seconds."""

    budget_bytes: int | None = None  # of the park under way; None: no limit
    shares: dict[int, int] = field(default_factory=dict)  # of the budget, by process
    short: dict[int, int] = field(
        default_factory=dict
    )  # a park was tried and takes at least this, by process
    short_activity: float = 0.0  # when the kernel had last used the GPU then
    trim_at: float = -math.inf  # when it was last asked to give back what it keeps
    trim_keep_bytes: int = 0  # … down to this
    # Parks refused for want of host memory: nothing is said of it before, or tried that is unlikely.
    backoff: Backoff = field(default_factory=Backoff)
    left_bytes: int | None = None  # what there was when a park failed that should have had enough
