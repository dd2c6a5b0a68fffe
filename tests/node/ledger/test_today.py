"""How much GPU time a user's kernels gave back today."""

from __future__ import annotations

import asyncio
import datetime

from fake_shim import MIB

from jupyter_affinode.node.ledger.store import Batch, EventRow, LedgerStore
from jupyter_affinode.node.ledger.today import Away, Today
from jupyter_affinode.node.metrics.history_options import HistoryOptions
from jupyter_affinode.node.model.reasons import Cause
from jupyter_affinode.node.state.observer import MoveEnded
from jupyter_affinode.node.state.registry import NodeState
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.settings.policy import GIB, Settings

NOON = datetime.datetime(2026, 3, 4, 12).timestamp()
HOUR = 3600.0
PARKED = MoveEnded(True, "ok", Cause.IDLE, "memory", GIB, 1.0, None)


class Day:
    """A `Today` with a wall clock of its own; it was noon at 0 on the monotonic one."""

    def __init__(self):
        self.now = 0.0
        self.state = NodeState(Settings(), HostMemory(256 * GIB, 200 * GIB))
        self.today = Today(self.state, wall=lambda: NOON + self.now)

    def of(self, user="uid-1"):
        return self.today.of(user, self.now)


def test_what_is_parked_and_what_came_back_are_added_up_by_user():
    day = Day()
    assert day.of() is None
    asyncio.run(day.today.restore(None))
    kernel = day.state.kernel("uid-1/k", 0.0)
    kernel.account.owner = "uid-1"
    day.today.move_ended(kernel, PARKED)
    day.today._away["uid-1/k"] = Away("uid-1", 2, 0.0)
    day.now = HOUR
    assert day.of() == {"freed_gpu_s": 2 * HOUR, "parks": 1}
    day.today.looked(day.now, [])  # it is not there any more
    day.now = 2 * HOUR
    assert day.of() == {"freed_gpu_s": 2 * HOUR, "parks": 1}
    assert day.of("uid-2") == {"freed_gpu_s": 0, "parks": 0}


def test_a_day_begins_at_midnight_also_for_a_kernel_that_is_parked():
    day = Day()
    asyncio.run(day.today.restore(None))
    day.today._away["k"] = Away("uid-1", 1, 0.0)
    day.now = 13 * HOUR
    assert day.of() == {"freed_gpu_s": HOUR, "parks": 0}


def test_the_day_before_a_controllers_start_is_read_from_the_ledger(tmp_path):
    path = tmp_path / "ledger.sqlite"
    store = LedgerStore(path)
    rows = [
        EventRow(NOON - 20 * HOUR, "park", "k", "uid-1"),  # yesterday
        EventRow(NOON - 10 * HOUR, "resume", "k", "uid-1"),  # at 2 o'clock
        EventRow(NOON - 5 * HOUR, "park", "k", "uid-1"),
        EventRow(NOON - 4 * HOUR, "park", "other", "uid-2"),
        EventRow(NOON - 3 * HOUR, "park", "k", "uid-1", outcome="busy"),
        EventRow(NOON - 2 * HOUR, "resume", "k", "uid-1"),
        EventRow(NOON + HOUR, "park", "k", "uid-1"),  # this controller's own
    ]
    store.write(Batch(at=NOON, events=rows))
    store.close()
    day = Day()
    asyncio.run(day.today.restore(path))
    assert day.of() == {"freed_gpu_s": 2 * HOUR + 3 * HOUR, "parks": 1}
    assert day.of("uid-2") == {"freed_gpu_s": 0, "parks": 1}


def test_a_ledger_that_cannot_be_read_takes_nothing_from_the_day(tmp_path):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 50)
    day = Day()
    asyncio.run(day.today.restore(path))
    assert day.of() == {"freed_gpu_s": 0, "parks": 0}


def test_the_api_tells_what_was_given_back(node, shim, wait_until, machine):
    running = node(history=HistoryOptions(ledger=machine.socket.with_name("ledger.sqlite")))
    shim("k", resident=300 * MIB)
    running.ask("POST", "/kernels/k/park", {"wait": True})
    wait_until(lambda: (running.node()["today"] or {}).get("parks") == 1)
    wait_until(lambda: running.node()["today"]["freed_gpu_s"] >= 1)
