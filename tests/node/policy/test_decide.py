"""What the policy decides, one statement a test."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snapshots import IDLE, NEEDED, NOW, A, B, asks, node, parked, parks, resident

from jupyter_affinode.node.model.actions import DenyRoom, GrantRoom, Park, RefusePark, Resume
from jupyter_affinode.node.model.reasons import Cause
from jupyter_affinode.node.model.snapshot import Gpu, Host, HostUse, Reservation, Residency, RoomRequest
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.queue import waiters
from jupyter_affinode.node.policy.victims.eligibility import eligible_at
from jupyter_affinode.settings.policy import GIB, MIB

# ---- eligibility


@pytest.mark.parametrize(
    "change",
    [
        {"last_activity": NOW - 299},
        {"calls_in_flight": 1},
        {"captures": 1},
        {"cell_open": True, "last_activity": NOW - 599},
        {"held_until": NOW + 1},
        {"is_parkable": False},
        {"is_dying": True},
        {"is_moving": True},
        {"retry_at": NOW + 1},
        {"resident_bytes": {A: 0}, "unmovable_bytes": {A: GIB}},
        {"residency": Residency.PARKING},
        {"residency": Residency.NONE},
        {"residency": Residency.LOST},
        {"rooms": (RoomRequest((1, 1), A, 1, NOW),)},
    ],
)
def test_a_kernel_that_is_not_eligible_is_never_parked_by_policy(change):
    kernel = replace(resident("k"), **change)
    assert decide(NOW, node(kernel), IDLE) == []
    moment = eligible_at(kernel, IDLE, waits_since=None)
    assert moment is None or moment > NOW


def test_an_idle_kernel_is_eligible_and_so_is_one_whose_cell_has_not_used_the_gpu_for_long():
    assert eligible_at(resident("k"), NEEDED, waits_since=None) == NOW - 1000 + 300
    assert eligible_at(resident("k", cell_open=True), NEEDED, waits_since=None) == NOW - 1000 + 600
    assert eligible_at(resident("k", cell_open=True), NEEDED, waits_since=NOW) == NOW - 1000 + 60


def test_a_hold_ends():
    held = resident("k", held_until=NOW - 1)
    assert parks(decide(NOW, node(held), IDLE)) == ["k"]


# ---- parks that never end


@pytest.mark.parametrize(("since", "found"), [(5, []), (1000, ["honest"])])
def test_a_park_that_never_ends_is_not_waited_for_by_all(since, found):
    asker = asks(resident("asker", GIB, idle=0), 6 * GIB, waits=1)
    endless = resident("endless", 8 * GIB, is_moving=True, moves_since=NOW - since)
    for going in (endless, replace(endless, residency=Residency.PARKING)):
        assert parks(decide(NOW, node(asker, going, resident("honest", 8 * GIB)), NEEDED)) == found


# ---- when


def test_by_default_no_kernel_is_parked_without_a_waiter():
    assert decide(NOW, node(resident("k"), free=8 * GIB), NEEDED) == []


def test_with_idle_every_eligible_kernel_is_parked_and_the_reason_says_since_when():
    actions = decide(NOW, node(resident("k", idle=360), resident("busy", idle=1)), IDLE)
    assert actions == [Park("k", "idle 6 min", 63 * GIB)]


def test_under_the_low_watermark_kernels_are_parked_up_to_the_high_one():
    kernels = [resident("old", 2 * GIB, idle=5000), resident("new", 2 * GIB, idle=400)]
    low = Gpu(A, 512 * MIB, 16 * GIB, NOW, is_reclaiming=True)
    assert parks(decide(NOW, node(*kernels, gpus={A: low}), NEEDED)) == ["old"]
    assert decide(NOW, node(*kernels, gpus={A: replace(low, is_reclaiming=False)}), NEEDED) == []


def test_before_the_node_has_settled_nothing_is_decided():
    assert decide(NOW, node(parked("k", waits=5), resident("idle"), is_settled=False), IDLE) == []


# ---- resumes


def test_a_call_in_a_parked_kernel_resumes_it_when_there_is_room():
    (action,) = decide(NOW, node(parked("k", waits=0.5), free=5 * GIB), NEEDED)
    assert action == Resume("k", {A: 4 * GIB}, "it waited 0.5 s")


def test_a_parked_kernel_without_a_call_stays_parked():
    assert decide(NOW, node(parked("k"), free=16 * GIB), NEEDED) == []


def test_room_that_is_reserved_is_not_given_twice():
    reserved = (Reservation("other", A, 2 * GIB),)
    assert decide(NOW, node(parked("k", waits=1), free=5 * GIB, reservations=reserved), NEEDED) == []


def test_two_kernels_that_fit_only_one_at_a_time_resume_in_order():
    actions = decide(NOW, node(parked("late", waits=1), parked("early", waits=2), free=6 * GIB), NEEDED)
    assert [type(action) for action in actions] == [Resume]
    assert actions[0].kernel_id == "early"


def test_the_head_of_a_gpus_queue_is_not_overtaken_and_each_gpu_has_its_own():
    big, small = parked("big", 8 * GIB, waits=9), parked("small", 1 * GIB, waits=1)
    busy = resident("busy", 14 * GIB, idle=0)
    elsewhere = parked("elsewhere", 1 * GIB, waits=1, gpu=B)
    actions = decide(NOW, node(big, small, busy, elsewhere, free=2 * GIB), NEEDED)
    assert [action.kernel_id for action in actions] == ["elsewhere"]


def test_the_last_bytes_are_given_when_no_victim_is_left():
    """The margin is a courtesy, not a wall: without a victim the kernel must still resume."""
    assert len(decide(NOW, node(parked("k", 16 * GIB, waits=1), free=16 * GIB), NEEDED)) == 1


def test_a_kernel_whose_resume_just_failed_does_not_hold_up_the_others():
    failed, other = parked("failed", waits=9, resume_retry_at=NOW + 5), parked("other", waits=1)
    assert [a.kernel_id for a in decide(NOW, node(failed, other, free=5 * GIB), NEEDED)] == ["other"]


def test_a_kernel_that_cannot_fit_beside_what_is_not_ours_does_not_hold_up_the_others():
    huge, other = parked("huge", 15 * GIB, waits=9), parked("other", 1 * GIB, waits=1)
    assert [a.kernel_id for a in decide(NOW, node(huge, other, free=2 * GIB), NEEDED)] == ["other"]


# ---- victims


def test_for_a_waiter_just_enough_idle_kernels_yield_the_longest_idle_first():
    idle = [resident(f"idle-{n}", 4 * GIB, idle=1000 * n) for n in (1, 2, 3)]
    actions = decide(NOW, node(parked("k", 4 * GIB, waits=1), *idle, free=0), NEEDED)
    assert parks(actions) == ["idle-3", "idle-2"]  # the second for the margin


def test_a_victim_that_turns_out_to_be_needless_is_not_parked():
    kernels = [resident("small", 1 * GIB, idle=9000), resident("large", 8 * GIB, idle=1000)]
    actions = decide(NOW, node(parked("k", 7 * GIB, waits=1), *kernels, free=0), NEEDED)
    assert parks(actions) == ["large"]


def test_a_park_under_way_is_waited_for():
    leaving = resident("leaving", 8 * GIB, is_moving=True)
    assert decide(NOW, node(parked("k", waits=1), leaving, resident("idle"), free=0), NEEDED) == []


def test_an_open_cell_becomes_eligible_after_a_minute_while_a_kernel_waits():
    cell = resident("cell", 15 * GIB, idle=61, cell_open=True)
    assert parks(decide(NOW, node(parked("k", waits=1), cell), NEEDED)) == ["cell"]
    assert decide(NOW, node(cell), IDLE) == []


def test_two_half_resident_allocators_do_not_deadlock():
    """Each holds half and wants the other half: the one that came later yields to the first."""
    first = asks(resident("first", 8 * GIB, idle=1), 4 * GIB, waits=2)
    second = asks(resident("second", 8 * GIB, idle=1), 4 * GIB, waits=1)
    actions = decide(NOW, node(first, second), NEEDED)
    assert parks(actions) == ["second"]


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


def test_a_kernel_parked_in_the_middle_of_an_allocation_waits_for_both():
    kernel = asks(parked("k", 4 * GIB), 6 * GIB, waits=3)
    (waiter,) = waiters(node(kernel), NEEDED)
    assert waiter.needs == {A: 10 * GIB}
    assert decide(NOW, node(kernel, resident("busy", 7 * GIB, idle=0), free=9 * GIB), NEEDED) == []
    (action,) = decide(NOW, node(kernel, free=11 * GIB), NEEDED)
    assert action == Resume("k", {A: 4 * GIB}, "it waited 3 s")


# ---- allocations


def test_an_allocation_is_granted_when_there_is_room():
    kernel = asks(resident("k", idle=0), 2 * GIB, waits=0.1)
    assert [type(a) for a in decide(NOW, node(kernel, free=3 * GIB), NEEDED)] == [GrantRoom]


def test_an_allocation_that_meets_a_full_gpu_makes_idle_kernels_yield():
    kernel = asks(resident("k", idle=0), 2 * GIB, waits=0.1)
    assert parks(decide(NOW, node(kernel, resident("idle"), free=0), NEEDED)) == ["idle"]


def test_its_own_memory_does_not_yield_for_its_own_allocation():
    kernel = asks(resident("k", 12 * GIB, idle=9000), 2 * GIB, waits=0.1)
    assert decide(NOW, node(kernel, free=0), IDLE) == []


def test_an_allocation_that_can_never_fit_is_denied_so_that_the_program_sees_its_out_of_memory():
    kernel = asks(resident("k", 12 * GIB, idle=0), 8 * GIB, waits=1)
    (action,) = decide(NOW, node(kernel, resident("idle", 2 * GIB), free=2 * GIB), NEEDED)
    assert isinstance(action, DenyRoom)
    assert "8 GiB" in action.reason


def test_no_kernel_is_parked_for_an_allocation_that_can_never_fit():
    kernel = asks(resident("k", 12 * GIB, idle=0), 8 * GIB, waits=0.1)
    assert decide(NOW, node(kernel, resident("idle", 2 * GIB), free=2 * GIB), NEEDED) == []


def test_an_allocation_is_not_denied_on_figures_that_may_mix_before_and_after():
    """A park just ended: its page says 0 and NVML's figure may still be from before."""
    kernel = asks(resident("k", 4 * GIB, idle=0), 8 * GIB, waits=5)
    stale = {A: Gpu(A, 1 * GIB, 16 * GIB, sampled_at=NOW - 0.3, uncertain_bytes=7 * GIB)}
    assert decide(NOW, node(kernel, parked("gone"), gpus=stale), NEEDED) == []


