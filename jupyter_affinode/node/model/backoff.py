"""For how long something that failed is left alone; pure."""

from __future__ import annotations

from hashlib import blake2s

BACK_OFF_FIRST_S, BACK_OFF_LAST_S = 0.5, 30.0
DOUBLINGS_MAX = 30  # far beyond the last; after a night of refusals there are more than a float can double
JITTER = 0.25  # of a pause at most: tries of several kernels, and uses of a regular one, do not stay in step


def back_off_s(failures: int) -> float:
    """How long something is left alone that has failed so many times in a row, however many these are."""
    doublings = min(failures - 1, DOUBLINGS_MAX)
    return min(BACK_OFF_FIRST_S * 2**doublings, BACK_OFF_LAST_S)


def jittered_back_off_s(failures: int, name: str) -> float:
    """The same and a part of it more, which is another for each name and each failure."""
    digest = blake2s(f"{name} {failures}".encode(errors="replace"), digest_size=4).digest()
    return back_off_s(failures) * (1.0 + JITTER * int.from_bytes(digest, "big") / (1 << 32))
