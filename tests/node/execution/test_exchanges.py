"""Kernels change places: what the shims are told, over the real sockets."""

from __future__ import annotations

import os

import pytest
from fake_nvml import FilledNvml
from fake_shim import (
    ABORT,
    BUSY,
    COMMIT,
    FAILED,
    LOT_END,
    MIB,
    OK,
    PARK,
    PARKED,
    PREPARE,
    RESIDENT,
    RESUME,
    notify,
)

from jupyter_affinode.node import controller
from jupyter_affinode.node.policy.resources.host_memory import with_margin
from jupyter_affinode.node.state.host import host_figures, lots
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.settings.policy import GIB

STREAM, HAND_OVER = 16, 32  # of PARK and RESUME
TOTAL = 1000 * MIB


@pytest.fixture
def full(node, shim, wait_until):
    """`full(900, 500)`: kernels with so many MiB, the last one parked; and what tells how it stands."""

    def make(*sizes):
        gpu = FilledNvml(TOTAL)
        machine = node(
            nvml=gpu,
            idle_timeout_s=0.2,
            contended_idle_timeout_s=0.2,
            margin_bytes=0,
            low_watermark=0.0,
            lot_bytes=0,
        )
        for number, size in enumerate(sizes):
            memory = "parked" if number == len(sizes) - 1 else "resident"
            gpu.shims.append(shim(f"k{number}", **{memory: size * MIB}))
        free = TOTAL - sum(sizes[:-1]) * MIB
        wait_until(lambda: [each["free_bytes"] for each in machine.node()["gpus"]] == [free])
        return machine, *gpu.shims

    return make


def flags(commands):
    return [command.argument & 0xFF for command in commands]


def test_the_victim_is_committed_and_the_waiter_told_to_come_in_at_once(full, wait_until):
    _, victim, waiter = full(900, 500)
    victim.is_slow = True
    waiter.touch()
    wait_until(lambda: victim.waiting is not None)
    assert flags(victim.heard.of(PARK)) == [PREPARE | STREAM]
    assert waiter.heard.of(RESUME) == []
    victim.ready()
    wait_until(lambda: (victim.state, waiter.state) == (PARKED, RESIDENT))
    assert flags(waiter.heard.of(RESUME)[:1]) == [STREAM]
    assert len(victim.heard.of(COMMIT)) == 1


@pytest.mark.parametrize("what", ["used", "refuses", "hangs up"])
def test_a_victim_that_stays_keeps_the_others_on_the_gpu(full, wait_until, what):
    _, steady, other, waiter = full(450, 450, 700)
    other.is_slow = True
    if what == "refuses":
        other.park_status = BUSY
    waiter.touch()
    wait_until(lambda: steady.waiting is not None or steady.heard.of(ABORT))
    if what != "refuses":
        wait_until(lambda: other.waiting is not None)
        if what == "used":  # it computes on: else both are parked soon, one after the other
            other.page.calls_in_flight = 1
        other.hang_up() if what == "hangs up" else other.touch()
    wait_until(lambda: steady.heard.of(ABORT) and RESIDENT in steady.states)
    assert waiter.heard.of(RESUME) == [] == steady.heard.of(COMMIT)


@pytest.mark.parametrize("ends", ["give_up", "close"])
def test_a_waiter_that_is_cancelled_or_ends_lets_its_victim_stay(full, ends, wait_until):
    _, victim, waiter = full(900, 500)
    victim.is_slow = True
    waiter.touch()
    wait_until(lambda: victim.waiting is not None)
    getattr(waiter, ends)()
    wait_until(lambda: victim.heard.of(ABORT) and victim.state == RESIDENT)
    assert victim.heard.of(COMMIT) == [] == waiter.heard.of(RESUME)


def test_a_victim_that_fails_after_the_start_does_not_stop_the_waiter(full, wait_until):
    _, victim, waiter = full(900, 500)
    victim.end_status = FAILED
    waiter.touch()
    wait_until(lambda: victim.heard.of(COMMIT) and RESIDENT in waiter.states)
    assert waiter.heard.of(ABORT) == []
    assert flags(waiter.heard.of(RESUME)[:1]) == [STREAM]


# ---- with host memory for one copy


class FilledHost:
    """So much is free beyond what parks leave alone."""

    def __init__(self):
        self.left_bytes = 8 * GIB

    def read(self):
        return HostMemory(64 * GIB, with_margin(GIB) + self.left_bytes)


def test_a_victim_is_lent_its_waiters_host_memory_as_it_comes_free(node, shim, wait_until, monkeypatch):
    host, gpu = FilledHost(), FilledNvml(TOTAL)
    monkeypatch.setattr(controller, "host_memory", host.read)
    monkeypatch.setattr(lots, "host_memory", host.read)
    monkeypatch.setattr(lots, "cgroup_memory", lambda pid: None)
    monkeypatch.setattr(host_figures, "cgroup_limits", lambda pid, known=None: ())
    machine = node(
        nvml=gpu,
        idle_timeout_s=0.2,
        contended_idle_timeout_s=0.2,
        margin_bytes=0,
        low_watermark=0.0,
        host_reserve_bytes=GIB,
        lot_bytes=64 * MIB,
    )
    wait_until(lambda: machine.node()["host"]["lots"]["ready_bytes"] == 64 * MIB)
    waiter = shim("waiter", resident=500 * MIB)
    gpu.shims.append(waiter)
    wait_until(lambda: [each["free_bytes"] for each in machine.node()["gpus"]] == [500 * MIB])
    assert machine.ask("POST", "/kernels/waiter/park", {})[0] == 200
    assert list(waiter.heard.lots) == [1]
    waiter.page.host[0], waiter.page.lots = 500 * MIB, 64 * MIB
    waiter.page.write()
    host.left_bytes = 450 * MIB
    victim = shim("victim", resident=900 * MIB)
    gpu.shims.append(victim)
    wait_until(lambda: [each["free_bytes"] for each in machine.node()["gpus"]] == [100 * MIB])
    victim.is_slow, victim.lacks, victim.hears_decisions, waiter.answers = True, 192 * MIB, False, False
    waiter.touch()
    wait_until(lambda: victim.waiting is not None)
    (park,) = victim.heard.of(PARK)
    assert (park.argument & 0xFF, park.argument >> 8) == (PREPARE | STREAM | HAND_OVER, 450)
    host.left_bytes = 0  # it has taken that
    victim.ready()
    wait_until(lambda: victim.heard.of(COMMIT) and waiter.heard.of(RESUME))
    assert flags(waiter.heard.of(RESUME)) == [STREAM | HAND_OVER]
    assert not victim.heard.lots

    waiter.send(notify(LOT_END, number=1))
    wait_until(lambda: len(victim.heard.lots) == 1)
    same = [os.fstat(each.heard.lots[1]).st_ino for each in (waiter, victim)]
    assert same[0] == same[1], "the lot goes from one to the other"
    host.left_bytes = 128 * MIB  # memory of its own that the waiter gave back
    wait_until(lambda: len(victim.heard.lots) == 2)
    assert os.fstat(victim.heard.lots[2]).st_size == 128 * MIB, "and no more than it lacks"
    victim._end(OK)
    waiter.answers = True
    waiter._carry_out(waiter.heard.of(RESUME)[0])
    wait_until(lambda: {each["residency"] for each in machine.kernels().values()} == {"parked", "resident"})
