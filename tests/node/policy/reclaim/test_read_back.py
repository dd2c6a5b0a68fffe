"""A waiter on a full disk is read back into host memory, so that it can change places by handing that over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snapshots import NEEDED, NOW, node, parked, resident

from jupyter_affinode.node.model.actions import Park, ReadBack, RefusePark, Spill
from jupyter_affinode.node.model.snapshot import SLACK_BYTES, Host, HostUse
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.resources.host_memory import begins_with
from jupyter_affinode.node.policy.scheduling_pass.plan import READ_AT_ONCE_BYTES
from jupyter_affinode.settings.policy import GIB, MIB

RESERVE = GIB  # with its margin, in these settings
SIZE = 8 * GIB
LACKS = SIZE - begins_with(SIZE)  # that much of the waiter must be in host memory


def waiter(on_disk=SIZE, **use):
    use = {"disk_bytes": on_disk, "readable_bytes": on_disk, "copy_bytes": SIZE - on_disk, **use}
    parts = {"may_resume_in_parts": True, "may_hand_over": True}
    return parked("waiter", SIZE, waits=5, host=HostUse(**use), **parts)


def victim(**fields):
    use = HostUse(park_takes_bytes=SIZE)
    parts = {"may_hand_over": True}
    return resident("victim", SIZE, **{**parts, "host": use, **fields})


def sleeper(size=SIZE, **use):
    use = {"copy_bytes": size, "spillable_bytes": size, **use}
    return parked("sleeper", SIZE, host=HostUse(**use))


def host(free, *, disk_free=0, daily=1 << 40, limit=SIZE):
    """So much beyond the reserve."""
    return Host(
        RESERVE + free,
        total_bytes=64 * GIB,
        disk_limit_bytes=limit,
        disk_free_bytes=disk_free,
        disk_daily_bytes=daily,
    )


def told(actions):
    assert all(isinstance(each, ReadBack | Spill) for each in actions), actions
    return [(type(each), each.kernel_id, each.bytes) for each in actions]


def refused(actions):
    return [type(each) for each in actions] == [RefusePark]


def test_as_much_of_it_as_is_free_is_read_and_then_another_kernel_goes_to_disk():
    kernels = waiter(), victim(), sleeper()
    assert told(decide(NOW, node(*kernels, host=host(GIB)), NEEDED)) == [(ReadBack, "waiter", GIB)]
    kernels = waiter(SIZE - GIB), victim(), sleeper()
    found = decide(NOW, node(*kernels, host=host(0, disk_free=GIB)), NEEDED)
    assert told(found) == [(Spill, "sleeper", GIB)]


def test_no_more_is_read_than_the_exchange_lacks():
    kernels = waiter(), victim(), sleeper()
    least = SIZE - LACKS + GIB
    found = decide(NOW, node(waiter(least), victim(), sleeper(), host=host(GIB + 100 * MIB)), NEEDED)
    assert told(found) == [(ReadBack, "waiter", GIB)]
    kernels = waiter(SIZE - LACKS), victim(), sleeper()
    found = decide(NOW, node(*kernels, host=host(0, disk_free=LACKS)), NEEDED)
    assert told(found) == [(Spill, "sleeper", begins_with(SIZE) + SLACK_BYTES)]
    (park,) = decide(NOW, node(*kernels, host=host(begins_with(SIZE), disk_free=GIB)), NEEDED)
    assert isinstance(park, Park) and park.hands_over


def test_while_either_goes_on_nothing_else_is_decided():
    kernels = waiter(SIZE - GIB), victim(), replace(sleeper(spilling_bytes=GIB), is_moving=True)
    assert decide(NOW, node(*kernels, host=host(0)), NEEDED) == []
    reads = replace(waiter(reading_bytes=GIB), is_moving=True)
    assert decide(NOW, node(reads, victim(), sleeper(), host=host(GIB)), NEEDED) == []


def test_what_is_being_read_is_not_given_to_a_park():
    reads = replace(waiter(reading_bytes=2 * GIB), is_moving=True)
    asked = replace(victim(), park_requested="asked")
    (park,) = decide(NOW, node(reads, asked, host=host(SIZE + 3 * GIB)), NEEDED)
    assert isinstance(park, Park) and park.budget_bytes == SIZE + GIB


@pytest.mark.parametrize("makes_lots, size", [(True, GIB + 96 * MIB), (False, 0)])
def test_it_is_read_into_lots_on_one_users_controller(makes_lots, size):
    kernels = waiter(), victim(), sleeper()
    lots = replace(host(100 * MIB), lot_bytes=GIB, makes_lots=makes_lots)
    found = decide(NOW, node(*kernels, host=lots), NEEDED)
    if makes_lots:
        assert told(found) == [(ReadBack, "waiter", size)] and found[0].lot_bytes == GIB
    else:
        assert refused(found)


def test_a_part_at_a_time_is_read_since_others_may_be_served_meanwhile():
    kernels = waiter(), victim(), sleeper()
    found = decide(NOW, node(*kernels, host=host(6 * GIB)), NEEDED)
    assert told(found) == [(ReadBack, "waiter", READ_AT_ONCE_BYTES)]


@pytest.mark.parametrize("kernels", ["waiter and victim", "victim"])
def test_a_waiter_in_a_full_cgroup_or_with_a_victim_there_keeps_no_other_back(kernels):
    """Its memory counts there, and what is free on the machine does not help."""
    first, on_gpu = waiter(), victim()
    if kernels == "waiter and victim":
        first = replace(first, cgroups=("/alice",))
    on_gpu = replace(on_gpu, cgroups=("/alice",))
    room = host(20 * GIB)
    room = replace(room, headroom_bytes={"/alice": 100 * MIB}, limit_bytes={"/alice": 4 * GIB})
    small = resident("small", 2 * GIB, host=HostUse(park_takes_bytes=2 * GIB))
    behind = parked("behind", GIB, waits=4, host=HostUse(copy_bytes=GIB))
    found = decide(NOW, node(first, on_gpu, small, behind, sleeper(), host=room), NEEDED)
    assert "waiter" not in {each.kernel_id for each in found}
    assert [each.for_kernel for each in found if isinstance(each, Park)] == ["behind"]


def test_a_little_is_not_read():
    kernels = waiter(), victim(), sleeper()
    found = decide(NOW, node(*kernels, host=host(begins_with(SIZE), disk_free=0)), NEEDED)
    assert told(found) == [(ReadBack, "waiter", begins_with(SIZE))]
    kernels = waiter(SIZE - LACKS + 64 * MIB), victim(), sleeper()
    found = decide(NOW, node(*kernels, host=host(begins_with(SIZE))), NEEDED)
    assert told(found) == [(ReadBack, "waiter", 64 * MIB)]  # all that it lacks


@pytest.mark.parametrize(
    "others, machine",
    [
        ([waiter(readable_bytes=0), victim(), sleeper()], host(GIB)),
        ([waiter(), replace(victim(), may_hand_over=False), sleeper()], host(GIB)),
        ([waiter(), victim(), sleeper(2 * GIB)], host(GIB)),
        ([waiter(), victim()], host(GIB)),
        ([waiter(), victim(), sleeper()], host(GIB, daily=GIB)),
        ([waiter(), victim(), sleeper()], host(100 * MIB)),
    ],
    ids=[
        "not on disk",
        "no hand-over",
        "others have too little",
        "nothing",
        "the day's bytes",
        "too little free",
    ],
)
def test_where_that_would_not_do_nothing_is_read(others, machine):
    assert refused(decide(NOW, node(*others, host=machine), NEEDED))


def test_where_the_disk_has_room_the_victim_goes_to_host_memory_as_ever():
    kernels = waiter(), victim(), sleeper()
    found = decide(NOW, node(*kernels, host=host(GIB, disk_free=1 << 40, limit=1 << 40)), NEEDED)
    assert told(found) == [(Spill, "sleeper", SIZE - GIB + SLACK_BYTES)]
