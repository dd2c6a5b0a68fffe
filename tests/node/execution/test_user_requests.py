"""What a park or a resume that was asked for is answered when it cannot be done: the truth, and at once."""

from __future__ import annotations

import asyncio
import re

import pytest
from background import in_background, result_of
from fake_nvml import FakeNvml
from fake_shim import MIB, NONE, NOTHING, QUEUED, REFUSED, RESUME, request
from model_node import QUIET, Machine

from jupyter_affinode.node.execution.user_requests import UserRequests
from jupyter_affinode.node.state import registry as state
from jupyter_affinode.node.state.records.operations import KERNEL_ENDED


@pytest.fixture
def parked(node, machine, shim, wait_until):
    """A parked kernel `k` on a GPU that foreign programs fill: it waits, and no resume is tried."""
    node(nvml=FakeNvml())
    kernel = shim("k", parked=300 * MIB)
    wait_until(lambda: machine.node()["nvml"])
    return kernel


def test_a_park_request_withdraws_a_waiting_resume_request(parked, machine, residency, wait_until):
    asked = in_background(machine.ask, "POST", "/kernels/k/resume", {})
    wait_until(lambda: residency("k") == "queued")
    status, kernel = machine.ask("POST", "/kernels/k/park", {})
    assert (status, kernel["residency"], kernel["place"]) == (200, "parked", None)
    status, answer = result_of(asked)
    assert (status, answer["error"]) == (409, "park-asked")
    assert not parked.heard.of(RESUME)


def test_a_magic_is_told_that_its_hold_is_cut_short(node, shim, wait_until):
    node(hold_max_s=3600)
    kernel = shim("k", resident=300 * MIB)
    for number, hours in ((1, 1), (2, 2)):
        kernel.send(request(3, number, hours * 3600 * 10**9))
        wait_until(lambda number=number: len(kernel.heard.results) == number)
    first, second = [text for _, _, text in kernel.heard.results]
    assert re.fullmatch(r"the GPU is kept until \d\d:\d\d \S+", first)
    assert re.fullmatch(r"the GPU is kept until \d\d:\d\d \S+, the longest time that is allowed here", second)


def test_a_magic_is_told_that_the_wish_is_withdrawn(parked, machine, residency, wait_until):
    machine.ask("POST", "/kernels/k/resume", {"wait": False})
    wait_until(lambda: residency("k") == "queued")
    parked.send(request(1, 1))
    wait_until(lambda: parked.heard.results)
    words = "the GPU is freed already; it no longer waits to get it back"
    assert parked.heard.results == [(1, NOTHING, words)]


def test_a_park_request_for_a_kernel_with_a_waiting_call_says_that_it_waits_on(
    parked, machine, residency, wait_until
):
    parked.touch()
    wait_until(lambda: residency("k") == "queued")
    words = "the GPU is freed already, and a cell waits to get it back: interrupt the kernel to end"
    status, answer = machine.ask("POST", "/kernels/k/park", {})
    assert (status, answer) == (409, {"error": "waits-for-gpu", "message": f"{words} that"})
    machine.ask("POST", "/kernels/k/resume", {"wait": False})
    status, answer = machine.ask("POST", "/kernels/k/park", {})
    assert answer["message"] == f"{words} that; the request to get it back is withdrawn"
    parked.send(request(1, 1))
    wait_until(lambda: parked.heard.results)
    assert parked.heard.results == [(1, REFUSED, f"{words} that")]
    assert machine.kernel("k")["place"] == 1


def test_a_park_request_for_a_waiting_kernel_with_a_part_on_the_gpu_says_so(
    parked, machine, shim, residency, wait_until
):
    shim("k", resident=100 * MIB)
    parked.become(QUEUED)
    wait_until(lambda: residency("k") == "queued")
    status, answer = machine.ask("POST", "/kernels/k/park", {})
    assert (status, answer["error"]) == (409, "waits-for-gpu")
    assert answer["message"].startswith("a part of the GPU memory is freed already")


NO_CUDA = {"code": "nothing-to-move", "text": "the kernel does not use the GPU"}
SHIMS = {"code": "nothing-to-move", "text": "status 6"}
FREED = {"code": None, "text": "the GPU is freed already"}
THERE = {"code": None, "text": "already on the GPU"}


@pytest.mark.parametrize(
    "action, options, nothing_moved, magics",
    [
        ("park", {"state": NONE}, NO_CUDA, (1, 1, NOTHING)),
        ("park", {"park_status": NOTHING}, SHIMS, (1, 1, NOTHING)),
        ("park", {"parked": 300 * MIB}, FREED, (1, 1, NOTHING)),
        ("resume", {"resident": 300 * MIB}, THERE, (2, 1, NOTHING)),
        ("resume", {"state": NONE}, THERE, (2, 1, NOTHING)),
        ("park", {"resident": 300 * MIB}, None, (1, 1, NOTHING)),
    ],
)
def test_a_request_that_is_fulfilled_already_is_answered_so_and_is_no_refusal(
    node, machine, shim, wait_until, action, options, nothing_moved, magics
):
    node()
    kernel = shim("k", **options)
    status, answer = machine.ask("POST", f"/kernels/k/{action}", {})
    assert status == 200, answer
    assert answer.get("nothing_moved") == nothing_moved
    assert "nothing_moved" not in machine.kernel("k")
    assert (machine.kernel("k")["refusal"], machine.kernel("k")["reason"]) == (None, answer["reason"])
    kernel.send(request(magics[0], magics[1]))
    wait_until(lambda: kernel.heard.results)
    assert kernel.heard.results[-1][:2] == magics[1:]


def test_a_park_that_is_fulfilled_already_ends_a_hold(node, machine, shim):
    node()
    shim("k", park_status=NOTHING)
    machine.ask("POST", "/kernels/k/hold", {})
    assert machine.ask("POST", "/kernels/k/park", {})[1]["held_for_s"] is None


def test_a_kernel_that_was_forgotten_is_forgotten_again(node, machine):
    node()
    machine.ask("PUT", "/kernels/k", {})
    assert [machine.ask("DELETE", "/kernels/k")[0] for _ in range(2)] == [204, 204]


def test_a_request_for_a_deleted_kernel_is_answered_at_once(parked, machine, residency, wait_until):
    asked = in_background(machine.ask, "POST", "/kernels/k/resume", {})
    wait_until(lambda: residency("k") == "queued")
    assert machine.ask("DELETE", "/kernels/k")[0] == 204
    ended = (409, {"error": "kernel-ended", "message": "the kernel has ended"})
    assert result_of(asked) == ended


def test_a_resume_request_is_answered_when_the_processes_are_gone(
    parked, machine, residency, wait_until, monkeypatch
):
    monkeypatch.setattr(state, "HUNG_UP_FORGOTTEN_S", 0.1)
    asked = in_background(machine.ask, "POST", "/kernels/k/resume", {})
    wait_until(lambda: residency("k") == "queued")
    parked.hang_up()
    assert result_of(asked) == (409, {"error": "kernel-ended", "message": "the kernel has ended"})


def test_a_park_request_is_answered_when_the_process_ends(clock):
    async def story():
        machine = Machine(clock, {"GPU-1": 1000 * MIB})
        process = machine.start("k", {"GPU-1": 300 * MIB})
        kernel = machine.state.kernels["k"]
        asked = UserRequests(machine.state, QUIET, lambda: None).park(kernel)
        machine.pass_time()
        assert kernel.move is not None
        machine.end_process(process)
        assert asked.result() == KERNEL_ENDED

    asyncio.run(story())
