"""Prepared moves, as protocol.h says: what COMMIT and ABORT do, and what becomes of a move when neither comes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from link_peer import (
    ABORT,
    BUSY,
    COMMIT,
    DYING,
    OK,
    PARK,
    PARKED,
    PARKING,
    PREPARE,
    PREPARED,
    QUEUED,
    RESIDENT,
    RESUME,
    RESUMING,
    REVOKED,
    WANT,
)
from shim_machine import HERE, Machine, Running

MIB = 1 << 20
BOTH = 8 * MIB  # the worker's two blocks


@pytest.fixture
def start(gpu: Machine) -> Iterator[Callable[..., Running]]:
    """`start(copy_rate="4MiB")`: a process with 8 MiB on the GPU."""
    started: list[Running] = []

    def worker(copy_rate: str = "400MiB") -> Running:
        gpu.environment["AFFINODE_SIM_COPY_RATE"] = copy_rate
        running = Running(gpu, sys.executable, HERE / "worker.py")
        started.append(running)
        assert json.loads(running.answer()) == "ready"
        running.peer.wait(lambda page: page.in_flight == 0 and page.resident_bytes == BOTH)
        return running

    yield worker
    for running in started:
        running.__exit__()


def parked(running: Running) -> None:
    assert running.peer.park().status == OK


def test_a_prepared_park_has_given_nothing_up_until_commit(start):
    running = start()
    peer = running.peer
    epoch = peer.prepare(PARK)
    page = peer.page()
    assert (page.state, page.resident_bytes, page.parks) == (PARKING, BOTH, 0)
    peer.pump(0.5)  # longer than a call would wait, and nothing happens without a call
    assert peer.page().state == PARKING
    assert peer.decide(COMMIT, epoch).status == OK
    page = peer.page()
    assert (page.state, page.resident_bytes, page.parked_bytes, page.parks) == (PARKED, 0, BOTH, 1)
    assert running.ask("check") is True


def test_an_aborted_park_leaves_everything_where_it_was(start):
    running = start()
    peer = running.peer
    assert peer.decide(ABORT, peer.prepare(PARK)).status == REVOKED
    page = peer.page()
    assert (page.state, page.resident_bytes, page.parks) == (RESIDENT, BOTH, 0)
    assert running.ask("check") is True
    parked(running)
    assert running.ask("check") is True


def test_a_call_at_the_gate_of_a_prepared_park_is_told_and_let_through_without_the_controller(start):
    running = start()
    peer = running.peer
    epoch = peer.prepare(PARK)
    peer.notified.clear()
    running.say("check\n")
    reply = peer.reply_to(epoch, last=True)
    assert reply.status == REVOKED
    assert WANT in [kind for kind, _, _ in peer.notified], "said before the end"
    assert json.loads(running.answer()) is True
    assert peer.page().state == RESIDENT
    assert peer.page().parks == 0


def test_a_call_at_the_gate_is_let_through_at_once_by_abort_and_resumed_after_commit(start):
    running = start()
    peer = running.peer
    for decision, status in ((ABORT, REVOKED), (COMMIT, OK)):
        epoch = peer.prepare(PARK)
        peer.notified.clear()
        running.say("check\n")
        peer.wait(lambda _: any(kind == WANT for kind, _, _ in peer.notified))
        # The shim's own patience may have ended just before.
        assert peer.decide(decision, epoch).status in (status, REVOKED)
        assert json.loads(running.answer()) is True


def test_a_free_at_the_gate_of_a_prepared_park_does_not_wait_for_the_decision(start):
    running = start()
    peer = running.peer
    epoch = peer.prepare(PARK)
    assert running.ask("drop") is True
    assert peer.decide(COMMIT, epoch).status in (OK, REVOKED)
    peer.wait(lambda page: page.resident_bytes + page.parked_bytes == BOTH // 2)
    assert running.ask("check") is True


def test_an_abort_stops_a_park_that_still_copies(start):
    """8 MiB at 2 MiB/s take 4 s."""
    running = start(copy_rate="2MiB")
    peer = running.peer
    epoch = peer.command(PARK, argument=PREPARE)
    peer.wait(lambda page: page.state == PARKING)
    assert peer.decide(ABORT, epoch).status == REVOKED
    assert peer.page().state == RESIDENT
    assert PREPARED not in [reply.status for reply in peer.replies]


def test_decisions_about_another_move_are_ignored(start):
    running = start()
    peer = running.peer
    before = peer.command(COMMIT, request=77)
    assert peer.decide(ABORT, peer.prepare(PARK)).status == REVOKED
    epoch = peer.prepare(PARK)
    for other in (epoch - 1, epoch + 1, 0, before):
        peer.command(COMMIT, request=other)
        peer.command(ABORT, request=other)
    peer.pump(0.3)
    assert peer.page().state == PARKING
    assert [reply.status for reply in peer.replies if reply.epoch == epoch] == [PREPARED]
    assert peer.decide(COMMIT, epoch).status == OK
    peer.command(ABORT, request=epoch)
    peer.command(COMMIT, request=epoch)
    peer.pump(0.3)
    assert peer.page().state == PARKED
    assert [reply.status for reply in peer.replies if reply.epoch == epoch] == [PREPARED, OK]


def test_while_a_move_is_prepared_another_is_refused(start):
    running = start()
    peer = running.peer
    epoch = peer.prepare(PARK)
    assert peer.resume().status == BUSY
    assert peer.decide(COMMIT, epoch).status == OK
    assert running.ask("check") is True


@pytest.mark.parametrize("committed", [False, True])
def test_without_its_link_a_prepared_park_is_undone_unless_commit_came_first(gpu, start, committed):
    running = start()
    peer = running.peer
    epoch = peer.prepare(PARK)
    if committed:
        peer.command(COMMIT, request=epoch)
    peer.socket.close()
    running.peer = gpu.listener.accept()
    page = running.peer.wait(lambda page: page.state in (RESIDENT, PARKED, QUEUED))
    assert page.state == (PARKED if committed else RESIDENT)
    assert running.ask("check") is True


def test_a_process_that_ends_while_prepared_ends_at_once(start):
    running = start()
    running.peer.prepare(PARK)
    assert running.process.stdin
    running.process.stdin.close()
    assert running.process.wait(60) == 0


def test_dying_undoes_a_prepared_park(start):
    running = start()
    epoch = running.peer.prepare(PARK)
    running.peer.command(DYING)
    assert running.peer.reply_to(epoch, last=True).status == REVOKED
    assert running.peer.page().state == RESIDENT


def test_a_prepared_resume_has_its_room_and_opens_at_commit(start):
    running = start()
    peer = running.peer
    parked(running)
    epoch = peer.prepare(RESUME)
    assert peer.page().state == RESUMING
    assert peer.decide(COMMIT, epoch).status == OK
    page = peer.page()
    assert (page.state, page.resident_bytes, page.parked_bytes, page.resumes) == (RESIDENT, BOTH, 0, 1)
    assert running.ask("check") is True


def test_an_aborted_resume_is_parked_as_before_also_with_a_call_that_waits(start):
    running = start()
    peer = running.peer
    parked(running)
    assert peer.decide(ABORT, peer.prepare(RESUME)).status == REVOKED
    page = peer.page()
    assert (page.state, page.resident_bytes, page.parked_bytes, page.resumes) == (PARKED, 0, BOTH, 0)
    running.say("check\n")
    peer.wait(lambda page: page.state == QUEUED)
    assert peer.decide(ABORT, peer.prepare(RESUME)).status == REVOKED
    peer.wait(lambda page: page.state == QUEUED)
    assert json.loads(running.answer()) is True


def test_without_its_link_a_prepared_resume_is_carried_out(gpu, start):
    running = start()
    parked(running)
    running.peer.prepare(RESUME)
    running.peer.socket.close()
    running.peer = gpu.listener.accept()
    running.peer.wait(lambda page: page.state == RESIDENT)
    assert running.ask("check") is True


def test_a_prepared_resume_is_carried_out_in_the_end_without_a_decision(start):
    running = start()
    parked(running)
    epoch = running.peer.prepare(RESUME)
    began = time.monotonic()
    assert running.peer.reply_to(epoch, last=True).status == OK
    assert time.monotonic() - began > 5
    assert running.ask("check") is True
