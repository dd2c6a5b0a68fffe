"""Passes go on, whatever is wrong beside them."""

from __future__ import annotations

from fake_shim import MIB, PARK
from thread_controller import ThreadController

from jupyter_affinode.node.leadership import handover


def test_kernels_are_served_although_looking_around_fails(machine, shim, wait_until, monkeypatch):
    """Nothing but time makes this one idle: no message of a shim's has the controller look."""

    def broken(socket):
        raise RuntimeError("this was not foreseen")

    monkeypatch.setattr(handover, "gives_way", broken)
    controller = ThreadController(machine.socket, park_when="idle", idle_timeout_s=2.0)
    try:
        idle = shim("k", resident=100 * MIB)
        wait_until(lambda: idle.heard.of(PARK))
    finally:
        controller.stop()
    assert "this was not foreseen" in machine.controller_log()
    assert "a pass failed" not in machine.controller_log()
