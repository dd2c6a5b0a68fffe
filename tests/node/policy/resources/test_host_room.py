"""What the policy decides about host memory, one statement a test."""

from __future__ import annotations

from dataclasses import replace

import snapshots
from snapshots import IDLE, NOW, A

from jupyter_affinode.node.model.actions import DropCaches, GiveLots, MakeLots, Park, RefusePark, Trim
from jupyter_affinode.node.model.snapshot import SLACK_BYTES, Host, HostUse
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.resources.host_memory import MARGIN_PART, with_margin
from jupyter_affinode.settings.policy import GIB, MIB, Settings

RESERVE = IDLE.host_reserve_bytes
NEEDED = Settings(host_reserve_bytes=1 * GIB)
FRUGAL = HostUse()


def resident(name, size=4 * GIB, *, use=FRUGAL, **fields):
    """A kernel on the A, and its host memory."""
    return snapshots.resident(name, size, host=use, **fields)


def keeps(size, *, since=100.0, takes=None, **fields):
    """What a kernel keeps from its last park, for how many seconds."""
    return HostUse(
        retained_bytes=size,
        trimmable_bytes=fields.pop("trimmable", size),
        retained_since=NOW - since,
        park_takes_bytes=takes,
        **fields,
    )


def node(*kernels, available, **host):
    """A machine whose A is large enough."""
    return snapshots.node(
        *kernels, free=80 * GIB, total=80 * GIB, host=Host(available, total_bytes=64 * GIB, **host)
    )


def test_a_park_of_unknown_need_is_tried_with_what_there_is():
    """64 GiB that a framework took in advance may be zeros, which take no host memory."""
    actions = decide(NOW, node(resident("k", 64 * GIB), available=3 * GIB), IDLE)
    assert actions == [Park("k", "idle 17 min", 2 * GIB)]


def test_the_budgets_of_parks_leave_a_margin_above_the_reserve():
    """What other programs take while a park goes on must not come out of the reserve."""
    assert with_margin(RESERVE) == 1 * GIB
    (action,) = decide(NOW, node(resident("k"), available=8 * GIB), replace(IDLE, host_reserve_bytes=4 * GIB))
    assert action.budget_bytes == 4 * GIB - 4 * GIB // MARGIN_PART


def test_with_next_to_nothing_free_nothing_is_tried():
    (action,) = decide(NOW, node(resident("k"), available=1 * GIB + 100 * MIB), IDLE)
    assert isinstance(action, RefusePark)
    assert "100 MiB are free beyond the reserve of 1 GiB" in action.reason


def test_what_was_tried_in_vain_is_not_tried_again_until_there_is_enough():
    short = replace(FRUGAL, park_short_bytes=3 * GIB)
    (action,) = decide(NOW, node(resident("k", use=short), available=3 * GIB), IDLE)
    assert isinstance(action, RefusePark)
    assert "3 GiB of host memory and 2 GiB are free" in action.reason
    (action,) = decide(NOW, node(resident("k", use=short), available=4 * GIB), IDLE)
    assert isinstance(action, Park)


def test_a_park_that_failed_although_it_would_just_have_fitted_is_not_tried_with_as_little():
    """Memory is taken by slabs, so a park needs a little more than it moves."""
    kernel = resident("k", 600 * MIB, use=replace(FRUGAL, park_short_bytes=640 * MIB))
    (action,) = decide(NOW, node(kernel, available=1 * GIB + 600 * MIB), IDLE)
    assert isinstance(action, RefusePark)
    (action,) = decide(NOW, node(kernel, available=1 * GIB + 640 * MIB), IDLE)
    assert isinstance(action, Park)
    smaller = replace(kernel, resident_bytes={A: 300 * MIB})  # it has freed the rest since
    (action,) = decide(NOW, node(smaller, available=1 * GIB + 400 * MIB), IDLE)
    assert isinstance(action, Park)


def test_what_a_kernel_keeps_counts_for_its_own_next_park():
    full = node(resident("k", use=keeps(4 * GIB)), available=1 * GIB)
    assert decide(NOW, full, IDLE) == [Park("k", "idle 17 min", 0)]


