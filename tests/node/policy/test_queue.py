"""The order of waiters: classes, ageing, and users that take turns."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import NEEDED, NOW, A, node, parked

from jupyter_affinode.node.model.snapshot import RoomRequest
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.queue import overtaking_s, waiters
from jupyter_affinode.node.policy.wait_estimates import estimate_waits
from jupyter_affinode.settings.policy import GIB, MIB
from jupyter_affinode.settings.rules import PRIORITY_MAX, PRIORITY_MIN

CLASSES = st.integers(PRIORITY_MIN, PRIORITY_MAX)


def order(*kernels, settings=NEEDED):
    return [waiter.kernel.id for waiter in waiters(node(*kernels), settings)]


def test_a_higher_class_goes_first_and_within_a_class_the_earliest_waiter():
    kernels = [parked("a", waits=9), parked("b", waits=30, priority=1), parked("c", waits=5, priority=1)]
    assert order(*kernels) == ["b", "c", "a"]


def test_waiting_is_worth_a_class_for_each_ageing_s():
    low, high = parked("low", waits=70), parked("high", waits=5, priority=1)
    assert order(low, high, settings=NEEDED.changed(ageing_s=60.0)) == ["low", "high"]
    assert order(low, high, settings=NEEDED.changed(ageing_s=70.0)) == ["high", "low"]
    assert order(low, high, settings=NEEDED.changed(ageing_s=0.0)) == ["low", "high"]


@given(CLASSES, CLASSES, st.floats(0, 5000), st.floats(0, 500))
@settings(deadline=None)
def test_no_class_overtakes_a_waiter_by_more_than_the_bound(one, other, later, ageing):
    policy = NEEDED.changed(ageing_s=ageing)
    first, second = (
        parked("first", waits=6000, priority=one),
        parked("second", waits=6000 - later, priority=other),
    )
    if later > overtaking_s(policy) + 0.001:
        assert order(first, second, settings=policy)[0] == "first"


def test_what_a_kernel_needs_is_in_the_order_of_its_requests_whatever_the_hash_seed():
    """What users are told names the first GPU that is full, in every process the same."""
    gpus = [f"GPU-{number}" for number in range(8)]
    rooms = tuple(RoomRequest((1, number), gpu, MIB, NOW - 5) for number, gpu in enumerate(gpus))
    waits = replace(parked("waits", waits=5), parked_bytes={}, rooms=rooms)
    (waiter,) = waiters(node(waits), NEEDED)
    assert list(waiter.needs) == gpus


def served_at(moment, charged_user, priority=0, gpu=A):
    return {(charged_user, priority, gpu): moment}


def test_a_served_user_goes_behind_users_who_waited_by_then():
    ann = [parked(f"ann{number}", waits=90 - number, charged_user="ann") for number in range(3)]
    bob, eve = parked("bob", waits=9, charged_user="bob"), parked("eve", waits=30, charged_user="eve")
    everything = node(*ann, bob, eve)
    turns = replace(everything, last_served=served_at(NOW - 10, "ann"))
    assert [each.kernel.id for each in waiters(everything, NEEDED)] == ["ann0", "ann1", "ann2", "eve", "bob"]
    assert [each.kernel.id for each in waiters(turns, NEEDED)] == ["eve", "ann0", "ann1", "ann2", "bob"]
    elsewhere = replace(everything, last_served=served_at(NOW - 10, "ann", gpu="GPU-other"))
    other_class = replace(everything, last_served=served_at(NOW - 10, "ann", priority=1))
    for same in (elsewhere, other_class):
        assert waiters(same, NEEDED) == waiters(everything, NEEDED)


def test_users_also_take_turns_within_one_pass():
    ann = [parked(f"ann{number}", 4 * GIB, waits=90 - number, charged_user="ann") for number in range(6)]
    bob = [parked(f"bob{number}", 4 * GIB, waits=9 - number, charged_user="bob") for number in range(2)]
    actions = decide(NOW, node(*ann, *bob, free=13 * GIB), NEEDED)
    assert [action.kernel_id for action in actions] == ["ann0", "bob0", "ann1"]
    told = estimate_waits(NOW, node(*ann, *bob), NEEDED)
    assert list(told) == ["ann0", "bob0", "ann1", "bob1", "ann2", "ann3", "ann4", "ann5"]


def test_a_turn_is_worth_no_class():
    high = [
        parked(f"ann{number}", 4 * GIB, waits=9 - number, charged_user="ann", priority=5)
        for number in range(2)
    ]
    low = parked("bob", 4 * GIB, waits=90, charged_user="bob")
    actions = decide(NOW, node(*high, low, free=9 * GIB), NEEDED)
    assert [action.kernel_id for action in actions] == ["ann0", "ann1"]


def test_a_kernel_that_can_never_be_served_costs_its_user_no_turn():
    huge = parked("huge", 15 * GIB, waits=99, charged_user="ann")
    ann, bob = parked("ann", waits=50, charged_user="ann"), parked("bob", waits=9, charged_user="bob")
    (action,) = decide(NOW, node(huge, ann, bob, free=5 * GIB), NEEDED)
    assert action.kernel_id == "ann"
