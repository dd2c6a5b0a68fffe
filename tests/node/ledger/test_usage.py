"""Bytes times seconds: what was held, used and given back, by which user and on which day."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_affinode.node.ledger.usage import (
    ACTIVITY_LASTS_S,
    DAY_S,
    GAP_MAX_S,
    ByteSeconds,
    Meter,
    Seen,
    Usage,
    UsageKey,
    day_shares,
)

NOON = 20000 * DAY_S + DAY_S / 2  # on day 20000
LONG_AGO = -1e6


def seen(held=0, parked=0, *, kernel="k", user="alice", gpu="G", active=LONG_AGO, calling=False):
    """A kernel at a look."""
    return Seen(
        kernel, user, user, active, calling, {gpu: held} if held else {}, {gpu: parked} if parked else {}
    )


def total(usage):
    """All sums together."""
    everything = ByteSeconds()
    for sums in usage.by_key.values():
        everything.add(sums)
    return everything


def test_memory_counts_from_look_to_look_as_the_earlier_look_found_it():
    meter = Meter()
    meter.count(10.0, NOON, [seen(held=100)])
    meter.count(12.0, NOON + 2, [seen(parked=100)])
    meter.count(13.0, NOON + 3, [])
    meter.count(20.0, NOON + 10, [])
    usage = meter.take()
    assert usage.by_key == {UsageKey(20000, "alice", "G"): ByteSeconds(200.0, 0.0, 100.0)}
    assert usage.measured_s == {20000: 10.0}
    assert meter.take() == Usage()


@pytest.mark.parametrize(
    ("before", "after", "used_s"),
    [
        (seen(8, calling=True), seen(8, calling=True), 2.0),
        (seen(8, active=100.0), seen(8, active=100.0), ACTIVITY_LASTS_S),
        (seen(8, active=99.5), seen(8, active=99.5), 0.5),
        (seen(8, active=99.5), seen(8, active=101.5), 1.0),
        (seen(8, active=100.0), seen(8, active=100.5), 1.5),
        (seen(8, active=100.0), None, 1.0),
        (seen(8), seen(8, calling=True, active=102.0), 0.0),
        (seen(8), seen(8), 0.0),
    ],
)
def test_use_is_a_call_in_flight_or_activity_less_than_a_second_ago(before, after, used_s):
    meter = Meter()
    meter.count(100.0, NOON, [before])
    meter.count(102.0, NOON + 2, [after] if after else [])
    sums = total(meter.take())
    assert sums.held == 16.0
    assert sums.used == pytest.approx(8 * used_s)
    assert sums.idle_held == pytest.approx(8 * (2 - used_s))


def test_a_stretch_over_midnight_is_split_there():
    meter = Meter()
    midnight = 20001 * DAY_S
    meter.count(0.0, midnight - 1, [seen(held=10)])
    meter.count(4.0, midnight + 3, [])
    usage = meter.take()
    assert {key.day: sums.held for key, sums in usage.by_key.items()} == {20000: 10.0, 20001: 30.0}
    assert usage.measured_s == {20000: 1.0, 20001: 3.0}


def test_setting_the_clock_changes_the_day_but_no_duration():
    meter = Meter()
    meter.count(0.0, NOON, [seen(held=10)])
    meter.count(1.0, NOON - 5 * DAY_S, [seen(held=10)])
    meter.count(2.0, NOON + 9 * DAY_S, [seen(held=10)])
    meter.count(3.0, NOON + 9 * DAY_S + 1, [])
    usage = meter.take()
    assert total(usage).held == pytest.approx(30.0)
    assert sum(usage.measured_s.values()) == pytest.approx(3.0)
    assert {key.day for key in usage.by_key} == {19995, 20009}


def test_time_without_looks_is_not_counted():
    meter = Meter()
    meter.count(0.0, NOON, [seen(held=10)])
    meter.count(GAP_MAX_S + 1, NOON + GAP_MAX_S + 1, [seen(held=10)])
    assert meter.take() == Usage()
    meter.count(GAP_MAX_S + 2, NOON + GAP_MAX_S + 2, [])
    assert total(meter.take()).held == 10.0


def hibernated(told):
    """A hibernated kernel that was told of then."""
    return replace(seen(parked=10), known_until=told)


def counted(*looks):
    """What looks at these moments count as given back, from a second at which the kernel was parked on."""
    meter = Meter()
    meter.count(0.0, NOON, [seen(parked=10)])
    for at, kernel in looks:
        meter.count(at, NOON + at, [] if kernel is None else [kernel])
    return total(meter.take()).given_back


def test_what_a_hibernated_kernel_gave_back_counts_until_it_was_told_of_last():
    gone = [(float(at), None) for at in range(1, 100)]
    assert counted((1.0, hibernated(0.5)), *gone) == 10.0  # from 0 to 1 it was seen to be parked
    assert counted((1.0, hibernated(0.5)), (2.0, hibernated(0.5)), (3.0, hibernated(0.5)), *gone[3:]) == 10.0
    assert counted((1.0, hibernated(0.5)), (2.0, hibernated(1.5)), (3.0, hibernated(2.5)), *gone[3:]) == 25.0


def test_what_a_hibernated_kernel_gave_back_counts_until_it_wakes_here():
    untold = [(float(at), hibernated(0.5)) for at in range(1, 40)]
    assert counted(*untold, (40.0, seen(parked=10)), (41.0, None)) == 410.0
    assert counted(*untold, (40.0, seen(held=10)), (41.0, None)) == 400.0


def test_a_telling_after_midnight_is_split_there():
    meter, midnight = Meter(), 20001 * DAY_S
    for at in (-20.0, -19.0, -18.0):
        meter.count(at, midnight + at, [hibernated(-20.0)])
    for at in range(-17, 10):
        meter.count(float(at), midnight + at, [hibernated(-20.0)])
    meter.count(10.0, midnight + 10, [hibernated(10.0)])
    by_day = {key.day: sums.given_back for key, sums in meter.take().by_key.items()}
    assert by_day == {20000: pytest.approx(200.0), 20001: pytest.approx(100.0)}


def test_a_hibernated_kernel_counts_nothing_of_a_time_without_looks():
    meter = Meter()
    meter.count(0.0, NOON, [hibernated(0.0)])
    meter.count(1.0, NOON + 1, [hibernated(0.0)])
    meter.count(1.0 + GAP_MAX_S + 1, NOON, [hibernated(0.0)])
    at = 1.0 + GAP_MAX_S + 2
    meter.count(at, NOON, [hibernated(at)])
    assert total(meter.take()).given_back == 10.0


@given(began=st.floats(-1e9, 1e11), length=st.floats(0, GAP_MAX_S))
def test_the_shares_of_days_add_up(began, length):
    shares = list(day_shares(began, began + length))
    assert math.isclose(sum(share for _, share in shares), 1.0, rel_tol=1e-6)
    assert [day for day, _ in shares] == sorted({day for day, _ in shares})
    assert all(math.floor(began / DAY_S) <= day <= math.floor((began + length) / DAY_S) for day, _ in shares)


KERNEL = st.builds(
    seen,
    held=st.integers(0, 1 << 37),
    parked=st.integers(0, 1 << 37),
    kernel=st.sampled_from(["a", "b", "c"]),
    user=st.just("u"),
    gpu=st.sampled_from(["G", "H"]),
    active=st.floats(-100, 1000),
    calling=st.booleans(),
)
LOOKS = st.lists(
    st.tuples(
        st.floats(0.001, 40),
        st.floats(-1e6, 1e6),
        st.lists(KERNEL, max_size=3, unique_by=lambda kernel: kernel.kernel_id),
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(LOOKS)
def test_whatever_happens_sums_are_those_of_the_looks_and_use_is_within_what_was_held(looks):
    meter, now, wall = Meter(), 0.0, NOON
    expected_held = expected_parked = counted_s = 0.0
    before = None
    for drawn_s, jump, kernels in looks:
        earlier, now, wall = now, now + drawn_s, wall + drawn_s + jump
        length = now - earlier  # as a look at clocks sees it: sums are rounded
        meter.count(now, wall, kernels)
        if before is not None and length <= GAP_MAX_S:
            counted_s += length
            for kernel in before:
                expected_held += sum(kernel.held_bytes.values()) * length
                expected_parked += sum(kernel.parked_bytes.values()) * length
        before = kernels
    usage = meter.take()
    sums = total(usage)
    assert sums.held == pytest.approx(expected_held, rel=1e-6, abs=1e-3)
    assert sums.given_back == pytest.approx(expected_parked, rel=1e-6, abs=1e-3)
    assert sum(usage.measured_s.values()) == pytest.approx(counted_s, rel=1e-6, abs=1e-6)
    for each in usage.by_key.values():
        assert 0 <= each.used <= each.held * (1 + 1e-9) + 1e-6
