"""Connections are accepted while descriptors last, and those from each place have their turn."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import resource
import socket
import time
from pathlib import Path

import pytest
from live_machine import UnixConnection, ask
from live_server import free_port

from jupyter_affinode.node.system import accepting
from jupyter_affinode.node.system.accepting import Line
from jupyter_affinode.node.system.tcp_server import address_of


@pytest.fixture
def crowded(machine):
    """A controller with metrics over TCP that has four descriptors left for connections."""
    port = free_port()
    machine.metrics_port = port
    process = machine.start_controller(f"--metrics-port={port}", "--metrics-ip=127.0.0.1")
    machine.pid = process.pid
    in_use = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
    resource.prlimit(
        process.pid, resource.RLIMIT_NOFILE, (int((in_use + 4) / accepting.CONNECTIONS_SHARE), 4096)
    )
    return machine


def connections(machine, way, count):
    """Connect to one of the controller's sockets, which the controller need not accept."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            if way == "tcp":
                made = socket.create_connection(("127.0.0.1", machine.metrics_port), 5.0)
            else:
                made = socket.socket(
                    socket.AF_UNIX, socket.SOCK_SEQPACKET if way == "link" else socket.SOCK_STREAM
                )
                made.connect(str(machine.socket.with_name("link.sock") if way == "link" else machine.socket))
            stack.enter_context(made)
        return stack.pop_all()


def processor_s(pid):
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])) / 100


@pytest.mark.parametrize("way", ["api", "link", "tcp"])
def test_without_descriptors_the_log_has_a_line_and_the_controller_waits(crowded, way, wait_until):
    with connections(crowded, way, 12):
        wait_until(lambda: "no connection can be accepted at present" in crowded.controller_log())
        used, began = processor_s(crowded.pid), time.monotonic()
        wait_until(lambda: time.monotonic() - began > 3 * accepting.AGAIN_S)  # it tries a few times
        assert processor_s(crowded.pid) - used < 1.0
    log = crowded.controller_log()
    assert "Traceback" not in log, log
    assert log.count("no connection can be accepted") == 2  # one line, in each of two files
    wait_until(lambda: crowded.node() is not None)

    def are_metrics_served():
        where = http.client.HTTPConnection("127.0.0.1", crowded.metrics_port)
        with contextlib.suppress(OSError), contextlib.closing(where) as connection:
            return ask(connection, "GET", "/metrics")[0] == 200

    wait_until(are_metrics_served)  # the connections' end is noticed one after the other
    os.kill(crowded.pid, 0)


def test_in_a_line_each_place_has_its_turn():
    async def served():
        order, over = [], asyncio.Event()

        def serve(waiter):
            order.append(waiter)
            if len(order) == 9:
                over.set()

        line = Line(serve)
        for number in range(7):
            line.add("many", f"many-{number}")
        line.add("one", "one")
        line.add("another", "another")
        assert len(line) == 9
        await asyncio.wait_for(over.wait(), 60)
        return order

    order = asyncio.run(served())
    assert order[:4] == ["many-0", "one", "another", "many-1"]
    assert order[4:] == [f"many-{number}" for number in range(2, 7)]


def test_in_a_line_one_that_cannot_be_served_does_not_keep_the_others_waiting():
    async def served():
        order, said, over = [], [], asyncio.Event()

        def serve(waiter):
            order.append(waiter)
            if waiter == "bad":
                raise ValueError("a mistake of ours")
            if waiter == "late":
                over.set()

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(context["exception"]))
        line = Line(serve)
        for place, waiter in (("one", "bad"), ("one", "next"), ("another", "other")):
            line.add(place, waiter)
        loop.call_later(0.01, line.add, "one", "late")
        await asyncio.wait_for(over.wait(), 10)
        return order, said

    order, said = asyncio.run(served())
    assert order == ["bad", "other", "next", "late"]
    assert [str(error) for error in said] == ["a mistake of ours"]


def test_a_line_serves_no_more_than_its_rate_and_each_place_next():
    async def served():
        order = []
        line = Line(order.append, per_s=50.0, at_once=2)
        for number in range(1000):
            line.add("many", number)
        began = time.monotonic()
        await asyncio.sleep(0.2)
        line.add("one", "one")
        while "one" not in order:
            await asyncio.sleep(0.01)
        return order, time.monotonic() - began, len(line.clear()), len(line)

    order, took, forgotten, left = asyncio.run(served())
    assert len(order) <= 2 + 50 * took + 1
    assert len(order) + forgotten == 1001 and left == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10.0.0.1", "10.0.0.9"),
        ("::ffff:10.0.0.1", "10.0.0.9"),
        ("2001:db8::1", "2001:db8::2:1"),
        ("fe80::1%eth0", "fe80::2"),
    ],
)
def test_addresses_of_one_network_are_one_place(one, other):
    assert address_of((one, 1)).network == address_of((other, 2, 0, 0)).network
    assert address_of((one, 1)) != address_of((other, 1))
    assert address_of((one, 1)).network != address_of(("10.0.1.1", 1)).network


def test_requests_that_a_closed_connection_left_are_not_served(machine, wait_until):
    machine.start_controller()
    pid = machine.controller_pid()
    requests = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * 2300
    used = processor_s(pid)
    for _ in range(10):
        with contextlib.closing(UnixConnection(machine.socket)) as connection:
            connection.connect()
            connection.sock.setblocking(False)
            connection.sock.send(requests)
    assert machine.node() is not None
    wait_until(lambda: machine.node()["controller"]["pid"] == pid)
    assert processor_s(pid) - used < 3.0, "less than a tenth of what serving them all takes"
