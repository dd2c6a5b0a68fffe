"""What is remembered of a kernel's host memory beside what its pages say."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class HostRecord:
    """Part of a `KernelRecord`; written by `host_care` and `Moves`. Times are monotonic seconds."""

    budget_bytes: int | None = None  # of the park under way; None: no limit
    shares: dict[int, int] = field(default_factory=dict)  # of the budget, by process
    short: dict[int, int] = field(
        default_factory=dict
    )  # a park was tried and takes at least this, by process
    short_activity: float = 0.0  # when the kernel had last used the GPU then
    trim_at: float = 0.0  # when it was last asked to give back what it keeps
    trim_keep_bytes: int = 0  # … down to this
