"""What always holds, whatever the kernels do; each failure prints the example that breaks it."""

from __future__ import annotations

import math
from dataclasses import replace

from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from late_figures import GPU, LateFigures, grower
from scenes import START

from jupyter_affinode.node.model.actions import (
    DenyRoom,
    GiveLots,
    GrantRoom,
    Hibernate,
    Park,
    Resume,
    Spill,
    Trim,
)
from jupyter_affinode.node.model.snapshot import (
    Gpu,
    Host,
    HostUse,
    Kernel,
    Node,
    Reservation,
    Residency,
    RoomRequest,
)
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.queue import waiters, waits_since
from jupyter_affinode.node.policy.resources.disk import LEAST_AWAKE_S
from jupyter_affinode.node.policy.victims.eligibility import eligible_at
from jupyter_affinode.settings.policy import MIB, Settings

NOW = 5000.0
TOTAL = 1000 * MIB
SIZES = st.integers(0, 1200).map(lambda size: size * MIB)
MOMENTS = st.floats(0, NOW, allow_nan=False)
QUICK = Settings(idle_timeout_s=2.0, cell_idle_timeout_s=4.0, margin_bytes=2 * MIB, host_reserve_bytes=0)


@st.composite
def host_uses(draw):
    kept = draw(st.sampled_from([0, 0, 100 * MIB, 700 * MIB]))
    # more than the copy: lots come back after what was in them
    trimming = draw(st.sampled_from([0, 0, kept // 2, kept + 64 * MIB]))
    return HostUse(
        retained_bytes=kept,
        trimmable_bytes=draw(st.sampled_from([0, max(kept - trimming, 0)])),
        trimming_bytes=trimming,
        retained_since=draw(MOMENTS),
        lot_bytes=draw(st.sampled_from([0, 64 * MIB])),
        park_takes_bytes=draw(st.none() | SIZES),
        park_short_bytes=draw(st.sampled_from([0, 0, 500 * MIB])),
        budget_bytes=draw(st.none() | SIZES),
        spillable_bytes=draw(st.sampled_from([0, 0, 100 * MIB, 700 * MIB])),
    )


@st.composite
def hosts(draw):
    free, limit = draw(st.integers(0, 4000)) * MIB, draw(st.integers(1, 4000)) * MIB
    headroom = draw(st.none() | st.integers(0, limit))
    lots = draw(st.sampled_from([0, 0, 256 * MIB, 2000 * MIB]))
    makes_lots = draw(st.booleans())
    disk = draw(st.sampled_from([0, 0, 500 * MIB, 4000 * MIB]))
    daily = draw(st.sampled_from([0, 500 * MIB, 4000 * MIB]))
    host = Host(free, total_bytes=4000 * MIB, lot_bytes=lots, makes_lots=makes_lots)
    host = replace(host, disk_limit_bytes=disk, disk_free_bytes=disk, disk_daily_bytes=daily)
    if headroom is None:
        return host
    return replace(host, headroom_bytes={"/user": headroom}, limit_bytes={"/user": limit})


@st.composite
def kernels(draw, number):
    residency = draw(st.sampled_from(list(Residency)))
    is_parked = residency in (Residency.PARKED, Residency.QUEUED, Residency.RESUMING)
    size = draw(SIZES)
    rooms = draw(st.lists(st.tuples(SIZES, MOMENTS), max_size=2))
    in_part = draw(st.sampled_from([0, 0, 100])) * MIB if is_parked else 0
    return Kernel(
        id=f"k{number}",
        residency=residency,
        resident_bytes={GPU: 0 if is_parked else size},
        parked_bytes={GPU: size if is_parked else 0},
        unmovable_bytes={GPU: draw(st.sampled_from([0, MIB])) + in_part},
        left_bytes={GPU: in_part} if in_part else {},
        last_activity=draw(MOMENTS),
        calls_in_flight=draw(st.sampled_from([0, 0, 0, 1])),
        captures=draw(st.sampled_from([0, 0, 0, 1])),
        cell_open=draw(st.booleans()),
        held_until=draw(st.sampled_from([None, None, NOW + 10, NOW - 10])),
        is_parkable=draw(st.sampled_from([True, True, True, False])),
        is_dying=draw(st.sampled_from([False, False, False, True])),
        is_moving=draw(st.sampled_from([False, False, True]))
        or residency in (Residency.PARKING, Residency.RESUMING),
        wants_since=draw(st.none() | MOMENTS) if is_parked else None,
        rooms=tuple(
            RoomRequest((number, index), GPU, wanted, since) for index, (wanted, since) in enumerate(rooms)
        ),
        park_requested=draw(st.sampled_from([None, None, "asked"])),
        retry_at=draw(st.sampled_from([0.0, NOW + 5])),
        retry_pause_s=draw(st.sampled_from([0.0, 8.0])),
        demoted_until=draw(st.sampled_from([0.0, 0.0, NOW + 5])),
        moves_since=draw(st.none() | MOMENTS),
        resume_retry_at=draw(st.sampled_from([0.0, 0.0, NOW + 5])),
        reclaim_after=draw(st.sampled_from([0.0, 0.0, NOW + 5])),
        allocations_fail=draw(st.sampled_from([False, False, True])),
        cgroups=draw(st.sampled_from([(), (), ("/user",)])),
        can_drop_caches=draw(st.booleans()),
        may_resume_in_parts=draw(st.booleans()),
        may_hand_over=draw(st.booleans()),
        hibernates_after_s=draw(st.sampled_from([None, None, 60.0, math.inf])),
        awake_since=draw(st.sampled_from([0.0, 0.0, NOW - 10])),
        parked_since=draw(MOMENTS),
        host=draw(host_uses()),
    )


@st.composite
def nodes(draw):
    count = draw(st.integers(0, 5))
    gpu = Gpu(
        GPU,
        draw(st.integers(0, 1000)) * MIB,
        TOTAL,
        draw(MOMENTS),
        draw(st.sampled_from([0, 0, 100 * MIB])),
        draw(st.booleans()),
    )
    reservations = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300)), max_size=3))
    return Node(
        {GPU: gpu},
        tuple(draw(kernels(number)) for number in range(count)),
        draw(hosts()),
        tuple(Reservation(f"k{kernel}", GPU, size * MIB) for kernel, size in reservations),
    )