def test_what_another_keeps_is_given_back_first_when_a_park_lacks_it():
    kernels = (resident("k"), resident("keeper", idle=1, use=keeps(8 * GIB)))
    actions = decide(NOW, node(*kernels, available=3 * GIB), IDLE)
    cushion = RESERVE // MARGIN_PART  # as a margin is left: others take a little meanwhile
    assert actions == [Trim("keeper", 6 * GIB - cushion, "room to free another kernel")]


def test_while_that_is_under_way_the_park_waits_for_it():
    asked = keeps(8 * GIB, trimmable=6 * GIB, trimming_bytes=2 * GIB)
    kernels = (resident("k"), resident("keeper", idle=1, use=asked))
    assert decide(NOW, node(*kernels, available=3 * GIB), IDLE) == []


def test_no_retained_copy_is_trimmed_where_that_would_not_suffice():
    kernels = (resident("k", 32 * GIB), resident("keeper", idle=1, use=keeps(8 * GIB)))
    assert decide(NOW, node(*kernels, available=3 * GIB), IDLE) == [Park("k", "idle 17 min", 2 * GIB)]


def test_no_retained_copy_is_trimmed_for_a_park_that_took_little_the_last_time():
    zeros = keeps(0, takes=100 * MIB)
    kernels = (resident("k", 32 * GIB, use=zeros), resident("keeper", idle=1, use=keeps(8 * GIB)))
    assert decide(NOW, node(*kernels, available=3 * GIB), IDLE) == [Park("k", "idle 17 min", 2 * GIB)]


def test_the_largest_and_oldest_retained_copy_is_trimmed_first():
    kernels = (
        resident("new", idle=1, use=keeps(8 * GIB, since=10)),
        resident("old", idle=1, use=keeps(4 * GIB, since=1000)),
        resident("small", idle=1, use=keeps(64 * MIB, since=1000)),
    )
    actions = decide(NOW, node(*kernels, available=0), NEEDED)
    assert actions == [Trim("old", 3 * GIB, "host memory is short")]
    tight = node(*kernels, available=0)
    more = decide(NOW, tight, replace(NEEDED, host_reserve_bytes=5 * GIB))
    assert more == [Trim("old", 0, "host memory is short"), Trim("new", 7 * GIB, "host memory is short")]


def test_under_the_reserve_what_is_kept_goes_and_above_it_stays():
    kernel = resident("k", idle=1, use=keeps(8 * GIB))
    assert decide(NOW, node(kernel, available=1 * GIB), NEEDED) == []
    assert decide(NOW, node(kernel, available=1 * GIB - 600 * MIB), NEEDED) == [
        Trim("k", 8 * GIB - 600 * MIB, "host memory is short")
    ]


