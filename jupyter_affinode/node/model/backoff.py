"""Growing pauses between tries of something that fails, by kernel and by user; pure."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2s

DOUBLINGS_MAX = 30  # far beyond the last; after a night of refusals there are more than a float can double
FORGOTTEN_AFTER = 10  # times the last pause, of a user's failures
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


class UserBackOff:
    """Back-off by user: after moves that kept others waiting in vain, the user's kernels come last, or wait.

    A page can claim GPU memory that its process never frees. A process can ask for memory and never take it. One user
    may have hundreds of such processes, and each would keep others waiting once. So a failure counts against all
    kernels of its user, and each further failure doubles the pause. The failures are forgotten ten pauses after the
    last one. A success resets nothing: else one honest kernel would clear the record of many that fail.

    Times are monotonic seconds. On a user's own controller the user is None and nothing is counted.
    """

    def __init__(self, first_s: float, last_s: float):
        self._first_s, self._last_s = first_s, last_s
        self._users: dict[str, Backoff] = {}

    def until(self, charged_user: str | None) -> float:
        """Return the end of the user's pause; 0 if there is none."""
        failed = None if charged_user is None else self._users.get(charged_user)
        return 0.0 if failed is None else failed.retry_at

    def is_remembered(self, charged_user: str | None, now: float) -> bool:
        """Return whether failures of the user are not forgotten yet."""
        failed = None if charged_user is None else self._users.get(charged_user)
        return failed is not None and now <= _forgotten_at(failed)

    def failed(self, charged_user: str | None, began: float, now: float) -> bool:
        """Count a failure of a move that began at `began`; return whether it counts.

        A move that began before the last failure does not count: several at a time may fail for one cause.
        """
        if charged_user is None:
            return False
        self._users = {user: each for user, each in self._users.items() if now <= _forgotten_at(each)}
        failed = self._users.setdefault(charged_user, Backoff(first_s=self._first_s, last_s=self._last_s))
        if failed.failures and began < failed.retry_at - failed.pause_s:
            return False
        failed.fail(now)
        return True


def _forgotten_at(failed: Backoff) -> float:
    return failed.retry_at + FORGOTTEN_AFTER * failed.pause_s
