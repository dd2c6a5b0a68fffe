"""What waiters are told: why they wait, and until when if that can be said."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import NEEDED, NOW, busy, node, of, parked, resident

from jupyter_affinode.node.model.snapshot import Host, HostUse
from jupyter_affinode.node.policy.wait_estimates import estimate_waits
from jupyter_affinode.settings.policy import GIB

SLICES = NEEDED.changed(when_full="time_slice", time_slice_s=60.0)
LIMITED = NEEDED.changed(quotas="ann=10GiB")


def told(*kernels, settings=NEEDED, **fields):
    return estimate_waits(NOW, node(*kernels, **fields), settings)


def test_no_estimate_is_given_for_a_kernel_that_computes():
    estimate = told(parked("k", waits=3), busy("busy", 15 * GIB), free=1 * GIB)["k"]
    assert (estimate.position, estimate.since, estimate.estimate_s) == (1, NOW - 3, None)
    assert estimate.code == "computing"


def test_an_estimate_follows_from_when_kernels_become_eligible():
    policy = NEEDED.changed(contended_idle_timeout_s=300.0)
    soon = resident("soon", 6 * GIB, idle=290, may_park_context=True)
    late = resident("late", 9 * GIB, idle=240, may_park_context=True)
    first, second = parked("first", 4 * GIB, waits=9), parked("second", 8 * GIB, waits=5)
    found = told(soon, late, first, second, settings=policy, free=0)
    assert 10 <= found["first"].estimate_s < 15  # and its own move
    assert 60 <= found["second"].estimate_s < 65
    assert found["second"].code == "others-first"


def test_a_waiter_behind_one_that_never_fits_is_told_what_it_waits_for_itself():
    """Others are served before one that is too large, so it is not what they wait for."""
    never, next_one = parked("never", 90 * GIB, waits=9), parked("next", 8 * GIB, waits=5)
    found = told(busy("busy", 15 * GIB), never, next_one, free=1 * GIB)
    assert (found["never"].code, found["next"].code) == ("too-large", "computing")


def test_an_estimate_does_not_assume_that_a_busy_kernel_stops_now():
    """Between two calls a kernel at work has none in flight; an open cell may only be loading its next batch."""
    waiter = parked("waiter", 8 * GIB, waits=60)
    for computes in (
        resident("k", 15 * GIB, idle=0.1),
        resident("k", 15 * GIB, idle=5, cell_open=True),
    ):
        estimate = told(waiter, computes, free=1 * GIB)["waiter"]
        assert estimate.estimate_s is None and estimate.code == "computing"
    for idle in (resident("k", 15 * GIB, idle=2), resident("k", 15 * GIB, idle=30, cell_open=True)):
        assert told(waiter, idle, free=1 * GIB)["waiter"].estimate_s is not None


def test_a_waiter_is_told_that_a_hold_is_in_its_way():
    waiter = parked("waiter", 8 * GIB, waits=60, charged_user="uid-1")
    holds = resident("k", 15 * GIB, idle=900, held_until=NOW + 600, charged_user="uid-1")
    estimate = told(waiter, holds, free=1 * GIB)["waiter"]
    assert estimate.code == "held" and estimate.estimate_s >= 600
    computes = replace(holds, calls_in_flight=1)
    assert told(waiter, computes, free=1 * GIB)["waiter"].code == "computing"
    over = replace(holds, held_until=NOW - 1)
    assert told(waiter, over, free=1 * GIB)["waiter"].code == "full"


def test_an_estimate_does_not_count_on_a_kernel_that_cannot_be_parked():
    use = HostUse(park_takes_bytes=9 * GIB)
    kernels = resident("idle", 9 * GIB, idle=900, host=use), parked("k", 8 * GIB, waits=3)
    full, enough = Host(3 * GIB, total_bytes=16 * GIB), Host(12 * GIB, total_bytes=16 * GIB)
    estimate = told(*kernels, free=0, host=full)["k"]
    assert estimate.estimate_s is None and estimate.code == "host-memory"
    assert told(*kernels, free=0, host=enough)["k"].estimate_s is not None
    keeps = replace(resident("keeps", 1 * GIB), host=HostUse(retained_bytes=8 * GIB, trimmable_bytes=8 * GIB))
    assert told(*kernels, keeps, free=0, host=full)["k"].code != "host-memory"


def test_with_time_slices_the_end_of_a_turn_is_an_estimate():
    kernel = busy("k", 15 * GIB, resident_since=NOW - 20)
    estimate = told(kernel, parked("waiter", waits=1), settings=SLICES, free=0)["waiter"]
    assert 40 <= estimate.estimate_s < 45 and estimate.code == "full"


def test_other_reasons_to_wait_are_told_too():
    kernels = [of(busy("own", 6 * GIB), "ann"), of(parked("k", 6 * GIB, waits=9), "ann")]
    limited = told(*kernels, settings=LIMITED, free=20 * GIB, total=32 * GIB)["k"]
    assert limited.code == "limit" and limited.arguments["limit"] == "user"
    assert told(parked("huge", 15 * GIB, waits=9), free=2 * GIB)["huge"].code == "outside"
    stays = resident("stays", 14 * GIB, is_opted_out=True)
    assert told(parked("k", 8 * GIB, waits=9), stays, free=2 * GIB)["k"].code == "too-large"
    assert told(parked("k", waits=9), free=8 * GIB, is_settled=False)["k"].code == "starting"
    failed = parked("k", waits=9, resume_retry_at=NOW + 5)
    assert told(failed, free=8 * GIB)["k"].code == "retry"
    leaving = resident("leaving", 8 * GIB, is_moving=True)
    freed = told(parked("k", waits=1), leaving, free=0)["k"]
    assert freed.code == "moving" and freed.estimate_s is not None


@given(
    st.lists(st.tuples(st.integers(1, 15), st.booleans(), st.integers(0, 200)), max_size=8),
    st.integers(0, 16),
)
@settings(deadline=None)
def test_every_waiter_has_a_place_and_a_bound_that_is_no_past(made, free):
    kernels = [
        parked(f"k{number}", size * GIB, waits=age) if waits else resident(f"k{number}", size * GIB, idle=age)
        for number, (size, waits, age) in enumerate(made)
    ]
    found = told(*kernels, free=free * GIB)
    assert [estimate.position for estimate in found.values()] == list(range(1, len(found) + 1))
    assert set(found) == {kernel.id for kernel in kernels if kernel.wants_since is not None}
    for estimate in found.values():
        assert estimate.estimate_s is None or estimate.estimate_s >= 0
