"""When a kernel is expected to use the GPU next."""

from __future__ import annotations

from ..model.snapshot import Residency
from .records import KernelRecord

CELL_EXPECTED_S = 60.0  # after a cell began; imports and data come first
FOCUS_EXPECTED_S = 30.0  # after the person turned to the notebook, or typed in it
HOME = (Residency.PARKED, Residency.RESUMING, Residency.RESIDENT)


def expected_until(kernel: KernelRecord) -> float:
    """Return until when the kernel's next use of the GPU is expected; 0 if it is not.

    A cell that began, or a person who turned to the notebook, announces it once: a kernel that was parked after
    that, by the person or because it did not use the GPU, is not brought back for it.
    """
    if kernel.residency not in HOME:
        return 0.0
    moments = []
    if kernel.cell.is_open and kernel.cell.since is not None:
        moments.append((kernel.cell.since, CELL_EXPECTED_S))
    if kernel.focus_at is not None:
        moments.append((kernel.focus_at, FOCUS_EXPECTED_S))
    is_parked = kernel.residency is Residency.PARKED
    return max(
        (since + lasts for since, lasts in moments if not is_parked or kernel.residency_since <= since),
        default=0.0,
    )
