"""Parked memory goes to disk when host memory is short: which, how much, and that no park is refused meanwhile."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace

import pytest
import snapshots
from disk_host import GPU as DISK_GPU
from disk_host import DiskHost
from drawn import examples
from scenes import START, SameMoves
from short_host import PARK_S, RESUME_S, sharer, thinking
from snapshots import IDLE, NOW, A

from jupyter_affinode.node.model.actions import GrantRoom, Hibernate, Park, RefusePark, Spill, Trim
from jupyter_affinode.node.model.snapshot import (
    SLAB_BYTES,
    SLACK_BYTES,
    Host,
    HostUse,
    Kernel,
    Residency,
    RoomRequest,
)
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.resources.disk import LEAST_AWAKE_S, DiskRoom
from jupyter_affinode.node.policy.resources.host_memory import (
    LEAST_BYTES,
    with_margin,
)
from jupyter_affinode.settings.policy import GIB

RESERVE = IDLE.host_reserve_bytes
WHY = "room to free another kernel"
HISTORIES = int(os.environ.get("AFFINODE_HISTORIES", examples(15)))


def resident(name, size, **use):
    fields = {"park_takes_bytes": size, **use}
    return snapshots.resident(name, size, host=HostUse(**fields))


def parked(name, size, *, idle, on_disk=0, spilling=0, **fields):
    use = HostUse(spillable_bytes=size - on_disk, spilling_bytes=spilling, disk_bytes=on_disk)
    kernel = snapshots.parked(name, size, host=use, is_moving=spilling > 0, **fields)
    return replace(kernel, last_activity=NOW - idle)


def node(*kernels, available, limit=100 * GIB, writable=100 * GIB):
    host = Host(
        available,
        total_bytes=64 * GIB,
        disk_limit_bytes=limit,
        disk_free_bytes=writable,
        disk_daily_bytes=writable,
    )
    return snapshots.node(*kernels, free=80 * GIB, total=80 * GIB, host=host)


def test_the_least_recently_used_goes_to_disk_as_far_as_a_park_lacks_memory():
    kernels = resident("k", 4 * GIB), parked("new", 8 * GIB, idle=100), parked("old", 8 * GIB, idle=900)
    actions = decide(NOW, node(*kernels, available=3 * GIB), IDLE)
    assert actions == [Spill("old", 2 * GIB + SLACK_BYTES, WHY)]


def test_what_lies_in_lots_is_spilled_by_a_lot_more():
    """The last one is given back only when it is empty."""
    old = parked("old", 8 * GIB, idle=900)
    kernels = resident("k", 4 * GIB), replace(old, host=replace(old.host, lot_bytes=8 * GIB))
    actions = decide(NOW, node(*kernels, available=3 * GIB), IDLE)
    assert actions == [Spill("old", 2 * GIB + LEAST_BYTES, WHY)]


def test_nothing_is_spilled_for_a_margin():
    use = HostUse(retained_bytes=2 * GIB, trimmable_bytes=2 * GIB)
    keeper = snapshots.resident("keeper", 8 * GIB, idle=1, host=use)
    kernels = resident("k", 4 * GIB), keeper, parked("old", 8 * GIB, idle=900)
    assert decide(NOW, node(*kernels, available=3 * GIB), IDLE) == [Trim("keeper", 0, WHY)]


def constant(size):
    return lambda _: size


def test_what_another_user_wrote_leaves_each_user_an_equal_part_of_the_day():
    users = [
        replace(resident("k", 4 * GIB), charged_user="a"),
        parked("old", 8 * GIB, idle=900, charged_user="a"),
    ]
    users += [parked("liar", 0, idle=900, charged_user="b")]
    host = replace(node(*users, available=3 * GIB).host, disk_daily_bytes=8 * GIB)
    for written, most in (
        ({}, 8),
        ({"b": 5 * GIB}, 4),
        ({"b": 99 * GIB}, 4),
        ({"a": 3 * GIB, "b": 99 * GIB}, 1),
    ):
        then = replace(node(*users, available=3 * GIB), host=replace(host, disk_written_bytes=written))
        room = DiskRoom(then.kernels, then.host)
        assert room.left_for(users[1]) == most * GIB
        assert room.takes(then.kernels, NOW, lambda _: True) == {"old": most * GIB}
        assert [
            room.has_room_for([users[1]], size, NOW) for size in map(constant, (most * GIB, most * GIB + 1))
        ] == [True, False]


def test_while_it_is_written_the_park_waits_and_is_not_refused():
    kernels = resident("k", 4 * GIB), parked("old", 8 * GIB, idle=900, spilling=3 * GIB)
    assert decide(NOW, node(*kernels, available=3 * GIB), IDLE) == []


@pytest.mark.parametrize("asked", [None, "asked"])
def test_after_a_write_that_was_called_off_the_park_waits_for_the_next_one(asked):
    """A user's request waits, too: it is refused only for what no move under way will bring."""
    k = replace(resident("k", 4 * GIB), park_requested=asked)
    old = replace(parked("old", 8 * GIB, idle=900), is_moving=True)  # it has not answered yet
    assert decide(NOW, node(k, old, available=3 * GIB), IDLE) == []


