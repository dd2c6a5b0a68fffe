"""One finding of `jupyter affinode doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """One finding.

    `level` is ok, warn (something is worse than it could be) or fail (kernels are not managed). `details` are paths and
    figures for a closer look. `is_detail`: the finding is a detail as long as nothing is wrong.
    """

    name: str
    level: str
    text: str
    advice: str | None = None
    details: str | None = None
    is_detail: bool = False

    @property
    def group(self) -> str:
        """The group that shows the finding: works, needs-you or details."""
        if self.level != "ok":
            return "needs-you"
        return "details" if self.is_detail else "works"

    def as_json(self) -> dict[str, Any]:
        """Return the finding for programs."""
        return {
            "name": self.name,
            "level": self.level,
            "group": self.group,
            "text": self.text,
            "advice": self.advice,
            "details": self.details,
        }
