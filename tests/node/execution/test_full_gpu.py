"""The controller where the GPU is full: turns, the end of the newest, limits, holds, and what waiters are told."""

from __future__ import annotations

import pytest
from fake_nvml import FakeNvml
from fake_shim import BUSY, GPU, MIB, OK, PARK, PARKED, REFUSED, RESIDENT, ROOM_END, notify, request

from jupyter_affinode.node.execution import evictions
from jupyter_affinode.settings.policy import GIB


def test_a_kernel_that_does_not_come_to_rest_is_asked_again_later(node, shim, wait_until):
    machine = node(when_full="time_slice", time_slice_s=0.1)
    busy = shim("busy", busy=True, resident=900 * MIB, park_status=BUSY)
    asker = shim("asker", resident=100 * MIB)
    asker.allocate(400 * MIB, number=1)
    wait_until(lambda: len(busy.heard.of(PARK)) >= 2)
    assert machine.kernel("asker")["residency"] == "queued"
    busy.park_status = OK
    wait_until(lambda: busy.state == PARKED)


def test_kernels_of_several_processes_are_never_preempted(node, shim, wait_until):
    """The one that may be is younger, and is taken although the others had the GPU longer."""
    node(when_full="time_slice", time_slice_s=0.2)
    group = [shim("group", busy=True, resident=200 * MIB) for _ in range(2)]
    single = shim("single", busy=True, resident=500 * MIB)
    asker = shim("asker", resident=100 * MIB)
    asker.allocate(400 * MIB, number=1)
    wait_until(lambda: single.state == PARKED)
    assert not any(each.heard.of(PARK) for each in group)


def test_a_kernel_that_waits_to_resume_parks_its_own_other_process_for_room(node, shim, wait_until):
    """Else two such kernels would wait for each other for ever."""
    gpu = FakeNvml(total=16 * GIB)
    machine = node(nvml=gpu, contended_idle_timeout_s=0.2)
    first, second = shim("first", parked=400 * MIB), shim("second", parked=400 * MIB)
    worker = shim("second", resident=500 * MIB)
    first.touch()
    wait_until(lambda: machine.kernel("first")["place"] == 1)
    second.touch()
    wait_until(lambda: worker.state == PARKED)
    gpu.free = 2 * GIB
    wait_until(lambda: all(each.page.resumes for each in (first, second, worker)))  # they may be parked again


@pytest.fixture
def asked(node, shim, births, wait_until):
    """(a machine, a process that asks for room on it): the younger kernel's server was asked to end that.

    The youngest kernel has no server that could tell its user.
    """
    machine = node(when_full="terminate_newest", time_slice_s=0.1)
    asker = shim("asker", resident=100 * MIB)
    shim("younger", busy=True, resident=450 * MIB)
    shim("youngest", busy=True, resident=450 * MIB)
    machine.ask("PUT", "/kernels/younger", {"server": "bob's"})
    asker.allocate(400 * MIB, number=1)
    wait_until(lambda: "newest kernel" in (machine.kernel("younger")["end_asked"] or ""))
    assert machine.kernel("youngest")["end_asked"] is None
    return machine, asker


def test_no_kernel_is_ended_for_a_waiter_that_has_given_up(asked, wait_until):
    """Its server may hear of it late, when it connects again; what the user computed is not lost for nothing."""
    machine, asker = asked
    asker.send(notify(ROOM_END, number=1))
    wait_until(lambda: machine.kernel("younger")["end_asked"] is None)
    assert "was not shut down by its server" not in machine.controller_log()


def test_a_server_that_does_not_end_it_is_not_asked_again_at_once(asked, monkeypatch, wait_until):
    machine, _ = asked
    monkeypatch.setattr(evictions, "SERVER_TAKES_S", 0.3)
    wait_until(lambda: machine.kernel("younger")["end_asked"] is None)
    wait_until(lambda: "was not shut down by its server" in machine.controller_log())
    assert machine.kernel("younger")["residency"] == "resident"


def test_a_waiter_is_told_why_and_until_when_if_that_can_be_said(node, shim, wait_until):
    machine = node(idle_timeout_s=600, contended_idle_timeout_s=1500)
    busy = shim("busy", busy=True, resident=900 * MIB)
    asker = shim("asker", resident=100 * MIB)
    asker.allocate(400 * MIB, number=1)
    wait_until(lambda: "computing" in (machine.kernel("asker")["wait_reason"] or ""))
    asker.send(request(5, 1))  # %gpu_status
    wait_until(lambda: asker.heard.results)
    assert "computing" in asker.heard.results[0][2]
    kernel = machine.kernel("asker")
    assert kernel["estimate_s"] is None and "computing" in kernel["wait_reason"]
    busy.page.calls_in_flight = 0
    busy.page.write()
    wait_until(lambda: machine.kernel("asker")["estimate_s"] is not None)
    kernel = machine.kernel("asker")
    assert 80 < kernel["estimate_s"] <= 110, "in an exchange a fifteenth of the time-out is enough"
    assert "idle for long enough" in kernel["wait_reason"]
    assert machine.kernel("busy")["wait_reason"] is None


def test_a_users_quota_of_holds_is_kept_and_told(node, shim, wait_until):
    node(hold_bytes_max=150 * MIB)
    first, second = shim("first", resident=100 * MIB), shim("second", resident=100 * MIB)
    for number in (1, 2):  # the one that is held already may be held for longer
        first.send(request(3, number, 60 * 10**9))
        wait_until(lambda number=number: len(first.heard.results) == number)
        assert first.heard.results[-1][1] == OK
    second.send(request(3, 1))
    wait_until(lambda: second.heard.results)
    status, text = second.heard.results[0][1:]
    assert status == REFUSED and "200 MiB" in text and "150 MiB" in text
    first.send(request(4, 3))
    wait_until(lambda: len(first.heard.results) == 3)
    second.send(request(3, 2))
    wait_until(lambda: len(second.heard.results) == 2)
    assert second.heard.results[1][1] == OK


def test_what_a_kernelspec_says_lowers_a_class_and_opts_out(node, shim, wait_until):
    machine = node(park_when="idle", idle_timeout_s=0.2, priorities="*=2")
    machine.ask("PUT", "/kernels/out", {"may_park": False, "priority": -3})
    machine.ask("PUT", "/kernels/up", {"priority": 5})
    out, up = shim("out", resident=100 * MIB), shim("up", resident=100 * MIB)
    wait_until(lambda: up.state == PARKED)
    assert out.state == RESIDENT
    assert machine.kernel("out")["priority"] == -3
    assert machine.kernel("up")["priority"] == 2
    machine.ask("PATCH", "/policy", {"kernelspec_opt_out": False})
    wait_until(lambda: out.state == PARKED)


def test_a_users_limit_makes_their_own_idle_kernel_yield_although_the_gpu_has_room(node, shim, wait_until):
    machine = node(idle_timeout_s=0.2, quotas="*=400MiB")
    idle = shim("idle", resident=300 * MIB)
    wait_until(lambda: (machine.kernel("idle") or {}).get("eligible"))
    waiting = shim("waiting", parked=300 * MIB)
    waiting.touch()
    wait_until(lambda: idle.state == PARKED)
    wait_until(lambda: waiting.state == RESIDENT)
    assert waiting.page.memory[GPU][0] == 300 * MIB
