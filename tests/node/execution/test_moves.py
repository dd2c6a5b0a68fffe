"""The controller and its shims, over the real sockets: kernels are parked, resumed, interrupted and ended."""

from __future__ import annotations

import os
import signal

import fake_shim
import pytest
from background import in_background, result_of
from fake_shim import (
    BUSY,
    CANCEL,
    CANCEL_END,
    DYING,
    FAILED,
    GPU,
    LOST,
    MIB,
    NO_GPU_ROOM,
    NOTHING,
    OK,
    PARK,
    QUEUED,
    RESIDENT,
    RESUME,
    REVOKED,
)

IDLE = {"park_when": "idle", "idle_timeout_s": 0.5}


# ---- parking and resuming


def test_an_idle_kernel_is_parked_and_comes_back_at_its_next_call(node, shim, residency, wait_until):
    machine = node(**IDLE)
    kernel = shim("k", resident=300 * MIB)
    wait_until(lambda: residency("k") == "parked")
    described = machine.kernel("k")
    assert described["parked_bytes"] == 300 * MIB
    assert described["text"] == "GPU freed, 300 MiB safe in RAM"
    assert described["parks"] == 1
    kernel.touch()
    wait_until(lambda: machine.kernel("k")["resumes"] == 1)  # soon it is parked again
    assert RESIDENT in kernel.states
    (park,) = kernel.heard.of(PARK)[:1]
    assert park.deadline_ns > 0
    assert park.reason.startswith("idle")


def test_an_open_cell_keeps_a_kernel_and_its_end_frees_it(node, shim, residency, wait_until):
    machine = node(**IDLE)
    machine.ask("PUT", "/kernels/k", {"name": "Python"})
    machine.ask("POST", "/kernels/k/cell", {"open": True, "cell_id": "c1"})
    kernel = shim("k", resident=300 * MIB)
    wait_until(lambda: machine.kernel("k")["idle_s"] is not None and machine.kernel("k")["idle_s"] > 1)
    assert kernel.heard.of(PARK) == []
    assert machine.kernel("k")["cell_open"] is True
    machine.ask("POST", "/kernels/k/cell", {"open": False})
    wait_until(lambda: residency("k") == "parked")


@pytest.mark.parametrize("status", [BUSY, REVOKED, FAILED])
def test_after_a_refusal_it_is_left_alone_for_longer_and_longer(node, shim, wait_until, status):
    machine = node(**IDLE)
    times = []
    kernel = shim("k", resident=300 * MIB, park_status=status)
    real = kernel._carry_out

    def note(command):
        if command.kind == PARK:
            times.append(fake_shim.time.monotonic())
        real(command)

    kernel.on_command = note
    wait_until(lambda: len(times) >= 3)
    first, second = times[1] - times[0], times[2] - times[1]
    assert first >= 0.45
    assert second >= 0.95
    described = machine.kernel("k")
    assert described["residency"] == "resident"
    assert described["refusal"] == f"status {status}"


def test_a_process_with_nothing_to_move_does_not_keep_its_kernel_from_parking(node, shim, residency):
    machine = node()
    shim("k", resident=300 * MIB)
    shim("k", park_status=NOTHING)
    assert machine.ask("POST", "/kernels/k/park", {})[0] == 200
    assert residency("k") == "parked"


def test_processes_without_a_kernel_are_kernels_of_their_own(node, shim):
    machine = node()
    shim(resident=100 * MIB)
    shim(resident=100 * MIB)
    assert all(kernel_id.startswith(f"process-{os.getpid()}-") for kernel_id in machine.kernels())


def test_a_resume_that_finds_the_gpu_full_is_tried_again_and_keeps_its_place(node, shim, wait_until):
    machine = node()
    kernel = shim("k", parked=300 * MIB, resume_status=NO_GPU_ROOM)
    kernel.touch()
    wait_until(lambda: len(kernel.heard.of(RESUME)) >= 2)
    described = machine.kernel("k")
    assert (described["residency"], described["place"]) == ("queued", 1)
    assert described["text"] == "Waiting: 1st"
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


# ---- interrupts, ends


