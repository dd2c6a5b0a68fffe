"""Back-off by user: after moves that kept others waiting in vain, the user's kernels come last, or wait.

A page can claim GPU memory that its process never frees. A process can ask for memory and never take it. One user may
have hundreds of such processes, and each would keep others waiting once. So a failure counts against all kernels of its
user, and each further failure doubles the pause. The failures are forgotten ten pauses after the last one. A success
resets nothing: else one honest kernel would clear the record of many that fail.
"""

from __future__ import annotations

from .backoff import Backoff

FORGOTTEN_AFTER = 10  # times the last pause


class UserBackOff:
    """Back-off by user. Times are monotonic seconds. On a user's own controller the user is None and nothing is
    counted.
    """

    def __init__(self, first_s: float, last_s: float):
        self._first_s, self._last_s = first_s, last_s
        self._users: dict[str, Backoff] = {}

    def until(self, payer: str | None) -> float:
        """Return the end of the user's pause; 0 if there is none."""
        failed = None if payer is None else self._users.get(payer)
        return 0.0 if failed is None else failed.retry_at

    def failed(self, payer: str | None, began: float, now: float) -> bool:
        """Count a failure of a move that began at `began`; return whether it counts.

        A move that began before the last failure does not count: several at a time may fail for one cause.
        """
        if payer is None:
            return False
        self._users = {user: each for user, each in self._users.items() if now <= _forgotten_at(each)}
        failed = self._users.setdefault(payer, Backoff(first_s=self._first_s, last_s=self._last_s))
        if failed.failures and began < failed.retry_at - failed.pause_s:
            return False
        failed.fail(now)
        return True


def _forgotten_at(failed: Backoff) -> float:
    return failed.retry_at + FORGOTTEN_AFTER * failed.pause_s
