"""Since when a kernel waits is what the controller saw where there are other users, not what a page says."""

from __future__ import annotations

import time

import pytest
from fake_shim import MIB, NO_GPU_ROOM, QUEUED, STATE, FakeShim, notify
from thread_controller import ThreadController

from jupyter_affinode.node.identity.access import EveryUserAccess, OwnUserAccess


@pytest.mark.parametrize("access", [EveryUserAccess, OwnUserAccess])
def test_a_made_up_time_gives_no_place_before_others(machine, wait_until, access):
    began = time.monotonic()
    controller = ThreadController(machine.socket, access=access())
    if access is EveryUserAccess:
        controller._controller.state.pages_say_since_until = 0.0  # it has been here for a while
    shim = FakeShim(machine.socket.parent, "k1", parked=300 * MIB)
    try:
        shim.resume_status = NO_GPU_ROOM
        shim.page.state, shim.page.state_since = QUEUED, 1  # since the machine's start
        shim.page.write()
        shim.send(notify(STATE))
        wait_until(lambda: (machine.kernel("k1") or {}).get("waiting_s") is not None)
        waiting_s = machine.kernel("k1")["waiting_s"]
        since = time.monotonic() - waiting_s  # read afterwards: the answer may take its time
        assert (since >= began) == (access is EveryUserAccess)
    finally:
        shim.close()
        controller.stop()
