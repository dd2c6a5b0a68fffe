"""What one user may take of the controller through the API: requests, connections, long answers, waits."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import time
from dataclasses import replace

import pytest
from fake_shim import MIB, NO_GPU_ROOM
from live_machine import UnixConnection, ask
from people import Person

from jupyter_affinode.client.kernel_messages import send_only
from jupyter_affinode.node.api import handler as api_handler
from jupyter_affinode.node.identity.access import EveryUserAccess
from jupyter_affinode.node.identity.rate_limits import BURST_S, MANY_USERS

ALICE, BOB = 61001, 61002


@pytest.fixture
def shared(node, shared_machine):
    """`shared(requests_per_s=1)`: a controller of all users with these limits."""

    def start(*, require_grants=False, **limits):
        limits = replace(MANY_USERS, **limits)
        return node(access=EveryUserAccess(limits=limits, require_grants=require_grants))

    return start


@pytest.fixture
def asks(shared):
    """`asks(uid, machine)`: a user's connection that stays open; `ask(method, path, body)` is one request on it."""
    with contextlib.ExitStack() as open_ones:

        def connect(uid, machine):
            connection = UnixConnection(machine.socket, timeout=60)
            open_ones.callback(connection.close)
            with Person(machine, uid).being():
                connection.connect()

            return lambda method, path, body=None: ask(connection, method, f"/api/v1{path}", body)

        yield connect


def test_a_client_without_a_grant_waits_for_its_refusal(shared, asks):
    ask = asks(ALICE, shared(require_grants=True))
    began = time.monotonic()
    assert [ask("GET", "/node")[0] for _ in range(2)] == [401, 401]
    assert time.monotonic() - began >= 2 * api_handler.REFUSED_AFTER_S


def test_a_user_that_asks_too_often_waits_for_the_refusal(shared, asks):
    machine = shared(requests_per_s=1 / BURST_S)
    ask = asks(ALICE, machine)
    assert ask("GET", "/node")[0] == 200
    began = time.monotonic()
    assert ask("GET", "/node")[0] == 429
    assert time.monotonic() - began >= api_handler.REFUSED_AFTER_S
    assert asks(BOB, machine)("GET", "/node")[0] == 200


def test_a_place_that_connects_too_often_is_closed_out_at_once(shared):
    machine = shared(requests_per_s=1)
    alice = Person(machine, ALICE)
    ended = 0
    for _ in range(20):
        try:
            alice.ask("GET", "/node")
        except (http.client.RemoteDisconnected, ConnectionError):
            ended += 1
    assert ended
    assert Person(machine, BOB).ask("GET", "/node")[0] == 200
    assert "connects more often" in machine.controller_log()


@pytest.mark.parametrize(("length", "status"), [(1, 200), (256, 429)])
def test_a_long_answer_counts_as_several_requests(shared, asks, length, status):
    ask = asks(ALICE, shared(requests_per_s=4 / BURST_S))
    texts = dict.fromkeys(("name", "path", "language", "server"), "\N{GRINNING FACE}" * length)
    assert ask("PUT", "/kernels/k", texts)[0] == 200
    assert ask("GET", "/kernels")[0] == 200
    assert ask("GET", "/kernels/k")[0] == status


def test_administrators_are_not_charged_for_other_users_kernels(shared, asks):
    machine = shared(requests_per_s=5)
    root, texts = asks(0, machine), dict.fromkeys(("name", "path"), "x" * 256)
    for number in range(20):
        assert root("PUT", f"/kernels/k{number}", texts)[0] == 200
    assert [root("GET", "/kernels")[0] for _ in range(10)] == [200] * 10


@pytest.mark.long
def test_as_much_as_a_user_may_send_at_once_waits_for_a_controller_that_stands_still(controller, wait_until):
    many = int(BURST_S * MANY_USERS.requests_per_s)
    for number in range(many):
        assert controller.ask("PUT", f"/kernels/k{number}", {})[0] == 200
    pid = controller.controller_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        for number in range(many):
            send_only(controller.socket, "DELETE", f"/kernels/k{number}")
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: controller.kernels() == {})


def test_many_connections_of_one_user_keep_another_users_waiting_for_a_few(shared, node, wait_until):
    machine, many = shared(), 24
    with contextlib.ExitStack() as connected:

        def tell(uid, kernel_id):
            """Describe a kernel on a connection that waits for the answer."""
            connection = connected.enter_context(contextlib.closing(UnixConnection(machine.socket)))
            with Person(machine, uid).being():
                connection.connect()
            connection.request("PUT", f"/api/v1/kernels/{kernel_id}", "{}")

        with node.running[-1].standing_still():
            for number in range(many):
                tell(ALICE, f"a{number}")
            tell(BOB, "b")
        wait_until(lambda: len(machine.kernels()) == many + 1)
        told = [
            kernel_id.endswith("b") for kernel_id in machine.kernels()
        ]  # listed as the controller was told
        assert told.index(True) < many // 2


def test_many_kernels_are_told_whole(shared, asks):
    ask = asks(ALICE, shared())
    for number in range(100):
        assert ask("PUT", f"/kernels/k{number}", {"name": f"name {number}", "path": "x" * 256})[0] == 200
    status, answer = ask("GET", "/kernels")
    assert status == 200
    assert [kernel["id"] for kernel in answer["kernels"]] == [f"k{number}" for number in range(100)]
    assert answer["kernels"][99]["name"] == "name 99"


def fill(machine):
    """Kernels that take more to tell than a socket's buffer has room for."""
    texts = dict.fromkeys(("name", "path", "language", "server"), "\N{GRINNING FACE}" * 256)
    for number in range(50):
        assert machine.ask("PUT", f"/kernels/k{number}", texts)[0] == 200


def never_reads(machine, request):
    """A client with a small buffer that asks and reads nothing."""
    client = socket.socket(socket.AF_UNIX)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    client.connect(str(machine.socket))
    client.sendall(request)
    return client


@pytest.mark.parametrize("path", ["kernels", "node", "events"])
def test_an_answer_that_stays_unread_ends_the_connection(node, monkeypatch, wait_until, path):
    monkeypatch.setattr(api_handler, "UNREAD_S", 0.2)
    machine = node()
    fill(machine)
    with never_reads(machine, f"GET /api/v1/{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 500):
        wait_until(lambda: "it has not read its answer" in machine.controller_log())


def test_what_a_client_asked_is_not_done_when_it_was_dropped_before(node, monkeypatch, wait_until):
    monkeypatch.setattr(api_handler, "UNREAD_S", 0.2)
    machine = node()
    fill(machine)
    requests = (
        f"{ask} HTTP/1.1\r\nHost: x\r\n\r\n" for ask in ("GET /api/v1/kernels", "PUT /api/v1/kernels/later")
    )
    with never_reads(machine, "".join(requests).encode()):
        wait_until(lambda: "it has not read its answer" in machine.controller_log())
        for _ in range(5):
            assert machine.kernel("later") is None


def test_a_wait_ends_when_the_client_hangs_up(node, shim, wait_until):
    machine = node()
    loop = node.running[-1]._loop
    shim("k", parked=300 * MIB, resume_status=NO_GPU_ROOM)
    before = len(asyncio.all_tasks(loop))
    resume = b"POST /api/v1/kernels/k/resume HTTP/1.1\r\nHost: x\r\n\r\n"
    asking = [never_reads(machine, resume) for _ in range(20)]
    wait_until(lambda: len(asyncio.all_tasks(loop)) >= before + 20)
    for client in asking:
        client.close()
    wait_until(lambda: len(asyncio.all_tasks(loop)) <= before)
