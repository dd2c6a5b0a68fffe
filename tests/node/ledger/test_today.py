"""How much GPU time a user's kernels gave back today."""

from __future__ import annotations

import asyncio
import datetime
import time
from types import SimpleNamespace

import pytest
from fake_shim import MIB

from jupyter_affinode.node import controller
from jupyter_affinode.node.ledger import recorder, today, writer
from jupyter_affinode.node.ledger.store import Batch, EventRow, KernelRow, LedgerStore
from jupyter_affinode.node.ledger.today import ParkedKernel, Today
from jupyter_affinode.node.metrics.history_options import HistoryOptions
from jupyter_affinode.node.model.reasons import Cause
from jupyter_affinode.node.model.snapshot import Residency
from jupyter_affinode.node.protocol.page import PageGpu
from jupyter_affinode.node.state.observer import MoveEnded
from jupyter_affinode.node.state.records.kernel import Hibernated
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
    day.today._parked["uid-1/k"] = ParkedKernel("uid-1", 2, 0.0)
    day.now = HOUR
    assert day.of() == {"freed_gpu_s": 2 * HOUR, "parks": 1}
    day.today.looked(day.now, [])  # it is not there any more
    day.now = 2 * HOUR
    assert day.of() == {"freed_gpu_s": 2 * HOUR, "parks": 1}
    assert day.of("uid-2") == {"freed_gpu_s": 0, "parks": 0}


def test_a_day_begins_at_midnight_also_for_a_kernel_that_is_parked():
    day = Day()
    asyncio.run(day.today.restore(None))
    day.today._parked["k"] = ParkedKernel("uid-1", 1, 0.0)
    day.now = 13 * HOUR
    assert day.of() == {"freed_gpu_s": HOUR, "parks": 0}


@pytest.mark.parametrize("ends, freed_s", [("forgotten", 60.0), ("woken", HOUR)])
def test_a_hibernated_kernel_counts_until_it_was_told_of_last_or_until_it_woke(ends, freed_s):
    day = Day()
    asyncio.run(day.today.restore(None))
    kernel = day.state.kernel("k", 0.0)
    kernel.account.owner = "uid-1"
    kernel.hibernated = Hibernated({"GPU-1": PageGpu.off_gpu("GPU-1", GIB)}, 0.0, HOUR)
    kernel.residency = Residency.HIBERNATED
    day.today._in_ledger_until["k"] = NOON
    for day.now in (1.0, 61.0):
        kernel.note_hibernated(day.now)
        day.today.looked(day.now, [])
    assert day.of() == {"freed_gpu_s": 60, "parks": 0}
    day.now = 1.0 + HOUR
    assert day.of() == {"freed_gpu_s": 60, "parks": 0}
    kernel.note_awake()
    kernel.residency = Residency.RESIDENT
    if ends == "forgotten":
        del day.state.kernels["k"]
    day.today.looked(day.now, [])
    assert day.of() == {"freed_gpu_s": freed_s, "parks": 0}


def write(path, kernels, events):
    """Write a ledger; moments in hours before noon."""
    store = LedgerStore(path)
    rows = {
        name: KernelRow(name, user, NOON - began * HOUR, NOON - seen * HOUR, ended, False, gpus=gpus)
        for name, user, began, seen, ended, gpus in kernels
    }
    moves = [
        EventRow(NOON - before * HOUR, kind, name, user, outcome=outcome, gpus=rows[name].gpus)
        for before, kind, name, user, outcome in events
    ]
    store.write(Batch(at=NOON, events=moves, kernels=rows))
    store.close()


