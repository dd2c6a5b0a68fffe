"""Parks that are refused are tried again when they can succeed: no kernel that pauses now and then starves a waiter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from model_node import Clock, Machine

from jupyter_affinode.node.model.backoff import JITTER, Backoff
from jupyter_affinode.node.protocol.page import State
from jupyter_affinode.node.protocol.wire import CommandKind
from jupyter_affinode.settings.policy import GIB, Settings

PERIOD_S, USE_S, TICK_S, PASS_S = 10.0, 0.1, 0.05, 0.25
PAGE_LATE_S = 0.1  # a shim looks at its own counters ten times a second
NEEDED = Settings(margin_bytes=0, host_reserve_bytes=0)
SLOW = GIB // 2  # a round trip of 60 of these is thought to take 8 s, until moves were measured


class LatePage:
    """The page of a process that uses the GPU for a moment every ten seconds, a little behind it."""

    def __init__(self, shim, clock):
        self.inode, self._shim, self._clock, self._seen = shim.inode, shim, clock, []

    def read(self):
        data = self._shim.read()
        self._seen.append((self._clock.now, data.last_activity))
        known = [activity for moment, activity in self._seen if moment <= self._clock.now - PAGE_LATE_S]
        self._seen = self._seen[-20:]
        return replace(data, last_activity=known[-1] if known else 0.0)

    @property
    def last(self):
        return self.read()

    def close(self):
        """There is no file."""


class Story:
    """A kernel that never pauses for longer than ten seconds has the GPU, and another one waits for it."""

    def __init__(self, clock, unit, park_takes_s, first_use_s):
        self.clock, self.park_takes_s = clock, park_takes_s
        self.machine = Machine(clock, {"A": 80 * unit}, NEEDED)
        self.beats = self.machine.start("beats", {"A": 60 * unit})
        self.machine.process(self.beats).page = LatePage(self.beats, clock)
        self.waits = self.machine.start("waits", {})
        self.waits.sizes, self.waits.state = {"A": 40 * unit}, State.PARKED
        self.uses_at, self.park_ends_at, self.tries = clock.now + first_use_s, None, 0
        self.waits.call()

    def run(self, seconds):
        """How long the waiter waited, in seconds."""
        began, passed_at = self.clock.now, 0.0
        while self.clock.now < began + seconds:
            self._live()
            if self.waits.state is State.RESIDENT:
                return self.clock.now - began
            if self.clock.now - passed_at >= PASS_S:
                passed_at = self.clock.now
                self.machine.pass_time(0.0)
            self.clock.now += TICK_S
        raise AssertionError(f"it has waited for {seconds} s, and {self.tries} parks came to nothing")

    def _live(self):
        for shim in (self.beats, self.waits):
            while shim.inbox:
                shim.is_busy = shim is self.beats and self.clock.now >= self.uses_at - TICK_S / 2
                self.tries += shim is self.beats and shim.inbox[0].kind is CommandKind.PARK
                shim.hear()
                self.park_ends_at = self.clock.now + self.park_takes_s
        if self.uses_at <= self.clock.now < self.uses_at + USE_S:
            self.beats.call()
        elif self.clock.now >= self.uses_at + USE_S:
            self.uses_at += PERIOD_S
        work = self.beats.work
        is_quick = (
            work is not None and work.streams and not work.is_prepared
        )  # nothing is copied before COMMIT
        if work is not None and (is_quick or self.clock.now >= self.park_ends_at):
            self.beats.go_on()
        if self.waits.work is not None:
            self.waits.go_on()
        for shim in (self.beats, self.waits):
            while shim.outbox:
                self.machine.deliver(shim)


@pytest.mark.parametrize("first_use_s", [2.25, 5.0, 7.5])
@pytest.mark.parametrize(
    ("unit", "park_takes_s"), [(1, 0.5), (1, 8.0), (SLOW, 3.0), (SLOW, 6.0), (SLOW, 8.0)]
)
def test_a_kernel_that_uses_the_gpu_for_a_moment_every_ten_seconds_is_parked_for_a_waiter(
    unit, park_takes_s, first_use_s, clock
):
    story = Story(clock, unit, park_takes_s, first_use_s)
    assert story.run(200) <= 40.0
    assert story.tries <= 2, "each costs the link and the host's memory"


def test_tries_of_kernels_that_failed_together_spread():
    usual, node = Backoff(failures=2).fail(1.0), Machine(Clock(), {"A": GIB}).state
    names = [f"kernel-{number}" for number in range(20)]
    parks = [node.kernel(name, 0.0).failures.park for name in names]
    pauses = [replace(park, failures=2).fail(1.0) for park in parks]
    assert all(usual <= pause <= (1 + JITTER) * usual for pause in pauses)
    assert max(pauses) - min(pauses) > JITTER / 2 * usual
    assert pauses == [Backoff(name, failures=2).fail(1.0) for name in names]
