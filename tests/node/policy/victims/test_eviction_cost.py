"""Which kernel is best parked, when a park has paid off, and how fast this machine is seen to be."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_shim import GPU, MIB, PARKED, RESIDENT
from hypothesis import given
from hypothesis import strategies as st
from said_pages import NOTHING
from snapshots import NOW, A, B, resident

from jupyter_affinode.node.model.snapshot import Host, HostUse, Kernel, Node, Residency, Speed
from jupyter_affinode.node.policy.victims import eviction_cost
from jupyter_affinode.node.protocol.page import PageGpu, State
from jupyter_affinode.node.protocol.wire import gpu_uuid
from jupyter_affinode.node.state.gpus.transfer_speeds import Line, MoveSpeeds, park_copies, resume_copies
from jupyter_affinode.settings.policy import GIB


def node(**speeds):
    return Node({}, (), Host(0), speeds={"GPU-" + name: speed for name, speed in speeds.items()})


def order(*kernels, gpus=None, **speeds):
    return [each.id for each in eviction_cost.in_order(NOW, kernels, node(**speeds), gpus)]


# ---- which kernel


def test_of_two_alike_the_one_that_has_been_idle_for_longer_goes():
    assert order(resident("new", idle=400), resident("old", idle=401)) == ["old", "new"]


def test_how_long_pauses_were_tells_which_of_two_returns_later():
    """Where all return within ten seconds, the longest idle returns next; where few return soon, it returns last."""
    recent, earlier, long_ago = (
        resident("recent", idle=2),
        resident("earlier", idle=7),
        resident("ago", idle=900),
    )
    even = tuple(2.0 + 8.0 * each / 99 for each in range(100))
    uneven = tuple(1.0 / (1.0 - each / 100) ** 2 for each in range(100))
    found = {}
    for name, pauses in {"even": even, "uneven": uneven, "few": even[:5], "none": ()}.items():
        seen = replace(node(), pauses_s=pauses)
        found[name] = [each.id for each in eviction_cost.in_order(NOW, (earlier, recent, long_ago), seen)]
    assert found == {
        "even": ["ago", "recent", "earlier"],
        **{name: ["ago", "earlier", "recent"] for name in ("uneven", "few", "none")},
    }


@given(idle=st.floats(0.001, 1e6), pauses=st.lists(st.floats(1.0, 1e6)))
def test_what_is_left_of_a_pause_is_never_less_than_nothing(idle, pauses):
    assert eviction_cost.remaining_s(idle, sorted(pauses)) >= 0


def test_of_two_that_are_as_idle_the_one_whose_memory_need_not_be_copied_goes():
    written = resident("written", park_copies_bytes=4 * GIB, resume_copies_bytes=4 * GIB)
    unchanged = resident("unchanged", park_copies_bytes=0, resume_copies_bytes=4 * GIB)
    zeros = resident("zeros", park_copies_bytes=0, resume_copies_bytes=0)
    assert order(written, unchanged, zeros) == ["zeros", "unchanged", "written"]


def test_many_small_ones_are_not_taken_where_one_large_one_is_as_idle():
    small = [resident(f"small-{number}", 64 * MIB) for number in range(4)]
    assert order(*small, resident("large", 8 * GIB))[0] == "large"


def test_a_gpu_with_a_slower_way_is_left_alone():
    slow = Speed(park_bytes_per_s=1e9, resume_bytes_per_s=1e9)
    assert order(resident("slow", gpu=B), resident("fast"), b=slow, a=Speed()) == ["fast", "slow"]


def test_only_memory_where_it_is_wanted_counts():
    both = Kernel("both", Residency.RESIDENT, {A: GIB, B: 9 * GIB}, last_activity=NOW - 1000)
    assert order(both, resident("a", 4 * GIB), gpus={A}) == ["a", "both"]
    assert order(resident("b", gpu=B), resident("a", 2 * GIB, idle=500), gpus={A}) == ["a", "b"]


KERNELS = st.builds(
    lambda name, size, idle, copies: resident(
        f"k{name}", size, idle=idle, park_copies_bytes=copies, resume_copies_bytes=copies
    ),
    st.integers(0, 99),
    st.integers(0, 200 * GIB),
    st.floats(-5, 1e6),
    st.none() | st.integers(0, 300 * GIB),
)
SPEEDS = st.builds(Speed, st.floats(0, 10), st.floats(1e3, 1e12), st.floats(0, 10), st.floats(1e3, 1e12))


@given(st.lists(KERNELS, max_size=12, unique_by=lambda each: each.id), SPEEDS, st.randoms())
def test_the_order_depends_on_nothing_but_the_kernels(kernels, speed, dice):
    shuffled = kernels[:]
    dice.shuffle(shuffled)
    assert order(*kernels, a=speed) == order(*shuffled, a=speed)
    for each in kernels:
        assert eviction_cost.freed_per_cost(NOW, each, node(a=speed)) >= 0
        assert eviction_cost.break_even_s(each, {A: speed}) >= 0


@given(KERNELS.filter(lambda each: each.movable_bytes > 0), SPEEDS, st.floats(1, 1e5))
def test_more_idle_is_never_worse(each, speed, more):
    later = replace(each, last_activity=each.last_activity - more)
    assert eviction_cost.freed_per_cost(NOW, later, node(a=speed)) >= eviction_cost.freed_per_cost(
        NOW, each, node(a=speed)
    )


# ---- when


def test_a_round_trip_pays_off_after_as_long_as_it_takes():
    speed = Speed(0.1, 50e9, 0.2, 25e9)
    assert eviction_cost.break_even_s(resident("k", 50_000_000_000), {A: speed}) == pytest.approx(
        0.1 + 1 + 0.2 + 2
    )
    cheap = resident("k", 50_000_000_000, park_copies_bytes=0, resume_copies_bytes=0)
    assert eviction_cost.break_even_s(cheap, {A: speed}) == pytest.approx(0.3)


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=50), st.floats(0.1, 100))
def test_parking_at_the_break_even_never_costs_more_than_twice_the_optimum(pauses, price):
    """The bound that eviction_cost.py states, on any history of pauses: rent until it equals the price, then buy."""
    paid = sum(pause if pause <= price else price + price for pause in pauses)
    prophet = sum(min(pause, price) for pause in pauses)
    assert paid <= 2 * prophet * (1 + 1e-9)


# ---- how fast


def process(*, copied=0, zeros=0, resident=GIB, kept=0, state=State.RESIDENT, **fields):
    data = replace(
        NOTHING,
        state=state,
        gpus=(PageGpu(A, resident, 0, (0,) * 8),),
        retained_bytes=kept,
        last_park_copied_bytes=copied,
        last_park_zero_bytes=zeros,
        **fields,
    )
    return SimpleNamespace(key=1, data=data, resident_bytes=resident)


def test_a_machine_is_as_fast_as_its_moves_show():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    line = Line(0.05, 8e9)
    for _ in range(100):
        size = dice.randrange(1 << 20, 64 * GIB)
        line.take(size, (0.02 + size / 50e9) * dice.uniform(0.95, 1.05))
    for size in (GIB, 8 * GIB, 40 * GIB):
        assert line.fixed_s + size / line.bytes_per_s == pytest.approx(0.02 + size / 50e9, rel=0.3, abs=0.1)


@given(st.lists(st.tuples(st.integers(0, 1 << 45), st.floats(0, 1e5)), max_size=60))
def test_no_history_of_moves_makes_a_speed_that_cannot_be(moves):
    line = Line(0.05, 8e9)
    for size, seconds in moves:
        line.take(size, seconds)
        assert line.fixed_s >= 0
        assert 0 < line.bytes_per_s <= 1e12


def learning(*pages, lasts=1.0, size=16 * GIB):
    """What is learnt from the pages of one process, one after the other; `lasts`: its moves, as we saw them."""
    speeds = MoveSpeeds()
    for seen in [process(), *pages]:
        speeds.learn([seen], {A: size}, lambda each: lasts)
    return speeds


def parked_in(seconds, number, *, kept, size=10 * GIB):
    """A page before and after a park of 10 GiB, for which it had kept so much."""
    before = process(parks=number, kept=kept)
    return before, process(parks=number + 1, last_park=(size, seconds), copied=size, state=State.PARKED)


def of_size(size, **fields):
    return Kernel("k", Residency.RESIDENT, {A: size}, **fields)


def test_slow_first_touches_of_host_memory_make_no_later_park_look_slow():
    """Ten of them at 1 GB/s, where the machine otherwise parks at 50."""
    speeds = MoveSpeeds()
    for number in range(10):
        for seen in parked_in(10.7, number, kept=0):
            speeds.learn([seen], {A: 16 * GIB}, lambda each: 20.0)
    keeps = of_size(10 * GIB, host=HostUse(retained_bytes=10 * GIB))
    lots = of_size(10 * GIB, host=HostUse(lot_bytes=10 * GIB))
    half = of_size(10 * GIB, host=HostUse(retained_bytes=5 * GIB))
    known, usual_s = speeds.by_gpu(), Speed().park_s(10 * GIB)
    assert eviction_cost.park_s(keeps, known) == eviction_cost.park_s(lots, known) == pytest.approx(usual_s)
    assert eviction_cost.park_s(of_size(10 * GIB), known) == pytest.approx(10.7, rel=0.01)
    assert eviction_cost.park_s(half, known) == pytest.approx((usual_s + 10.7) / 2, rel=0.01)
    unchanged = of_size(10 * GIB, park_copies_bytes=0, host=HostUse(retained_bytes=10 * GIB))
    assert eviction_cost.park_s(unchanged, known) < 0.1


def test_later_parks_teach_the_machines_speed_and_first_touches_are_forgotten_when_memory_is_there():
    speeds, number = MoveSpeeds(), 0

    def take(seconds, times, kept):
        nonlocal number
        for _ in range(times):
            for seen in parked_in(seconds, number, kept=kept):
                speeds.learn([seen], {A: 16 * GIB}, lambda each: 20.0)
            number += 1

    take(10.7, 5, kept=0)
    take(0.25, 20, kept=10 * GIB)
    slow = eviction_cost.park_s(of_size(10 * GIB), speeds.by_gpu())
    keeps = of_size(10 * GIB, host=HostUse(retained_bytes=10 * GIB))
    assert eviction_cost.park_s(keeps, speeds.by_gpu()) == pytest.approx(0.25, abs=0.1)
    assert slow > 8
    take(0.6, 6, kept=0)
    assert eviction_cost.park_s(of_size(10 * GIB), speeds.by_gpu()) < 1.0
    assert eviction_cost.park_s(keeps, speeds.by_gpu()) == pytest.approx(0.25, abs=0.1)


def test_a_first_park_that_is_fast_teaches_too():
    """Else a machine whose kernels all park once would be taken for slow for ever."""
    known = learning(*parked_in(0.3, 0, kept=0)[1:]).by_gpu()
    assert eviction_cost.park_s(of_size(10 * GIB), known) < Speed().park_s(10 * GIB)


def test_each_move_teaches_once_and_only_what_was_copied_counts():
    assert learning().by_gpu() == {}
    fast = process(parks=1, last_park=(10 * GIB, 0.1), copied=0, zeros=10 * GIB)
    once = learning(fast).by_gpu()
    assert once[A].park_fixed_s > Speed().park_fixed_s  # nothing was copied: the 0.1 s are its fixed part
    assert learning(fast, fast).by_gpu() == once
    back = process(parks=1, resumes=1, last_park=(10 * GIB, 0.1), last_resume=(10 * GIB, 0.2), zeros=10 * GIB)
    speeds = learning(fast, back)
    assert speeds.by_gpu()[A].resume_fixed_s > once[A].resume_fixed_s
    speeds.learn([], {A: 16 * GIB}, lambda each: 1.0)
    assert speeds.by_gpu()[A].park_bytes_per_s == pytest.approx(once[A].park_bytes_per_s)


def test_a_page_teaches_nothing_that_was_not_seen():
    huge, slow = 1 << 60, 1e9

    def moved(copied, seconds):
        return process(parks=1, last_park=(copied, seconds), copied=copied)

    assert learning(moved(huge, slow)).by_gpu() == learning(moved(16 * GIB, 1.0)).by_gpu()
    assert learning(moved(GIB, 1.0), lasts=None).by_gpu() == {}, "we told it of no move"
    unseen = MoveSpeeds()
    unseen.learn([moved(GIB, 1.0)], {A: GIB}, lambda each: 1.0)
    assert unseen.by_gpu() == {}, "what it did before we knew it"
    for sizes in ({}, None):
        unseen = MoveSpeeds()
        for seen in (process(), moved(GIB, 1.0)):
            unseen.learn([seen], sizes, lambda each: 1.0)
        assert unseen.by_gpu() == {}, "a GPU that NVML does not know"
    known = learning(moved(GIB, 1.0))
    known.learn([], None, lambda each: 1.0)
    assert known.by_gpu(), "NVML may be back in a moment"
    known.learn([], {B: GIB}, lambda each: 1.0)
    assert known.by_gpu() == {}, "it is gone"


def test_what_a_park_would_copy_is_told_by_the_last_one():
    assert park_copies(process(resident=4 * GIB)) == 4 * GIB
    changed = process(
        parks=1, last_park=(4 * GIB, 1.0), copied=GIB, zeros=GIB, resident=4 * GIB, kept=3 * GIB
    )
    assert park_copies(changed) == GIB
    assert resume_copies(changed) == 3 * GIB
    grown = process(parks=1, last_park=(4 * GIB, 1.0), copied=0, zeros=0, resident=6 * GIB, kept=4 * GIB)
    assert park_copies(grown) == 2 * GIB
    given_back = process(parks=1, last_park=(4 * GIB, 1.0), copied=0, zeros=0, resident=4 * GIB, kept=0)
    assert park_copies(given_back) == 4 * GIB


def test_of_two_idle_kernels_the_one_that_was_cheap_to_park_before_yields_first(node, shim, wait_until):
    """Through the controller: what pages say of earlier moves decides."""
    machine = node(idle_timeout_s=0.2)
    dear, cheap = shim("dear", resident=900 * MIB), shim("cheap", resident=900 * MIB)
    for each, copied in ((dear, 900 * MIB), (cheap, 0)):
        each.page.parks, each.page.last_park = 1, 900 * MIB
        each.page.host[1], each.page.host[2] = 900 * MIB, copied
        each.page.last_activity = dear.page.last_activity
        each.become(RESIDENT)
    waiter = shim("waiter")
    wait_until(lambda: all((machine.kernel(name) or {}).get("eligible") for name in ("dear", "cheap")))
    waiter.allocate(800 * MIB, number=1)
    wait_until(lambda: PARKED in (dear.state, cheap.state))
    assert (dear.state, cheap.state) == (RESIDENT, PARKED)
    assert gpu_uuid(GPU) in [gpu["uuid"] for gpu in machine.node()["gpus"]]
