"""Metrics: what they count, and that a page over TCP is nothing but metrics."""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
import threading

import pytest
from fake_shim import BUSY, MIB
from live_server import free_port
from scraping import samples, scraped

from jupyter_affinode.node.ledger.usage import ByteSeconds, Seen
from jupyter_affinode.node.metrics.collectors import GPUS_MAX, OTHER, USERS_MAX, Metrics
from jupyter_affinode.node.metrics.server import serve_metrics
from jupyter_affinode.node.state.registry import NodeState
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.node.system.tcp_server import CONNECTIONS_MAX
from jupyter_affinode.settings.policy import Settings

NODE = {
    "gpus": [],
    "nvml": False,
    "simulated": False,
    "spill": None,
    "host": {
        "parked_bytes": 0,
        "available_bytes": 1,
        "reserve_bytes": 0,
        "copy_bytes": 0,
        "retained_bytes": 0,
        "set_aside_bytes": 0,
        "shared_bytes": 0,
        "lots": {"ready_bytes": 0, "given_bytes": 0},
    },
}


def labels(**values):
    """As `samples` has them."""
    return frozenset(values.items())


@pytest.fixture
def metrics():
    """Of a machine with nothing on it."""
    return lambda **options: Metrics(
        NodeState(Settings(), HostMemory(1, 1)), lambda: NODE, version="test", **options
    )


def test_moves_are_counted_by_cause_depth_and_outcome(node, shim, wait_until):
    machine = node()
    kernel = shim("k1", resident=300 * MIB)
    machine.ask("POST", "/kernels/k1/park", {})
    kernel.touch()
    wait_until(lambda: machine.kernel("k1")["residency"] == "resident")
    kernel.park_status = BUSY
    machine.ask("POST", "/kernels/k1/park", {})
    wait_until(lambda: scraped(machine)["affinode_wait_seconds_count"][labels(outcome="served")] == 1)
    found = scraped(machine)
    moves = found["affinode_moves_total"]
    assert moves[labels(move="park", cause="asked", depth="memory", outcome="ok")] == 1
    assert moves[labels(move="resume", cause="cell", depth="memory", outcome="ok")] == 1
    assert moves[labels(move="park", cause="asked", depth="memory", outcome="busy")] >= 1
    assert found["affinode_park_refusals_total"][labels(reason="busy")] == 1
    assert found["affinode_moved_bytes_total"][labels(move="park")] == 300 * MIB
    assert found["affinode_move_duration_seconds_count"][labels(move="park", depth="memory")] == 1
    assert found["affinode_queue_length"][labels()] == 0
    assert found["affinode_build_info"][labels(version="test")] == 1


def test_a_kernel_that_waits_is_in_the_queue_with_what_it_needs(node, shim, wait_until):
    machine = node()
    kernel = shim("k1", parked=300 * MIB, answers=False)
    before = scraped(machine)
    assert before["affinode_queue_needed_bytes"][labels()] == 0
    kernel.touch()
    # Its resume is not answered, and the page says that it waits still.
    wait_until(lambda: scraped(machine)["affinode_queue_length"][labels()] == 1)
    found = scraped(machine)
    assert found["affinode_queue_needed_bytes"][labels()] == 300 * MIB
    assert found["affinode_queue_oldest_wait_seconds"][labels()] > 0
    assert found["affinode_kernels"][labels(residency="queued")] == 1


def test_memory_that_is_held_idle_and_given_back_is_shown_by_gpu(node, shim, wait_until):
    machine = node()
    idle = shim("idle", resident=300 * MIB)
    idle.page.last_activity -= 60 * 10**9
    idle.page.write()
    shim("parked", parked=200 * MIB)

    def uses():
        sums = scraped(machine).get("affinode_gpu_memory_byte_seconds_total", {})
        return {dict(key)["use"]: value for key, value in sums.items()}

    wait_until(lambda: uses().get("given_back"))  # the first look may come before the second kernel
    found = scraped(machine)
    assert list(found["affinode_gpu_idle_held_bytes"].values()) == [300 * MIB]
    assert list(found["affinode_gpu_reclaimed_bytes"].values()) == [200 * MIB]
    assert uses()["idle"] > 0
    assert "affinode_user_gpu_memory_byte_seconds_total" not in found


