"""A kernel parked at context depth may resume on another GPU: when, where, and before or after which waiter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import NEEDED, NOW, A, B, asks, busy, node, parked, parks, resident

from jupyter_affinode.node.model.actions import GrantRoom, Resume
from jupyter_affinode.node.model.snapshot import Gpu, Reservation, Residency
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.queue import waiters
from jupyter_affinode.settings.policy import GIB, MIB

C = "GPU-c"
MARGIN = NEEDED.margin_bytes
LOW = int(NEEDED.low_watermark * 16 * GIB)


def deep(name, size=4 * GIB, *, waits=5, to=(B,), gpu=A, **fields):
    """A kernel that took its context along, and waits."""
    return parked(name, size, waits=waits, gpu=gpu, context_bytes={gpu: GIB}, migration_targets=to, **fields)


def gpus(**free):
    """Their free GiB, by letter."""
    return {
        uuid: Gpu(uuid, int(free[letter] * GIB), 16 * GIB, NOW - 0.01)
        for letter, uuid in (("a", A), ("b", B), ("c", C))
        if letter in free
    }


def decided(*kernels, policy=NEEDED, **machine):
    return decide(NOW, node(*kernels, **machine), policy)


def test_with_room_at_home_it_comes_back_there():
    (action,) = decided(deep("k"), gpus=gpus(a=8, b=16))
    assert action == Resume("k", {A: 5 * GIB}, action.reason)


def test_where_its_own_gpu_is_full_it_comes_back_on_another_with_all_it_needs_reserved_there():
    (action,) = decided(deep("k"), busy("busy"), gpus=gpus(a=1, b=16))
    assert action == Resume("k", {B: 5 * GIB}, "it waited 5 s, and its own GPU is full", gpu=B)


def test_a_kernel_that_may_not_migrate_waits_at_home():
    assert decided(deep("k", to=()), busy("busy"), gpus=gpus(a=1, b=16)) == []


def test_no_kernel_migrates_to_make_a_gpu_run_low():
    enough = 5 * GIB + MARGIN + LOW
    full = gpus(a=1)
    assert decided(deep("k"), busy("x"), gpus={**full, B: Gpu(B, enough - 1, 16 * GIB, NOW)}) == []
    (action,) = decided(deep("k"), busy("x"), gpus={**full, B: Gpu(B, enough, 16 * GIB, NOW)})
    assert action.gpu == B


def test_what_is_reserved_there_is_not_given_twice():
    promised = (Reservation("other", B, 11 * GIB),)
    assert decided(deep("k"), busy("x"), gpus=gpus(a=1, b=16), reservations=promised) == []
    both = decided(deep("k"), deep("l", 10 * GIB, waits=4), busy("x"), gpus=gpus(a=1, b=16))
    assert [action.kernel_id for action in both] == ["k"]


def test_of_several_the_one_with_most_room():
    (action,) = decided(deep("k", to=(B, C)), busy("x"), gpus=gpus(a=1, b=8, c=9))
    assert action.gpu == C


def test_a_gpus_own_waiter_goes_before_a_migration():
    def crowd(native_waits):
        native = asks(busy("native", GIB, gpu=B), 10 * GIB, waits=native_waits, gpu=B)
        return [deep("k"), native, busy("x"), busy("y", 7 * GIB, gpu=B)]

    assert decided(*crowd(9), gpus=gpus(a=1, b=8)) == []
    (action,) = decided(*crowd(1), gpus=gpus(a=1, b=8))
    assert action.gpu == B


def test_a_migration_without_room_does_not_hold_up_a_gpus_own_waiter():
    native = asks(busy("native", 2 * GIB, gpu=B), 2 * GIB, waits=1, gpu=B)
    (action,) = decided(deep("k", 8 * GIB), native, busy("x"), gpus=gpus(a=1, b=4))
    assert isinstance(action, GrantRoom)


def test_a_kernel_that_never_fits_a_gpu_does_not_close_it_to_others():
    large, small = deep("large", 16 * GIB, waits=9), deep("small", GIB, waits=1)
    (action,) = decided(large, small, busy("x"), gpus=gpus(a=0, b=8))
    assert (action.kernel_id, action.gpu) == ("small", B)


def test_kernels_yield_for_a_waiter_at_home_alone():
    idle_there = resident("there", 6 * GIB, gpu=B)
    assert decided(deep("k"), busy("x"), idle_there, gpus=gpus(a=1, b=1)) == []
    here = resident("here", 12 * GIB)
    assert parks(decided(deep("k"), here, idle_there, gpus=gpus(a=1, b=1))) == ["here"]


def test_a_kernel_second_at_home_may_be_first_on_another_gpu():
    first, second = deep("first", 4 * GIB, waits=9, to=()), deep("second", 4 * GIB, waits=1)
    (action,) = decided(first, second, busy("x"), gpus=gpus(a=1, b=16))
    assert (action.kernel_id, action.gpu) == ("second", B)


def test_a_kernel_that_never_fits_at_home_migrates():
    """Programs that cannot be moved have taken its own GPU."""
    (action,) = decided(deep("k", 10 * GIB), gpus=gpus(a=2, b=16))
    assert action.gpu == B


def test_a_limit_of_its_user_is_no_reason_to_go_elsewhere():
    policy = NEEDED.changed(quotas="ann=6GiB")
    mine = resident("mine", 4 * GIB, user="ann", gpu=B)
    actions = decided(deep("k", user="ann"), mine, busy("x"), policy=policy, gpus=gpus(a=1, b=10))
    assert parks(actions) == ["mine"] and len(actions) == 1


def test_what_it_waits_for_in_an_allocation_is_asked_for_at_home():
    assert decided(asks(deep("k"), GIB, waits=5), busy("x"), gpus=gpus(a=1, b=16)) == []


def test_after_a_failure_at_home_it_is_not_tried_elsewhere_at_once():
    assert decided(deep("k", resume_retry_at=NOW + 1), busy("x"), gpus=gpus(a=1, b=16)) == []


# ---- whatever the queue

SIZE = st.integers(1, 12).map(lambda number: number * GIB)
GPU = st.sampled_from([A, B, C])


@st.composite
def crowds(draw):
    """Three GPUs, kernels on them, and a queue in which some may go elsewhere."""
    kernels, free = [], dict.fromkeys((A, B, C), 16 * GIB)
    for number in range(draw(st.integers(0, 5))):
        uuid, size = draw(GPU), draw(SIZE)
        if size <= free[uuid]:
            free[uuid] -= size
            idle = draw(st.sampled_from([0, 1000]))
            on = resident(f"on-{number}", size, idle=idle, gpu=uuid, calls_in_flight=int(not idle))
            kernels.append(on)
    for number in range(draw(st.integers(1, 6))):
        uuid, waits = draw(GPU), draw(st.integers(1, 300))
        others = tuple(each for each in (A, B, C) if each != uuid and draw(st.booleans()))
        priority = draw(st.integers(-1, 1))
        kernels.append(deep(f"off-{number}", draw(SIZE), waits=waits, to=others, gpu=uuid, priority=priority))
    reserved = ()
    if draw(st.booleans()):
        uuid = draw(GPU)
        reserved = (Reservation("gone", uuid, draw(st.integers(0, free[uuid] // MIB)) * MIB),)
    measured = {uuid: Gpu(uuid, size, 16 * GIB, NOW - 0.01) for uuid, size in free.items()}
    return node(*kernels, gpus=measured, reservations=reserved)


@given(crowds(), st.sampled_from(["wait", "time_slice"]))
@settings(deadline=None, max_examples=100)
def test_no_gpu_is_given_twice_and_no_waiter_is_passed_in_its_own_queue(crowd, when_full):
    policy = NEEDED.changed(when_full=when_full)
    actions = decide(NOW, crowd, policy)
    assert len({action.kernel_id for action in actions}) == len(actions)
    room = {uuid: gpu.free_bytes for uuid, gpu in crowd.gpus.items()}
    for reservation in crowd.reservations:
        room[reservation.gpu] -= reservation.bytes
    resumed = {action.kernel_id: action for action in actions if isinstance(action, Resume)}
    for action in resumed.values():
        ((uuid, size),) = [entry for entry in action.reserved_bytes.items() if entry[1]]
        room[uuid] -= size
        kernel = next(each for each in crowd.kernels if each.id == action.kernel_id)
        assert size == sum(kernel.resume_bytes.values())
        assert action.gpu in (None, *kernel.migration_targets) and uuid == (action.gpu or uuid)
        assert (action.gpu is None) == bool(kernel.parked_bytes.get(uuid))
    assert min(room.values()) >= 0, "over-committed"
    passed = {}  # by GPU: the kernels that wait for it there and were not served
    for waiter in waiters(crowd, policy):
        (home,) = waiter.needs
        action = resumed.get(waiter.kernel.id)
        if action is None:
            is_possible = waiter.needs[home] <= 16 * GIB - sum(
                reservation.bytes for reservation in crowd.reservations if reservation.gpu == home
            )
            if is_possible:
                passed.setdefault(home, waiter.kernel.id)
        elif action.gpu is not None:
            assert action.gpu not in passed, f"{waiter.kernel.id} passed {passed[action.gpu]}"


@pytest.mark.parametrize("gpu", [A, B])
def test_a_kernel_at_context_depth_is_not_brought_back_before_it_is_used(gpu):
    kernel = replace(deep("k"), residency=Residency.PARKED, wants_since=None, expected_until=NOW + 60)
    assert decided(kernel, gpus={**gpus(a=1, b=1), gpu: Gpu(gpu, 16 * GIB, 16 * GIB, NOW)}) == []
