"""Over the real sockets: parks that find too little host memory."""

from __future__ import annotations

from background import in_background, result_of
from fake_shim import MIB, NO_HOST_ROOM, PARK, TRIM

IDLE = {"park_when": "idle", "idle_timeout_s": 0.5}


TIB = 1 << 40


def test_a_park_that_found_no_host_memory_is_not_tried_again_before_there_is_more(node, shim, wait_until):
    machine = node(**IDLE)
    kernel = shim("k", resident=TIB, park_status=NO_HOST_ROOM)
    # What the kernel was lent meanwhile is taken off a tebibyte.
    wait_until(lambda: "iB of host memory" in (machine.kernel("k")["refusal"] or ""))
    assert len(kernel.heard.of(PARK)) == 1
    kernel.touch()  # what it has now may be zeros for all that is known
    wait_until(lambda: len(kernel.heard.of(PARK)) == 2)


def test_a_refused_park_request_says_how_much_host_memory_is_missing(node, shim):
    machine = node()
    kernel = shim("k", resident=TIB, park_status=NO_HOST_ROOM)
    status, answer = machine.ask("POST", "/kernels/k/park", {})
    assert (status, answer["error"]) == (409, "no-host-memory")
    assert "freeing it needs 1 TiB of host memory" in answer["message"]
    assert len(kernel.heard.of(PARK)) == 1


def test_what_another_kernel_keeps_makes_room_for_a_park_that_was_asked_for(node, shim, wait_until):
    """The first try says how much it takes; the other gives that back, and the second try is made."""
    machine = node()
    available = machine.node()["host"]["available_bytes"]
    keeper = shim("keeper", resident=100 * MIB)
    keeper.keep(2 * available)
    kernel = shim("k", resident=2 * available)
    asked = in_background(machine.ask, "POST", "/kernels/k/park", {})
    wait_until(lambda: keeper.heard.of(TRIM))
    trim = keeper.heard.of(TRIM)[0]  # there may be more as the machine's own free memory comes and goes
    assert 0 < trim.argument < 1.5 * available
    assert result_of(asked)[0] == 200
    assert kernel.heard.of(PARK)
