"""Pacing: when the controller's next pass is due.

A pass follows news soon, together with what else happens meanwhile. After each, all else that the loop serves (requests
and links) has as much time as the pass took: else one user's news would delay each step of others' requests by a pass.
While nothing happens, passes are rare.
"""

from __future__ import annotations

import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence

QUIET_PASSES = 50  # while nothing happens, a pass is made when this many times its duration has gone by …
QUIET_S = 5.0  # … or after this
BUSY_PASSES = 4  # the same while all that happens is that kernels compute
PASSES_APART_MAX_S = 0.25  # a pass in which the machine was suspended has the next one wait no longer
PASSES_APART_S = 0.005  # the least between two decisions, so that many messages of a shim cannot keep us busy


class Pacing:
    """When the last pass was, what it took, and whether something has happened since."""

    def __init__(self, loop: AbstractEventLoop, make_pass: Callable[[], None]):
        self._loop, self._make_pass = loop, make_pass
        self._is_poked = self._has_news = self._is_passing = False
        self._passed_at = self._began = self._due_at = 0.0
        self.lasts_s = 0.0  # what a pass takes of the processor, however busy that is

    def poke(self) -> None:
        """Have a pass made soon, and once: something changed."""
        if not self._is_poked:
            self._is_poked = True
            if not self._is_passing:
                self._schedule()

    def begin(self, now: float) -> None:
        """Note that a pass begins."""
        self._is_poked = self._has_news = False
        self._is_passing = True
        self._passed_at, self._began = now, time.thread_time()

    def end(self) -> None:
        """Note that the pass is over."""
        self.lasts_s = time.thread_time() - self._began
        self._is_passing = False
        now = (
            time.monotonic()
        )  # by which all else that the loop serves has waited, however busy the processor is
        self._due_at = now + min(max(now - self._passed_at, PASSES_APART_S), PASSES_APART_MAX_S)
        if self._is_poked:
            self._schedule()

    def is_quiet(
        self, now: float, read_pages: Callable[[float], tuple[bool, Sequence[object]]], *, waits: bool
    ) -> bool:
        """Return whether nothing worth a pass has happened since the last, which was not long ago for what it takes, or
        whether one is due anyway.

        `read_pages` says whether pages have news, and which are bad. `waits`: a kernel waits, and is served promptly.
        """
        if self._is_poked:
            return True  # its pass is due
        apart_s = (BUSY_PASSES if waits else QUIET_PASSES) * self.lasts_s
        if now - self._passed_at >= min(apart_s, QUIET_S):
            return False
        is_new, bad = read_pages(now)
        self._has_news = self._has_news or is_new
        return not bad and not (self._has_news and now - self._passed_at >= BUSY_PASSES * self.lasts_s)

    def _schedule(self) -> None:
        self._loop.call_later(max(self._due_at - time.monotonic(), 0.0), self._make_pass)
