"""Over the real sockets: kernels that wait for the GPU, and allocations that wait for room on it."""

from __future__ import annotations

import time

import fake_shim
from fake_nvml import FakeNvml
from fake_shim import MIB, NO_GPU_ROOM, PARKED, ROOM_ANSWER

from jupyter_affinode.node.execution import allocations as rooms
from jupyter_affinode.node.protocol import wire
from jupyter_affinode.node.state import snapshot_builder


def test_calls_wait_first_come_first_served_and_hear_their_place(node, shim, wait_until):
    """Without NVML the room is learned: the first resume fails, so the GPU is known to be full."""
    machine = node()
    shim("busy", resident=900 * MIB, busy=True)
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
        assert text.startswith(f"Waiting for the GPU ({['1st', '2nd', '3rd'][number]} in line): ")


def test_a_waiter_that_gives_up_loses_its_place(node, shim, wait_until):
    machine = node()
    kernel = shim("k", parked=300 * MIB, resume_status=NO_GPU_ROOM)
    kernel.touch()
    wait_until(lambda: machine.node()["queue"] == ["k"])
    kernel.give_up()
    wait_until(lambda: machine.node()["queue"] == [])
    assert machine.kernel("k")["residency"] == "parked"


def test_an_allocation_makes_an_idle_kernel_yield_and_is_tried_again(node, shim, wait_until):
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


def test_an_allocation_without_a_possible_victim_is_denied(node, shim, wait_until):
    node()
    asker = shim("asker", resident=900 * MIB)
    asker.allocate(400 * MIB, number=1)
    wait_until(lambda: asker.heard.of(ROOM_ANSWER))
    assert asker.heard.of(ROOM_ANSWER)[0].argument == 0


def test_an_allocation_waits_for_a_busy_kernel_and_counts_as_queued(node, shim, wait_until):
    machine = node()
    shim("busy", resident=900 * MIB, busy=True)
    asker = shim("asker", resident=100 * MIB)
    asker.allocate(400 * MIB, number=1)
    wait_until(lambda: machine.node()["queue"] == ["asker"])
    assert machine.kernel("asker")["residency"] == "queued"
    asker.send(fake_shim.notify(fake_shim.ROOM_END, 400 * MIB, number=1))
    wait_until(lambda: machine.node()["queue"] == [])
    assert asker.heard.of(ROOM_ANSWER) == []


def test_one_users_processes_have_a_bounded_number_of_allocations_waiting(
    node, shim, wait_until, monkeypatch
):
    monkeypatch.setattr(rooms, "ALLOCATIONS_OF_A_USER_MAX", 4)
    machine = node()
    shim("busy", resident=900 * MIB, busy=True)
    askers = [shim(f"k{number}", resident=MIB) for number in range(3)]
    for asker in askers:
        for number in (1, 2):
            asker.allocate(400 * MIB, number)
        wait_until(
            lambda asker=asker: f"k{askers.index(asker)}" in machine.node()["queue"] or asker.heard.commands
        )
    wait_until(lambda: len(askers[2].heard.of(ROOM_ANSWER)) == 2)
    assert [answer.argument for answer in askers[2].heard.of(ROOM_ANSWER)] == [0, 0]
    assert machine.node()["queue"] == ["k0", "k1"]


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
    wait_until(ask_again, message="it is denied in the end")
    assert number <= 10
    assert any(victim.state == PARKED for victim in victims)


def test_allocations_that_fail_since_another_has_the_gpus_lock_are_never_denied(node, shim, wait_until):
    """Its process comes back, and is stopped, perhaps: they are tried again, and are not out of memory."""
    node(nvml=FakeNvml(1000 * MIB))
    asker = shim("asker", resident=100 * MIB)
    began = time.monotonic()

    def denied_within(seconds, flags):
        while time.monotonic() - began < seconds:
            number = len(asker.heard.of(ROOM_ANSWER))
            asker.send(fake_shim.notify(fake_shim.ROOM, 450 * MIB, number=number, flags=flags))
            wait_until(lambda number=number: len(asker.heard.of(ROOM_ANSWER)) > number)
            asker.send(fake_shim.notify(fake_shim.ROOM_END, 450 * MIB, number=number))
            if asker.heard.of(ROOM_ANSWER)[-1].argument == 0:
                return True
        return False

    assert not denied_within(snapshot_builder.FAILING_AFTER_S + 0.5, wire.NOTIFY_LOCKED)
    assert denied_within(120.0, 0)


def test_an_allocation_on_an_unknown_gpu_is_denied(node, shim, wait_until):
    machine = node()
    asker = shim("asker", resident=100 * MIB)
    asker.send(fake_shim.notify(fake_shim.ROOM, MIB, number=3, gpu=b"\xee" * 16))
    wait_until(lambda: asker.heard.of(ROOM_ANSWER))
    assert asker.heard.of(ROOM_ANSWER)[0].argument == 0
    assert len(machine.node()["gpus"]) == 1