def test_an_allocation_waits_for_busy_kernels_that_may_yield_later():
    kernel = asks(resident("k", 4 * GIB, idle=0), 8 * GIB, waits=60)
    assert decide(NOW, node(kernel, resident("busy", 12 * GIB, idle=0), free=0), NEEDED) == []


def test_an_allocation_that_keeps_failing_with_room_evicts_no_kernel_for_a_while_and_is_denied_in_the_end():
    kernel = asks(resident("k", idle=0, reclaim_after=NOW + 1), 4 * GIB, waits=1)
    assert decide(NOW, node(kernel, resident("idle", 8 * GIB), free=0), NEEDED) == []
    allocations_fail = replace(kernel, allocations_fail=True)
    assert [type(a) for a in decide(NOW, node(allocations_fail, free=8 * GIB), NEEDED)] == [DenyRoom]


def test_calls_and_allocations_wait_in_one_queue():
    call, allocation = parked("call", waits=2), asks(resident("alloc", idle=0), 4 * GIB, waits=1)
    (action,) = decide(NOW, node(call, allocation, free=5 * GIB), NEEDED)
    assert isinstance(action, Resume)
    allocation = asks(resident("alloc", idle=0), 4 * GIB, waits=3)
    (action,) = decide(NOW, node(call, allocation, free=5 * GIB), NEEDED)
    assert isinstance(action, GrantRoom)


