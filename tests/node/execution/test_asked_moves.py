"""Over the real sockets: parks, resumes and holds that users and their magics ask for."""

from __future__ import annotations

import asyncio
import gc
import re

from background import in_background, result_of
from fake_shim import BUSY, FAILED, MIB, NO_GPU_ROOM, OK, PARK, PARKING, REFUSED, request

from jupyter_affinode.node.api import kernels
from jupyter_affinode.node.execution import user_requests

IDLE = {"park_when": "idle", "idle_timeout_s": 0.5}


def test_park_and_resume_by_the_api(node, shim):
    machine = node()
    shim("k", resident=10 * MIB)
    status, kernel = machine.ask("POST", "/kernels/k/park", {})
    assert (status, kernel["residency"]) == (200, "parked")
    assert machine.ask("POST", "/kernels/k/park", {})[0] == 200
    status, kernel = machine.ask("POST", "/kernels/k/resume", {})
    assert (status, kernel["residency"]) == (200, "resident")
    assert machine.ask("POST", "/kernels/k/resume", {})[0] == 200


def test_a_resume_of_a_disconnected_kernel_is_not_called_done(node, shim, wait_until):
    machine = node()
    shim("k", parked=300 * MIB).hang_up()
    wait_until(lambda: (machine.kernel("k") or {"tracked": True})["tracked"] is False)
    status, answer = machine.ask("POST", "/kernels/k/resume", {})
    assert (status, answer["error"]) == (409, "too-late")
    assert machine.kernel("k")["residency"] == "parked"


def test_a_park_that_was_asked_for_is_tried_again_while_the_kernel_is_busy(
    node, shim, wait_until, monkeypatch
):
    monkeypatch.setattr(user_requests, "BUSY_PATIENCE_S", 600.0)
    machine = node()
    kernel = shim("k", resident=300 * MIB, park_status=BUSY)
    asked = in_background(machine.ask, "POST", "/kernels/k/park", {})
    wait_until(lambda: len(kernel.heard.of(PARK)) >= 2)
    kernel.park_status = OK
    assert result_of(asked)[0] == 200


def test_a_park_that_stays_refused_says_why(node, shim):
    machine = node()
    shim("k", resident=300 * MIB, park_status=BUSY)
    status, answer = machine.ask("POST", "/kernels/k/park", {})
    assert (status, answer) == (409, {"error": "busy", "message": "status 1"})
    assert machine.kernel("k")["refusal"] == "status 1"


def test_a_park_that_is_not_waited_for_answers_at_once(node, shim, residency, wait_until):
    machine = node()
    kernel = shim("k", resident=300 * MIB, answers=False)
    status, answer = machine.ask("POST", "/kernels/k/park", {"wait": False})
    assert (status, answer["residency"]) == (202, "resident")
    wait_until(lambda: kernel.heard.of(PARK))
    kernel.become(PARKING)
    wait_until(lambda: residency("k") == "parking")
    assert machine.kernel("k")["text"] == "Freeing"


def test_repeated_requests_do_not_pile_up(node, shim, wait_until, monkeypatch):
    """A kernel that waits for a full GPU is asked back over and over; a waiting client still gets its answer."""
    monkeypatch.setattr(kernels, "MOVE_WAIT_S", 600.0)
    machine = node()
    kernel = shim("k", parked=300 * MIB, resume_status=NO_GPU_ROOM)
    waiting = [in_background(machine.ask, "POST", "/kernels/k/resume", {}) for _ in range(2)]
    wait_until(lambda: machine.kernel("k")["residency"] == "queued")
    before = futures_that_wait()
    for _ in range(200):
        assert machine.ask("POST", "/kernels/k/resume", {"wait": False})[0] == 202
    assert futures_that_wait() - before < 100
    kernel.resume_status = OK
    assert [result_of(thread)[0] for thread in waiting] == [200, 200]


def futures_that_wait():
    """How many futures of this process, in which the controller runs, are not done."""
    gc.collect()
    return sum(isinstance(each, asyncio.Future) and not each.done() for each in gc.get_objects())


def test_a_held_kernel_stays_until_it_is_released(node, shim, residency, wait_until):
    machine = node(**IDLE)
    machine.ask("PUT", "/kernels/k", {})
    status, answer = machine.ask("POST", "/kernels/k/hold", {"duration_s": 3600})
    assert (status, round(answer["held_for_s"])) == (200, 3600)
    kernel = shim("k", resident=300 * MIB)
    wait_until(lambda: (machine.kernel("k")["idle_s"] or 0) > 1)
    held = machine.kernel("k")
    assert held["text"] == f"On the GPU: 300 MiB, kept until {held['held_until']}"
    assert kernel.heard.of(PARK) == []
    machine.ask("POST", "/kernels/k/release", {})
    wait_until(lambda: residency("k") == "parked")


def test_the_owner_may_park_a_held_kernel_which_ends_the_hold(node, shim):
    machine = node()
    shim("k", resident=300 * MIB)
    machine.ask("POST", "/kernels/k/hold", {})
    status, kernel = machine.ask("POST", "/kernels/k/park", {})
    assert (status, kernel["held_for_s"]) == (200, None)


def test_a_hold_is_no_longer_than_the_longest(node):
    machine = node(hold_max_s=7200)
    machine.ask("PUT", "/kernels/k", {})
    assert round(machine.ask("POST", "/kernels/k/hold", {"duration_s": 10**6})[1]["held_for_s"]) == 7200


def test_magics_are_answered_when_what_they_asked_for_is_done(node, shim, wait_until):
    machine = node()
    machine.ask("PUT", "/kernels/k", {})
    machine.ask("POST", "/kernels/k/cell", {"open": True, "cell_id": "the magic's own"})
    kernel = shim("k", resident=300 * MIB)
    for number, (kind, argument, words) in enumerate(
        [
            (5, 0, "On the GPU: 300 MiB"),
            (1, 0, "300 MiB freed"),
            (5, 0, "GPU freed, 300 MiB safe in RAM"),
            (2, 0, "the GPU is back"),
            (3, 90 * 10**9, "the GPU is kept until .*"),
            (4, 0, "the GPU is no longer kept"),
        ]
    ):
        kernel.send(request(kind, number + 1, argument))
        wait_until(lambda number=number: len(kernel.heard.results) == number + 1)
        assert kernel.heard.results[-1][:2] == (number + 1, OK)
        assert re.fullmatch(words, kernel.heard.results[-1][2])


def test_a_magics_refusal_says_why(node, shim, wait_until):
    node()
    kernel = shim("k", resident=300 * MIB, park_status=FAILED)
    kernel.send(request(1, 1))
    wait_until(lambda: kernel.heard.results)
    assert kernel.heard.results == [(1, FAILED, "status 7")]


def test_too_many_open_requests_are_refused(node, shim, wait_until):
    node()
    kernel = shim("k", resident=300 * MIB, answers=False)
    for number in range(10):
        kernel.send(request(1, number))
    wait_until(lambda: len(kernel.heard.results) >= 2)  # the parks are given up in the end
    assert {status for _, status, _ in kernel.heard.results[:2]} == {REFUSED}
