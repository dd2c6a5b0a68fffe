"""A full GPU on which no kernel is idle: time slices, and ending the newest kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snapshots import NEEDED, NOW, A, busy, node, parked, parks, resident

from jupyter_affinode.node.model.actions import EndKernel
from jupyter_affinode.node.model.reasons import Cause
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.settings.policy import GIB

SLICES = NEEDED.changed(when_full="time_slice", time_slice_s=60.0)
NEWEST = NEEDED.changed(when_full="terminate_newest", time_slice_s=60.0)


def test_the_longest_resident_kernels_are_preempted_and_no_more_than_needed():
    kernels = [busy(f"k{age}", 5 * GIB, resident_since=NOW - age) for age in (70, 90, 80)]
    waiter = parked("waiter", 4 * GIB, waits=1)
    (action,) = decide(NOW, node(*kernels, waiter, free=0), SLICES)
    assert (action.kernel_id, action.preempts, action.cause) == ("k90", True, Cause.TIME_SLICE)
    assert action.for_kernel == "waiter"


@pytest.mark.parametrize(
    "change",
    [
        {"resident_since": NOW - 59},
        {"may_be_preempted": False},
        {"held_until": NOW + 1},
        {"is_opted_out": True},
        {"is_parkable": False},
        {"is_dying": True},
        {"is_moving": True},
        {"retry_at": NOW + 1},
    ],
)
def test_which_kernels_are_never_preempted(change):
    kernel = replace(busy("k", 14 * GIB, resident_since=NOW - 900), **change)
    assert parks(decide(NOW, node(kernel, parked("waiter", 4 * GIB, waits=1), free=1 * GIB), SLICES)) == []


def test_no_kernel_is_preempted_where_that_would_not_suffice():
    kernels = [busy("over", 4 * GIB, resident_since=NOW - 90), busy("not", 9 * GIB, resident_since=NOW - 5)]
    assert decide(NOW, node(*kernels, parked("waiter", 8 * GIB, waits=1), free=1 * GIB), SLICES) == []


def test_the_newest_goes_for_an_older_one_that_has_waited_and_one_at_a_time():
    kernels = [
        busy(f"k{born}", 5 * GIB, started_at=born, can_be_ended=True, resident_since=NOW - 900)
        for born in (5, 30, 20)
    ]
    head = parked("head", 8 * GIB, waits=61, started_at=10)
    (action,) = decide(NOW, node(*kernels, head, free=0), NEWEST)
    assert (type(action), action.kernel_id, action.for_kernel) == (EndKernel, "k30", "head")
    ending = [replace(kernel, is_ending=kernel.id == "k30") for kernel in kernels]
    assert decide(NOW, node(*ending, head, free=0), NEWEST) == []
    for change in ({"wants_since": NOW - 59}, {"started_at": 99}, {"parked_bytes": {A: 12 * GIB}}):
        assert decide(NOW, node(*kernels, replace(head, **change), free=0), NEWEST) == []


def test_an_opted_out_kernel_is_parked_only_on_request():
    out = resident("out", 14 * GIB, idle=9000, is_opted_out=True, resident_since=NOW - 9000)
    waiter = parked("waiter", 8 * GIB, waits=100)
    for policy in (NEEDED.changed(park_when="idle"), SLICES, NEWEST):
        assert decide(NOW, node(out, waiter, free=2 * GIB), policy) == []
    assert parks(decide(NOW, node(replace(out, park_requested="asked")), NEEDED)) == ["out"]
