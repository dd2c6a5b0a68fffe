"""For how long a user's kernels come last, or wait, after moves of theirs kept others waiting for nothing.

Any user can write a page that claims GPU memory and never gives it back, or asks for memory and never takes it, and one
user may have hundreds of processes. Tried one after the other, each would keep others waiting anew. So a failure
counts against all kernels of its user: for a while at first, twice as long after each further one. Once that is over,
failures are forgotten one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

DOUBLINGS_MAX = 30
FORGOTTEN_AFTER = 10  # times the first pause, for each failure


@dataclass
class _User:
    failures: float = 0.0
    at: float = 0.0  # of the last one
    until: float = 0.0
    faded_at: float = 0.0


class UserBackOff:
    """By user; the state's. All times are monotonic seconds. The user None is the one of a controller of its own: there
    are no others, and nothing is counted.
    """

    def __init__(self, first_s: float, last_s: float):
        self._first_s, self._last_s = first_s, last_s
        self._users: dict[str, _User] = {}

    def until(self, payer: str | None) -> float:
        """The end of the user's pause; 0: there was none."""
        user = None if payer is None else self._users.get(payer)
        return 0.0 if user is None else user.until

    def failed(self, payer: str | None, began: float, now: float, weight: float = 1.0) -> bool:
        """Count a failure of a move that began then; whether the user has a new pause by it. One that began before the
        last failure does not count: several at a time may have failed for one cause.
        """
        if payer is None:
            return False
        self._forget(now)
        user = self._users.setdefault(payer, _User())
        if began < user.at:
            return False
        user.failures, user.at = user.failures + weight, now
        if user.failures < 1.0:
            return False
        doublings = min(user.failures - 1.0, DOUBLINGS_MAX)
        user.until = now + min(self._first_s * 2**doublings, self._last_s)
        return True

    def succeeded(self, payer: str | None, weight: float) -> None:
        """Take back so much of a failure."""
        user = None if payer is None else self._users.get(payer)
        if user is not None:
            user.failures = max(user.failures - weight, 0.0)

    def _forget(self, now: float) -> None:
        for payer, user in list(self._users.items()):
            since = max(user.until, user.at, user.faded_at)
            if now > since:
                user.failures -= (now - since) / (FORGOTTEN_AFTER * self._first_s)
                user.faded_at = now
            if user.failures <= 0.0:
                del self._users[payer]
