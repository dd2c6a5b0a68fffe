"""`max_computing_per_gpu`: which waiters are brought back beside kernels that compute, and what the others are told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import BASE, FEW, machine_of, notebooks, run
from hypothesis import given
from hypothesis import strategies as st
from shared_gpus import notebook
from snapshots import NEEDED, NOW, A, B, asks, busy, node, parked, parks, resident

from jupyter_affinode.node.model.actions import GrantRoom, Resume
from jupyter_affinode.node.model.reasons import BlockerReason, Cause, WaitReason
from jupyter_affinode.node.model.snapshot import Gpu, Reservation, Residency
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.reclaim.exchange import room_to_begin
from jupyter_affinode.node.policy.wait_estimates import estimate_waits
from jupyter_affinode.settings.policy import GIB, MIB

TWO = NEEDED.changed(max_computing_per_gpu=2)
SLICES = TWO.changed(when_full="time_slice", time_slice_s=60.0)


def resumed(settings, *kernels, free=40 * GIB, **fields):
    """Which kernels are brought back on a machine with room."""
    actions = decide(NOW, node(*kernels, free=free, total=80 * GIB, **fields), settings)
    return [action.kernel_id for action in actions if isinstance(action, Resume)]


def test_no_kernel_is_brought_back_beside_as_many_as_may_compute():
    waits = [parked("first", waits=5), parked("second", waits=4)]
    assert resumed(TWO, busy("a"), *waits) == ["first"]
    assert resumed(TWO, busy("a"), busy("b"), *waits) == []
    assert resumed(NEEDED, busy("a"), busy("b"), *waits) == ["first", "second"]


@pytest.mark.parametrize(
    ("counts", "other"),
    [
        (True, busy("b")),
        (True, resident("b", idle=5, cell_open=True)),
        (True, resident("b", idle=0.5)),
        (False, resident("b", idle=5)),
        (False, resident("b", idle=100, cell_open=True)),  # it waits for its user, or for another kernel
        (False, asks(resident("b", idle=2, cell_open=True), 60 * GIB, waits=2)),
        (True, resident("b", resident_since=NOW - 0.1)),  # its call goes on in a moment
        (True, replace(parked("b", waits=9), residency=Residency.RESUMING, is_moving=True)),
        (False, parked("b")),
    ],
)
def test_a_kernel_counts_while_it_computes_or_comes_back_to(counts, other):
    assert resumed(TWO, busy("a"), other, parked("waits", waits=1)) == ([] if counts else ["waits"])


def test_a_resume_that_was_just_told_counts_on_the_gpu_that_it_goes_to():
    told = replace(parked("told", waits=9), is_moving=True)
    waits = parked("waits", waits=1)
    on_a, on_b = (Reservation("told", gpu, 4 * GIB) for gpu in (A, B))
    assert resumed(TWO, busy("a"), told, waits, reservations=(on_a,)) == []
    assert resumed(TWO, busy("a"), told, waits, reservations=(on_b,)) == ["waits"]


def test_an_allocation_of_a_kernel_on_the_gpu_passes_a_waiter_that_may_not_compute():
    """It may be what the kernels that compute wait for."""
    grows = asks(resident("grows", idle=3, cell_open=True), 4 * GIB, waits=2)
    there = node(busy("a"), busy("b"), grows, parked("waits", waits=50), free=20 * GIB, total=80 * GIB)
    assert [type(action) for action in decide(NOW, there, TWO)] == [GrantRoom]


def test_no_waiter_goes_before_one_that_may_not_compute():
    on_both = parked("both", waits=50)
    on_both = replace(on_both, resident_bytes={A: 0, B: 0}, parked_bytes={A: GIB, B: GIB})
    behind = parked("behind", waits=1, gpu=B)
    gpus = {uuid: Gpu(uuid, 40 * GIB, 80 * GIB, NOW - 0.01) for uuid in (A, B)}
    assert resumed(TWO, busy("a"), busy("b"), on_both, behind, gpus=gpus) == []
    assert resumed(TWO, busy("a"), on_both, behind, gpus=gpus) == ["both", "behind"]


def test_no_idle_kernel_is_parked_for_a_waiter_that_may_not_compute():
    kernels = [busy("a", 6 * GIB), busy("b", 6 * GIB), resident("idle"), parked("waits", waits=50)]
    assert decide(NOW, node(*kernels), TWO) == []
    assert parks(decide(NOW, node(*kernels[1:]), TWO)) == ["idle"]


def test_an_exchange_does_not_begin_when_as_many_compute_as_may():
    victim = resident("victim", is_moving=True)
    waits = parked("waits", waits=50, may_resume_in_parts=True)
    others = [busy("a", 4 * GIB), busy("b", 4 * GIB)]
    one, both = (node(*others[:count], victim, waits, free=GIB) for count in (1, 2))
    assert room_to_begin(NOW, one, TWO, "waits") == {A: 4 * GIB}
    assert room_to_begin(NOW, both, TWO, "waits") is None
    assert room_to_begin(NOW, both, NEEDED, "waits") == {A: 4 * GIB}


def test_a_kernel_comes_to_another_gpu_only_where_it_may_compute():
    goes = parked("goes", waits=5, migration_targets=(B,))
    full = [busy("a"), busy("b")]
    there = [busy("c", gpu=B), busy("d", gpu=B)]
    assert resumed(TWO, *full, goes, free=40 * GIB) == ["goes"]
    (resume,) = decide(NOW, node(*full, goes, free=40 * GIB, total=80 * GIB), TWO)
    assert resume.gpu == B
    assert resumed(TWO, *full, *there, goes) == []


def test_no_kernel_is_brought_back_ahead_of_its_use_where_as_many_compute_as_may():
    soon = parked("soon", expected_until=NOW + 5)
    assert resumed(TWO, busy("a"), soon) == ["soon"]
    assert resumed(TWO, busy("a"), busy("b"), soon) == []


def test_with_time_slices_a_kernel_is_preempted_for_one_that_may_not_compute():
    """Although there is memory for both; those that have had the GPU longest, and no more than it takes."""
    kernels = [
        busy("a", resident_since=NOW - 70),
        busy("b", resident_since=NOW - 90),
        resident("idle", resident_since=NOW - 900),
        parked("waits", waits=50),
    ]
    there = node(*kernels, free=40 * GIB, total=80 * GIB)
    (park,) = decide(NOW, there, SLICES)
    assert (park.kernel_id, park.preempts, park.cause, park.for_kernel) == (
        "b",
        True,
        Cause.TIME_SLICE,
        "waits",
    )
    leaving = [replace(kernel, is_moving=kernel.id == "b") for kernel in kernels]
    assert decide(NOW, replace(there, kernels=tuple(leaving)), SLICES) == []
    fresh = [replace(kernel, resident_since=NOW - 30) for kernel in kernels]
    assert decide(NOW, replace(there, kernels=tuple(fresh)), SLICES) == []
    assert decide(NOW, there, TWO) == []


# ---- what waiters are told


def told(settings, *kernels, index=0):
    gpus = {A: Gpu(A, 40 * GIB, 80 * GIB, NOW - 0.01, index=index)}
    return estimate_waits(NOW, node(*kernels, gpus=gpus), settings)


def test_a_waiter_is_told_how_many_compute_and_no_estimate():
    found = told(SLICES, busy("a"), busy("b"), parked("waits", waits=5), parked("next", waits=4))
    waits, behind = found["waits"], found["next"]
    assert waits.code == "compute"
    assert (waits.code, waits.estimate_s) == (WaitReason.COMPUTE, None)
    assert waits.arguments == {"bytes": 4 * GIB, "kernels": 2, "gpu": 0}
    assert {each.kernel_id for each in waits.blockers} == {"a", "b"}
    assert {each.why for each in waits.blockers} == {BlockerReason.COMPUTING}
    assert (behind.code, behind.estimate_s) == (WaitReason.OTHERS_FIRST, None)
    unnamed = told(TWO.changed(max_computing_per_gpu=1), busy("a"), parked("waits", waits=5), index=None)
    assert unnamed["waits"].arguments == {"bytes": 4 * GIB, "kernels": 1}
    assert unnamed["waits"].arguments == {"bytes": 4 * GIB, "kernels": 1}


def test_no_estimate_for_a_waiter_that_may_compute_only_when_those_before_it_have():
    found = told(TWO, busy("a"), parked("first", waits=5), parked("second", waits=4))
    assert found["first"].estimate_s is not None
    assert (found["second"].code, found["second"].estimate_s) == (WaitReason.OTHERS_FIRST, None)
    found = told(NEEDED, busy("a"), parked("first", waits=5), parked("second", waits=4))
    assert found["second"].estimate_s is not None


# ---- in every history

BOUNDS = st.sampled_from([1, 2])
POLICIES = st.sampled_from(
    [
        BASE,
        BASE.changed(park_when="idle"),
        BASE.changed(when_full="time_slice"),
    ]
)


@given(notebooks(), POLICIES, BOUNDS, st.none() | st.integers(0, 1 << 32))
@FEW
def test_no_more_kernels_are_brought_back_than_may_compute_and_every_kernel_is_in_the_end(
    made, policy, most, seed
):
    """`SharedGpus` counts at each decision what computes."""
    run(machine_of(made, policy.changed(max_computing_per_gpu=most), seed), more_s=4000.0)


def test_cells_that_fit_together_take_turns_with_time_slices():
    def three():
        return [
            notebook(f"k{number}", {"A": 20 * MIB}, [(0.0, 12.0)], residency=Residency.PARKED)
            for number in range(3)
        ]

    alone = BASE.changed(max_computing_per_gpu=1)
    waited = run(machine_of(three(), alone))
    assert not any(getattr(action, "preempts", False) for _, action in waited.actions)
    assert max(waited.waits.values()) > 24
    sliced = run(machine_of(three(), alone.changed(when_full="time_slice")))
    turns = [action.kernel_id for _, action in sliced.actions if getattr(action, "preempts", False)]
    assert turns[:3] == ["k0", "k1", "k2"]
