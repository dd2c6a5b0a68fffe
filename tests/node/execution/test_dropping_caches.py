"""Over the real sockets: an idle kernel drops what it only caches before it is parked."""

from __future__ import annotations

import fake_shim
import pytest
from fake_shim import DROP_CACHES, GPU, MIB, OK, PARK, FakePage

from jupyter_affinode.node.execution import cache_drops
from jupyter_affinode.node.state import registry

IDLE = {"park_when": "idle", "idle_timeout_s": 0.5}


DROPPING = {**IDLE, "drop_caches_before_park": True}
DROPS = 16  # a flag of the page


def dropper(shim):
    page = FakePage()
    page.flags = DROPS
    page.memory[GPU][0] = 300 * MIB
    return shim("k", page=page)


@pytest.fixture
def patient(monkeypatch):
    """A controller that waits for the answer for as long as the test needs for it."""
    monkeypatch.setattr(cache_drops, "LASTS_S", 600.0)


def test_caches_are_dropped_once_and_then_the_kernel_is_parked(node, patient, shim, residency, wait_until):
    machine = node(**DROPPING)
    kernel = dropper(shim)
    wait_until(lambda: kernel.heard.of(DROP_CACHES))
    assert kernel.heard.of(PARK) == []
    kernel.page.memory[GPU][0] = 200 * MIB
    kernel.page.write()
    kernel.send(fake_shim.reply(DROP_CACHES, kernel.heard.of(DROP_CACHES)[0].epoch, OK))
    wait_until(lambda: residency("k") == "parked")
    machine.ask("PATCH", "/policy", {"park_when": "needed"})
    kernel.touch()
    wait_until(lambda: residency("k") == "resident")
    assert len(kernel.heard.of(DROP_CACHES)) == 1
    machine.ask("PATCH", "/policy", {"park_when": "idle"})
    kernel.touch()
    wait_until(
        lambda: len(kernel.heard.of(DROP_CACHES)) == 2, message="after its next use, before its next park"
    )


def test_a_kernel_that_does_not_answer_is_parked_as_it_is(node, shim, residency, wait_until):
    node(**DROPPING)
    began, taken = fake_shim.time.monotonic_ns(), []
    kernel = dropper(shim)
    real = kernel._carry_out
    kernel.on_command = lambda command: (taken.append(fake_shim.time.monotonic_ns()), real(command))
    wait_until(lambda: residency("k") == "parked")
    (wish,) = kernel.heard.of(DROP_CACHES)
    assert began + 1e9 < wish.deadline_ns <= taken[0] + 1e9


def test_a_kernel_whose_person_comes_back_meanwhile_is_not_parked(node, patient, shim, wait_until):
    node(park_when="idle", idle_timeout_s=1.5, drop_caches_before_park=True)
    kernel = dropper(shim)
    wait_until(lambda: kernel.heard.of(DROP_CACHES))
    kernel.touch()
    kernel.send(fake_shim.reply(DROP_CACHES, kernel.heard.of(DROP_CACHES)[0].epoch, OK))
    wait_until(lambda: kernel.heard.of(PARK))
    assert fake_shim.time.monotonic_ns() - kernel.page.last_activity >= 1.5e9


def test_kernels_that_cannot_drop_caches_are_not_asked(node, shim, residency, wait_until):
    node(**DROPPING)
    kernel = shim("k", resident=300 * MIB)
    wait_until(lambda: residency("k") == "parked")
    assert kernel.heard.of(DROP_CACHES) == []


def test_a_process_that_ends_while_it_drops_caches_does_not_hold_up_its_kernels_park(
    node, patient, shim, wait_until, monkeypatch
):
    monkeypatch.setattr(registry, "HUNG_UP_FORGOTTEN_S", 0.1)
    node(**DROPPING)
    kernel, other = dropper(shim), shim("k", resident=200 * MIB)
    wait_until(lambda: kernel.heard.of(DROP_CACHES))
    kernel._socket.shutdown(fake_shim.socket.SHUT_RDWR)
    wait_until(lambda: other.heard.of(PARK))
