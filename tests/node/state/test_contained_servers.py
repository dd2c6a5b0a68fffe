"""`terminate_newest` where servers and kernels live in pid namespaces that the controller cannot see."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import pytest
from fake_shim import GPU, MIB, NONE, RESIDENT
from live_machine import UnixConnection

from jupyter_affinode.node import controller
from jupyter_affinode.node.model.actions import EndKernel
from jupyter_affinode.node.model.snapshot import Gpu, Host, Kernel, Node, Residency
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.state import registry
from jupyter_affinode.settings.policy import GIB, Settings

NOW = 10_000.0


@pytest.fixture
def contained(node, machine, shim, unseen_pids, wait_until):
    """A kernel that waits, and a younger one, at work, which a server described; no pid is known."""
    node(when_full="terminate_newest", time_slice_s=0.2)

    def start(**at_hello):
        asker = shim("asker", state=NONE)
        younger = shim("younger", **at_hello)
        younger.page.memory[GPU][0], younger.page.calls_in_flight = 900 * MIB, 1
        younger.become(RESIDENT)
        asker.page.memory[GPU][0] = 100 * MIB
        asker.become(RESIDENT)
        machine.ask("PUT", "/kernels/younger", {"server": "bob's"})
        asker.allocate(400 * MIB, number=1)
        wait_until(lambda: (machine.kernel("asker")["waiting_s"] or 0) > 0.5)
        return machine.kernel("younger")

    return start


@contextlib.contextmanager
def following(machine):
    """Follow the events, as a server does."""
    connection = UnixConnection(machine.socket)
    connection.request("GET", "/api/v1/events")
    try:
        assert b"snapshot" in connection.getresponse().readline()
        yield
    finally:
        connection.close()


def test_a_server_in_a_container_is_asked_while_it_follows_the_events(contained, machine, wait_until):
    assert contained(state=NONE)["end_asked"] is None, "its user would not hear of it"
    with following(machine):
        wait_until(lambda: machine.kernel("younger")["end_asked"])
    assert machine.kernel("asker")["end_asked"] is None


def test_a_kernel_that_may_have_begun_before_is_not_ended(contained, machine, wait_until):
    """It was known with its memory: a controller that was restarted cannot say which is the newest."""
    contained()
    with following(machine):
        waited = machine.kernel("asker")["waiting_s"]
        wait_until(lambda: machine.kernel("asker")["waiting_s"] > waited + 1)
        assert machine.kernel("younger")["end_asked"] is None


def test_a_kernel_without_processes_is_known_while_its_server_follows_the_events(
    node, machine, shim, unseen_pids, passes, monkeypatch, wait_until
):
    """It may have been restarted, and use CUDA later: its hold and what its server told are good until then."""
    monkeypatch.setattr(controller, "EMPTY_KERNEL_LASTS_S", 0.0)
    monkeypatch.setattr(registry, "UNSEEN_HUNG_UP_FORGOTTEN_S", 0.0)
    node()
    with following(machine):
        kernel = shim("k", resident=100 * MIB)
        machine.ask("PUT", "/kernels/k", {"name": "a.ipynb", "server": "bob's"})
        machine.ask("POST", "/kernels/k/hold", {})
        kernel.close()
        passes(3)
        left = machine.kernel("k")
        assert (left["processes"], left["name"], left["held_for_s"] > 0) == ([], "a.ipynb", True)
    wait_until(lambda: machine.kernel("k") is None)


def ends(head_started, other_started):
    """The kernel that the policy has ended for a waiter."""
    head = Kernel("head", Residency.QUEUED, {}, {"A": GIB}, wants_since=NOW - 500, started_at=head_started)
    busy = Kernel("busy", Residency.RESIDENT, {"A": 4 * GIB}, last_activity=NOW, calls_in_flight=1)
    busy = replace(busy, can_be_ended=True, started_at=other_started)
    node = Node({"A": Gpu("A", 0, 4 * GIB, NOW)}, (head, busy), Host(64 * GIB))
    actions = decide(NOW, node, Settings(when_full="terminate_newest"))
    return [action.kernel_id for action in actions if isinstance(action, EndKernel)]


def test_a_kernel_of_unknown_age_is_neither_younger_nor_older():
    assert ends(1.0, 2.0) == ["busy"]
    assert ends(1.0, math.nan) == ends(math.nan, 2.0) == ends(math.nan, math.nan) == ends(2.0, 1.0) == []
