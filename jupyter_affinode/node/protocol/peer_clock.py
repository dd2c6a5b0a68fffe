"""A process's CLOCK_MONOTONIC, which is not always ours: time namespaces have another, and so has a process that was
restored from a checkpoint.
"""

from __future__ import annotations

# A page is written every tenth of a second, and read soon after: so much later, and the clock is the same.
SAME_CLOCK_NS = 250_000_000
LARGEST_NS = (1 << 64) - 1


class PeerClock:
    """The difference between a process's clock and ours, from the moments at which its page says it was written.

    A page cannot be read before it is written, so the least difference that was seen is the truest. HELLO comes with a
    page that was written for it.
    """

    def __init__(self) -> None:
        self.behind_ns = 0  # by how much the process's clock is behind ours
        self._least_ns: int | None = None
        self._said_ns = 0

    def see(self, said_ns: int, now_ns: int) -> None:
        """Take note that a page said, at that moment of our clock, when it was written; 0: it did not say."""
        if not said_ns:
            return
        if self._least_ns is None or said_ns < self._said_ns:  # the process has another clock since
            self._least_ns = now_ns - said_ns
        self._said_ns = said_ns
        self._least_ns = min(self._least_ns, now_ns - said_ns)
        self.behind_ns = 0 if 0 <= self._least_ns <= SAME_CLOCK_NS else self._least_ns

    def ours_s(self, theirs_ns: int) -> float:
        """Return a moment of the process's clock in seconds of ours; 0 of 0, and of what was before our clock began."""
        return max(theirs_ns + self.behind_ns, 0) / 1e9 if theirs_ns else 0.0

    def theirs_ns(self, ours_ns: int) -> int:
        """Return a moment of our clock in that of the process; never 0."""
        return min(max(ours_ns - self.behind_ns, 1), LARGEST_NS)