def test_an_interrupt_reaches_every_process_and_ends_with_the_cell(node, shim, wait_until):
    machine = node()
    machine.ask("PUT", "/kernels/k", {})
    machine.ask("POST", "/kernels/k/cell", {"open": True, "cell_id": "c1"})
    kernels = [shim("k", parked=100 * MIB), shim("k", parked=100 * MIB)]
    assert machine.ask("POST", "/kernels/k/cancel", {})[0] == 204
    for kernel in kernels:
        wait_until(lambda kernel=kernel: kernel.heard.of(CANCEL))
        assert kernel.heard.of(CANCEL)[0].argument == 5 * 10**9
        assert kernel.heard.of(CANCEL_END) == []
    machine.ask("POST", "/kernels/k/cell", {"open": False})
    for kernel in kernels:
        wait_until(lambda kernel=kernel: kernel.heard.of(CANCEL_END))


@pytest.mark.parametrize(("message", "command"), [("cancel", CANCEL), ("dying", DYING)])
def test_what_a_signal_would_not_reach_is_told_neither_of_interrupts_nor_of_ends(
    node, shim, wait_until, message, command
):
    """A job in a session of its own, and the processes of a kernel that was restarted since."""
    machine = node()
    machine.ask("PUT", "/kernels/k", {})
    in_group, of_earlier_version = shim("k", parked=MIB, group=700), shim("k", parked=MIB)
    elsewhere = shim("k", parked=MIB, group=701)
    assert machine.ask("POST", f"/kernels/k/{message}", {"process_group": 700})[0] == 204
    for told in (in_group, of_earlier_version):
        wait_until(lambda told=told: told.heard.of(command))
    assert elsewhere.heard.of(command) == []
    assert machine.ask("POST", f"/kernels/k/{message}", {})[0] == 204
    wait_until(lambda: elsewhere.heard.of(command))
    assert len(elsewhere.heard.of(command)) == 1


def test_an_interrupt_between_cells_does_not_reach_the_next_cell(node, shim, wait_until):
    machine = node()
    machine.ask("PUT", "/kernels/k", {})
    machine.ask("POST", "/kernels/k/cell", {"open": False})
    kernel = shim("k", parked=100 * MIB)
    machine.ask("POST", "/kernels/k/cancel", {})
    wait_until(lambda: kernel.heard.of(CANCEL))
    assert kernel.heard.of(CANCEL)[0].argument == 0


def test_a_resume_that_was_asked_for_ends_with_an_interrupt(node, shim, wait_until):
    machine = node()
    shim("k", parked=100 * MIB, resume_status=NO_GPU_ROOM)
    asked = in_background(machine.ask, "POST", "/kernels/k/resume", {})
    wait_until(lambda: machine.node()["queue"] == ["k"])
    machine.ask("POST", "/kernels/k/cancel", {})
    assert result_of(asked)[1]["error"] == "cancelled"
    wait_until(lambda: machine.node()["queue"] == [])


def test_a_dying_kernel_is_told_and_neither_waits_nor_moves(node, shim, wait_until):
    machine = node(**IDLE)
    kernel = shim("k", parked=100 * MIB, resume_status=NO_GPU_ROOM)
    kernel.touch()
    wait_until(lambda: machine.node()["queue"] == ["k"])
    machine.ask("POST", "/kernels/k/dying", {})
    wait_until(lambda: kernel.heard.of(DYING))
    wait_until(lambda: machine.node()["queue"] == [])


def test_a_process_that_ends_in_the_middle_of_a_park_does_not_hold_up_the_next(node, stoppable, wait_until):
    machine = node()
    process = stoppable("k")
    os.kill(process.pid, signal.SIGSTOP)
    asked = in_background(machine.ask, "POST", "/kernels/k/park", {})
    process.kill()
    status, _ = result_of(asked)
    assert status in (200, 409)
    wait_until(lambda: machine.processes_of("k") == [])


def test_a_controller_that_was_killed_knows_everything_when_it_is_back(machine, stoppable, shim, wait_until):
    """Nothing is stored: residency and places come from the shims."""
    process = machine.start_controller("--settle=0.2", patient=True)
    stoppable("k")
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    machine.start_controller("--settle=0.2", patient=True)
    wait_until(lambda: (machine.kernel("k") or {}).get("resident_bytes") == 100 * MIB)
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
    machine.start_controller("--settle=1.5", patient=True)
    kernel = shim("k", parked=MIB)
    kernel.touch()
    wait_until(lambda: kernel.heard.of(RESUME))
    assert machine.node()["controller"]["uptime_s"] >= 1.5


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
    wait_until(lambda: (machine.kernel("k") or {}).get("unmovable"))
    described = machine.kernel("k")
    assert described["unmovable"] == [
        {"reason": "managed", "bytes": 8 * MIB, "text": "managed (unified) memory"}
    ]
    assert described["footprint_bytes"] == 108 * MIB
