"""Wake-ups: when a replay looks again although nothing has happened, since time alone can change a decision."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...node.model.pauses import Pauses
from ...node.model.snapshot import Speed
from ...node.policy.victims.eligibility import LEAST_PAUSE_S, eligible_at
from ...settings.policy import Settings
from .event_queue import Timeline
from .occupancy import Books
from .simulation import ModelBroken

PASSES_APART_S = 30.0  # at most, while a kernel waits: the controller's own are 0.25 s apart
RETRIES_APART_S = 5.0
ALONE_MAX = 1000  # passes while nothing else is to come: by then every time-out of the policy is over
# what can never fit is refused when the figures that say so are that old (policy/decide.py)
DENIED_AFTER_S = 0.5
MOMENT_S = 1e-6  # after a time-out has passed, so that no rounding hides it


class Wakes:
    """Puts passes on the timeline."""

    def __init__(
        self,
        timeline: Timeline,
        books: Books,
        settings: Settings,
        speeds: Mapping[str, Speed],
        pauses: Pauses,
    ):
        self._timeline, self._books, self._settings, self._speeds = timeline, books, settings, speeds
        self._pauses = pauses
        self._wake_at: float | None = None
        self._passes_ahead = self._passes_alone = 0
        self._eligible_at: dict[int, float] = {}
        self._eligible_if_since: float | None = None

    def forget(self, number: int) -> None:
        """Forget a kernel that has ended."""
        self._eligible_at.pop(number, None)

    def plan_next(self) -> None:
        """Schedule the next pass after this one, unless an earlier one is there already."""
        if not self._books.seen:
            return
        waiting, now = self._books.waiting, self._timeline.now
        moments = [now + PASSES_APART_S]
        moments += [moment for moment in self._eligible().values() if moment > now]
        patience = self._patience()
        for kernel in waiting.values():
            since = kernel.room.since if kernel.room is not None else kernel.wants_since
            if since is not None:
                moments += [since + wait for wait in patience if since + wait > now]
            if kernel.resume_backoff.retry_at > now:
                moments.append(kernel.resume_backoff.retry_at)
        if waiting and self._settings.max_computing_per_gpu is not None:
            pauses = (
                LEAST_PAUSE_S,
                self._settings.contended_idle_timeout_s,
            )  # when it counts as computing no more
            for seen in self._books.seen.values():
                base = max(seen.last_activity, seen.resident_since)
                moments += [base + pause_s for pause_s in pauses if base + pause_s > now]
        if self._settings.when_full != "wait":
            for kernel in self._books.computing.values():
                for base in (kernel.resident_since, kernel.computes_since or 0.0):
                    moments += [base + wait for wait in patience if base + wait > now]
        moment = min(moments) + MOMENT_S
        if self._wake_at is None or self._wake_at <= self._timeline.now or moment < self._wake_at:
            self._wake_at = moment
            self._passes_ahead += 1
            self._timeline.at(moment, self._pass)

    def _eligible(self) -> dict[int, float]:
        """Return when each kernel may be parked if nothing changes; computed for those that have changed.

        Where a new pause changes what is expected of the others, they are looked at a round trip late at most.
        """
        books, since = self._books, self._waits_since()
        numbers = books.renewed if since == self._eligible_if_since else list(books.seen)
        for number in numbers:
            kernel = books.seen.get(number)
            moment = None
            if kernel is not None:
                moment = eligible_at(
                    kernel,
                    self._settings,
                    waits_since=since,
                    speeds=self._speeds,
                    pauses_s=self._pauses.lengths_s,
                )
            if kernel is None or moment is None:
                self._eligible_at.pop(number, None)
            elif moment <= kernel.retry_at:
                # refused parks are tried again together, or a short host would mean a pass for each
                self._eligible_at[number] = math.ceil(moment / RETRIES_APART_S) * RETRIES_APART_S
            else:
                self._eligible_at[number] = moment
        books.renewed, self._eligible_if_since = [], since
        return self._eligible_at

    def _waits_since(self) -> float | None:
        """Return when the longest wait began; None if no kernel waits."""
        now = self._timeline.now
        moments = (
            kernel.room.since if kernel.room is not None else kernel.wants_since
            for kernel in self._books.waiting.values()
        )
        return min((now if moment is None else moment for moment in moments), default=None)

    def _pass(self) -> None:
        """Make a pass at its time; raise ModelBroken if nothing else will ever follow."""
        self._passes_ahead -= 1
        is_alone = self._timeline.ahead == self._passes_ahead
        self._passes_alone = self._passes_alone + 1 if is_alone else 0
        if self._passes_alone > ALONE_MAX:
            waiting = ", ".join(kernel.id for kernel in self._books.waiting.values())
            raise ModelBroken(
                f"at {self._timeline.now:.0f} s {waiting} wait, and the policy does nothing about it"
            )

    def _patience(self) -> tuple[float, ...]:
        """Return after how long a wait or time slice something may be done about it."""
        if self._settings.when_full == "wait":
            return (DENIED_AFTER_S,)
        return (DENIED_AFTER_S, self._settings.time_slice_s)