EAGER = QUICK.changed(park_when="idle")
POLICIES = st.sampled_from([QUICK, EAGER, EAGER.changed(drop_caches_before_park=True)])
RESERVES = st.sampled_from([0, 300 * MIB, None])


@given(nodes(), POLICIES)
@settings(max_examples=examples(40), deadline=None)
def test_never_two_actions_for_one_kernel_and_none_for_one_under_way(node, policy):
    actions = decide(NOW, node, policy)
    ids = [action.kernel_id for action in actions]
    assert len(ids) == len(set(ids))
    moving = {kernel.id for kernel in node.kernels if kernel.is_moving}
    assert not moving & set(ids)


@given(nodes(), POLICIES)
@settings(max_examples=examples(100), deadline=None)
def test_no_kernel_hibernates_that_waits_is_used_or_was_woken_a_moment_ago_nor_beyond_the_days_bytes(
    node, policy
):
    actions, written = decide(NOW, node, policy), 0
    by_id = {kernel.id: kernel for kernel in node.kernels}
    waiting = {waiter.kernel.id for waiter in waiters(node, policy)}
    for action in actions:
        if isinstance(action, Hibernate):
            kernel = by_id[action.kernel_id]
            assert kernel.hibernates_after_s is not None and kernel.residency is Residency.PARKED
            assert kernel.id not in waiting and kernel.wants_since is None
            assert not (kernel.cell_open or kernel.is_held(NOW) or kernel.is_dying or kernel.left_bytes)
            is_due = NOW - kernel.parked_since >= kernel.hibernates_after_s
            assert is_due or NOW - kernel.awake_since >= LEAST_AWAKE_S
            assert action.bytes == sum(kernel.parked_bytes.values())
        if isinstance(action, Hibernate | Spill):
            written += action.bytes
    assert written <= node.host.disk_daily_bytes


@given(nodes(), POLICIES)
@settings(max_examples=examples(40), deadline=None)
def test_a_kernel_that_is_to_come_in_waits_and_nothing_else_is_decided_for_it(node, policy):
    actions = decide(NOW, node, policy)
    ids = {action.kernel_id for action in actions}
    for action in actions:
        if isinstance(action, Park) and action.exchanges:
            comes = next(kernel for kernel in node.kernels if kernel.id == action.for_kernel)
            assert comes.may_resume_in_parts and comes.residency is Residency.QUEUED and not comes.is_moving
            assert comes.id not in ids and comes.resume_retry_at <= NOW
            assert not action.to_context and not action.preempts


