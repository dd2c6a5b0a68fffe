"""The planner's model against itself: what must hold in any replay, and what queueing theory says."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import mean, stdev

import pytest
from drawn import examples
from small_plans import FREE, PLAIN, random_sessions, replay, session

import jupyter_affinode.planner.model.replay as replay_module
from jupyter_affinode.node.model.reasons import Cause
from jupyter_affinode.node.policy.victims import eviction_cost
from jupyter_affinode.node.policy.victims.eligibility import LEAST_PAUSE_S
from jupyter_affinode.planner.model.baselines import Culled, Culling, Reservation, Sharing
from jupyter_affinode.planner.model.event_queue import Shared, Timeline
from jupyter_affinode.planner.model.machine import GIB, Machine, Speeds
from jupyter_affinode.planner.model.replay import Replay
from jupyter_affinode.planner.model.sessions import Cell, ImpossiblePlan, Session, active_share
from jupyter_affinode.planner.model.simulation import ModelBroken
from jupyter_affinode.planner.workload import Spread, Workload
from jupyter_affinode.settings.policy import Settings

SMALL = Machine(gpus=2, gpu_bytes=40 * GIB, host_bytes=150 * GIB, context_bytes=GIB // 2)
SECONDS = Speeds(2 * GIB, 8 * GIB, 8 * GIB, 0.01, 0.5, 0.5, "slow")
QUICK = Settings(idle_timeout_s=30.0)
WAYS = {
    "wait": QUICK,
    "idle": replace(QUICK, park_when="idle"),
    "time_slice": replace(QUICK, when_full="time_slice", time_slice_s=10.0),
    "terminate_newest": replace(QUICK, when_full="terminate_newest", time_slice_s=20.0),
    "context": replace(QUICK, depth="context"),
    "limits": replace(QUICK, quotas="*=35GiB", opt_out="3"),
    "computing": replace(QUICK, max_computing_per_gpu=1),
    "computing in turns": replace(QUICK, max_computing_per_gpu=1, when_full="time_slice", time_slice_s=20.0),
}

IN_CI = ("idle", "time_slice", "computing in turns")


@pytest.mark.parametrize(
    "way", [way if way in IN_CI else pytest.param(way, marks=pytest.mark.long) for way in WAYS]
)
def test_memory_is_never_over_capacity_and_every_cell_comes_to_its_end(way):
    """The replay itself raises ModelBroken otherwise, after every event."""
    for seed in range(examples(12)):
        sessions = random_sessions(random.Random(seed), 9, 12, most_gib=30)
        outcome = Replay(SMALL, SECONDS, WAYS[way], sessions).run()
        ended_badly = sum(
            count
            for name, count in outcome.counts.items()
            if name.startswith("cells ") and name != "cells preempted"
        )
        assert outcome.cells + ended_badly == sum(len(each.cells) for each in sessions), f"seed {seed}"
        assert outcome.host_most_bytes <= SMALL.host_bytes
        if way != "terminate_newest":
            assert not outcome.losses


@pytest.mark.long
def test_who_has_just_begun_to_pause_leaves_where_all_pauses_are_short(monkeypatch):
    """Ten kernels of 20 GiB on a GPU for six: fewer come back for nothing, and waits are shorter."""
    chance = random.Random(7)
    settings = replace(PLAIN, contended_idle_timeout_s=1.0)
    speeds = replace(FREE, park_bytes_per_s=50 * GIB, resume_bytes_per_s=50 * GIB, exchange_s=0.5)
    sessions = [
        session(str(number), [(chance.uniform(2, 10), 0.04, 20) for _ in range(150)]) for number in range(10)
    ]

    def outcome():
        return replay(sessions, settings=settings, speeds=speeds, gpu_bytes=125 * GIB)

    by_pauses = outcome().run()
    monkeypatch.setattr(eviction_cost, "LEAST_PAUSES", math.inf)
    longest_idle = outcome().run()
    told = [(each.counts["resumes"], each.waits()) for each in (by_pauses, longest_idle)]
    assert by_pauses.counts["resumes"] < 0.85 * longest_idle.counts["resumes"], told
    assert by_pauses.waits()["p95"] < 0.85 * longest_idle.waits()["p95"], told


def test_more_than_fits_is_noticed(monkeypatch):
    """The check of conservation can fail."""
    sessions = [session(name, [(0, 1, 30), (50, 5, 30)]) for name in "ab"]

    def overcommit(now, node, settings):
        return [
            replay_module.actions.GrantRoom(kernel.id, room.key, room.gpu, room.bytes)
            for kernel in node.kernels
            for room in kernel.rooms
        ]

    monkeypatch.setattr(replay_module, "decide", overcommit)
    with pytest.raises(ModelBroken, match="not free"):
        replay(sessions, gpu_bytes=40 * GIB).run()


def test_no_exchange_begins_where_another_kernel_was_given_the_room_of_the_waiter(monkeypatch):
    """A head for which host memory is short blocks no other (reclaim.py): the replay held more than there is."""
    sessions = [
        session("b", [(0, 1, 30), (99, 1, 30)]),
        session("c", [(20, 1, 15)], end_think_s=500),
        session("d", [(40, 1, 30)]),
        session("a", [(70, 1, 20)], end_think_s=500),
    ]
    decide, given = replay_module.decide, []

    def give_away(now, node, settings):
        found = decide(now, node, settings)
        exchanges = any(isinstance(each, replay_module.actions.Park) and each.exchanges for each in found)
        if exchanges and not given:
            other = next(kernel for kernel in node.kernels if kernel.id.endswith("-c"))
            given.append(replay_module.actions.Resume(other.id, other.resume_bytes, "", Cause.CELL))
            found.append(given[-1])
        return found

    monkeypatch.setattr(replay_module, "decide", give_away)
    outcome = replay(sessions, speeds=SECONDS, gpu_bytes=40 * GIB).run()
    assert given and outcome.cells == 5


def test_an_unknown_action_is_an_error_that_names_it(monkeypatch):
    class Teleport:
        kernel_id = "a"

    monkeypatch.setattr(replay_module, "decide", lambda *_: [Teleport()])
    sessions = [session(name, [(0, 10, 30)]) for name in "ab"]
    with pytest.raises(ModelBroken, match="Teleport"):
        replay(sessions, gpu_bytes=40 * GIB).run()


def test_a_policy_that_starves_a_kernel_is_noticed(monkeypatch):
    monkeypatch.setattr(replay_module, "decide", lambda *_: [])
    sessions = [session("a", [(0, 10, 30)], end_think_s=500), session("b", [(1, 10, 30)])]
    with pytest.raises(ModelBroken, match="000001-b wait, and the policy does nothing"):
        replay(sessions, gpu_bytes=40 * GIB).run()


@pytest.mark.parametrize("way", ["wait", pytest.param("time_slice", marks=pytest.mark.long)])
def test_a_replay_gives_the_same_again(way):
    sessions = random_sessions(random.Random(5), 12, 12, most_gib=30)
    first, again = (Replay(SMALL, SECONDS, WAYS[way], sessions).run() for _ in range(2))
    assert list(first.waits_s) == list(again.waits_s) and first.as_dict() == again.as_dict()


@pytest.mark.parametrize("seed", range(4))
def test_passes_that_are_left_out_would_have_decided_nothing(seed):
    sessions = random_sessions(random.Random(seed), 9, 10, most_gib=25)
    usual = Replay(SMALL, SECONDS, QUICK, sessions).run()
    every = Replay(SMALL, SECONDS, QUICK, sessions, every_event=True).run()
    assert usual.counts["parks"] == every.counts["parks"]
    assert list(usual.waits_s) == pytest.approx(list(every.waits_s), abs=0.01)


def machine_repair_wait(users: int, think_s: float, run_s: float) -> float:
    """The mean wait in the machine-repair model M/M/1//N (finite source, one server, first come first served).

    Kleinrock, Queueing Systems I (1975), 3.8: p_k = p_0 N!/(N-k)! (run/think)^k; by Little's law the mean wait is
    N / X - think - run, with the throughput X = (1 - p_0) / run.
    """
    ratio = run_s / think_s
    weights = [math.perm(users, count) * ratio**count for count in range(users + 1)]
    throughput = (1 - weights[0] / sum(weights)) / run_s
    return users / throughput - think_s - run_s


@pytest.mark.parametrize("users", [2, pytest.param(5, marks=pytest.mark.long)])
def test_mean_waits_are_those_of_the_machine_repair_model(users):
    """When a kernel needs the whole GPU and moves cost nothing, the GPU is a server and kernels are machines."""
    think_s, run_s, cells, runs = 100.0, 15.0, 100, 12
    means = []
    for seed in range(runs):
        chance = random.Random(f"{users} {seed}")
        sessions = [
            session(
                f"{number}",
                [(chance.expovariate(1 / think_s), chance.expovariate(1 / run_s), 100) for _ in range(cells)],
            )
            for number in range(users)
        ]
        waits = replay(sessions).run().waits_s
        means.append(mean(waits[users * 5 : -users * 10]))  # it begins with no kernel there, and ends so
    half_width = 4.437 * stdev(means) / math.sqrt(runs)  # Student's t, 11 degrees of freedom, 99.9 %
    expected = machine_repair_wait(users, think_s, run_s)
    assert abs(mean(means) - expected) < half_width, (
        f"{mean(means):.2f} ± {half_width:.2f} s, not {expected:.2f}"
    )
    assert half_width < 0.4 * expected


@pytest.mark.parametrize("host_gib, handed_over", [(20.4, True), (40.5, False), (20.2, None)])
def test_kernels_change_places_with_host_memory_for_one_copy_and_a_window(host_gib, handed_over):
    sessions = [session(name, [(think, 1.0, 20)] * 3) for name, think in (("a", 3.0), ("b", 5.0))]
    outcome = replay(sessions, gpu_bytes=30 * GIB, host_bytes=int(host_gib * GIB)).run()
    assert bool(outcome.counts["exchanges that handed over"]) is bool(handed_over)
    assert bool(outcome.counts["exchanges"]) is (handed_over is not None)
    assert outcome.host_most_bytes <= host_gib * GIB


@pytest.mark.parametrize("exchanges", [False, True])
def test_a_resume_waits_for_the_park_before_it_or_beside_it(exchanges):
    """By hand: b comes while a is idle; a's 30 GiB go out at 2 GiB/s, b's come in from nothing."""
    sessions = [session("a", [(0, 10, 30), (90, 10, 30)]), session("b", [(50, 10, 30)], end_think_s=500)]
    speeds = replace(SECONDS, exchange_s=0.25, exchange_slower=1.0)
    outcome = replay(sessions, speeds=speeds, gpu_bytes=40 * GIB, exchanges=exchanges).run()
    a_first, b_waits, a_again = outcome.waits_s
    assert a_first == 0
    assert b_waits == pytest.approx(15.0, abs=0.01)  # 30 GiB, first park at 2 GiB/s
    # a calls at 100, b is idle since 75: 15 s to park b, then or meanwhile 30 GiB at 8 GiB/s and the wake-up
    resume_s = 30 / 8 + 0.01
    assert a_again == pytest.approx(15.25 if exchanges else 15.0 + resume_s, abs=0.01)
    assert outcome.counts["parks"] == 2 and outcome.counts["resumes"] == 1
    assert outcome.counts["exchanges"] == exchanges


def test_a_later_park_is_faster_and_a_context_takes_longer():
    assert SECONDS.park_s(16 * GIB, 0, context=False) == pytest.approx(8.0)
    assert SECONDS.park_s(16 * GIB, 16 * GIB, context=False) == pytest.approx(2.0)
    assert SECONDS.park_s(16 * GIB, 16 * GIB, context=True) == pytest.approx(2.5)


def test_a_kernel_called_during_its_park_does_not_wait():
    sessions = [session("a", [(0, 10, 30), (52, 10, 30)]), session("b", [(60, 10, 30)])]
    outcome = replay(sessions, speeds=SECONDS, gpu_bytes=40 * GIB).run()
    waits = list(outcome.waits_s)
    assert waits[:2] == [0, 0] and waits[2] > 0
    assert outcome.counts["parks refused: came-back"] == 1


def test_cells_that_compute_together_share_the_gpu():
    sessions = [session(name, [(0, 10, 1)]) for name in "abcd"]
    assert replay(sessions).run().slowdown == pytest.approx(4.0)
    assert replay(sessions, compute_share=0.25).run().slowdown == pytest.approx(1.0)
    assert replay(sessions, compute_share=0.5).run().slowdown == pytest.approx(2.0)
    assert replay(sessions, gpus=4).run().slowdown == pytest.approx(1.0)


def test_kernels_that_come_back_compute_no_more_at_once_than_the_setting_says():
    sessions = [session(name, [(0, 10, 10), (10, 10, 10)], end_think_s=50) for name in "ab"]
    parks = replace(PLAIN, park_when="idle", idle_timeout_s=5.0, contended_idle_timeout_s=5.0)
    assert replay(sessions, settings=parks).run().slowdown == pytest.approx(2.0)
    one = replay(sessions, settings=replace(parks, max_computing_per_gpu=1)).run()
    assert one.slowdown == pytest.approx(1.5)  # no kernel comes back for its first cell
    assert one.waits()["max"] == pytest.approx(10.0 + LEAST_PAUSE_S, abs=0.01)


def test_shared_work_ends_when_arithmetic_says():
    timeline, ends = Timeline(), {}
    link = Shared(timeline)
    timeline.at(0, lambda: link.begin("long", 10.0, lambda: ends.setdefault("long", timeline.now)))
    timeline.at(4, lambda: link.begin("short", 1.0, lambda: ends.setdefault("short", timeline.now)))
    timeline.at(5, lambda: link.begin("gone", 1.0, lambda: ends.setdefault("gone", timeline.now)))
    timeline.at(5.5, lambda: link.stop("gone"))
    while timeline.advance():
        pass
    # together from 4 to 5 at half speed, from 5 to 5.5 at a third, then at half speed again
    short = 5.5 + 2 * (1 - 0.5 - 0.5 / 3)
    assert ends == {"short": pytest.approx(short), "long": pytest.approx(11 + 0.5 / 3)}
    assert link.busy_s == pytest.approx(11 + 0.5 / 3)


def test_one_person_is_in_one_session_at_a_time():
    sessions = [
        session("monday", [(0, 100, 1)], user="p"),
        session("tuesday", [(5, 10, 1)], user="p", start_s=50),
    ]
    outcome = replay(sessions).run()
    assert outcome.sessions_most == 1 and outcome.ended_s == 115


def test_context_depth_leaves_room_that_memory_depth_takes():
    """Three contexts of 10 GiB beside a session that needs 99 of 100."""
    idle = [session(f"i{number}", [(0, 1, 1)], end_think_s=5000) for number in range(3)]
    large = session("large", [(1000, 10, 89)])
    memory = replace(PLAIN, park_when="idle")
    context = replace(memory, depth="context")
    speeds = replace(FREE, context_park_s=1.0)
    deep = replay([*idle, large], settings=context, speeds=speeds, context_bytes=10 * GIB).run()
    assert not deep.counts["cells out of memory"] and max(deep.waits_s) < 60
    flat = replay([*idle, large], settings=memory, speeds=speeds, context_bytes=10 * GIB).run()
    assert flat.counts["cells out of memory"] == 1


def test_a_kernel_parked_at_context_depth_resumes_where_there_is_room():
    """At 110 s its own GPU is used for 140 s more, and the other one is free."""
    sessions = [
        session("away", [(0, 10, 80), (100, 10, 80)]),
        session("short", [(0, 69, 80)], start_s=1),
        session("long", [(0, 200, 80)], start_s=50),
    ]
    waits = []
    for anywhere in (True, False):
        settings = replace(PLAIN, depth="context", allow_migration=anywhere)
        outcome = replay(sessions, settings=settings, gpus=2, gpu_bytes=100 * GIB, context_bytes=GIB).run()
        waits.append(outcome.waits()["max"])
        assert outcome.counts["resumes on another GPU"] == int(anywhere)
    assert waits == [pytest.approx(0, abs=0.1), pytest.approx(140, abs=1)]


def test_the_context_that_leaves_makes_room_too_so_one_yields_for_one_of_its_size():
    sessions = [session(name, [(0, 1, 40)], end_think_s=1000) for name in ("a", "b")]
    sessions.append(session("c", [(0, 1, 40)], start_s=100))
    for depth, parks in (("context", 1), ("memory", 2)):
        settings = replace(PLAIN, depth=depth)
        outcome = replay(sessions, settings=settings, gpu_bytes=102 * GIB, context_bytes=10 * GIB).run()
        assert outcome.counts["parks"] == parks


def test_a_user_of_a_higher_class_waits_less():
    """Three want the whole GPU at once while a fourth computes; the last to come is the first in its class."""
    sessions = [session("first", [(0, 100, 100)])]
    sessions += [session(name, [(start, 10, 100)]) for name, start in (("a", 10), ("b", 11), ("c", 12))]
    plain = [(name, wait) for name, wait in zip("fabc", replay(sessions).run().waits_s, strict=True)]
    assert plain == [("f", 0), ("a", 90), ("b", 99), ("c", 108)]
    ahead = replay(sessions, settings=replace(PLAIN, priorities="c=2")).run().waits_s
    assert list(ahead) == [0, 88, 100, 109]


# ---- what sites do today


def test_reservation_makes_the_next_session_wait_for_the_end_of_one():
    sessions = [session("a", [(0, 10, 1)], end_think_s=990), session("b", [(100, 10, 1)])]
    outcome = Reservation(Machine(), sessions).run()
    assert list(outcome.waits_s) == [0, 900]
    assert outcome.held_s == pytest.approx(1000 + 10) and outcome.gpus_most == 1
    two = Reservation(Machine(gpus=2), sessions).run()
    assert list(two.waits_s) == [0, 0] and two.gpus_most == 2 and two.held_s == pytest.approx(1110)


def test_culling_frees_the_gpu_and_loses_the_state():
    sessions = [session("a", [(0, 10, 1), (500, 10, 1)], end_think_s=5), session("b", [(20, 10, 1)])]
    outcome = Culled(Machine(), sessions, Culling(timeout_s=100, rebuild_s=60)).run()
    # b waits until a is killed at 110 s and then has no use for it; a comes back at 510 s and builds for 60 s
    assert sorted(outcome.waits_s) == [0, 60, 90]
    assert outcome.losses == 1 and outcome.rebuild_s == 60 and outcome.counts["kernels killed"] == 1
    kind = Culled(Machine(), sessions, Culling(timeout_s=1000, rebuild_s=60)).run()
    assert kind.losses == 0 and kind.held_s > outcome.held_s


def test_sharing_without_parking_keeps_a_kernel_that_does_not_fit_waiting():
    sessions = [session("a", [(0, 10, 60)], end_think_s=990), session("b", [(100, 10, 60)])]
    outcome = Sharing(Machine(gpu_bytes=100 * GIB, context_bytes=GIB), sessions).run()
    assert list(outcome.waits_s) == [0, 900]
    assert replay(sessions).run().waits()["max"] == 0


# ---- the made workload


def test_people_use_the_gpu_as_much_as_was_published():
    sessions = Workload(users=200, days=1, seed=3, session_s=Spread(1e6, 1e6)).sessions(140 * GIB)
    share = active_share(sessions)
    assert 0.17 < share < 0.21, share  # idle more than 81 % of the time; 0.25 * 0.61 + 0.75 * 0.05 = 0.19
    runs = sorted(cell.gpu_s for each in sessions for cell in each.cells)
    assert runs[len(runs) // 2] == pytest.approx(120, rel=0.05)
    assert runs[len(runs) * 3 // 4] == pytest.approx(300, rel=0.05)


def test_with_one_person_more_the_others_stay_what_they_are():
    few, many = (Workload(users=users).sessions(140 * GIB) for users in (5, 6))
    assert many[: len(few)] == few and len(many) > len(few)
    assert Workload(users=5, seed=2).sessions(140 * GIB) != few


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"busy_share": 0.99}, "is the most"),
        ({"starts_h": (11.0, 8.0)}, "hours of the day"),
        (
            {
                "run_s": Spread(1e-6, 1e-6),
                "think_s": Spread(1e-6, 1e-6),
                "busy_share": 0.5,
                "quiet_share": 0.5,
            },
            "more than",
        ),
    ],
)
def test_a_workload_that_cannot_be_is_explained(change, words):
    with pytest.raises(ImpossiblePlan, match=words):
        Workload(**change).sessions(140 * GIB)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Machine(gpu_bytes=GIB // 2), "CUDA context"),
        (Machine(gpu_bytes=8 * GIB), "session a needs 8 GiB"),
    ],
)
def test_a_machine_that_cannot_serve_is_explained(machine, words):
    with pytest.raises(ImpossiblePlan, match=words):
        Replay(machine, Speeds(), Settings(), [Session("a", "a", 0, (Cell(0, 1, 8 * GIB),))])


def short_of_host_memory(seed, cells=12):
    """Ten kernels of 20 GiB that think for some seconds, for a GPU that has room for six of them."""
    chance = random.Random(seed)
    return [
        session(f"k{number}", [(chance.uniform(2, 10), chance.uniform(0.2, 1.0), 20) for _ in range(cells)])
        for number in range(10)
    ]


def test_where_host_memory_is_short_kernels_that_change_places_wait_less():
    machine = {"settings": Settings(), "speeds": Speeds(), "gpu_bytes": 140 * GIB, "host_bytes": 126 * GIB}
    with_and_without = []
    for exchanges in (True, False):
        outcomes = [
            replay(short_of_host_memory(seed), exchanges=exchanges, compute_share=0.1, **machine).run()
            for seed in (7, 8, 9)
        ]
        assert all(bool(outcome.counts["exchanges"]) is exchanges for outcome in outcomes)
        with_and_without.append(sum(outcome.waits()["p95"] for outcome in outcomes))
    changing, parking = with_and_without
    assert changing < parking


def test_a_park_that_host_memory_has_no_room_for_is_refused_without_a_disk_and_not_with_one():
    machine = {"settings": Settings(), "speeds": Speeds(), "gpu_bytes": 140 * GIB, "host_bytes": 60 * GIB}
    counts = [
        replay(short_of_host_memory(7), disk_bytes=disk * GIB, compute_share=0.1, **machine).run().counts
        for disk in (0, 400)
    ]
    assert [bool(each["parks refused: no-host-memory"]) for each in counts] == [True, False]
    assert [bool(each["spills"]) for each in counts] == [False, True]


def test_where_kernels_hibernate_no_park_is_refused_for_long_and_each_is_woken_by_its_next_cell():
    """A kernel hibernates once in five minutes at most, so some parks are refused until then."""
    machine = {"settings": Settings(), "speeds": Speeds(), "gpu_bytes": 140 * GIB, "host_bytes": 60 * GIB}
    chance = random.Random(7)
    cells = [[(chance.uniform(400, 900), 1.0, 20) for _ in range(8)] for _ in range(12)]
    waits = []
    for after_s in (None, 0):
        sessions = [session(f"k{number}", its) for number, its in enumerate(cells)]
        outcome = replay(sessions, hibernate_after_s=after_s, compute_share=0.1, **machine).run()
        assert bool(outcome.counts["hibernations"]) is (after_s is not None)
        assert outcome.cells == 12 * 8
        waits.append(sum(outcome.waits_s))
    assert waits[1] < waits[0]


def test_a_disk_is_not_written_where_moves_under_way_give_enough_host_memory_back():
    machine = {"settings": Settings(), "speeds": Speeds(), "gpu_bytes": 140 * GIB, "host_bytes": 126 * GIB}
    outcome = replay(short_of_host_memory(7), disk_bytes=400 * GIB, compute_share=0.1, **machine).run()
    assert outcome.counts["spills"] == 0 and outcome.counts["parks"] > 20
    assert not outcome.counts["parks refused: no-host-memory"]


def test_no_more_is_written_to_disk_in_a_day_than_allowed():
    settings = Settings().changed(spill_daily_bytes=30 * GIB)
    sessions = short_of_host_memory(7, cells=6)
    machine = {"speeds": Speeds(), "gpu_bytes": 140 * GIB, "host_bytes": 60 * GIB, "disk_bytes": 400 * GIB}
    outcome = replay(sessions, settings=settings, compute_share=0.1, **machine).run()
    assert 0 < outcome.spilled_bytes <= 30 * GIB
