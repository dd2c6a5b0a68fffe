"""For how long something that failed is left alone; pure."""

from __future__ import annotations

BACK_OFF_FIRST_S, BACK_OFF_LAST_S = 0.5, 30.0
DOUBLINGS_MAX = 30  # far beyond the last; after a night of refusals there are more than a float can double


def back_off_s(failures: int) -> float:
    """How long something is left alone that has failed so many times in a row, however many these are."""
    doublings = min(failures - 1, DOUBLINGS_MAX)
    return min(BACK_OFF_FIRST_S * 2**doublings, BACK_OFF_LAST_S)
