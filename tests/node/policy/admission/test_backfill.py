"""Backfill: which waiter may be served before those ahead of it."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import NEEDED, NOW, busy, node, parked, parks

from jupyter_affinode.node.policy.admission.backfill import GRAIN_BYTES, delays
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.settings.policy import GIB, MIB

FILL = NEEDED.changed(backfill=True)


def test_with_backfill_a_small_one_goes_first_where_the_head_gets_no_sooner_without():
    big, small = parked("big", 12 * GIB, waits=9), parked("small", 1 * GIB, waits=1)
    crowd = node(big, small, busy("busy", 13 * GIB), free=3 * GIB)
    assert decide(NOW, crowd, NEEDED) == []
    assert [action.kernel_id for action in decide(NOW, crowd, FILL)] == ["small"]


def test_and_not_where_it_would_take_what_the_head_needs():
    """When the other yields, 14 GiB are free beside the margin, and the head needs 13 of them."""
    big, small = parked("big", 13 * GIB, waits=9), parked("small", 2 * GIB, waits=1)
    crowd = node(big, small, busy("busy", 12 * GIB), free=3 * GIB)
    assert decide(NOW, crowd, FILL) == []


def test_backfill_asks_about_every_set_of_kernels_that_may_yield():
    """Either of the two that yields must still be enough: the smaller one would not be."""
    big, small = parked("big", 8 * GIB, waits=9), parked("small", 2 * GIB, waits=1)
    both = [busy("large", 8 * GIB), busy("less", 6 * GIB)]
    assert decide(NOW, node(big, small, *both, free=3 * GIB), FILL) == []
    both[1] = busy("less", 4 * GIB)  # never enough alone
    assert parks(decide(NOW, node(big, small, *both, free=3 * GIB), FILL)) == []
    assert [a.kernel_id for a in decide(NOW, node(big, small, *both, free=3 * GIB), FILL)] == ["small"]


def sums(sizes):
    """The sums of all sets of these sizes."""
    counts = range(len(sizes) + 1)
    return {sum(chosen) for many in counts for chosen in itertools.combinations(sizes, many)}


GRAINS = st.lists(st.integers(0, 12), max_size=6)


@given(st.integers(-5, 40), st.integers(0, 12), GRAINS)
@settings(deadline=None, max_examples=100)
def test_no_delayed_waiter_is_called_undelayed(lacks, size, parkable):
    """Against all sets, tried one by one. Sizes of whole grains lose nothing to rounding."""
    truth = any(lacks <= each < lacks + size for each in sums(parkable))
    told = delays(lacks * GRAIN_BYTES, size * GRAIN_BYTES, [each * GRAIN_BYTES for each in parkable])
    assert told or not truth


@given(st.integers(1, 60 * MIB), st.integers(1, 30 * MIB), st.lists(st.integers(0, 40 * MIB), max_size=6))
@settings(deadline=None, max_examples=100)
def test_rounding_errs_on_the_side_of_the_one_ahead(lacks, size, parkable):
    if any(lacks <= each < lacks + size for each in sums(parkable)):
        assert delays(lacks, size, parkable)
