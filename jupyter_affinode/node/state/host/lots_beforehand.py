"""How much memory in lots is made before a park needs it: none unless kernels will probably share a GPU soon, and never
most of the machine's.

Touching host memory takes most of the time of a first park. But a kernel that has a GPU to itself is not parked, and
what is touched for it in advance is missing elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ....settings.policy import Settings
from ...model.snapshot import Kernel, Node, Residency
from ...policy.resources.host_memory import LEAST_BYTES
from ..records.process import Process

LATELY_S = 300.0  # so long after a park, a wait or a refusal the next is likely
NEARLY_FULL_PART = 0.1  # a GPU with less free memory will soon be shared
MOST_PART = (
    3  # no more than a third part of the machine's memory is set aside for kernels that were never parked
)
ON_THE_WAY = (Residency.PARKING, Residency.QUEUED, Residency.RESUMING)


class LotsBeforehand:
    """Remembers when kernels last shared a GPU."""

    def __init__(self) -> None:
        self._shared_at = -math.inf
        self._parked: frozenset[str] = frozenset()

    def wanted_bytes(self, node: Node, settings: Settings, most_bytes: int, now: float) -> int:
        """Return the memory in lots that parks which are likely to come soon take. `most_bytes`: what there is."""
        if not self._is_sharing_likely(node, settings, now):
            return 0
        left = node.host.total_bytes // MOST_PART - sum(map(_never_used_bytes, node.kernels))
        return max(min(soon_wanted_bytes(node.kernels, settings, most_bytes), left), 0)

    def _is_sharing_likely(self, node: Node, settings: Settings, now: float) -> bool:
        parked = frozenset(each.id for each in node.kernels if each.residency is Residency.PARKED)
        was_parked, self._parked = bool(parked - self._parked), parked
        if was_parked or any(_shares(each, now) for each in node.kernels):
            self._shared_at = now
        return (
            settings.park_when == "idle"
            or now - self._shared_at <= LATELY_S
            or any(
                gpu.total_bytes is not None and gpu.free_bytes < NEARLY_FULL_PART * gpu.total_bytes
                for gpu in node.gpus.values()
            )
        )


def soon_wanted_bytes(kernels: Iterable[Kernel], settings: Settings, most_bytes: int) -> int:
    """Return the host memory that parks of idle kernels may take soon; 0 where there is no reason to park one.

    `most_bytes`: a park that takes more than this will not come, except in an exchange that hands over.
    """
    resident = [each for each in kernels if each.residency is Residency.RESIDENT and each.movable_bytes]
    if len(resident) < 2 and settings.park_when == "needed":
        return 0
    idle = (each for each in resident if not each.cell_open and not each.calls_in_flight)
    wanted = 0
    for kernel in (each for each in idle if each.is_parkable and not each.is_opted_out):
        takes = kernel.takes_bytes
        if kernel.may_hand_over:  # it begins with what there is
            takes = min(takes, most_bytes)
        if LEAST_BYTES <= takes <= most_bytes:
            wanted += takes
    return wanted


def set_aside_bytes(processes: Iterable[Process]) -> int:
    """Return the host memory that processes have for their first park: there is no copy in it."""
    return sum(each.data.retained_bytes for each in processes if each.data.last_park is None)


def retained_bytes(processes: Iterable[Process]) -> int:
    """Return the host memory that processes retain from their last park for the next."""
    return sum(each.retained_bytes for each in processes if each.data.last_park is not None)


def _shares(kernel: Kernel, now: float) -> bool:
    """Return whether a kernel waits, is moved, or could not be parked for lack of host memory."""
    waits = kernel.wants_since is not None or bool(kernel.rooms)
    return waits or kernel.residency in ON_THE_WAY or kernel.host.retry_at > now


def _never_used_bytes(kernel: Kernel) -> int:
    return 0 if kernel.host.park_takes_bytes is not None else kernel.host.lot_bytes
