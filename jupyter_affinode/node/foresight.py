"""What history says of each kernel in the picture to decide on; nothing, unless the setting `prediction` is on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .prediction import Hazards, Prediction, needed_soon, patience_s
from .records import KernelRecord
from .snapshot import Kernel, Residency, Speed
from .victims import break_even_s

FRESH_S = 10.0  # for so long what was reckoned for a kernel is used again: a pause more changes little
LIKELY = 0.5  # the least chance that its next cell uses CUDA for which a kernel is brought back early
CELL_EXPECTED_S = 60.0  # after a cell began; imports and data come first
FOCUS_EXPECTED_S = 30.0  # after the person turned to the kernel


@dataclass(frozen=True)
class _Outlook:
    reckoned_at: float
    hazards: Hazards
    patience_s: float
    uses_cuda: float


class Foresight:
    """Adds to a kernel's picture what was learnt of it and of its user."""

    def __init__(self, prediction: Prediction):
        self._prediction = prediction
        self._outlooks: dict[str, _Outlook] = {}

    def foreseen(
        self, seen: Kernel, kernel: KernelRecord, user: str, speeds: Mapping[str, Speed], now: float
    ) -> Kernel:
        """The kernel with its chances."""
        outlook = self._outlook(seen, user, speeds, now)
        is_expected = seen.residency in (Residency.PARKED, Residency.RESUMING, Residency.RESIDENT)
        return replace(
            seen,
            needed_soon=needed_soon(outlook.hazards, now - seen.last_activity),
            patience_s=outlook.patience_s,
            expected_until=_expected_until(kernel) if is_expected and outlook.uses_cuda >= LIKELY else 0.0,
        )

    def forget_others(self, living: Mapping[str, KernelRecord]) -> None:
        """Forget kernels that are gone."""
        self._outlooks = {
            kernel_id: outlook for kernel_id, outlook in self._outlooks.items() if kernel_id in living
        }

    def _outlook(self, seen: Kernel, user: str, speeds: Mapping[str, Speed], now: float) -> _Outlook:
        known = self._outlooks.get(seen.id)
        if known is None or now - known.reckoned_at > FRESH_S:
            hazards = self._prediction.hazards(seen.id, user)
            known = self._outlooks[seen.id] = _Outlook(
                now,
                hazards,
                patience_s(hazards, break_even_s(seen, speeds)),
                self._prediction.uses_cuda(seen.id, user),
            )
        return known


def _expected_until(kernel: KernelRecord) -> float:
    """Until when the kernel's next use of the GPU is expected; 0 if it is not.

    A cell that began, or a person who turned to it, announce it once: a kernel that was parked after that (by
    the person, or because it did not use the GPU) is not brought back for it.
    """
    moments = []
    if kernel.cell_open and kernel.cell_since is not None:
        moments.append((kernel.cell_since, CELL_EXPECTED_S))
    if kernel.focus_at is not None:
        moments.append((kernel.focus_at, FOCUS_EXPECTED_S))
    is_parked = kernel.residency is Residency.PARKED
    return max(
        (since + lasts for since, lasts in moments if not is_parked or kernel.residency_since <= since),
        default=0.0,
    )
