"""The request to drop caches, between the controller and the handler in the process: neither waits for the other."""

from __future__ import annotations

import time

import pytest
from link_peer import BUSY, DROP_CACHES, FAILED, NOTHING, OK, PARKED, STALE, LinkPeer
from shim_machine import Running

from jupyter_affinode.node.protocol.page import PageFlag


@pytest.fixture
def server(worker: Running) -> Running:
    """A process that serves wishes."""
    assert worker.ask("serve_caches") is True
    worker.peer.wait(lambda page: page.flags & PageFlag.DROPS_CACHES)
    return worker


def sampled(peer: LinkPeer) -> None:
    """Wait until the shim has looked at its counters again, twice."""
    for _ in range(2):
        before = peer.heartbeat_ns()
        peer.wait(lambda _, before=before: peer.heartbeat_ns() > before)  # type: ignore[misc]


def test_without_a_handler_the_answer_comes_at_once(worker: Running) -> None:
    assert not worker.peer.page().flags & PageFlag.DROPS_CACHES
    assert worker.peer.reply_to(worker.peer.command(DROP_CACHES)).status == NOTHING


@pytest.mark.parametrize(("said", "answered"), [(OK, OK), (NOTHING, NOTHING), (FAILED, FAILED), (99, FAILED)])
def test_a_wish_is_served_once_and_answered_with_what_was_said(
    server: Running, said: int, answered: int
) -> None:
    epoch = server.peer.command(DROP_CACHES)
    assert server.ask("wait_for_wish") is True
    assert server.ask("begin_to_drop") == 1
    assert server.ask("begin_to_drop") == 0
    server.ask(f"end_of_drop {said}")
    assert server.peer.reply_to(epoch).status == answered
    server.ask("end_of_drop 0")  # of nothing
    assert server.ask("begin_to_drop") == 0
    assert len(server.peer.replies) == 1


def test_without_a_wish_nothing_is_dropped(server: Running) -> None:
    assert server.ask("begin_to_drop") == 0


def test_a_wish_that_is_served_too_late_is_void(server: Running) -> None:
    epoch = server.peer.command(DROP_CACHES, deadline_ns=time.monotonic_ns() - 1)
    assert server.ask("wait_for_wish") is True
    assert server.ask("begin_to_drop") == 0
    assert server.peer.reply_to(epoch).status == STALE


def test_while_parked_a_wish_is_refused_and_wakes_nothing(server: Running) -> None:
    assert server.peer.park().status == OK
    epoch = server.peer.command(DROP_CACHES)
    assert server.ask("wait_for_wish") is True
    assert server.ask("begin_to_drop") == 0
    assert server.peer.reply_to(epoch).status == BUSY
    assert server.peer.page().state == PARKED
    assert server.ask("check") is True


def test_calls_that_drop_caches_are_no_sign_of_use_and_those_after_are(server: Running) -> None:
    sampled(server.peer)
    idle_since = server.peer.page().last_activity
    epoch = server.peer.command(DROP_CACHES)
    assert server.ask("wait_for_wish") is True
    assert server.ask("begin_to_drop") == 1
    server.ask("check")
    sampled(server.peer)
    server.ask("check")
    server.ask("end_of_drop 0")
    assert server.peer.reply_to(epoch).status == OK
    sampled(server.peer)
    assert server.peer.page().last_activity == idle_since
    server.ask("check")
    server.peer.wait(lambda page: page.last_activity > idle_since)


def test_use_before_a_wish_is_served_is_seen(server: Running) -> None:
    sampled(server.peer)
    idle_since = server.peer.page().last_activity
    server.peer.command(DROP_CACHES)
    assert server.ask("wait_for_wish") is True
    server.ask("check")
    assert server.ask("begin_to_drop") == 1
    assert server.peer.page().last_activity > idle_since
    server.ask("end_of_drop 0")


def test_a_forked_child_serves_nothing(server: Running) -> None:
    epoch = server.peer.command(DROP_CACHES)
    assert server.ask("wait_for_wish") is True
    assert server.ask("begin_to_drop_in_a_fork") == 0
    assert server.ask("begin_to_drop") == 1
    server.ask("end_of_drop 0")
    assert server.peer.reply_to(epoch).status == OK


def test_a_process_that_is_parked_after_dropping_is_right(server: Running) -> None:
    epoch = server.peer.command(DROP_CACHES)
    assert server.ask("wait_for_wish") is True
    assert server.ask("begin_to_drop") == 1
    assert server.ask("drop") is True
    server.ask("end_of_drop 0")
    assert server.peer.reply_to(epoch).status == OK
    assert server.peer.park().status == OK
    assert server.ask("check") is True
