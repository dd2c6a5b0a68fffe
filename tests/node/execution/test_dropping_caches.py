"""Over the real sockets: an idle kernel drops what it only caches before it is parked."""

from __future__ import annotations

import fake_shim
from fake_shim import (
    DROP_CACHES,
    GPU,
    MIB,
    OK,
    PARK,
)

IDLE = {"park_when": "idle", "idle_timeout_s": 0.5}


DROPPING = {**IDLE, "drop_caches_before_park": True}
DROPS = 16  # a flag of the page


def dropper(shim):
    kernel = shim("k", resident=300 * MIB)
    kernel.page.flags = DROPS
    kernel.page.write()
    return kernel


def test_caches_are_dropped_once_and_then_the_kernel_is_parked(node, shim, residency, wait_until):
    node(**DROPPING)
    kernel = dropper(shim)
    wait_until(lambda: kernel.heard.of(DROP_CACHES))
    assert kernel.heard.of(PARK) == []
    kernel.page.memory[GPU][0] = 200 * MIB
    kernel.page.write()
    kernel.send(fake_shim.reply(DROP_CACHES, kernel.heard.of(DROP_CACHES)[0].epoch, OK))
    wait_until(lambda: residency("k") == "parked")
    kernel.touch()
    wait_until(lambda: residency("k") == "resident")
    assert len(kernel.heard.of(DROP_CACHES)) == 1
    kernel.touch()
    wait_until(
        lambda: len(kernel.heard.of(DROP_CACHES)) == 2, message="after its next use, before its next park"
    )


def test_a_kernel_that_does_not_answer_is_parked_as_it_is(node, shim, residency, wait_until):
    node(**DROPPING)
    kernel = dropper(shim)
    wait_until(lambda: residency("k") == "parked")
    (wish,) = kernel.heard.of(DROP_CACHES)
    assert 0 < wish.deadline_ns - fake_shim.time.monotonic_ns() + 6e9 < 7e9


def test_a_kernel_whose_person_comes_back_meanwhile_is_not_parked(node, shim, wait_until):
    node(park_when="idle", idle_timeout_s=1.5, drop_caches_before_park=True)
    kernel = dropper(shim)
    wait_until(lambda: kernel.heard.of(DROP_CACHES))
    kernel.touch()
    touched = fake_shim.time.monotonic()
    kernel.send(fake_shim.reply(DROP_CACHES, kernel.heard.of(DROP_CACHES)[0].epoch, OK))
    wait_until(lambda: kernel.heard.of(PARK))
    assert fake_shim.time.monotonic() - touched > 1.4


def test_kernels_that_cannot_drop_caches_are_not_asked(node, shim, residency, wait_until):
    node(**DROPPING)
    kernel = shim("k", resident=300 * MIB)
    wait_until(lambda: residency("k") == "parked")
    assert kernel.heard.of(DROP_CACHES) == []


def test_a_process_that_ends_while_it_drops_caches_does_not_hold_up_its_kernels_park(
    node, shim, residency, wait_until
):
    node(**DROPPING)
    kernel, other = dropper(shim), shim("k", resident=200 * MIB)
    wait_until(lambda: kernel.heard.of(DROP_CACHES))
    kernel._socket.shutdown(fake_shim.socket.SHUT_RDWR)
    wait_until(lambda: other.heard.of(PARK))