# ---- users and host memory


def test_what_the_person_asks_for_is_parked_open_cell_held_or_small():
    kernel = resident("k", 1 * MIB, idle=0, cell_open=True, held_until=NOW + 99, park_requested="asked")
    assert decide(NOW, node(kernel), NEEDED) == [Park("k", "asked", 63 * GIB)]


def test_a_kernel_that_cannot_move_is_refused_with_a_reason():
    (action,) = decide(NOW, node(resident("k", is_parkable=False, park_requested="asked")), NEEDED)
    assert isinstance(action, RefusePark)


TAKES_ALL = HostUse(park_takes_bytes=4 * GIB)  # as its last park showed


def test_without_host_memory_no_kernel_is_parked_and_the_reason_says_how_much_is_missing():
    (action,) = decide(NOW, node(resident("k", 4 * GIB, host=TAKES_ALL), host=Host(4 * GIB)), IDLE)
    assert isinstance(action, RefusePark)
    assert (action.slug, "4 GiB" in action.reason, "3 GiB" in action.reason) == ("no-host-memory", True, True)


def test_host_memory_is_not_spent_twice_in_one_pass():
    both = resident("a", 4 * GIB, host=TAKES_ALL), resident("b", 4 * GIB, host=TAKES_ALL)
    assert [action.kernel_id for action in decide(NOW, node(*both, host=Host(7 * GIB)), IDLE)] == ["a"]
    parking = replace(both[0], residency=Residency.PARKING, is_moving=True)
    assert decide(NOW, node(parking, both[1], host=Host(7 * GIB)), IDLE) == []  # it may be given back
    (refused,) = decide(NOW, node(both[1], host=Host(3 * GIB)), IDLE)
    assert isinstance(refused, RefusePark)