def test_users_are_told_only_where_that_was_turned_on_and_labels_are_bounded(metrics):
    for with_users in (False, True):
        counted = metrics(with_users=with_users)
        for number in range(USERS_MAX + 5):
            seen = Seen(f"k{number}", f"uid-{number}", f"user{number}", 0.0, False, {}, {})
            counted.metered(seen, f"GPU-{number}", ByteSeconds(4.0, 1.0, 2.0))
        found = samples(counted.text().decode())
        gpus = {dict(key)["gpu"] for key in found["affinode_gpu_memory_byte_seconds_total"]}
        assert len(gpus) == GPUS_MAX + 1 and OTHER in gpus
        users = {dict(key)["user"] for key in found.get("affinode_user_gpu_memory_byte_seconds_total", {})}
        assert len(users) == (USERS_MAX + 1 if with_users else 0)
        assert ("user1" in counted.text().decode()) is with_users


# ---- over TCP


@pytest.fixture
def served(metrics):
    """The port of metrics over TCP, on a loop of its own."""
    ready, stop = threading.Event(), None
    found = {}

    async def serve():
        nonlocal stop
        stop = asyncio.Event()
        port = free_port()
        server = serve_metrics(metrics(), "127.0.0.1", port, logging.getLogger("test"))
        found["port"], found["loop"] = port, asyncio.get_running_loop()
        ready.set()
        await stop.wait()
        server.stop()
        await server.close_all_connections()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    yield found["port"]
    found["loop"].call_soon_threadsafe(stop.set)
    thread.join(60)


def ask(port, method, path):
    """The status and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_over_tcp_there_are_metrics_and_nothing_else(served):
    status, text = ask(served, "GET", "/metrics")
    assert status == 200 and "affinode_queue_length" in samples(text)
    for method, path in (
        ("GET", "/api/v1/node"),
        ("GET", "/api/v1/kernels"),
        ("POST", "/api/v1/kernels/k/park"),
        ("PATCH", "/api/v1/policy"),
        ("GET", "/"),
        ("GET", "/metrics/../api/v1/node"),
    ):
        assert ask(served, method, path)[0] == 404, path
    assert ask(served, "POST", "/metrics")[0] == 405


def test_silent_connections_keep_no_place(served):
    silent = []
    try:
        for _ in range(3):  # all at once, a slow machine's line would be full
            silent += [socket.create_connection(("127.0.0.1", served)) for _ in range(CONNECTIONS_MAX // 2)]
            assert ask(served, "GET", "/metrics")[0] == 200
        for _ in range(CONNECTIONS_MAX):
            assert ask(served, "GET", "/metrics")[0] == 200
    finally:
        for each in silent:
            each.close()


def test_a_port_that_is_taken_is_no_reason_not_to_start(metrics):
    async def story():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            return serve_metrics(metrics(), "127.0.0.1", port, logging.getLogger("test"))

    assert asyncio.run(story()) is None


def test_the_program_serves_them_where_it_is_told(machine):
    def is_served():
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        controller = machine.start_controller(f"--metrics-port={port}", "--metrics-ip=127.0.0.1")
        try:
            status, text = ask(port, "GET", "/metrics")
            return status == 200 and "affinode_ledger_available 1.0" in text
        except (OSError, http.client.HTTPException):
            return False  # another program took the port in between
        finally:
            controller.terminate()
            controller.wait(timeout=60)

    assert any(is_served() for _ in range(3))
    assert machine.socket.with_name("ledger.sqlite").exists()
