"""Exchanges with host memory for one copy: when they happen, what they take, and what others may take beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snapshots import NEEDED, NOW, A, busy, node, parked, resident

from jupyter_affinode.node.model.actions import DropCaches, MakeLots, Park, RefusePark, Resume, Spill, Trim
from jupyter_affinode.node.model.snapshot import SLACK_BYTES, Host, HostUse, Reservation, Residency
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.reclaim.exchange import room_to_begin
from jupyter_affinode.node.policy.resources.host_memory import begins_with
from jupyter_affinode.settings.policy import GIB, MIB

RESERVE = GIB  # with its margin, in these settings


def waiter(name="waiter", size=8 * GIB, *, waits=5, copies=None, **fields):
    use = HostUse(copy_bytes=size if copies is None else copies)
    fields = {"may_resume_in_parts": True, "may_hand_over": True, "host": use, **fields}
    return parked(name, size, waits=waits, **fields)


def victim(name="victim", size=9 * GIB, **fields):
    use = HostUse(park_takes_bytes=size)
    return resident(name, size, **{"may_hand_over": True, "host": use, **fields})


def free_host(size, **fields):
    """So much beyond the reserve."""
    return Host(RESERVE + size, total_bytes=64 * GIB, **fields)


def parks(actions):
    return [each for each in actions if isinstance(each, Park)]


def handed(actions):
    """The victims, and for which waiter."""
    return [
        (each.kernel_id, each.for_kernel) for each in parks(actions) if each.exchanges and each.hands_over
    ]


@pytest.mark.parametrize("size, least", [(20 * GIB, 320 * MIB), (GIB, 320 * MIB), (128 * MIB, 128 * MIB)])
def test_little_more_than_a_window_is_enough_to_begin_with(size, least):
    assert begins_with(size) == least


def test_a_waiter_gives_its_host_memory_to_its_victim():
    (park,) = decide(NOW, node(waiter(), victim(), host=free_host(2 * GIB)), NEEDED)
    assert (park.kernel_id, park.for_kernel, park.exchanges, park.hands_over) == (
        "victim",
        "waiter",
        True,
        True,
    )
    assert park.budget_bytes == 2 * GIB


def test_where_there_is_enough_the_waiter_keeps_its_copy():
    (park,) = decide(NOW, node(waiter(), victim(), host=free_host(9 * GIB)), NEEDED)
    assert park.exchanges and not park.hands_over


def test_what_others_only_keep_is_asked_back_first():
    keeper = busy("keeper", GIB, host=HostUse(retained_bytes=9 * GIB, trimmable_bytes=9 * GIB))
    found = decide(NOW, node(waiter(), victim(), keeper, host=free_host(2 * GIB)), NEEDED)
    assert [type(each) for each in found] == [Trim]


def test_a_victim_for_which_there_is_host_memory_goes_before():
    kept = HostUse(retained_bytes=9 * GIB, park_takes_bytes=9 * GIB)
    others = victim("lacks"), victim("has", host=kept)
    found = decide(NOW, node(waiter(), *others, host=free_host(2 * GIB)), NEEDED)
    assert [(each.kernel_id, each.hands_over) for each in parks(found)] == [("has", False)]


def test_the_disk_is_not_needed():
    host = free_host(2 * GIB, disk_limit_bytes=1 << 40, disk_free_bytes=1 << 40, disk_daily_bytes=1 << 40)
    sleeps = parked("sleeps", 9 * GIB, host=HostUse(spillable_bytes=9 * GIB))
    found = decide(NOW, node(waiter(), victim(), sleeps, host=host), NEEDED)
    assert handed(found) == [("victim", "waiter")]
    assert not any(isinstance(each, Spill) for each in found)


def test_what_is_missing_to_begin_with_goes_to_disk_and_no_more():
    host = free_host(100 * MIB, disk_limit_bytes=1 << 40, disk_free_bytes=1 << 40, disk_daily_bytes=1 << 40)
    sleeps = parked("sleeps", 9 * GIB, host=HostUse(spillable_bytes=9 * GIB))
    found = decide(NOW, node(waiter(size=9 * GIB), victim(), sleeps, host=host), NEEDED)
    goes = 220 * MIB + SLACK_BYTES
    assert [(type(each), each.kernel_id, each.bytes) for each in found] == [(Spill, "sleeps", goes)]
    spills = replace(sleeps, is_moving=True, host=replace(sleeps.host, spilling_bytes=goes))
    assert decide(NOW, node(waiter(size=9 * GIB), victim(), spills, host=host), NEEDED) == []
    host = replace(host, available_bytes=RESERVE + 356 * MIB)
    found = decide(NOW, node(waiter(size=9 * GIB), victim(), sleeps, host=host), NEEDED)
    assert handed(found) == [("victim", "waiter")]


@pytest.mark.parametrize(
    "others, host",
    [
        ([replace(waiter(), may_hand_over=False), victim()], free_host(2 * GIB)),
        ([waiter(), replace(victim(), may_hand_over=False)], free_host(2 * GIB)),
        ([waiter(), victim(may_park_context=True)], free_host(2 * GIB)),
        ([waiter(copies=6 * GIB), victim()], free_host(2 * GIB)),
        ([waiter(), victim()], free_host(319 * MIB)),
    ],
    ids=["waiter", "victim", "context", "it gives too little", "nothing to begin with"],
)
def test_else_it_is_refused_as_ever(others, host):
    found = decide(NOW, node(*others, host=host), NEEDED)
    assert parks(found) == []
    assert any(isinstance(each, RefusePark) for each in found)


def test_a_waiter_that_was_called_off_once_can_still_hand_over():
    """Parking others first would take host memory that is not there."""
    others = replace(waiter(), may_resume_in_parts=False), victim()
    assert handed(decide(NOW, node(*others, host=free_host(2 * GIB)), NEEDED)) == [("victim", "waiter")]


def test_several_victims_share_what_there_is_to_begin_with():
    victims = [victim("a", 4 * GIB), victim("b", 4 * GIB)]
    found = decide(NOW, node(waiter(), *victims, host=free_host(GIB)), NEEDED)
    assert handed(found) == [("a", "waiter"), ("b", "waiter")]
    assert [each.budget_bytes for each in parks(found)] == [704 * MIB, 320 * MIB]
    assert parks(decide(NOW, node(waiter(), *victims, host=free_host(639 * MIB)), NEEDED)) == []


def test_lots_that_are_ready_will_do_to_begin_with():
    host = free_host(0, lot_bytes=GIB, makes_lots=True)
    found = decide(NOW, node(waiter(size=9 * GIB), victim(), host=host), NEEDED)
    assert handed(found) == [("victim", "waiter")]
    assert [(each.budget_bytes, each.lot_bytes) for each in parks(found)] == [(0, GIB)]
    assert not any(isinstance(each, MakeLots) for each in found)


def test_where_lots_are_made_a_victim_takes_no_more_of_its_own_than_it_begins_with():
    """What it took by itself would be unmapped when it comes back, and touched anew for the next victim."""
    found = decide(NOW, node(waiter(), victim(), host=free_host(2 * GIB, makes_lots=True)), NEEDED)
    assert [(each.budget_bytes, each.lot_bytes) for each in parks(found)] == [(320 * MIB, 0)]
    some = free_host(2 * GIB, lot_bytes=256 * MIB, makes_lots=True)
    found = decide(NOW, node(waiter(), victim(), host=some), NEEDED)
    assert [(each.budget_bytes, each.lot_bytes) for each in parks(found)] == [(64 * MIB, 256 * MIB)]


def test_what_one_exchange_may_take_is_no_others():
    two = [waiter("w1", waits=9), waiter("w2", waits=8), victim("v1", idle=2000.0), victim("v2")]
    found = decide(NOW, node(*two, host=free_host(1536 * MIB)), NEEDED)
    assert handed(found) == [("v1", "w1")]
    assert not any(isinstance(each, RefusePark) for each in found), "the other waits for that exchange"


def test_what_is_promised_to_a_victim_under_way_is_no_others():
    use = HostUse(budget_bytes=0, awaits_bytes=3 * GIB)
    goes = replace(victim(host=use), residency=Residency.PARKING, is_moving=True, moves_since=NOW)
    comes = replace(waiter(), residency=Residency.RESUMING, is_moving=True, moves_since=NOW)
    idle = victim("idle", 2 * GIB, park_requested="please")
    reserved = (Reservation("waiter", A, 8 * GIB),)
    for free, is_parked in ((5 * GIB, True), (5 * GIB - MIB, False)):
        seen = node(goes, comes, idle, host=free_host(free), reservations=reserved)
        assert [each.kernel_id for each in parks(decide(NOW, seen, NEEDED))] == ["idle"] * is_parked


def test_the_controllers_own_limit_bounds_what_can_be_lent():
    """Lots are its memory: what the waiter has by itself does not come free there."""
    own = {"lot_cgroups": frozenset({"/controller"}), "limit_bytes": {"/controller": 64 * GIB}}
    roomy = free_host(2 * GIB, headroom_bytes={"/controller": 1 * GIB + 9 * GIB}, **own)
    tight = free_host(2 * GIB, headroom_bytes={"/controller": 1 * GIB + 8 * GIB}, **own)
    assert handed(decide(NOW, node(waiter(), victim(), host=roomy), NEEDED))
    assert not handed(decide(NOW, node(waiter(), victim(), host=tight), NEEDED))


def test_caches_are_dropped_first():
    settings = NEEDED.changed(drop_caches_before_park=True)
    found = decide(NOW, node(waiter(), victim(can_drop_caches=True), host=free_host(2 * GIB)), settings)
    assert [type(each) for each in found] == [DropCaches]


# ---- kernels that were parked in part


def in_part(name, here, there, *, waits=None, **fields):
    """`here`: GiB on the GPU; `there`: in host memory."""
    use = HostUse(copy_bytes=there * GIB)
    on_gpu = {A: here * GIB}
    fields = {"may_hand_over": True, "host": use, **fields}
    return parked(name, there * GIB, waits=waits, left_bytes=on_gpu, unmovable_bytes=on_gpu, **fields)


def test_of_two_that_each_have_a_half_one_comes_in_and_the_other_goes():
    two = in_part("first", 8, 8, waits=9), in_part("second", 8, 8, waits=5)
    found = decide(NOW, node(*two, host=free_host(GIB)), NEEDED)
    assert handed(found) == [("second", "first")]


def test_the_rest_of_one_that_no_call_waits_for_goes_first():
    others = in_part("half", 8, 2), victim(size=8 * GIB, idle=9000.0), waiter()
    found = decide(NOW, node(*others, host=free_host(GIB)), NEEDED)
    assert handed(found) == [("half", "waiter")]


def test_a_rest_goes_after_others_where_its_user_is_behind_for_parks_that_failed():
    others = in_part("half", 8, 2, demoted_until=NOW + 60), victim(size=8 * GIB), waiter()
    found = decide(NOW, node(*others, host=free_host(GIB)), NEEDED)
    assert handed(found) == [("victim", "waiter")]


def test_a_rest_for_which_host_memory_was_short_is_not_parked_again_at_once():
    half = in_part("half", 8, 2)
    assert handed(decide(NOW, node(half, waiter(), host=free_host(GIB)), NEEDED)) == [("half", "waiter")]
    short = replace(half, host=replace(half.host, retry_at=NOW + 1))
    assert parks(decide(NOW, node(short, waiter(), host=free_host(GIB)), NEEDED)) == []


def test_where_there_is_host_memory_the_rest_is_parked_and_the_waiter_comes_later():
    found = decide(NOW, node(in_part("half", 8, 2), waiter(), host=free_host(9 * GIB)), NEEDED)
    (park,) = parks(found)
    assert (park.kernel_id, park.exchanges, park.for_kernel) == ("half", False, "waiter")


def test_the_rest_goes_where_the_unused_part_of_its_own_lots_has_room_for_it():
    """Its lots may be all the host memory that there is: it and the waiter would wait for each other."""
    half = in_part("half", 8, 2)
    half = replace(half, host=replace(half.host, lot_bytes=10 * GIB))
    (park,) = parks(decide(NOW, node(half, waiter(), host=free_host(0)), NEEDED))
    assert (park.kernel_id, park.exchanges, park.lot_bytes) == ("half", False, 0)


@pytest.mark.parametrize("what", ["a park that lacked host memory", "a figure from before the last move"])
def test_a_rest_is_parked_for_a_waiter_only_after(what):
    half, seen = in_part("half", 8, 2), node(host=free_host(9 * GIB))
    if what.startswith("a park"):
        half = replace(half, host=replace(half.host, retry_at=NOW + 1))
    else:
        seen = replace(seen, gpus={A: replace(seen.gpus[A], is_outdated=True)})
    assert parks(decide(NOW, replace(seen, kernels=(half, waiter())), NEEDED)) == []


def test_the_first_in_the_queue_is_not_parked_for_those_behind_it():
    two = in_part("first", 8, 8, waits=9), waiter("second", waits=5)
    assert parks(decide(NOW, node(*two, host=free_host(20 * GIB)), NEEDED)) == []


def test_its_rest_stays_where_none_waits_for_it():
    assert decide(NOW, node(in_part("half", 8, 8), host=free_host(9 * GIB)), NEEDED) == []


def test_room_for_the_rest_brings_it_back_first():
    found = decide(NOW, node(in_part("half", 4, 2), waiter(), free=2 * GIB, host=free_host(GIB)), NEEDED)
    assert [each.kernel_id for each in found if isinstance(each, Resume)] == ["half"]


def test_the_room_that_a_rest_leaves_is_counted_on():
    """It is told to go in the same moment as the waiter is told to come."""
    goes = in_part("second", 8, 8, waits=5, is_moving=True, moves_since=NOW)
    comes = in_part("first", 8, 8, waits=9)
    assert room_to_begin(NOW, node(goes, comes), NEEDED, "first", hands_over=True) == {A: 8 * GIB}