@given(nodes(), POLICIES)
@settings(max_examples=examples(40), deadline=None)
def test_what_is_given_is_there(node, policy):
    """All that one pass gives fits into what is free and not reserved."""
    given_bytes = 0
    for action in decide(NOW, node, policy):
        if isinstance(action, Resume):
            given_bytes += sum(action.reserved_bytes.values())
        elif isinstance(action, GrantRoom):
            given_bytes += action.bytes
    reserved = sum(reservation.bytes for reservation in node.reservations)
    assert given_bytes == 0 or given_bytes <= node.gpus[GPU].free_bytes - reserved


@given(nodes())
@settings(max_examples=examples(40), deadline=None)
def test_no_kernel_is_parked_without_need(node):
    """With the default, a park has been asked for, or a kernel waits, or memory is low."""
    parked = {action.kernel_id for action in decide(NOW, node, QUICK) if isinstance(action, Park)}
    asked = {kernel.id for kernel in node.kernels if kernel.park_requested}
    if parked - asked:
        assert waiters(node, QUICK) or node.gpus[GPU].is_reclaiming


@given(nodes(), POLICIES)
@settings(max_examples=examples(40), deadline=None)
def test_only_eligible_or_blocked_kernels_are_parked_unasked(node, policy):
    for action in decide(NOW, node, policy):
        if isinstance(action, Park):
            kernel = next(kernel for kernel in node.kernels if kernel.id == action.kernel_id)
            if (
                kernel.left_bytes
            ):  # its rest: its calls wait in any case, and so does another kernel, for that room
                assert kernel.residency in (Residency.PARKED, Residency.QUEUED) and kernel.may_hand_over
                assert action.for_kernel in {waiter.kernel.id for waiter in waiters(node, policy)}
                continue
            moment = eligible_at(kernel, policy, waits_since=waits_since(waiters(node, policy)))
            is_eligible = moment is not None and moment <= NOW
            is_blocked = bool(kernel.rooms) and not kernel.calls_in_flight and not kernel.captures
            assert kernel.park_requested or is_eligible or is_blocked
            assert kernel.is_parkable
            held = kernel.held_until is not None and kernel.held_until > NOW
            assert kernel.park_requested or not held


@given(nodes(), POLICIES)
@settings(max_examples=examples(40), deadline=None)
def test_the_queue_is_served_first_come_first(node, policy):
    """Every waiter before one that is served is served too, under way, held back by a failure, or never fits."""
    places = {  # a kernel has one for each of its allocations
        (action.kernel_id, action.key if isinstance(action, GrantRoom) else None)
        for action in decide(NOW, node, policy)
        if isinstance(action, Resume | GrantRoom)
    }
    served = {kernel_id for kernel_id, _ in places}
    others_movable = sum(kernel.resident_bytes[GPU] for kernel in node.kernels if kernel.is_parkable) + sum(
        reservation.bytes for reservation in node.reservations
    )
    queue = waiters(node, policy)
    for place, waiter in enumerate(queue):
        its_place = waiter.kernel.id, waiter.room.key if waiter.room is not None else None
        if its_place not in places or waiter.kernel.is_moving or not waiter.needs.get(GPU):
            continue  # what needs nothing takes nothing from others
        if waiter.kernel.left_bytes:
            continue  # one that was parked in part comes back whenever there is room, before any waiter
        for earlier in queue[:place]:
            kernel = earlier.kernel
            never = earlier.needs.get(GPU, 0) > (
                node.gpus[GPU].free_bytes
                + node.gpus[GPU].uncertain_bytes
                + others_movable
                - kernel.resident_bytes[GPU] * kernel.is_parkable
            ) - sum(r.bytes for r in node.reservations if r.kernel_id == kernel.id)
            assert (
                kernel.id in served
                or kernel.is_moving
                or kernel.park_requested
                or never
                or (earlier.room is not None and kernel.allocations_fail)
                or (earlier.room is None and kernel.resume_retry_at > NOW)
                or not earlier.needs.get(GPU)
            )


