"""Passes go on, whatever is wrong beside them."""

from __future__ import annotations

import time

from fake_nvml import FakeNvml
from fake_shim import MIB, PARK, RESUME, ROOM_ANSWER
from thread_controller import ThreadController

from jupyter_affinode.node import controller
from jupyter_affinode.node.leadership import handover


def test_kernels_are_served_although_looking_around_fails(machine, shim, wait_until, monkeypatch):
    """Nothing but time makes this one idle: no message of a shim's has the controller look."""

    def broken(socket):
        raise RuntimeError("this was not foreseen")

    monkeypatch.setattr(handover, "gives_way", broken)
    running = ThreadController(machine.socket, park_when="idle", idle_timeout_s=2.0)
    try:
        idle = shim("k", resident=100 * MIB)
        wait_until(lambda: idle.heard.of(PARK))
    finally:
        running.stop()
    assert "this was not foreseen" in machine.controller_log()
    assert "a pass failed" not in machine.controller_log()


def test_what_waits_is_served_as_soon_as_the_settle_time_is_over(node, shim, wait_until, monkeypatch):
    """Not at the next tick of a controller that found no kernel when it started."""
    monkeypatch.setattr(controller, "TICK_ALONE_S", 3600.0)
    node(nvml=FakeNvml(1000 * MIB), settle_s=0.5)
    waits = shim("k", parked=100 * MIB)
    waits.touch()
    wait_until(lambda: waits.heard.of(RESUME), 20)


def test_a_pause_of_the_machine_is_not_time_in_which_kernels_could_connect(node, shim, passes, monkeypatch):
    """Until they can have done so, no allocation is denied, since they may have the memory that it lacks."""
    jumped_s, monotonic = 0.0, time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + jumped_s)
    node(nvml=FakeNvml(100 * MIB), settle_s=60.0)
    asker = shim("asker", resident=300 * MIB)
    asker.allocate(600 * MIB, number=1)
    passes(2)
    jumped_s = 1000.0
    passes(4)
    assert asker.heard.of(ROOM_ANSWER) == []