def test_the_day_before_a_controllers_start_is_read_from_the_ledger(tmp_path):
    path, day = tmp_path / "ledger.sqlite", Day()
    write(
        path,
        [("k", "uid-1", 30, 0, None, "GPU-1"), ("other", "uid-2", 6, 3, NOON - 3 * HOUR, "GPU-1,GPU-2")],
        [
            (20, "park", "k", "uid-1", "ok"),  # yesterday
            (10, "resume", "k", "uid-1", "ok"),  # at 2 o'clock
            (5, "park", "k", "uid-1", "ok"),
            (4, "park", "other", "uid-2", "ok"),
            (3, "park", "k", "uid-1", "busy"),
            (2, "resume", "k", "uid-1", "ok"),
            (-1, "park", "k", "uid-1", "ok"),  # this controller's own
        ],
    )
    asyncio.run(day.today.restore(path))
    assert day.of() == {"freed_gpu_s": 2 * HOUR + 3 * HOUR, "parks": 1}
    assert day.of("uid-2") == {"freed_gpu_s": 2 * HOUR, "parks": 1}  # an hour on two GPUs, then it ended


def test_a_kernel_that_ended_while_it_was_freed_counts_until_its_end(tmp_path):
    path, day = tmp_path / "ledger.sqlite", Day()
    write(
        path,
        [
            ("ended", "uid-1", 9, 5, NOON - 5 * HOUR, "GPU-1"),
            ("since yesterday", "uid-1", 30, 9, NOON - 9 * HOUR, "GPU-1"),
            ("unseen", "uid-1", 9, 1, None, "GPU-1"),  # no controller was there when it ended
        ],
        [
            (7, "park", "ended", "uid-1", "ok"),
            (20, "park", "since yesterday", "uid-1", "ok"),
            (2, "park", "unseen", "uid-1", "ok"),
        ],
    )
    asyncio.run(day.today.restore(path))
    assert day.of() == {"freed_gpu_s": (2 + 3 + 1) * HOUR, "parks": 2}


def test_a_kernel_that_is_still_freed_after_a_restart_counts_once(tmp_path, monkeypatch):
    path, day = tmp_path / "ledger.sqlite", Day()
    write(path, [("k", "uid-1", 9, 1, None, "GPU-1")], [(2, "park", "k", "uid-1", "ok")])
    asyncio.run(day.today.restore(path))
    kernel = day.state.kernel("k", 0.0)
    kernel.account.owner = "uid-1"
    kernel.processes[1] = SimpleNamespace(parked_at=-2 * HOUR)
    monkeypatch.setattr(today, "_gpus_left", lambda kernel: len(kernel.processes))
    day.now = 2.0
    day.today.looked(day.now, [])
    assert day.of() == {"freed_gpu_s": 2 * HOUR + 2, "parks": 1}


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


@pytest.mark.parametrize("is_restarted", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_controller_that_starts_anew_knows_what_an_ended_kernel_gave_back(
    node, shim, wait_until, machine, monkeypatch, is_restarted
):
    monkeypatch.setattr(controller, "EMPTY_KERNEL_LASTS_S", 0.5)
    monkeypatch.setattr(writer, "CLOSE_WAIT_S", 30.0)
    for module in (today, recorder):  # both see a park, or an end, in the same pass
        monkeypatch.setattr(module, "LOOK_EVERY_S", 0.0)
    history = HistoryOptions(ledger=machine.socket.with_name("ledger.sqlite"))
    running = node(history=history)
    ended = shim("k", resident=300 * MIB)
    running.ask("POST", "/kernels/k/park", {"wait": True})
    wait_until(lambda: (running.node()["today"] or {}).get("freed_gpu_s", 0) >= 2)
    ended.close()
    wait_until(lambda: not running.kernels())
    given_back = running.node()["today"]
    if is_restarted:
        shim("k", resident=300 * MIB)
        wait_until(lambda: running.node()["today"]["freed_gpu_s"] <= given_back["freed_gpu_s"] + 1)
        machine_time = time.monotonic()
        wait_until(lambda: time.monotonic() > machine_time + 3)  # in which nothing is freed
    node.stop()
    running = node(history=history)
    wait_until(lambda: running.node()["today"])
    assert running.node()["today"]["parks"] == 1
    assert abs(running.node()["today"]["freed_gpu_s"] - given_back["freed_gpu_s"]) <= 1
