"""One finding of `jupyter affinode doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One finding; `level` is ok, warn (something is worse than it could be) or fail (kernels are not
    managed).
    """

    name: str
    level: str
    text: str
    advice: str | None = None