@given(nodes(), POLICIES, RESERVES)
@settings(max_examples=examples(50), deadline=None)
def test_parks_of_one_pass_take_no_host_memory_that_is_reserved_or_taken(node, policy, reserve):
    """What they may take anew together, all that is under way beside them, and the reserve fit; lots that no kernel
    is lent can be freed.
    """
    policy = policy.changed(host_reserve_bytes=reserve)
    actions = decide(NOW, node, policy)
    budgets = {action.kernel_id: action.budget_bytes for action in actions if isinstance(action, Park)}
    taken = {"": 0, "/user": 0}
    lots = {action.kernel_id: action.lot_bytes for action in actions if isinstance(action, Park | GiveLots)}
    assert sum(lots.values()) <= node.host.lot_bytes
    for kernel in node.kernels:
        anew = max(kernel.movable_bytes - kernel.host.retained_bytes - lots.get(kernel.id, 0), 0)
        if kernel.id in budgets:
            taken["".join(kernel.cgroups)] += min(anew, budgets[kernel.id])
    if budgets:
        free = node.host.available_bytes + node.host.lot_bytes - policy.host_reserve(4000 * MIB)
        assert sum(taken.values()) + sum(lots.values()) <= max(free, 0)
    assert taken["/user"] <= node.host.headroom_bytes.get("/user", 1 << 60)


@given(nodes(), POLICIES, RESERVES)
@settings(max_examples=examples(50), deadline=None)
def test_no_retained_copy_is_trimmed_without_need(node, policy, reserve):
    """The machine or a cgroup is under its reserve, or a kernel that may be parked does not fit beside it."""
    policy = policy.changed(host_reserve_bytes=reserve)
    actions = decide(NOW, node, policy)
    trims = {action.kernel_id: action for action in actions if isinstance(action, Trim)}
    left = node.host.available_bytes - policy.host_reserve(4000 * MIB)
    headroom = node.host.headroom_bytes.get("/user", 1 << 60)
    reserve_inside = min(node.host.limit_bytes.get("/user", 0) // 10, policy.host_reserve(4000 * MIB))
    needs = [k.movable_bytes for k in node.kernels if k.is_parkable and k.residency is Residency.RESIDENT]
    under_way = [k.movable_bytes for k in node.kernels if k.is_moving or k.residency is Residency.PARKING]
    if trims:
        room = min(left, headroom - reserve_inside)
        assert room < 0 or max(needs, default=0) + sum(under_way) + sum(needs) > room
    for kernel in node.kernels:
        if kernel.id in trims:
            assert 0 <= trims[kernel.id].keep_bytes < kernel.host.retained_bytes
            assert kernel.host.trimmable_bytes and not kernel.is_moving


@given(nodes())
@settings(max_examples=examples(50), deadline=None)
def test_with_host_memory_for_all_no_retained_copy_is_trimmed(node):
    roomy = replace(node, host=Host(1 << 50, total_bytes=1 << 51))
    assert not any(isinstance(action, Trim) for action in decide(NOW, roomy, QUICK))


@given(
    st.lists(
        st.tuples(st.lists(st.integers(10, 400), min_size=1, max_size=4), st.floats(0.25, 8)),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([QUICK, EAGER]),
)
@settings(max_examples=examples(30), deadline=None)
def test_every_kernel_finishes_in_time_without_out_of_memory(scripts, policy):
    """Kernels that each fit alone, together far more than the GPU: all finish, in a bounded time."""
    made = [
        grower(f"k{number}", _at_most([size * MIB for size in sizes]), works)
        for number, (sizes, works) in enumerate(scripts)
    ]
    scene = LateFigures(TOTAL, made, policy)
    work = sum(computes_s for kernel in made for _, computes_s, _ in kernel.cells)
    turns = sum(len(kernel.cells) + 1 for kernel in made)
    bound = 20.0 + work + turns * len(made) * 2 * (2 + policy.idle_timeout_s + 2)
    while not scene.is_done:
        scene.step()
        assert scene.now < START + bound, [(each.id, each.residency, each.room) for each in scene.kernels]
    assert not scene.outcome.counts["cells out of memory"]


def _at_most(sizes):
    """As many of the sizes as fit on the GPU together."""
    kept = []
    for size in sizes:
        if sum(kept) + size <= TOTAL - 10 * MIB:
            kept.append(size)
    return kept


def test_an_allocation_larger_than_the_gpu_is_denied_and_evicts_no_kernel():
    idle = grower("idle", [600 * MIB], 0.25)
    greedy = grower("greedy", [100 * MIB, 2000 * MIB], 0.25)
    scene = LateFigures(TOTAL, [idle, greedy], QUICK)
    scene.pass_time(25)
    assert scene.outcome.counts["cells out of memory"] == 1
    assert [action for _, action in scene.actions if isinstance(action, Park)] == []
    assert any(isinstance(action, DenyRoom) for _, action in scene.actions)