def test_a_park_waits_for_a_resume_rather_than_for_the_disk():
    comes = Kernel("comes", Residency.RESUMING, {}, {A: 8 * GIB}, is_moving=True, moves_since=NOW - 1)
    kernels = resident("k", 4 * GIB), comes, parked("old", 8 * GIB, idle=900)
    assert decide(NOW, node(*kernels, available=3 * GIB), IDLE) == []


def test_a_park_waits_for_what_a_kernel_keeps_that_is_served_in_this_pass():
    asks = RoomRequest((1, 1), A, GIB, NOW - 1)
    keeper = resident("keeper", 8 * GIB, retained_bytes=8 * GIB, trimmable_bytes=8 * GIB)
    keeper = replace(keeper, last_activity=NOW, rooms=(asks,))
    actions = decide(NOW, node(resident("k", 4 * GIB), keeper, available=3 * GIB, limit=0), IDLE)
    assert [type(action) for action in actions] == [GrantRoom]


def test_what_is_less_than_a_slab_goes_to_disk_where_it_is_all_that_a_kernel_has():
    little = 20 << 20
    kernels = resident("k", 4 * GIB), parked("a", little, idle=900), parked("b", little, idle=800)
    actions = decide(NOW, node(*kernels, available=5 * GIB - 2 * little), IDLE)
    assert actions == [Spill("a", little, WHY), Spill("b", little, WHY)]


def test_a_park_is_begun_only_where_the_slabs_that_its_shim_takes_fit():
    kernels = resident("k", 4 * GIB - SLAB_BYTES + 1), parked("old", 8 * GIB, idle=900)
    (action,) = decide(NOW, node(*kernels, available=5 * GIB - 1), IDLE)
    assert isinstance(action, Spill)
    (action,) = decide(NOW, node(*kernels, available=5 * GIB), IDLE)
    assert isinstance(action, Park)


def test_what_is_only_kept_goes_before_anything_is_written():
    keeper = resident("keeper", 8 * GIB, retained_bytes=8 * GIB, trimmable_bytes=8 * GIB)
    keeper = replace(keeper, last_activity=NOW)
    kernels = resident("k", 4 * GIB), keeper, parked("old", 8 * GIB, idle=900)
    actions = decide(NOW, node(*kernels, available=3 * GIB), IDLE)
    assert [type(action) for action in actions] == [Trim]


def test_without_a_disk_with_it_full_and_with_the_days_bytes_written_the_park_is_refused_as_ever():
    kernels = resident("k", 4 * GIB), parked("old", 8 * GIB, idle=900)
    for disk in ({"limit": 0}, {"limit": 0, "writable": 0}, {"writable": 0}, {"limit": 1 * GIB}):
        (action,) = decide(NOW, node(*kernels, available=3 * GIB, **disk), IDLE)
        assert isinstance(action, RefusePark), disk


def test_a_refusal_says_what_is_needed_and_free_with_lots_and_what_may_go_to_disk():
    """With a lot of 1 GiB a park was told to need only 3 GiB, and beside what counts the lot as free."""
    kernels = resident("k", 4 * GIB), parked("old", 8 * GIB, idle=900)
    machine = node(*kernels, available=0, limit=1 * GIB)
    available = with_margin(IDLE.host_reserve(machine.host.total_bytes)) + GIB
    machine = replace(machine, host=replace(machine.host, available_bytes=available, lot_bytes=GIB))
    (action,) = decide(NOW, machine, IDLE)
    assert isinstance(action, RefusePark)
    assert action.figures == {"bytes": 4 * GIB, "free_bytes": 2 * GIB}
    assert action.reason.startswith(
        "freeing it needs 4 GiB of host memory and 2 GiB are free beyond the reserve of "
    )
    assert action.reason.endswith("; 1 GiB more may go to disk")


