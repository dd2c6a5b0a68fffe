"""The controller and its shims, over the real sockets: who is parked and resumed, who is told what."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from pathlib import Path

import fake_shim
import pytest
from fake_shim import (
    BUSY,
    CANCEL,
    CANCEL_END,
    DROP_CACHES,
    DYING,
    FAILED,
    GPU,
    LOST,
    MIB,
    NO_GPU_ROOM,
    NO_HOST_ROOM,
    NOTHING,
    OK,
    PARK,
    PARKED,
    PARKING,
    QUEUED,
    REFUSED,
    RESIDENT,
    RESUME,
    REVOKED,
    ROOM_ANSWER,
    TRIM,
    TRIMS,
    request,
)

IDLE = {"park_when": "idle", "idle_timeout_s": 0.5}


@pytest.fixture
def residency(machine):
    """`residency("k")`: as the API says."""

    def of(kernel_id):
        kernel = machine.kernel(kernel_id)
        return kernel and kernel["residency"]

    return of


def in_background(function, *arguments):
    """Run something that waits; `.result` once joined."""
    thread = threading.Thread(target=lambda: setattr(thread, "result", function(*arguments)), daemon=True)
    thread.start()
    return thread


def result_of(thread):
    thread.join(timeout=15)
    assert not thread.is_alive()
    return thread.result


# ---- parking and resuming


def test_an_idle_kernel_is_parked_and_comes_back_at_its_next_call(node, shim, residency, wait_until):
    machine = node(**IDLE)
    kernel = shim("k", resident=300 * MIB)
    wait_until(lambda: residency("k") == "parked", timeout=3)
    described = machine.kernel("k")
    assert described["parked_bytes"] == 300 * MIB
    assert described["text"] == "GPU freed, 300 MiB safe in RAM"
    assert described["parks"] == 1
    kernel.touch()
    wait_until(lambda: residency("k") == "resident", timeout=3)
    assert machine.kernel("k")["resumes"] == 1
    (park,) = kernel.heard.of(PARK)[:1]
    assert park.deadline_ns > 0
    assert park.reason.startswith("idle")


def test_by_default_an_idle_kernel_stays_while_nobody_waits(node, shim, residency, wait_until):
    machine = node(idle_timeout_s=0.2)
    shim("k", resident=300 * MIB)
    wait_until(lambda: (machine.kernel("k") or {}).get("eligible"), message="it is eligible")
    assert machine.ask("POST", "/kernels/k/focus", {})[0] == 204
    assert residency("k") == "resident"
    assert machine.kernel("k")["parks"] == 0


def test_an_open_cell_keeps_a_kernel_and_its_end_frees_it(node, shim, residency, wait_until):
    machine = node(**IDLE)
    machine.ask("PUT", "/kernels/k", {"name": "Python"})
    machine.ask("POST", "/kernels/k/cell", {"open": True, "cell_id": "c1"})
    kernel = shim("k", resident=300 * MIB)
    wait_until(lambda: machine.kernel("k")["idle_s"] is not None and machine.kernel("k")["idle_s"] > 1)
    assert kernel.heard.of(PARK) == []
    assert machine.kernel("k")["cell_open"] is True
    machine.ask("POST", "/kernels/k/cell", {"open": False})
    wait_until(lambda: residency("k") == "parked", timeout=3)


@pytest.mark.parametrize("status", [BUSY, REVOKED, FAILED])
def test_after_a_refusal_it_is_left_alone_for_longer_and_longer(node, shim, wait_until, status):
    machine = node(**IDLE)
    times = []
    kernel = shim("k", resident=300 * MIB)
    kernel.park_status = status
    real = kernel._carry_out
    kernel.on_command = lambda command: (times.append(fake_shim.time.monotonic()), real(command))
    wait_until(lambda: len(times) >= 3)
    first, second = times[1] - times[0], times[2] - times[1]
    assert first >= 0.45
    assert second >= 0.95
    described = machine.kernel("k")
    assert described["residency"] == "resident"
    assert described["refusal"] == f"status {status}"


def test_all_processes_of_a_kernel_park_together_or_not_at_all(node, shim, residency, wait_until):
    machine = node()
    willing, unwilling = shim("k", resident=300 * MIB), shim("k", resident=200 * MIB)
    unwilling.park_status = REVOKED
    wait_until(lambda: len((machine.kernel("k") or {"processes": []})["processes"]) == 2)
    status, answer = machine.ask("POST", "/kernels/k/park", {})
    assert (status, answer["error"]) == (409, "busy")
    wait_until(lambda: willing.state == RESIDENT, message="the one that had parked is brought back")
    wait_until(lambda: residency("k") == "resident")
    unwilling.park_status = OK
    assert machine.ask("POST", "/kernels/k/park", {})[0] == 200
    assert machine.kernel("k")["parked_bytes"] == 500 * MIB
    unwilling.touch()
    wait_until(lambda: willing.state == unwilling.state == RESIDENT, message="they resume together")


def test_a_process_with_nothing_to_move_keeps_nobody_from_parking(node, shim, residency, wait_until):
    machine = node()
    shim("k", resident=300 * MIB)
    empty = shim("k")
    empty.park_status = NOTHING
    wait_until(lambda: len((machine.kernel("k") or {"processes": []})["processes"]) == 2)
    assert machine.ask("POST", "/kernels/k/park", {})[0] == 200
    assert residency("k") == "parked"


def test_processes_without_a_kernel_are_kernels_of_their_own(node, shim, wait_until):
    machine = node()
    shim(resident=100 * MIB)
    shim(resident=100 * MIB)
    wait_until(lambda: len(machine.kernels()) == 2)
    assert all(kernel_id.startswith(f"process-{os.getpid()}-") for kernel_id in machine.kernels())


def test_a_resume_that_finds_the_gpu_full_is_tried_again_and_keeps_its_place(node, shim, wait_until):
    machine = node()
    kernel = shim("k", parked=300 * MIB)
    kernel.resume_status = NO_GPU_ROOM
    kernel.touch()
    wait_until(lambda: len(kernel.heard.of(RESUME)) >= 2)
    described = machine.kernel("k")
    assert (described["residency"], described["place"]) == ("queued", 1)
    assert described["text"] == "Waiting for GPU: 1st"
    kernel.resume_status = OK
    wait_until(lambda: kernel.state == RESIDENT)


def test_a_kernel_that_is_lost_is_shown_and_left_alone(node, shim, residency, wait_until):
    machine = node(**IDLE)
    kernel = shim("k", resident=300 * MIB)
    kernel.become(LOST)
    wait_until(lambda: residency("k") == "lost")
    assert machine.kernel("k")["text"].startswith("GPU state lost")
    assert machine.ask("POST", "/kernels/k/park", {})[1]["error"] == "lost"
    assert kernel.heard.of(RESUME) == []


# ---- the queue and room


def test_calls_wait_first_come_first_served_and_hear_their_place(node, shim, wait_until):
    """Without NVML the room is learned: the first resume fails, so the GPU is known to be full."""
    machine = node()
    shim("busy", resident=900 * MIB)
    waiting = [shim(f"k{number}", parked=300 * MIB) for number in range(3)]
    waiting[0].resume_status = waiting[1].resume_status = waiting[2].resume_status = NO_GPU_ROOM
    for kernel in waiting:
        kernel.touch()
        wait_until(lambda kernel=kernel: kernel.heard.notices and kernel.heard.notices[-1][0])
    wait_until(lambda: machine.node()["queue"] == ["k0", "k1", "k2"])
    for number, kernel in enumerate(waiting):
        wait_until(lambda kernel=kernel: kernel.heard.notices[-1][1] == 3)
        place, many, text = kernel.heard.notices[-1]
        assert (place, many) == (number + 1, 3)
        assert text == f"Waiting for GPU: {['1st', '2nd', '3rd'][number]}"


def test_who_gives_up_loses_its_place(node, shim, wait_until):
    machine = node()
    kernel = shim("k", parked=300 * MIB)
    kernel.resume_status = NO_GPU_ROOM
    kernel.touch()
    wait_until(lambda: machine.node()["queue"] == ["k"])
    kernel.give_up()
    wait_until(lambda: machine.node()["queue"] == [])
    assert machine.kernel("k")["residency"] == "parked"


def test_an_allocation_makes_an_idle_kernel_yield_and_is_tried_again(node, shim, residency, wait_until):
    machine = node(idle_timeout_s=0.2)
    idle = shim("idle", resident=500 * MIB)
    wait_until(lambda: (machine.kernel("idle") or {}).get("eligible"))
    asker = shim("asker", resident=100 * MIB)
    asker.allocate(400 * MIB, number=7)
    wait_until(lambda: idle.state == PARKED)
    wait_until(lambda: asker.heard.of(ROOM_ANSWER))
    (answer,) = asker.heard.of(ROOM_ANSWER)
    assert (answer.request, answer.argument) == (7, 1)
    asker.allocated(400 * MIB, number=7)
    wait_until(lambda: machine.kernel("asker")["resident_bytes"] == 500 * MIB)
    assert machine.node()["queue"] == []


def test_an_allocation_with_nobody_to_yield_is_denied(node, shim, wait_until):
    node()
    asker = shim("asker", resident=900 * MIB)
    asker.allocate(400 * MIB, number=1)
    wait_until(lambda: asker.heard.of(ROOM_ANSWER))
    assert asker.heard.of(ROOM_ANSWER)[0].argument == 0


def test_an_allocation_waits_while_who_could_yield_is_busy_and_counts_as_queued(node, shim, wait_until):
    machine = node()
    shim("busy", resident=900 * MIB)
    asker = shim("asker", resident=100 * MIB)
    asker.allocate(400 * MIB, number=1)
    wait_until(lambda: machine.node()["queue"] == ["asker"])
    assert machine.kernel("asker")["residency"] == "queued"
    asker.send(fake_shim.notify(fake_shim.ROOM_END, 400 * MIB, number=1))
    wait_until(lambda: machine.node()["queue"] == [])
    assert asker.heard.of(ROOM_ANSWER) == []


def test_allocations_that_fail_with_room_evict_more_slowly_and_are_denied_in_the_end(node, shim, wait_until):
    """A program that asks again and again must not evict everyone in a loop."""
    node(idle_timeout_s=0.1)
    asker = shim("asker", resident=100 * MIB)
    victims = [shim(f"victim-{number}", resident=500 * MIB) for number in range(3)]
    number = 0

    def ask_again():
        nonlocal number
        answers = asker.heard.of(ROOM_ANSWER)
        if len(answers) == number:
            return False
        if answers[-1].argument == 0:
            return True
        number += 1
        asker.send(fake_shim.notify(fake_shim.ROOM_END, 450 * MIB, number=number - 1))
        asker.allocate(450 * MIB, number=number)
        return False

    asker.allocate(450 * MIB, number=0)
    wait_until(ask_again, timeout=30, message="it is denied in the end")
    assert number <= 10
    assert any(victim.state == PARKED for victim in victims)


def test_an_allocation_on_a_gpu_that_nobody_knows_is_denied(node, shim, wait_until):
    machine = node()
    asker = shim("asker", resident=100 * MIB)
    asker.send(fake_shim.notify(fake_shim.ROOM, MIB, number=3, gpu=b"\xee" * 16))
    wait_until(lambda: asker.heard.of(ROOM_ANSWER))
    assert asker.heard.of(ROOM_ANSWER)[0].argument == 0
    assert len(machine.node()["gpus"]) == 1


# ---- people


def test_park_and_resume_by_the_api(node, shim, wait_until):
    machine = node()
    shim("k", resident=10 * MIB)
    wait_until(lambda: "k" in machine.kernels())
    status, kernel = machine.ask("POST", "/kernels/k/park", {})
    assert (status, kernel["residency"]) == (200, "parked")
    assert machine.ask("POST", "/kernels/k/park", {})[0] == 200
    status, kernel = machine.ask("POST", "/kernels/k/resume", {})
    assert (status, kernel["residency"]) == (200, "resident")
    assert machine.ask("POST", "/kernels/k/resume", {})[0] == 200


def test_a_resume_of_who_cannot_be_told_is_not_called_done(node, shim, wait_until):
    machine = node()
    shim("k", parked=300 * MIB).hang_up()
    wait_until(lambda: (machine.kernel("k") or {"tracked": True})["tracked"] is False)
    status, answer = machine.ask("POST", "/kernels/k/resume", {})
    assert (status, answer["error"]) == (409, "too-late")
    assert machine.kernel("k")["residency"] == "parked"


def test_a_park_that_was_asked_for_is_tried_again_while_the_kernel_is_busy(node, shim, wait_until):
    machine = node()
    kernel = shim("k", resident=300 * MIB)
    wait_until(lambda: "k" in machine.kernels())
    kernel.park_status = BUSY
    asked = in_background(machine.ask, "POST", "/kernels/k/park", {})
    wait_until(lambda: len(kernel.heard.of(PARK)) >= 2)
    kernel.park_status = OK
    assert result_of(asked)[0] == 200


def test_a_park_that_stays_refused_says_why(node, shim, wait_until):
    machine = node()
    kernel = shim("k", resident=300 * MIB)
    wait_until(lambda: "k" in machine.kernels())
    kernel.park_status = BUSY
    status, answer = machine.ask("POST", "/kernels/k/park", {})
    assert (status, answer) == (409, {"error": "busy", "message": "status 1"})
    assert machine.kernel("k")["refusal"] == "status 1"


def test_a_park_that_is_not_waited_for_answers_at_once(node, shim, residency, wait_until):
    machine = node()
    kernel = shim("k", resident=300 * MIB)
    kernel.answers = False
    wait_until(lambda: "k" in machine.kernels())
    status, answer = machine.ask("POST", "/kernels/k/park", {"wait": False})
    assert (status, answer["residency"]) == (202, "resident")
    wait_until(lambda: kernel.heard.of(PARK))
    kernel.become(PARKING)
    wait_until(lambda: residency("k") == "parking")
    assert machine.kernel("k")["text"] == "Freeing the GPU…"


def test_whoever_asks_again_and_again_piles_nothing_up(node, shim, wait_until):
    """A kernel that waits for a full GPU is asked back over and over; who waits for the answer still gets it."""
    machine = node()
    kernel = shim("k", parked=300 * MIB)
    kernel.resume_status = NO_GPU_ROOM
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
    assert machine.kernel("k")["text"] == "On the GPU: 300 MiB, kept for 1 h"
    assert kernel.heard.of(PARK) == []
    machine.ask("POST", "/kernels/k/release", {})
    wait_until(lambda: residency("k") == "parked", timeout=3)


def test_the_owner_may_park_a_held_kernel_which_ends_the_hold(node, shim, wait_until):
    machine = node()
    shim("k", resident=300 * MIB)
    wait_until(lambda: "k" in machine.kernels())
    machine.ask("POST", "/kernels/k/hold", {})
    status, kernel = machine.ask("POST", "/kernels/k/park", {})
    assert (status, kernel["held_for_s"]) == (200, None)


def test_a_hold_is_no_longer_than_the_longest(node, shim):
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
            (3, 90 * 10**9, "the GPU is kept for 90 s"),
            (4, 0, "the GPU is no longer kept"),
        ]
    ):
        kernel.send(request(kind, number + 1, argument))
        wait_until(lambda number=number: len(kernel.heard.results) == number + 1)
        assert kernel.heard.results[-1] == (number + 1, OK, words)


def test_a_magics_refusal_says_why(node, shim, wait_until):
    node()
    kernel = shim("k", resident=300 * MIB)
    kernel.park_status = FAILED
    kernel.send(request(1, 1))
    wait_until(lambda: kernel.heard.results)
    assert kernel.heard.results == [(1, FAILED, "status 7")]


def test_too_many_open_requests_are_refused(node, shim, wait_until):
    node()
    kernel = shim("k", resident=300 * MIB)
    kernel.answers = False
    for number in range(10):
        kernel.send(request(1, number))
    wait_until(lambda: len(kernel.heard.results) == 2)
    assert {status for _, status, _ in kernel.heard.results} == {REFUSED}


# ---- interrupts, ends


def test_an_interrupt_reaches_every_process_and_ends_with_the_cell(node, shim, wait_until):
    machine = node()
    machine.ask("PUT", "/kernels/k", {})
    machine.ask("POST", "/kernels/k/cell", {"open": True, "cell_id": "c1"})
    kernels = [shim("k", parked=100 * MIB), shim("k", parked=100 * MIB)]
    wait_until(lambda: len(machine.kernel("k")["processes"]) == 2)
    assert machine.ask("POST", "/kernels/k/cancel", {})[0] == 204
    for kernel in kernels:
        wait_until(lambda kernel=kernel: kernel.heard.of(CANCEL))
        assert kernel.heard.of(CANCEL)[0].argument == 5 * 10**9
        assert kernel.heard.of(CANCEL_END) == []
    machine.ask("POST", "/kernels/k/cell", {"open": False})
    for kernel in kernels:
        wait_until(lambda kernel=kernel: kernel.heard.of(CANCEL_END))


def test_an_interrupt_between_cells_does_not_reach_the_next_cell(node, shim, wait_until):
    machine = node()
    machine.ask("PUT", "/kernels/k", {})
    machine.ask("POST", "/kernels/k/cell", {"open": False})
    kernel = shim("k", parked=100 * MIB)
    wait_until(lambda: machine.kernel("k")["processes"])
    machine.ask("POST", "/kernels/k/cancel", {})
    wait_until(lambda: kernel.heard.of(CANCEL))
    assert kernel.heard.of(CANCEL)[0].argument == 0


def test_a_resume_that_was_asked_for_ends_with_an_interrupt(node, shim, wait_until):
    machine = node()
    kernel = shim("k", parked=100 * MIB)
    kernel.resume_status = NO_GPU_ROOM
    wait_until(lambda: "k" in machine.kernels())
    asked = in_background(machine.ask, "POST", "/kernels/k/resume", {})
    wait_until(lambda: machine.node()["queue"] == ["k"])
    machine.ask("POST", "/kernels/k/cancel", {})
    assert result_of(asked)[1]["error"] == "cancelled"
    wait_until(lambda: machine.node()["queue"] == [])


def test_a_dying_kernel_is_told_and_neither_waits_nor_moves(node, shim, wait_until):
    machine = node(**IDLE)
    kernel = shim("k", parked=100 * MIB)
    kernel.resume_status = NO_GPU_ROOM
    kernel.touch()
    wait_until(lambda: machine.node()["queue"] == ["k"])
    machine.ask("POST", "/kernels/k/dying", {})
    wait_until(lambda: kernel.heard.of(DYING))
    wait_until(lambda: machine.node()["queue"] == [])


def test_a_process_that_ends_in_the_middle_of_a_park_holds_nobody_up(node, machine, shim, wait_until):
    node()
    script = Path(__file__).with_name("stoppable_process.py")
    process = machine.start(sys.executable, str(script), str(machine.socket.parent), "k")
    wait_until(lambda: "k" in machine.kernels())
    os.kill(process.pid, signal.SIGSTOP)
    asked = in_background(machine.ask, "POST", "/kernels/k/park", {})
    process.kill()
    status, _ = result_of(asked)
    assert status in (200, 409)
    wait_until(lambda: (machine.kernel("k") or {"processes": []})["processes"] == [])


def test_a_controller_that_was_killed_knows_everything_when_it_is_back(node, machine, shim, wait_until):
    """Nothing is stored: residency and places come from the shims."""
    process = machine.start_controller("--settle=0.2")
    script = Path(__file__).with_name("stoppable_process.py")
    machine.start(sys.executable, str(script), str(machine.socket.parent), "k")
    wait_until(lambda: "k" in machine.kernels())
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    machine.start_controller("--settle=0.2")
    wait_until(lambda: (machine.kernel("k") or {}).get("resident_bytes") == 100 * MIB, timeout=5)
    late, early = shim("late", parked=MIB), shim("early", parked=MIB)
    for kernel in (late, early):
        kernel.resume_status = NO_GPU_ROOM
        kernel.page.state = QUEUED
    early.page.state_since -= 10**9
    for kernel in (late, early):
        kernel.page.write()
        kernel.send(fake_shim.notify(fake_shim.WANT))
    wait_until(lambda: machine.node()["queue"] == ["early", "late"])


def test_no_grant_before_the_settle_time_is_over(machine, shim, wait_until):
    machine.start_controller("--settle=1.5")
    began = fake_shim.time.monotonic()
    kernel = shim("k", parked=MIB)
    kernel.touch()
    wait_until(lambda: kernel.heard.of(RESUME))
    assert fake_shim.time.monotonic() - began > 0.8


def test_a_kernel_that_resumed_by_itself_is_seen(node, shim, residency, wait_until):
    machine = node()
    kernel = shim("k", parked=100 * MIB)
    wait_until(lambda: residency("k") == "parked")
    kernel.page.memory[GPU] = [100 * MIB, 0, 0]
    kernel.become(RESIDENT)
    wait_until(lambda: residency("k") == "resident")
    assert machine.kernel("k")["resident_bytes"] == 100 * MIB


def test_memory_that_cannot_move_is_named(node, shim, wait_until):
    machine = node()
    kernel = shim("k", resident=100 * MIB)
    kernel.page.memory[GPU][2] = 8 * MIB
    kernel.page.write()
    wait_until(lambda: (machine.kernel("k") or {}).get("fixed"))
    described = machine.kernel("k")
    assert described["fixed"] == [{"reason": "managed", "bytes": 8 * MIB, "text": "managed (unified) memory"}]
    assert described["footprint_bytes"] == 108 * MIB


# ---- caches

DROPPING = {**IDLE, "drop_caches_before_park": True}
DROPS = 16  # a flag of the page


def dropper(shim):
    kernel = shim("k", resident=300 * MIB)
    kernel.page.flags = DROPS
    kernel.page.write()
    return kernel


def test_caches_are_dropped_once_and_then_the_kernel_is_parked(node, shim, residency, wait_until):
    node(**DROPPING)
    kernel = dropper(shim)
    wait_until(lambda: kernel.heard.of(DROP_CACHES))
    assert kernel.heard.of(PARK) == []
    kernel.page.memory[GPU][0] = 200 * MIB
    kernel.page.write()
    kernel.send(fake_shim.reply(DROP_CACHES, kernel.heard.of(DROP_CACHES)[0].epoch, OK))
    wait_until(lambda: residency("k") == "parked")
    kernel.touch()
    wait_until(lambda: residency("k") == "resident")
    assert len(kernel.heard.of(DROP_CACHES)) == 1
    kernel.touch()
    wait_until(
        lambda: len(kernel.heard.of(DROP_CACHES)) == 2, message="after its next use, before its next park"
    )


def test_a_kernel_that_does_not_answer_is_parked_as_it_is(node, shim, residency, wait_until):
    node(**DROPPING)
    kernel = dropper(shim)
    wait_until(lambda: residency("k") == "parked", timeout=6)
    (wish,) = kernel.heard.of(DROP_CACHES)
    assert 0 < wish.deadline_ns - fake_shim.time.monotonic_ns() + 6e9 < 7e9


def test_a_kernel_whose_person_comes_back_meanwhile_is_not_parked(node, shim, wait_until):
    node(park_when="idle", idle_timeout_s=1.5, drop_caches_before_park=True)
    kernel = dropper(shim)
    wait_until(lambda: kernel.heard.of(DROP_CACHES))
    kernel.touch()
    touched = fake_shim.time.monotonic()
    kernel.send(fake_shim.reply(DROP_CACHES, kernel.heard.of(DROP_CACHES)[0].epoch, OK))
    wait_until(lambda: kernel.heard.of(PARK))
    assert fake_shim.time.monotonic() - touched > 1.4


def test_where_nobody_drops_caches_nobody_is_asked(node, shim, residency, wait_until):
    node(**DROPPING)
    kernel = shim("k", resident=300 * MIB)
    wait_until(lambda: residency("k") == "parked")
    assert kernel.heard.of(DROP_CACHES) == []


def test_a_process_that_ends_while_it_drops_caches_holds_nobody_up(node, shim, residency, wait_until):
    node(**DROPPING)
    kernel, other = dropper(shim), shim("k", resident=200 * MIB)
    wait_until(lambda: kernel.heard.of(DROP_CACHES))
    kernel._socket.shutdown(fake_shim.socket.SHUT_RDWR)
    wait_until(lambda: other.heard.of(PARK), timeout=15)


# ---- host memory

TIB = 1 << 40


def test_a_park_that_found_no_host_memory_is_not_tried_again_before_there_is_more(node, shim, wait_until):
    machine = node(**IDLE)
    kernel = shim("k", resident=TIB, flags=TRIMS)
    kernel.park_status = NO_HOST_ROOM
    wait_until(lambda: "1 TiB of host memory" in (machine.kernel("k")["refusal"] or ""), timeout=5)
    assert len(kernel.heard.of(PARK)) == 1
    kernel.touch()  # what it has now may be zeros for all that is known
    wait_until(lambda: len(kernel.heard.of(PARK)) == 2)


def test_who_asked_for_a_park_hears_how_much_host_memory_is_missing(node, shim, wait_until):
    machine = node()
    kernel = shim("k", resident=TIB, flags=TRIMS)
    kernel.park_status = NO_HOST_ROOM
    wait_until(lambda: "k" in machine.kernels())
    status, answer = machine.ask("POST", "/kernels/k/park", {})
    assert (status, answer["error"]) == (409, "no-host-memory")
    assert "parking needs 1 TiB of host memory" in answer["message"]
    assert len(kernel.heard.of(PARK)) == 1


def test_what_another_kernel_keeps_makes_room_for_a_park_that_was_asked_for(node, shim, wait_until):
    """The first try says how much it takes; the other gives that back, and the second try is made."""
    machine = node()
    available = machine.node()["host"]["available_bytes"]
    keeper = shim("keeper", resident=100 * MIB, flags=TRIMS)
    keeper.keep(2 * available)
    kernel = shim("k", resident=2 * available, flags=TRIMS)
    wait_until(lambda: {"k", "keeper"} <= machine.kernels().keys())
    asked = in_background(machine.ask, "POST", "/kernels/k/park", {})
    wait_until(lambda: keeper.heard.of(TRIM))
    trim = keeper.heard.of(TRIM)[0]  # there may be more as the machine's own free memory comes and goes
    assert 0 < trim.argument < 1.5 * available
    assert result_of(asked)[0] == 200
    assert kernel.heard.of(PARK)
