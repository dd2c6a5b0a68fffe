"""All processes of a kernel move together: prepared moves over the real sockets."""

from __future__ import annotations

import pytest
from background import in_background, result_of
from fake_shim import (
    ABORT,
    BUSY,
    COMMIT,
    FAILED,
    MIB,
    NO_GPU_ROOM,
    NO_HOST_ROOM,
    NOTHING,
    PARK,
    PARKED,
    PARKING,
    PREPARE,
    RESIDENT,
    RESUME,
    RESUMING,
    REVOKED,
)

from jupyter_affinode.node.execution import user_requests
from jupyter_affinode.node.link.listener import Link


@pytest.fixture
def pair(node, shim):
    """`pair(resident=…)`: a machine, and two processes of the kernel "k" on it."""

    def make(other=None, **options):
        machine = node(lot_bytes=0)
        both = shim("k", **options), shim("k", **(options if other is None else other))
        return machine, *both

    return make


def park(machine):
    return in_background(machine.ask, "POST", "/kernels/k/park", {})


@pytest.fixture
def half_prepared(pair, monkeypatch, wait_until):
    """(machine, a process that is prepared to park, one that still copies, the request that both be parked)."""
    monkeypatch.setattr(user_requests, "BUSY_PATIENCE_S", 600.0)  # what a test does to them may take a while
    machine, prepared, slow = pair(resident=300 * MIB)
    slow.is_slow = True
    asked = park(machine)
    wait_until(lambda: prepared.waiting and prepared.waiting.is_prepared and slow.waiting)
    return machine, prepared, slow, asked


# ---- parking


def test_no_process_gives_up_memory_before_all_are_prepared(half_prepared):
    _, quick, slow, asked = half_prepared
    assert (quick.state, slow.state) == (PARKING, PARKING)
    assert quick.heard.of(COMMIT) == slow.heard.of(COMMIT) == []
    slow.ready()
    status, kernel = result_of(asked)
    assert (status, kernel["residency"], kernel["parked_bytes"]) == (200, "parked", 600 * MIB)
    assert quick.state == slow.state == PARKED
    assert [command.argument & 0xFF for command in quick.heard.of(PARK)] == [PREPARE]


@pytest.mark.parametrize("status", [BUSY, REVOKED, NO_HOST_ROOM, FAILED])
def test_one_that_cannot_park_keeps_all_on_the_gpu(pair, wait_until, status):
    machine, willing, unwilling = pair(resident=300 * MIB)
    unwilling.park_status = status
    code, answer = result_of(park(machine))
    assert (code, answer["message"]) == (409, f"status {status}")
    wait_until(lambda: willing.state == RESIDENT)
    assert willing.heard.of(ABORT)
    assert willing.page.parks == 0, "it was never parked, not even for a moment"
    assert willing.heard.of(RESUME) == []
    unwilling.park_status = 0
    assert result_of(park(machine))[0] == 200
    assert willing.state == unwilling.state == PARKED


def test_a_process_with_nothing_to_move_does_not_keep_its_kernel_from_parking(pair):
    machine, holder, empty = pair(resident=300 * MIB, other={})
    empty.park_status = NOTHING
    assert result_of(park(machine))[0] == 200
    assert holder.state == PARKED
    assert empty.heard.of(COMMIT) == []


@pytest.mark.parametrize("called", [1, 2], ids=["the prepared one", "the one that copies"])
def test_a_call_while_a_process_still_copies_ends_the_park_for_all(half_prepared, wait_until, called):
    _, prepared, slow, asked = half_prepared
    half_prepared[called].touch()
    assert result_of(asked)[1]["error"] == "busy"
    wait_until(lambda: prepared.state == slow.state == RESIDENT)
    assert [shim.heard.of(COMMIT) for shim in (prepared, slow)] == [[], []]
    assert prepared.page.parks == slow.page.parks == 0