def test_a_cgroup_near_its_limit_has_its_own_kernels_give_back():
    inside = resident("inside", idle=1, cgroups=("/user",), use=keeps(2 * GIB, since=1))
    outside = resident("outside", idle=1, use=keeps(8 * GIB))
    limits = {"headroom_bytes": {"/user": 100 * MIB}, "limit_bytes": {"/user": 8 * GIB}}
    (action,) = decide(NOW, node(inside, outside, available=32 * GIB, **limits), NEEDED)
    assert (type(action), action.kernel_id) == (Trim, "inside")
    assert action.keep_bytes == 2 * GIB - (8 * GIB // 10 - 100 * MIB)


def test_a_refusal_names_the_place_that_lacks_it_though_another_has_less_left():
    """Lots take memory of the machine, and none of the kernel's own limit."""
    limits = {"headroom_bytes": {"/user": 3 * GIB}, "limit_bytes": {"/user": 4 * GIB}}
    kernel = resident("k", 8 * GIB, cgroups=("/user",), use=keeps(0, takes=8 * GIB), park_requested=NOW)
    machine = node(
        kernel, available=GIB // 2, lot_bytes=8 * GIB, lot_cgroups=frozenset({"/controller"}), **limits
    )
    (refused,) = decide(NOW, machine, IDLE)
    assert isinstance(refused, RefusePark) and "beyond the reserve" in refused.reason, refused


def test_a_park_leaves_a_part_of_its_cgroup_free():
    """At its very limit the kernel would be killed at its next allocation, with its tensors."""
    limits = {"headroom_bytes": {"/user": 3 * GIB}, "limit_bytes": {"/user": 8 * GIB}}
    (action,) = decide(NOW, node(resident("k", cgroups=("/user",)), available=32 * GIB, **limits), IDLE)
    assert action == Park("k", "idle 17 min", 3 * GIB - with_margin(8 * GIB // 10))


def test_the_default_reserve_follows_what_the_machine_has():
    """Some virtual machines get memory while they run: the reserve is of what there is at the time."""
    follows = replace(NEEDED, host_reserve_bytes=None)
    assert follows.host_reserve(8 * GIB) == 2 * GIB
    assert follows.host_reserve(64 * GIB) == 64 * GIB // 10
    kernel = resident("k", idle=1, use=keeps(8 * GIB))
    grown = replace(node(kernel, available=5 * GIB), host=Host(5 * GIB, total_bytes=100 * GIB))
    assert decide(NOW, node(kernel, available=7 * GIB), follows) == []
    assert [type(action) for action in decide(NOW, grown, follows)] == [Trim]


def test_a_kernel_under_way_gives_nothing_back():
    moving = resident("moving", is_moving=True, use=keeps(8 * GIB))
    assert decide(NOW, node(moving, available=0), NEEDED) == []


def test_a_kernel_that_gives_back_is_not_parked_in_the_same_pass():
    kernels = (resident("k", idle=2000), resident("keeper", idle=400, use=keeps(8 * GIB)))
    actions = decide(NOW, node(*kernels, available=3 * GIB), IDLE)
    assert [(type(action), action.kernel_id) for action in actions] == [(Trim, "keeper")]


# ---- lots


def test_a_park_is_given_lots_before_its_own_memory_is_asked_for():
    stocked = node(resident("k"), available=3 * GIB, lot_bytes=3 * GIB)
    assert decide(NOW, stocked, IDLE) == [Park("k", "idle 17 min", 2 * GIB, 3 * GIB)]
    assert decide(NOW, node(resident("k"), available=1 * GIB, lot_bytes=8 * GIB), IDLE) == [
        Park("k", "idle 17 min", 0, 4 * GIB)
    ]


def test_lots_make_up_for_a_cgroup_that_is_full():
    limits = {"headroom_bytes": {"/user": 0}, "limit_bytes": {"/user": 8 * GIB}}
    kernel = resident("k", cgroups=("/user",))
    (action,) = decide(NOW, node(kernel, available=32 * GIB, lot_bytes=4 * GIB, **limits), IDLE)
    assert isinstance(action, Park)
    (action,) = decide(NOW, node(kernel, available=32 * GIB, **limits), IDLE)
    assert isinstance(action, RefusePark)


def test_where_even_all_lots_are_less_than_the_reserve_no_park_takes_one():
    """What no kernel is lent is freed for other programs, and the park would have it."""
    short = node(resident("k", 64 * MIB), available=0, lot_bytes=512 * MIB)
    (action,) = decide(NOW, short, IDLE)
    assert isinstance(action, RefusePark)
    (action,) = decide(NOW, node(resident("k", 64 * MIB), available=1 * GIB, lot_bytes=512 * MIB), IDLE)
    assert isinstance(action, Park) and action.lot_bytes == 64 * MIB


def test_lots_that_a_kernel_was_lent_a_moment_ago_are_room_for_its_own_park():
    """Its page does not show them yet, and the park was refused."""
    lent = resident("k", use=replace(FRUGAL, lot_bytes=4 * GIB))
    (action,) = decide(NOW, node(lent, available=1 * GIB), IDLE)
    assert isinstance(action, Park) and (action.budget_bytes, action.lot_bytes) == (0, 0)


def test_lots_are_not_given_twice_in_one_pass():
    kernels = (resident("a", idle=2000), resident("b"))
    actions = decide(NOW, node(*kernels, available=32 * GIB, lot_bytes=6 * GIB), IDLE)
    assert [action.lot_bytes for action in actions] == [4 * GIB, 2 * GIB]


def test_a_kernel_that_may_be_parked_gets_lots_ahead_of_time_once():
    fresh = resident("fresh", idle=1)
    assert decide(NOW, node(fresh, available=32 * GIB, lot_bytes=6 * GIB), NEEDED) == [
        GiveLots("fresh", 4 * GIB)
    ]
    idle = (fresh, resident("later", idle=200), resident("now", idle=400))
    actions = decide(NOW, node(*idle, available=32 * GIB, lot_bytes=6 * GIB), NEEDED)
    assert actions == [GiveLots("now", 4 * GIB)], "a part of what a park takes would be missed by others"
    has_some = resident("k", use=replace(FRUGAL, lot_bytes=256 * MIB))
    assert decide(NOW, node(has_some, available=32 * GIB, lot_bytes=6 * GIB), NEEDED) == []


def test_a_kernel_with_enough_retained_gets_no_lots():
    keeper = resident("keeps", use=keeps(4 * GIB))
    assert decide(NOW, node(keeper, available=32 * GIB, lot_bytes=6 * GIB), NEEDED) == []


def test_where_lots_are_made_for_each_park_it_waits_for_them_and_small_ones_take_none():
    (action,) = decide(NOW, node(resident("k"), available=8 * GIB, makes_lots=True), IDLE)
    assert action == MakeLots("k", 4 * GIB + SLACK_BYTES)
    ready = node(resident("k"), available=4 * GIB, lot_bytes=4 * GIB, makes_lots=True)
    assert decide(NOW, ready, IDLE) == [Park("k", "idle 17 min", 3 * GIB, 4 * GIB)]
    too_little = decide(NOW, node(resident("k"), available=3 * GIB, makes_lots=True), IDLE)
    assert not [action for action in too_little if isinstance(action, MakeLots)]
    small = node(resident("k", 200 * MIB), available=8 * GIB, lot_bytes=GIB, makes_lots=True)
    (action,) = decide(NOW, small, IDLE)
    assert (action.kernel_id, action.lot_bytes) == ("k", 0)


def test_a_kernel_whose_lots_are_coming_back_waits_for_as_many_as_it_needs():
    """It was asked for them to make room for another's park, and is to be parked itself before all are there."""
    releases = resident("k", use=replace(FRUGAL, trimming_bytes=512 * MIB))
    some = {"available": 1 * GIB, "lot_bytes": 4 * GIB - 256 * MIB, "makes_lots": True}
    assert decide(NOW, node(releases, **some), IDLE) == []
    (action,) = decide(NOW, node(resident("k"), **{**some, "lot_bytes": 4 * GIB + 256 * MIB}), IDLE)
    assert action == Park("k", "idle 17 min", 0, 4 * GIB + SLACK_BYTES)


def test_a_little_that_a_retained_copy_lacks_comes_of_a_lot_where_host_memory_is_short():
    """A part of it went to disk before its last resume."""
    lacks = resident("k", use=keeps(4 * GIB - 250 * MIB))
    (action,) = decide(NOW, node(lacks, available=1 * GIB, lot_bytes=GIB, makes_lots=True), IDLE)
    assert isinstance(action, Park) and action.lot_bytes >= 250 * MIB


# ---- caches

DROPPING = replace(IDLE, drop_caches_before_park=True)


def test_caches_are_dropped_before_a_park_where_the_setting_says_so():
    kernel = resident("k", can_drop_caches=True)
    assert decide(NOW, node(kernel, available=32 * GIB), DROPPING) == [DropCaches("k", "idle 17 min")]
    asked = replace(kernel, can_drop_caches=False)
    for other, policy in ((kernel, IDLE), (asked, DROPPING)):
        assert [type(a) for a in decide(NOW, node(other, available=32 * GIB), policy)] == [Park]


def test_while_a_cell_is_open_caches_stay_unless_the_person_asked_for_the_park():
    kernel = resident("k", cell_open=True, can_drop_caches=True)
    (action,) = decide(NOW, node(kernel, available=32 * GIB), DROPPING)
    assert isinstance(action, Park)
    (action,) = decide(NOW, node(replace(kernel, park_requested="asked"), available=32 * GIB), DROPPING)
    assert isinstance(action, DropCaches)


def test_caches_are_dropped_even_where_host_memory_is_short():
    """What was dropped need not be moved: afterwards there may be enough."""
    (action,) = decide(NOW, node(resident("k", can_drop_caches=True), available=0), DROPPING)
    assert isinstance(action, DropCaches)
