"""Pauses: for how long kernels stay unused, from which victim selection guesses how long one goes on; no clock.

Sampled with each snapshot, so one is known to within the time between two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from .snapshot import Kernel, Residency

LEAST_S = 1.0  # less is no pause: cells compute between calls, too
MOST = 256  # remembered of all users together, and of each user where there is one
USERS = 32  # of so many users, those with the newest pauses


class Pauses:
    """The last pauses of a machine's kernels; each user's count alike, however many a user's kernels make."""

    def __init__(self) -> None:
        self._used_at: dict[str, float] = {}  # by kernel
        self._by_user: dict[str, deque[float]] = {}
        self._lengths: tuple[float, ...] | None = ()

    def learn(self, kernels: Iterable[Kernel], now: float) -> None:
        """Note from a snapshot when each kernel was used last; one that waits for the GPU is in use. `now` in monotonic
        seconds.
        """
        used_before, self._used_at = self._used_at, {}
        for kernel in kernels:
            if kernel.residency is Residency.NONE:
                continue
            used_at = kernel.last_activity if kernel.wants_since is None else kernel.wants_since
            before = used_before.get(kernel.id, used_at)
            self.add(kernel.charged_user, used_at - before)
            self._used_at[kernel.id] = max(before, used_at if kernel.wants_since is None else now)

    def add(self, user: str, length_s: float) -> None:
        """Add the time between two uses of a kernel, if it is long enough for a pause."""
        if length_s >= LEAST_S:
            pauses = self._by_user[user] = self._by_user.pop(user, deque(maxlen=MOST))  # now the last
            pauses.append(length_s)
            if len(self._by_user) > USERS:
                del self._by_user[next(iter(self._by_user))]
            self._lengths = None

    @property
    def lengths_s(self) -> tuple[float, ...]:
        """Return the lengths of the newest pauses in seconds, the shortest first."""
        if self._lengths is None:
            share = MOST // len(self._by_user)
            self._lengths = tuple(sorted(s for user in self._by_user.values() for s in list(user)[-share:]))
        return self._lengths