def test_with_memory_enough_nothing_is_written():
    kernels = resident("k", 4 * GIB), parked("old", 8 * GIB, idle=900)
    (action,) = decide(NOW, node(*kernels, available=8 * GIB), IDLE)
    assert isinstance(action, Park)


def test_under_the_reserve_parked_memory_goes_to_disk():
    low = node(parked("old", 8 * GIB, idle=900), available=RESERVE - 2 * GIB + GIB)
    assert decide(NOW, low, IDLE) == [Spill("old", 1 * GIB + SLACK_BYTES, "host memory is short")]


def test_a_user_has_no_more_of_the_disk_than_an_equal_part():
    full = parked("full", 8 * GIB, idle=900, on_disk=4 * GIB, charged_user="a")
    other = parked("other", 8 * GIB, idle=100, charged_user="b")
    actions = decide(NOW, node(resident("k", 4 * GIB), full, other, available=3 * GIB, limit=12 * GIB), IDLE)
    assert actions == [Spill("other", 2 * GIB + SLACK_BYTES, WHY)]


def test_a_user_whose_pages_claim_the_whole_disk_keeps_no_other_from_their_part():
    liar = parked("liar", 1 << 49, idle=900, on_disk=1 << 48, charged_user="a")
    other = parked("other", 8 * GIB, idle=100, charged_user="b")
    actions = decide(NOW, node(resident("k", 4 * GIB), liar, other, available=3 * GIB, limit=12 * GIB), IDLE)
    assert actions == [Spill("other", 2 * GIB + SLACK_BYTES, WHY)]


def test_a_waiter_goes_to_disk_only_when_no_other_kernel_can():
    waiter = replace(parked("waiter", 8 * GIB, idle=900), residency=Residency.QUEUED, wants_since=NOW - 9)
    waiter = replace(waiter, parked_bytes={A: 90 * GIB})  # has no room, whatever is parked
    k = replace(resident("k", 4 * GIB), park_requested="asked")
    actions = decide(NOW, node(k, waiter, parked("old", 8 * GIB, idle=10), available=3 * GIB), IDLE)
    assert [action.kernel_id for action in actions] == ["old"]
    assert [action.kernel_id for action in decide(NOW, node(k, waiter, available=3 * GIB), IDLE)] == [
        "waiter"
    ]


def test_what_resident_kernels_keep_on_disk_is_forgotten_when_that_is_nearly_full():
    keeper = replace(
        resident("k", 8 * GIB, disk_bytes=8 * GIB, disk_retained_bytes=8 * GIB), last_activity=NOW
    )
    assert decide(NOW, node(keeper, available=60 * GIB, limit=20 * GIB), IDLE) == []
    (action,) = decide(NOW, node(keeper, available=60 * GIB, limit=10 * GIB), IDLE)
    assert (action.kernel_id, action.bytes) == ("k", 0)


def random_machine(seed, disk=1000, *, hibernate=False):
    """Host memory for the largest kernel alone, whatever else is parked; the rest is on disk, or hibernated."""
    draw = random.Random(seed)
    sizes = [draw.randint(1, 30) for _ in range(draw.randint(2, 7))]
    sharers = [
        sharer(f"k{number}", size, DISK_GPU, residency=Residency.PARKED) for number, size in enumerate(sizes)
    ]
    gpu = draw.randint(max(sizes), 60)
    machine = DiskHost(gpu, max(sizes) + 3, disk, sharers, hibernate=hibernate)
    residents = []
    for each in machine.kernels:
        if each.held + sum(other.held for other in residents) <= gpu * GIB and draw.random() < 0.8:
            residents.append(each)
    machine.begin_somewhere(draw, residents)
    for each in machine.kernels:
        if each not in residents and draw.random() < 0.7:
            each.residency, each.wants_since = Residency.QUEUED, machine.now - draw.uniform(1, 60)
    return machine


