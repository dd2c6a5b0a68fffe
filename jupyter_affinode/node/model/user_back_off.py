"""For how long a user's kernels come last, or wait, after moves of theirs kept others waiting for nothing.

A page can claim GPU memory that its process never gives back, or a process asks for memory and never takes it, and one
user may have hundreds of processes. Tried one after the other, each would keep others waiting anew. So a failure counts
against all kernels of its user, and each further one for twice as long, until none has failed for ten times the last
pause. A success in between takes nothing back, or one real kernel would pay for a crowd of others.
"""

from __future__ import annotations

from .backoff import Backoff

FORGOTTEN_AFTER = 10  # times the last pause


class UserBackOff:
    """By user; the state's. All times are monotonic seconds. The user None is the one of a controller of its own: there
    are no others, and nothing is counted.
    """

    def __init__(self, first_s: float, last_s: float):
        self._first_s, self._last_s = first_s, last_s
        self._users: dict[str, Backoff] = {}

    def until(self, payer: str | None) -> float:
        """Return the end of the user's pause; 0: there was none."""
        failed = None if payer is None else self._users.get(payer)
        return 0.0 if failed is None else failed.retry_at

    def failed(self, payer: str | None, began: float, now: float) -> bool:
        """Count a failure of a move that began then; return whether it counts. One that began before the last failure
        does not: several at a time may have failed for one cause.
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