def test_a_new_process_in_the_middle_ends_the_park(half_prepared, shim, wait_until):
    _, prepared, slow, asked = half_prepared
    slow.is_slow = False  # at the next try
    newcomer = shim("k", resident=100 * MIB)
    wait_until(lambda: prepared.heard.of(ABORT) and slow.heard.of(ABORT))
    assert result_of(asked)[0] == 200, "the user's request is tried again, with all three"
    assert prepared.state == slow.state == newcomer.state == PARKED


def test_one_that_ends_while_a_peer_copies_ends_the_park(pair, wait_until):
    machine, prepared, slow = pair(resident=300 * MIB)
    slow.is_slow = True
    machine.ask("POST", "/kernels/k/park", {"wait": False})
    wait_until(lambda: prepared.waiting and prepared.waiting.is_prepared and slow.waiting)
    prepared.close()
    wait_until(lambda: slow.heard.of(ABORT) and slow.state == RESIDENT)
    assert slow.heard.of(COMMIT) == []


def test_a_call_that_comes_just_before_commit_brings_the_others_back(pair, wait_until):
    """COMMIT and the end of a shim's patience may cross on the way: then the others come back at once."""
    machine, steady, hasty = pair(resident=300 * MIB)
    hasty.end_status = REVOKED
    asked = park(machine)
    assert result_of(asked)[1]["error"] == "busy"
    wait_until(lambda: steady.state == hasty.state == RESIDENT)
    assert (steady.page.parks, steady.page.resumes) == (1, 1)


def test_an_end_of_which_no_word_comes_is_read_from_the_page(pair, wait_until):
    machine, talkative, silent = pair(resident=300 * MIB)
    silent.says_ends = False
    asked = park(machine)
    wait_until(lambda: talkative.state == silent.state == PARKED)
    status, kernel = result_of(asked)
    assert (status, kernel["residency"]) == (200, "parked")


def test_one_process_alone_takes_one_step(node, shim):
    machine = node()
    kernel = shim("k", resident=300 * MIB)
    assert result_of(park(machine))[0] == 200
    assert [command.argument & 0xFF for command in kernel.heard.of(PARK)] == [0]


# ---- resuming


def test_all_open_when_all_have_room(pair, wait_until):
    _, first, second = pair(parked=300 * MIB)
    second.is_slow = True
    first.touch()
    wait_until(lambda: first.waiting and first.waiting.is_prepared and second.waiting)
    assert (first.state, second.state) == (RESUMING, RESUMING)
    second.ready()
    wait_until(lambda: first.state == second.state == RESIDENT)
    assert [command.argument for command in first.heard.of(RESUME)] == [PREPARE]


def test_where_one_process_has_no_room_no_gate_opens(pair, wait_until):
    machine, caller, crowded = pair(parked=300 * MIB)
    crowded.resume_status = NO_GPU_ROOM
    caller.touch()
    wait_until(lambda: len(caller.heard.of(ABORT)) >= 2, message="it is tried again")
    assert caller.heard.of(COMMIT) == []
    assert caller.page.resumes == 0
    assert machine.kernel("k")["residency"] in ("queued", "resuming")
    crowded.resume_status = 0
    wait_until(lambda: caller.state == crowded.state == RESIDENT)


def test_a_resume_does_not_wait_for_a_process_that_has_hung_up(pair, wait_until):
    _, caller, hung = pair(parked=300 * MIB)
    hung.is_slow = True
    caller.touch()
    wait_until(lambda: caller.waiting and caller.waiting.is_prepared and hung.waiting)
    hung.close()
    wait_until(lambda: caller.state == RESIDENT)


def test_a_process_that_resumes_from_context_depth_does_not_make_its_peers_wait_for_the_gpus_lock(
    pair, wait_until
):
    _, deep, peer = pair(parked=300 * MIB)
    deep.page.host[5] = 2  # AFFINODE_DEPTH_CONTEXT
    deep.page.write()
    peer.touch()
    wait_until(lambda: deep.state == peer.state == RESIDENT)
    assert [command.argument for command in peer.heard.of(RESUME)] == [0]


# ---- a controller that was killed


def kernels_state(machine):
    kernel = machine.kernel("k")
    return kernel and (kernel["residency"], len(kernel["processes"]))