def test_no_park_is_refused_while_the_disk_has_room_and_every_waiter_is_served():
    first = random.randrange(1 << 32)
    for seed in range(first, first + 4 * HISTORIES):
        machine = random_machine(seed)
        for _ in range(3000):
            if all(each.wants_since is None for each in machine.kernels):
                break
            machine.step()
        assert all(each.wants_since is None for each in machine.kernels), (seed, machine.outcome.counts)
        assert not machine.refused, (seed, machine.outcome.counts)


@pytest.mark.parametrize("disk", [0, pytest.param(20, marks=pytest.mark.long)])
def test_every_waiter_is_served_where_kernels_hibernate_and_none_goes_and_comes_all_the_time(disk):
    """`DiskHost` holds that none that was woken hibernates at once. What is short then waits for that, not for ever."""
    first = random.randrange(1 << 32)
    for seed in range(first, first + HISTORIES):
        machine = random_machine(seed, disk, hibernate=True)
        longest_s = (LEAST_AWAKE_S + 60) * len(machine.kernels)
        while any(each.wants_since is not None for each in machine.kernels):
            machine.step()
            assert machine.now < START + longest_s, (seed, machine.outcome.counts)


def test_images_are_written_within_the_bytes_of_a_day_of_each_user():
    old = [hibernating(f"old{n}", 8 * GIB, idle=900 - n) for n in range(3)]
    machine = node(resident("k", 20 * GIB), *old, available=3 * GIB, limit=0, writable=17 * GIB)
    (refused,) = decide(NOW, machine, IDLE)
    assert isinstance(refused, RefusePark)  # 20 GiB take three of them, and the day has two
    machine = replace(machine, host=replace(machine.host, disk_daily_bytes=24 * GIB))
    assert decide(NOW, machine, IDLE) == [Hibernate(f"old{n}", 8 * GIB, WHY) for n in range(3)]


def hibernating(name, size, *, idle, after_s=math.inf, **fields):
    kernel = parked(name, size, idle=idle, parked_since=NOW - idle, **fields)
    return replace(kernel, hibernates_after_s=after_s)


def test_what_cannot_be_spilled_hibernates_the_least_recently_used_first():
    kernels = (
        resident("k", 4 * GIB),
        hibernating("new", 8 * GIB, idle=100),
        hibernating("old", 8 * GIB, idle=900),
    )
    for disk in ({"limit": 0}, {"limit": 1 * GIB}):
        assert decide(NOW, node(*kernels, available=3 * GIB, **disk), IDLE) == [
            Hibernate("old", 8 * GIB, WHY)
        ]
    (action,) = decide(NOW, node(*kernels, available=3 * GIB), IDLE)
    assert isinstance(action, Spill)
    low = node(*kernels[1:], available=RESERVE - GIB, limit=0)
    assert decide(NOW, low, IDLE) == [Hibernate("old", 8 * GIB, "host memory is short")]


@pytest.mark.parametrize(
    "unwilling",
    [
        {"hibernates_after_s": None},
        {"wants_since": NOW - 1, "residency": Residency.QUEUED},
        {"cell_open": True},
        {"held_until": NOW + 1},
        {"expected_until": NOW + 1},
        {"is_opted_out": True},
        {"is_dying": True},
        {"is_moving": True},
    ],
)
def test_a_kernel_hibernates_only_where_its_owner_lets_it_and_nothing_wants_it(unwilling):
    old = replace(hibernating("old", 8 * GIB, idle=900, after_s=60), **unwilling)
    short = decide(NOW, node(resident("k", 4 * GIB), old, available=3 * GIB, limit=0), IDLE)
    plenty = decide(NOW, node(old, available=60 * GIB, limit=0), IDLE)
    assert not [action for action in short + plenty if isinstance(action, Hibernate)]


def test_one_that_was_woken_a_moment_ago_hibernates_for_no_other_kernel():
    woken = hibernating("woken", 8 * GIB, idle=900, awake_since=NOW - LEAST_AWAKE_S + 1)
    (action,) = decide(NOW, node(resident("k", 4 * GIB), woken, available=3 * GIB, limit=0), IDLE)
    assert isinstance(action, RefusePark)


