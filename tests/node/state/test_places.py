"""Since when a kernel waits is what the controller saw where there are other users, not what a page says."""

from __future__ import annotations

import time

import pytest
from fake_shim import MIB, NO_GPU_ROOM, QUEUED, STATE, notify

from jupyter_affinode.node.identity.access import EveryUserAccess, OwnUserAccess


@pytest.mark.parametrize("access", [EveryUserAccess, OwnUserAccess])
def test_a_made_up_time_gives_no_place_before_others(node, shim, wait_until, access):
    began = time.monotonic()
    machine = node(access=access())
    if access is EveryUserAccess:
        node.running[-1]._controller.state.pages_say_since_until = 0.0  # it has been here for a while
    kernel = shim("k1", parked=300 * MIB, resume_status=NO_GPU_ROOM)
    kernel.page.state, kernel.page.state_since = QUEUED, 1  # since the machine's start
    kernel.page.write()
    kernel.send(notify(STATE))
    wait_until(lambda: machine.kernel("k1")["waiting_s"] is not None)
    waiting_s = machine.kernel("k1")["waiting_s"]
    since = time.monotonic() - waiting_s  # read afterwards: the answer may take its time
    assert (since >= began) == (access is EveryUserAccess)
