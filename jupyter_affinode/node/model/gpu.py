"""A GPU of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NvmlGpu:
    """One GPU as NVML describes it."""

    uuid: str
    index: int
    name: str
    total_bytes: int
    used_bytes: int
    free_bytes: int
    utilization_percent: int | None
    pids: frozenset[int] | None = None  # of the processes on it; None: not known
    # by pid; None: NVML does not say how much
    used_by: Mapping[int, int | None] = field(default_factory=dict)
    # those that NVML saw computing since the last look; None: not known
    busy_pids: frozenset[int] | None = None
    # utilisation in percent by pid, of the newest sample since the last look; None: not known
    percent_by_pid: Mapping[int, int] | None = None
    is_mig: bool = False  # a part of a GPU (MIG), or a whole one that is to be used in parts
    visible_as: str = ""  # in CUDA_VISIBLE_DEVICES; "": by its UUID

    @property
    def is_simulated(self) -> bool:
        """Return whether it is our simulated GPU."""
        return "simulated" in self.name.lower()