def test_a_kernel_hibernates_once_it_was_parked_for_as_long_as_its_owner_says():
    early, late = (hibernating(f"{idle}", 8 * GIB, idle=idle, after_s=600) for idle in (599, 600))
    need = hibernating("need", 8 * GIB, idle=9000)
    assert decide(NOW, node(early, late, need, available=60 * GIB, limit=0), IDLE) == [
        Hibernate("600", 8 * GIB, "it was parked for long")
    ]


def test_while_a_kernel_is_asked_to_hibernate_the_park_waits_and_is_not_refused():
    old = parked("old", 8 * GIB, idle=900)
    old = replace(old, host=replace(old.host, spillable_bytes=0, spilling_bytes=8 * GIB))
    assert decide(NOW, node(resident("k", 4 * GIB), old, available=3 * GIB, limit=0), IDLE) == []


def test_ten_kernels_take_turns_with_host_memory_for_two_and_a_disk():
    draw = random.Random(7)
    sharers = [
        sharer(f"k{number}", 20, DISK_GPU, residency=Residency.PARKED, thinks=thinking(draw, 2.0, 10.0))
        for number in range(10)
    ]
    machine = DiskHost(85, 45, 200, sharers)
    machine.begin_somewhere(draw, machine.kernels[:4])
    machine.pass_time(300)
    counts = machine.outcome.counts
    assert min(each.live.next_cell for each in sharers) >= 2, counts
    assert counts["spills"] > 10 and not machine.refused, counts


LARGER = [(6, 2, False), (10, 4, True), (10, 4, False)]


@pytest.mark.parametrize(
    ("count", "on_gpu", "exchanges"),
    [(6, 2, True), *(pytest.param(*each, marks=pytest.mark.long) for each in LARGER)],
)
def test_a_waiter_waits_for_a_write_a_read_and_a_move_of_each_before_it_at_most(count, on_gpu, exchanges):
    """The disk's rate makes the longest wait: 20 GiB take it ten seconds in each direction."""
    seed = random.randrange(1 << 32)
    draw, size = random.Random(seed), 20
    sharers = [
        sharer(f"k{number}", size, DISK_GPU, residency=Residency.PARKED, thinks=thinking(draw, 2.0, 10.0))
        for number in range(count)
    ]
    machine = DiskHost(on_gpu * size + 5, 45, count * size, sharers, exchanges=exchanges)
    machine.begin_somewhere(draw, machine.kernels[:on_gpu])
    machine.pass_time(400)
    on_disk_s = size * GIB / SameMoves().disk_bytes_per_s
    turn_s = on_disk_s + on_disk_s + PARK_S + RESUME_S + machine.settings.contended_idle_timeout_s
    assert machine.outcome.counts["spills"] > 10, seed
    assert on_disk_s < max(machine.waits.values()) < (count - on_gpu) * turn_s, seed


def full_disk(seed):
    """Kernels of one size that change places: on the GPU, in host memory, and as many on disk as have room there."""
    draw = random.Random(seed)
    size, on_gpu, in_host, on_disk = (draw.randint(*each) for each in ((2, 8), (1, 3), (1, 4), (1, 2)))
    free = draw.randint(1, size - 1)
    sharers = [
        sharer(f"k{number}", size, DISK_GPU, residency=Residency.PARKED, thinks=thinking(draw, 1.0, 4.0))
        for number in range(on_gpu + in_host + on_disk)
    ]
    gpu, host = on_gpu * size + draw.randint(0, size - 1), 3 + in_host * size + free
    machine = DiskHost(gpu, host, on_disk * size, sharers, exchanges=True)
    kernels = draw.sample(machine.kernels, len(machine.kernels))
    for number, each in enumerate(kernels):
        machine.begin_as(each, Residency.RESIDENT if number < on_gpu else Residency.PARKED)
        each.has_parked, each.last_activity = True, machine.now - draw.uniform(1, 100)
        each.on_disk = 0 if number < on_gpu + in_host else each.held
    return machine


def test_kernels_on_a_full_disk_change_places_with_those_for_which_host_memory_has_no_room():
    """While other kernels changed places for ever."""
    first = random.randrange(1 << 32)
    for seed in range(first, first + HISTORIES):
        machine = full_disk(seed)
        for _ in range(20 * len(machine.kernels)):
            if all(each.live.next_cell for each in machine.kernels):
                break
            machine.pass_time(1)
        cells = [each.live.next_cell for each in machine.kernels]
        assert min(cells) >= 1, (seed, cells, machine.outcome.counts)
