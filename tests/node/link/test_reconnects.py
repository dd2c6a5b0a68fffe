"""A process that connects again is the same process, wherever it runs."""

from __future__ import annotations

import pytest
from background import in_background, result_of
from fake_nvml import FakeNvml
from fake_shim import MIB, WANT, notify

from jupyter_affinode.node.state import registry


@pytest.fixture
def contained(node, unseen_pids):
    """A controller whose peers live in pid namespaces that it cannot see."""
    return node()


def is_stopped(machine):
    """Whether the controller gave the kernel's only process up as silent."""
    kernel = machine.kernel("k")
    return kernel is not None and not kernel["tracked"]


def test_a_process_in_a_container_that_paused_is_counted_once(contained, shim, wait_until):
    """A pause of more than three heartbeats: the controller ends the link, and the shim connects again."""
    paused = shim("k", parked=50 * MIB)
    paused.beats = False
    wait_until(lambda: paused.heard.ended and is_stopped(contained))
    again = shim("k", page=paused.page)
    wait_until(lambda: contained.kernel("k")["tracked"])
    kernel = contained.kernel("k")
    assert (len(kernel["processes"]), kernel["parked_bytes"]) == (1, 50 * MIB)
    again.touch()
    wait_until(lambda: contained.kernel("k")["residency"] == "resident")
    assert contained.kernel("k")["resident_bytes"] == 50 * MIB


def test_a_request_to_resume_outlasts_a_link_that_broke_in_a_container(
    node, shim, unseen_pids, passes, monkeypatch, wait_until
):
    """The shim of a controller that did not answer in time hangs up, and connects again a moment later."""
    monkeypatch.setattr(registry, "UNSEEN_HUNG_UP_FORGOTTEN_S", 600.0)  # "a moment" is long on a slow machine
    nvml = FakeNvml(free=0)
    machine = node(nvml=nvml)
    old = shim("k", parked=50 * MIB)
    asked = in_background(machine.ask, "POST", "/kernels/k/resume", {})
    wait_until(lambda: machine.node()["queue"] == ["k"])
    old.hang_up()
    wait_until(lambda: is_stopped(machine))
    passes(2)
    shim("k", page=old.page)
    wait_until(lambda: machine.kernel("k")["tracked"])
    assert machine.node()["queue"] == ["k"] and asked.is_alive()
    nvml.free = nvml.total
    assert result_of(asked)[0] == 200


def test_a_process_in_a_container_that_has_ended_is_forgotten_soon(contained, shim, monkeypatch, wait_until):
    monkeypatch.setattr(registry, "UNSEEN_HUNG_UP_FORGOTTEN_S", 0.2)
    shim("k", resident=50 * MIB).close()
    wait_until(lambda: contained.kernel("k")["processes"] == [])


@pytest.mark.parametrize("where", ["beside us", "in a container"])
def test_a_link_that_is_still_open_when_its_process_connects_again_is_replaced(
    where, node, machine, shim, wait_until, request
):
    """The controller may hear of the new link before it hears that the shim left the old one."""
    _ = request.getfixturevalue("contained") if where == "in a container" else node()
    old = shim("k", resident=50 * MIB)
    new = shim("k", page=old.page)
    wait_until(lambda: old.heard.ended and new.heard.welcome)
    kernel = machine.kernel("k")
    assert (len(kernel["processes"]), kernel["resident_bytes"], kernel["tracked"]) == (1, 50 * MIB, True)


def test_two_processes_of_a_container_are_two(contained, shim, wait_until):
    first, second = shim("k", resident=50 * MIB), shim("k", resident=30 * MIB)
    wait_until(lambda: (contained.kernel("k") or {}).get("resident_bytes") == 80 * MIB)
    first.beats = False
    wait_until(lambda: first.heard.ended)
    assert len(contained.kernel("k")["processes"]) == 2
    shim("k", page=first.page)
    wait_until(lambda: all(process["parkable"] for process in contained.kernel("k")["processes"]))
    assert len(contained.kernel("k")["processes"]) == 2
    second.send(notify(WANT))
    assert contained.kernel("k")["resident_bytes"] == 80 * MIB