@pytest.mark.long
def test_a_controller_killed_before_commit_leaves_all_on_the_gpu(machine, shim, wait_until):
    process = machine.start_controller("--settle=0.2", patient=True)
    prepared, slow = shim("k", resident=300 * MIB), shim("k", resident=300 * MIB)
    slow.is_slow = True
    machine.ask("POST", "/kernels/k/park", {"wait": False})
    wait_until(lambda: prepared.waiting and prepared.waiting.is_prepared and slow.waiting)
    process.kill()
    process.wait(timeout=60)
    wait_until(lambda: prepared.state == slow.state == RESIDENT, message="each undoes its park by itself")
    machine.start_controller("--settle=0.2", patient=True)
    slow.is_slow = False
    for kernel in (prepared, slow):
        kernel.reconnect()
    wait_until(lambda: kernels_state(machine) == ("resident", 2))
    assert result_of(park(machine))[0] == 200
    assert prepared.state == slow.state == PARKED


@pytest.mark.long
def test_a_controller_killed_between_two_commits_is_mended_by_the_next(machine, shim, wait_until):
    """One had its COMMIT and parked, the other undid its park: the next controller brings the first one back."""
    process = machine.start_controller("--settle=0.2", patient=True)
    reached, missed = shim("k", resident=300 * MIB), shim("k", resident=300 * MIB)
    missed.hears_decisions = False
    machine.ask("POST", "/kernels/k/park", {"wait": False})
    wait_until(lambda: reached.state == PARKED and missed.heard.of(COMMIT))
    process.kill()
    process.wait(timeout=60)
    wait_until(lambda: missed.state == RESIDENT)
    assert reached.state == PARKED
    machine.start_controller("--settle=0.2", patient=True)
    for kernel in (reached, missed):
        kernel.reconnect()
    wait_until(lambda: reached.state == RESIDENT, message="a resume follows")
    assert missed.state == RESIDENT


class InThisOrder(list):
    """Connections, as a set that has an order."""

    discard = list.remove


def test_a_controller_that_ends_between_two_parks_leaves_what_is_parked(node, pair, monkeypatch, wait_until):
    """Each process ends its part by itself; the next controller sees to the rest."""
    close = Link.close

    def close_the_last_first(link):
        link.connections = InThisOrder(sorted(link.connections, key=lambda each: each._began, reverse=True))
        close(link)

    monkeypatch.setattr(Link, "close", close_the_last_first)
    machine, parked, late = pair(resident=300 * MIB)
    late.hears_decisions = False
    machine.ask("POST", "/kernels/k/park", {"wait": False})
    wait_until(lambda: parked.state == PARKED and late.heard.of(COMMIT))
    node.stop()
    wait_until(lambda: parked.heard.ended and late.heard.ended)
    assert parked.heard.of(RESUME) == []
    assert parked.state == PARKED


def test_a_controller_killed_between_prepared_resumes_leaves_no_process_waiting(machine, shim, wait_until):
    process = machine.start_controller("--settle=0.2", patient=True)
    caller, slow = shim("k", parked=300 * MIB), shim("k", parked=300 * MIB)
    slow.is_slow = True
    caller.touch()
    wait_until(lambda: caller.waiting and caller.waiting.is_prepared and slow.waiting)
    process.kill()
    wait_until(lambda: caller.state == slow.state == RESIDENT, message="they have their room: they go on")


def test_a_split_kernel_is_not_mended_at_anybodys_cost(node, shim, passes, wait_until):
    """Without NVML the room is learned from the first failure; then only its own call brings the rest back."""
    machine = node()
    resident, parked = shim("k", resident=300 * MIB), shim("k", parked=300 * MIB)
    parked.resume_status = NO_GPU_ROOM
    wait_until(lambda: parked.heard.of(RESUME))
    tried = len(parked.heard.of(RESUME))
    passes(4)
    assert len(parked.heard.of(RESUME)) == tried, "it is known that there is no room"
    assert machine.kernel("k")["residency"] == "resident"
    parked.resume_status = 0
    parked.touch()
    wait_until(lambda: parked.state == RESIDENT)
    assert resident.state == RESIDENT
