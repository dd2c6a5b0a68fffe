"""The order of waiters: classes, ageing, backfill, limits, opt-out; and what waiters are told."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import NEEDED, NOW, A, asks, busy, node, parked, parks, resident

from jupyter_affinode.node.model.actions import DenyRoom, EndKernel, GrantRoom, Park, Resume
from jupyter_affinode.node.model.reasons import Cause
from jupyter_affinode.node.model.snapshot import Host, HostUse, Reservation, RoomRequest
from jupyter_affinode.node.policy.backfill import GRAIN_BYTES, delays
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.queue import overtaking_s, waiters
from jupyter_affinode.node.policy.wait_estimates import outlooks
from jupyter_affinode.settings.declaration import SettingsRefused
from jupyter_affinode.settings.policy import GIB, MIB
from jupyter_affinode.settings.rules import RuleError, is_named, names, numbers, rule_for, sizes

FILL = NEEDED.changed(backfill=True)
SLICES = NEEDED.changed(when_full="time_slice", time_slice_s=60.0)
NEWEST = NEEDED.changed(when_full="terminate_newest", time_slice_s=60.0)


def order(*kernels, settings=NEEDED):
    return [waiter.kernel.id for waiter in waiters(node(*kernels), settings)]


# ---- classes and ageing


def test_a_higher_class_goes_first_and_within_a_class_the_earliest_waiter():
    kernels = [parked("a", waits=9), parked("b", waits=30, priority=1), parked("c", waits=5, priority=1)]
    assert order(*kernels) == ["b", "c", "a"]


def test_waiting_is_worth_a_class_for_each_ageing_s():
    low, high = parked("low", waits=70), parked("high", waits=5, priority=1)
    assert order(low, high, settings=NEEDED.changed(ageing_s=60.0)) == ["low", "high"]
    assert order(low, high, settings=NEEDED.changed(ageing_s=70.0)) == ["high", "low"]
    assert order(low, high, settings=NEEDED.changed(ageing_s=0.0)) == ["low", "high"]


@given(st.integers(-2000, 2000), st.integers(-2000, 2000), st.floats(0, 5000), st.floats(0, 500))
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


# ---- users take turns


def served_at(moment, payer, priority=0, gpu=A):
    return {(payer, priority, gpu): moment}


def test_a_served_user_goes_behind_users_who_waited_by_then():
    ann = [parked(f"ann{number}", waits=90 - number, payer="ann") for number in range(3)]
    bob, eve = parked("bob", waits=9, payer="bob"), parked("eve", waits=30, payer="eve")
    everything = node(*ann, bob, eve)
    turns = replace(everything, turns=served_at(NOW - 10, "ann"))
    assert [each.kernel.id for each in waiters(everything, NEEDED)] == ["ann0", "ann1", "ann2", "eve", "bob"]
    assert [each.kernel.id for each in waiters(turns, NEEDED)] == ["eve", "ann0", "ann1", "ann2", "bob"]
    elsewhere = replace(everything, turns=served_at(NOW - 10, "ann", gpu="GPU-other"))
    other_class = replace(everything, turns=served_at(NOW - 10, "ann", priority=1))
    for same in (elsewhere, other_class):
        assert waiters(same, NEEDED) == waiters(everything, NEEDED)


def test_users_also_take_turns_within_one_pass():
    ann = [parked(f"ann{number}", 4 * GIB, waits=90 - number, payer="ann") for number in range(6)]
    bob = [parked(f"bob{number}", 4 * GIB, waits=9 - number, payer="bob") for number in range(2)]
    actions = decide(NOW, node(*ann, *bob, free=13 * GIB), NEEDED)
    assert [action.kernel_id for action in actions] == ["ann0", "bob0", "ann1"]
    told = outlooks(NOW, node(*ann, *bob), NEEDED)
    assert list(told) == ["ann0", "bob0", "ann1", "bob1", "ann2", "ann3", "ann4", "ann5"]


def test_a_turn_is_worth_no_class():
    high = [parked(f"ann{number}", 4 * GIB, waits=9 - number, payer="ann", priority=5) for number in range(2)]
    low = parked("bob", 4 * GIB, waits=90, payer="bob")
    actions = decide(NOW, node(*high, low, free=9 * GIB), NEEDED)
    assert [action.kernel_id for action in actions] == ["ann0", "ann1"]


def test_a_kernel_that_can_never_be_served_costs_its_user_no_turn():
    huge = parked("huge", 15 * GIB, waits=99, payer="ann")
    ann, bob = parked("ann", waits=50, payer="ann"), parked("bob", waits=9, payer="bob")
    (action,) = decide(NOW, node(huge, ann, bob, free=5 * GIB), NEEDED)
    assert action.kernel_id == "ann"


# ---- backfill


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


def waits_beside(name, has, needs, *, waits, idle=1000.0, **fields):
    """A parked kernel that waits for the GPU, on which another process of it has memory."""
    return replace(
        parked(name, needs, waits=waits), resident_bytes={A: has}, last_activity=NOW - idle, **fields
    )


def test_two_that_wait_and_each_have_a_process_on_the_gpu_are_both_served():
    first = waits_beside("first", 4 * GIB, 6 * GIB, waits=20)
    second = waits_beside("second", 6 * GIB, 4 * GIB, waits=10)
    crowd = node(first, second, free=4 * GIB)
    assert parks(decide(NOW, crowd, NEEDED)) == ["second"]
    third = resident("third", 6 * GIB)
    going = replace(crowd, kernels=(first, replace(second, is_moving=True), third))
    assert parks(decide(NOW, going, NEEDED)) == [], "room is on its way"
    comes_back = (Reservation("second", A, 4 * GIB),)
    assert parks(decide(NOW, replace(going, reservations=comes_back), NEEDED)) == ["third"]


@pytest.mark.parametrize(
    "busy", [{"idle": 1.0}, {"calls_in_flight": 1}, {"held_until": NOW + 1}, {"is_opted_out": True}]
)
def test_a_waiter_keeps_its_process_that_is_at_work_on_the_gpu(busy):
    waits = parked("first", 6 * GIB, waits=20)
    second = waits_beside("second", 6 * GIB, 4 * GIB, waits=10, **busy)
    assert parks(decide(NOW, node(waits, second, free=4 * GIB), NEEDED)) == []


def test_backfill_asks_about_every_set_of_kernels_that_may_yield():
    """Either of the two that yields must still be enough: the smaller one would not be."""
    big, small = parked("big", 8 * GIB, waits=9), parked("small", 2 * GIB, waits=1)
    both = [busy("large", 8 * GIB), busy("less", 6 * GIB)]
    assert decide(NOW, node(big, small, *both, free=3 * GIB), FILL) == []
    both[1] = busy("less", 4 * GIB)  # never enough alone
    assert parks(decide(NOW, node(big, small, *both, free=3 * GIB), FILL)) == []
    assert [a.kernel_id for a in decide(NOW, node(big, small, *both, free=3 * GIB), FILL)] == ["small"]


GRAINS = st.lists(st.integers(0, 12), max_size=6)


@given(st.integers(-5, 40), st.integers(0, 12), GRAINS)
@settings(deadline=None, max_examples=100)
def test_no_delayed_waiter_is_called_undelayed(lacks, size, yields):
    """Against all sets, tried one by one. Sizes of whole grains lose nothing to rounding."""
    sums = {sum(chosen) for many in range(len(yields) + 1) for chosen in itertools.combinations(yields, many)}
    truth = any(lacks <= each < lacks + size for each in sums)
    told = delays(lacks * GRAIN_BYTES, size * GRAIN_BYTES, [each * GRAIN_BYTES for each in yields])
    assert told or not truth


@given(st.integers(1, 60 * MIB), st.integers(1, 30 * MIB), st.lists(st.integers(0, 40 * MIB), max_size=6))
@settings(deadline=None, max_examples=100)
def test_rounding_errs_on_the_side_of_the_one_ahead(lacks, size, yields):
    sums = {sum(chosen) for many in range(len(yields) + 1) for chosen in itertools.combinations(yields, many)}
    if any(lacks <= each < lacks + size for each in sums):
        assert delays(lacks, size, yields)


# ---- limits


def of(kernel, user, *groups):
    return replace(kernel, user=user, groups=groups)


LIMITED = NEEDED.changed(quotas="ann=10GiB")


def test_beyond_a_users_quota_only_their_own_idle_kernels_are_parked():
    waiter = of(parked("waiter", 6 * GIB, waits=1), "ann")
    kernels = [of(resident("own", 6 * GIB), "ann"), of(resident("other", 6 * GIB, idle=9000), "bob"), waiter]
    assert parks(decide(NOW, node(*kernels, free=4 * GIB, total=32 * GIB), LIMITED)) == ["own"]


def test_a_waiter_over_its_own_quota_holds_up_no_other_user():
    blocked = of(parked("blocked", 6 * GIB, waits=9), "ann")
    kernels = [of(busy("own", 6 * GIB), "ann"), blocked, of(parked("other", 6 * GIB, waits=1), "bob")]
    actions = decide(NOW, node(*kernels, free=8 * GIB, total=32 * GIB), LIMITED)
    assert [action.kernel_id for action in actions] == ["other"]


def test_a_users_later_kernel_does_not_take_what_their_earlier_one_waits_for():
    earlier, later = (
        of(parked("earlier", 6 * GIB, waits=9), "ann"),
        of(parked("later", 3 * GIB, waits=1), "ann"),
    )
    kernels = [of(busy("own", 6 * GIB), "ann"), earlier, later]
    assert decide(NOW, node(*kernels, free=20 * GIB, total=32 * GIB), LIMITED) == []


def test_a_kernel_that_is_larger_than_its_users_limit_comes_back_when_it_is_the_only_one():
    large, own = of(parked("large", 12 * GIB, waits=9), "ann"), of(busy("own", 1 * GIB), "ann")
    assert decide(NOW, node(large, own, free=15 * GIB), LIMITED) == []
    assert [type(a) for a in decide(NOW, node(large, free=15 * GIB), LIMITED)] == [Resume]


def test_an_allocation_that_exceeds_the_limit_by_itself_is_denied_with_the_limit_as_the_reason():
    kernel = of(asks(busy("k", 8 * GIB), 4 * GIB, waits=5), "ann")
    (action,) = decide(NOW, node(kernel, free=8 * GIB), LIMITED)
    assert isinstance(action, DenyRoom) and action.cause is Cause.LIMIT
    assert "user ann" in action.reason and "10 GiB" in action.reason


def test_a_user_grown_beyond_the_quota_has_idle_kernels_parked_without_a_waiter():
    kernels = [of(resident("old", 6 * GIB, idle=9000), "ann"), of(busy("new", 6 * GIB), "ann")]
    (action,) = decide(NOW, node(*kernels, free=20 * GIB, total=32 * GIB), LIMITED)
    assert (type(action), action.kernel_id, action.cause) == (Park, "old", Cause.LIMIT)


def test_a_grants_cap_is_a_limit_too_and_the_lower_one_counts():
    kernels = [of(busy("own", 6 * GIB), "ann"), of(parked("k", 6 * GIB, waits=9), "ann")]
    machine = {"free": 20 * GIB, "total": 32 * GIB}
    assert len(decide(NOW, node(*kernels, **machine), NEEDED)) == 1
    capped = [replace(kernel, limit_bytes=10 * GIB) for kernel in kernels]
    assert decide(NOW, node(*capped, **machine), NEEDED) == []
    assert decide(NOW, node(*capped, **machine), NEEDED.changed(quotas="ann=40GiB")) == []
    roomy = [replace(kernel, limit_bytes=40 * GIB) for kernel in kernels]
    assert decide(NOW, node(*roomy, **machine), LIMITED) == []


@pytest.mark.parametrize("change", [{}, {"hopeless": True}, {"user": "ann"}, {"wants_since": NOW - 9}])
def test_an_allocation_on_a_gpu_that_is_gone_keeps_no_waiter_from_being_served(change):
    """A page named it while the allocation was asked for, and then no longer."""
    policy = NEEDED.changed(quotas="ann=1GiB")
    gone = replace(asks(resident("gone"), 2 * GIB, waits=9, gpu="GPU-gone"), **change)
    actions = decide(NOW, node(gone, parked("other", waits=5), free=8 * GIB), policy)
    assert [action.kernel_id for action in actions if isinstance(action, Resume)] == ["other"]
    assert not any(isinstance(action, GrantRoom) for action in actions)


def test_groups_share_their_limit():
    policy = NEEDED.changed(quotas="@students=10GiB")
    kernels = [
        of(busy("one", 6 * GIB), "ann", "students"),
        of(parked("two", 6 * GIB, waits=1), "bob", "students"),
    ]
    assert decide(NOW, node(*kernels, free=20 * GIB, total=32 * GIB), policy) == []
    kernels[1] = replace(kernels[1], groups=("staff",))
    assert len(decide(NOW, node(*kernels, free=20 * GIB, total=32 * GIB), policy)) == 1


def test_an_opted_out_kernel_is_parked_only_on_request():
    out = resident("out", 14 * GIB, idle=9000, is_opted_out=True, resident_since=NOW - 9000)
    waiter = parked("waiter", 8 * GIB, waits=100)
    for policy in (NEEDED.changed(park_when="idle"), SLICES, NEWEST):
        assert decide(NOW, node(out, waiter, free=2 * GIB), policy) == []
    assert parks(decide(NOW, node(replace(out, park_asked="asked")), NEEDED)) == ["out"]


# ---- a full GPU


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


# ---- what waiters are told


def told(*kernels, settings=NEEDED, **fields):
    return outlooks(NOW, node(*kernels, **fields), settings)


def test_no_estimate_is_given_for_a_kernel_that_computes():
    outlook = told(parked("k", waits=3), busy("busy", 15 * GIB), free=1 * GIB)["k"]
    assert (outlook.place, outlook.since, outlook.estimate_s) == (1, NOW - 3, None)
    assert "busy" in outlook.reason


def test_an_estimate_follows_from_when_kernels_become_eligible():
    policy = NEEDED.changed(contended_idle_timeout_s=300.0)
    soon, late = resident("soon", 6 * GIB, idle=290), resident("late", 9 * GIB, idle=240)
    first, second = parked("first", 4 * GIB, waits=9), parked("second", 8 * GIB, waits=5)
    found = told(soon, late, first, second, settings=policy, free=0)
    assert 10 <= found["first"].estimate_s < 15  # and its own move
    assert 60 <= found["second"].estimate_s < 65
    assert found["second"].reason.startswith("others wait before it")


def test_an_estimate_does_not_assume_that_a_busy_kernel_stops_now():
    """Between two calls a kernel at work has none in flight; an open cell may only be loading its next batch."""
    waiter = parked("waiter", 8 * GIB, waits=60)
    for computes in (
        resident("k", 15 * GIB, idle=0.1),
        resident("k", 15 * GIB, idle=5, cell_open=True),
    ):
        outlook = told(waiter, computes, free=1 * GIB)["waiter"]
        assert outlook.estimate_s is None and "busy" in outlook.reason
    for idle in (resident("k", 15 * GIB, idle=2), resident("k", 15 * GIB, idle=30, cell_open=True)):
        assert told(waiter, idle, free=1 * GIB)["waiter"].estimate_s is not None


def test_a_waiter_is_told_which_users_hold_is_in_its_way():
    waiter = parked("waiter", 8 * GIB, waits=60, payer="uid-1")
    holds = resident("k", 15 * GIB, idle=900, held_until=NOW + 600, payer="uid-1")
    outlook = told(waiter, holds, free=1 * GIB)["waiter"]
    assert outlook.reason == "another of your kernels holds the GPU" and outlook.estimate_s >= 600
    other = told(waiter, replace(holds, payer="uid-2"), free=1 * GIB)["waiter"]
    assert other.reason == "another user's kernel holds the GPU"
    computes = replace(holds, calls_in_flight=1)
    assert told(waiter, computes, free=1 * GIB)["waiter"].reason.endswith("busy or held by you")
    over = replace(holds, held_until=NOW - 1)
    assert "hold" not in told(waiter, over, free=1 * GIB)["waiter"].reason


def test_an_estimate_does_not_count_on_a_kernel_that_cannot_be_parked():
    kernels = resident("idle", 9 * GIB, idle=900), parked("k", 8 * GIB, waits=3)
    full, enough = Host(3 * GIB, total_bytes=16 * GIB), Host(12 * GIB, total_bytes=16 * GIB)
    outlook = told(*kernels, free=0, host=full)["k"]
    assert outlook.estimate_s is None and "host memory too" in outlook.reason
    assert told(*kernels, free=0, host=enough)["k"].estimate_s is not None
    keeps = replace(resident("keeps", 1 * GIB), host=HostUse(kept_bytes=8 * GIB, trimmable_bytes=8 * GIB))
    assert "host memory" not in told(*kernels, keeps, free=0, host=full)["k"].reason


def test_with_time_slices_the_end_of_a_turn_is_an_estimate():
    kernel = busy("k", 15 * GIB, resident_since=NOW - 20)
    outlook = told(kernel, parked("waiter", waits=1), settings=SLICES, free=0)["waiter"]
    assert 40 <= outlook.estimate_s < 45
    assert "had their turn" in outlook.reason


def test_other_reasons_to_wait_are_told_too():
    kernels = [of(busy("own", 6 * GIB), "ann"), of(parked("k", 6 * GIB, waits=9), "ann")]
    assert "limit of user ann" in told(*kernels, settings=LIMITED, free=20 * GIB, total=32 * GIB)["k"].reason
    assert "whatever is parked" in told(parked("huge", 15 * GIB, waits=9), free=2 * GIB)["huge"].reason
    stays = resident("stays", 14 * GIB, is_opted_out=True)
    behind = told(parked("k", 8 * GIB, waits=9), stays, free=2 * GIB)["k"].reason
    assert "kernels that are not parked" in behind and "outside" not in behind
    assert "just started" in told(parked("k", waits=9), free=8 * GIB, is_settled=False)["k"].reason
    failed = parked("k", waits=9, resume_retry_at=NOW + 5)
    assert "tried again" in told(failed, free=8 * GIB)["k"].reason
    leaving = resident("leaving", 8 * GIB, is_moving=True)
    freed = told(parked("k", waits=1), leaving, free=0)["k"]
    assert "being freed" in freed.reason and freed.estimate_s is not None


@given(
    st.lists(st.tuples(st.integers(1, 15), st.booleans(), st.integers(0, 200)), max_size=8),
    st.integers(0, 16),
)
@settings(deadline=None)
def test_every_waiter_has_a_place_and_a_reason(made, free):
    kernels = [
        parked(f"k{number}", size * GIB, waits=age) if waits else resident(f"k{number}", size * GIB, idle=age)
        for number, (size, waits, age) in enumerate(made)
    ]
    found = told(*kernels, free=free * GIB)
    assert [outlook.place for outlook in found.values()] == list(range(1, len(found) + 1))
    assert set(found) == {kernel.id for kernel in kernels if kernel.wants_since is not None}
    for outlook in found.values():
        assert outlook.reason and (outlook.estimate_s is None or outlook.estimate_s >= 0)


# ---- rules


def test_rules_name_users_and_all_others():
    assert sizes("ann=80GiB, bob=512 MiB,*=1.5GiB") == {"ann": 80 * GIB, "bob": 512 * MIB, "*": 3 * GIB // 2}
    assert numbers("ann=+2, *=-5") == {"ann": 2, "*": -5}
    assert rule_for(sizes("ann=5, *=7"), "eve") == 7 and rule_for(sizes("ann=5"), "eve") is None
    assert is_named(names("ann, @staff"), "eve", ["staff"]) and not is_named(names("@eve"), "eve", [])
    assert is_named(names("*"), "eve", []) and not is_named(names(""), "", [""])


def test_a_rule_names_a_user_of_the_machine_or_of_the_hub_and_never_both():
    rules = sizes("ann=5, hub:ann=7, hub:ben@x.org=9")
    assert (rule_for(rules, "ann"), rule_for(rules, "hub:ann"), rule_for(rules, "hub:ben@x.org")) == (5, 7, 9)
    listed = names("hub:ann, @hub:staff")
    assert is_named(listed, "hub:ann", []) and not is_named(listed, "ann", ["staff"])
    assert is_named(listed, "ben", ["hub:staff"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("user:ann=5", "hub:ann"),
        ("hub:=5", "hub:alice"),
        (":ann=5", "hub:ann"),
        ("hub:@staff=5", "@hub:staff"),
        ("ann=5, ann=7", "twice"),
    ],
)
def test_a_name_that_could_mean_several_is_refused_in_words(text, says):
    with pytest.raises(SettingsRefused, match=says):
        NEEDED.changed(quotas=text)
    if "twice" not in says:
        with pytest.raises(SettingsRefused, match=says):
            NEEDED.changed(opt_out=text.partition("=")[0])


@pytest.mark.parametrize(
    "text", ["ann", "ann=", "=5", "ann=5 XiB", "ann=-5", "ann=1e9", "ann=5GiB;bob=3", "ann=" + "9" * 400]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(RuleError):
        sizes(text)
    with pytest.raises(SettingsRefused, match="quotas"):
        NEEDED.changed(quotas=text)


@pytest.mark.parametrize("text", ["ann=6", "ann=-6", "ann=1.0", "ann=٣"])
def test_what_is_no_class_is_refused(text):
    with pytest.raises(RuleError):
        numbers(text)


def test_grants_and_resumes_say_their_cause():
    kernel = asks(resident("k", idle=0), 2 * GIB, waits=0.1)
    (action,) = decide(NOW, node(kernel, free=3 * GIB), NEEDED)
    assert isinstance(action, GrantRoom)
    (action,) = decide(NOW, node(parked("k", waits=0.5), free=5 * GIB), NEEDED)
    assert action.cause is Cause.CELL
    (action,) = decide(NOW, node(parked("k", waits=0.5), resident("idle", 9 * GIB), free=0), NEEDED)
    assert (action.cause, action.for_kernel) == (Cause.ROOM, "k")