def test_a_kernels_own_limit_counts_too_and_is_shared_by_its_neighbours():
    kernels = [resident(name, 4 * GIB, cgroups=("/user",), host=TAKES_ALL) for name in "ab"]
    host = Host(64 * GIB, {"/user": 6 * GIB})
    assert [action.kernel_id for action in decide(NOW, node(*kernels, host=host), IDLE)] == ["a"]
    (refused,) = decide(NOW, node(kernels[1], host=Host(64 * GIB, {"/user": 2 * GIB})), IDLE)
    assert isinstance(refused, RefusePark) and "cgroup" in refused.reason


def test_dying_kernels_have_no_place():
    assert decide(NOW, node(parked("k", waits=1, is_dying=True), free=16 * GIB), NEEDED) == []


# ---- kernels of several processes or GPUs


def on_both(kernel, size):
    """The same memory on the second GPU too."""
    field = "resident_bytes" if kernel.residency is Residency.RESIDENT else "parked_bytes"
    return replace(kernel, **{field: {A: size, B: size}})


def test_a_kernel_on_two_gpus_resumes_when_there_is_room_on_both_and_not_before():
    both = on_both(parked("k", waits=5.0), 4 * GIB)
    crowd = resident("crowd", 12 * GIB, idle=0.0)
    assert decide(NOW, node(both, crowd, free=3 * GIB), NEEDED) == []
    (action,) = decide(NOW, node(both, crowd, free=5 * GIB), NEEDED)
    assert action.reserved_bytes == {A: 4 * GIB, B: 4 * GIB}


def test_a_waiter_for_two_gpus_is_not_overtaken_on_either():
    both = on_both(parked("first", waits=5.0), 4 * GIB)
    second = parked("second", 1 * GIB, waits=1.0, gpu=B)
    crowd = resident("crowd", 12 * GIB, idle=0.0)
    assert decide(NOW, node(both, second, crowd, free=1 * GIB), NEEDED) == []


def split(name, **fields):
    """A kernel with one process on the GPU and one that is parked and asks for nothing."""
    kernel = resident(name, 4 * GIB, idle=0.0, is_split=True, **fields)
    return replace(kernel, parked_bytes={A: 2 * GIB})


def test_the_parked_part_of_a_kernel_comes_back_where_there_is_room():
    (action,) = decide(NOW, node(split("k"), free=3 * GIB), NEEDED)
    assert isinstance(action, Resume)
    assert action.reserved_bytes == {A: 2 * GIB}


@pytest.mark.parametrize("change", [{"is_moving": True}, {"is_dying": True}, {"resume_retry_at": NOW + 1}])
def test_the_parked_part_of_a_kernel_is_left_alone_while(change):
    assert decide(NOW, node(split("k", **change), free=3 * GIB), NEEDED) == []


def test_the_parked_part_of_a_split_kernel_evicts_and_delays_no_other():
    idle = resident("idle")
    assert decide(NOW, node(split("k"), idle, free=1 * GIB), NEEDED) == []
    waiter = parked("waiter", 9 * GIB, waits=1.0)
    busy = resident("busy", 8 * GIB, idle=0.0)
    assert decide(NOW, node(split("k"), busy, waiter, free=3 * GIB), NEEDED) == []


def test_a_split_kernel_that_is_idle_is_parked_whole_rather_than_brought_back():
    kernel = replace(split("k"), last_activity=NOW - 1000)
    assert parks(decide(NOW, node(kernel, free=3 * GIB), IDLE)) == ["k"]


def test_grants_and_resumes_say_their_cause():
    kernel = asks(resident("k", idle=0), 2 * GIB, waits=0.1)
    (action,) = decide(NOW, node(kernel, free=3 * GIB), NEEDED)
    assert isinstance(action, GrantRoom)
    (action,) = decide(NOW, node(parked("k", waits=0.5), free=5 * GIB), NEEDED)
    assert action.cause is Cause.CELL
    (action,) = decide(NOW, node(parked("k", waits=0.5), resident("idle", 9 * GIB), free=0), NEEDED)
    assert (action.cause, action.for_kernel) == (Cause.ROOM, "k")
