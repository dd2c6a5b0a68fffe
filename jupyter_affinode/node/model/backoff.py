"""Growing pauses between tries of something that fails; pure."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2s

DOUBLINGS_MAX = 30  # far beyond the last; after a night of refusals there are more than a float can double
JITTER = 0.25  # the largest part added to a pause, so that tries of several kernels do not stay in step


@dataclass
class Backoff:
    """Failures in a row, and when the next try is due. Times are monotonic seconds.

    `name` makes each pause up to JITTER longer, by another part for each name and each failure.
    """

    name: str = ""
    first_s: float = 0.5
    last_s: float = 30.0
    failures: int = 0
    since: float = 0.0  # when the first of them failed
    pause_s: float = 0.0  # after the last of them
    retry_at: float = 0.0

    def fail(self, now: float) -> float:
        """Count a failure and return the seconds until the next try, twice as many each time."""
        self.since = self.since if self.failures else now
        self.failures += 1
        pause_s = min(self.first_s * 2 ** min(self.failures - 1, DOUBLINGS_MAX), self.last_s)
        if self.name:
            key = f"{self.name} {self.failures}".encode(errors="replace")
            pause_s *= 1.0 + JITTER * int.from_bytes(blake2s(key, digest_size=4).digest(), "big") / (1 << 32)
        self.wait(now, pause_s)
        return pause_s

    def wait(self, now: float, pause_s: float) -> None:
        """Put the next try off by `pause_s` without counting a failure."""
        self.pause_s, self.retry_at = pause_s, now + pause_s

    def succeed(self) -> None:
        """Forget the failures."""
        self.failures, self.pause_s, self.retry_at = 0, 0.0, 0.0
