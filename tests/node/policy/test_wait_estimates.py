"""What waiters are told is true: an estimate is an upper bound while nothing changes, and a blocker is there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_affinode.node.model.actions import DenyRoom, GrantRoom, Park, Resume
from jupyter_affinode.node.model.reasons import BlockerReason, WaitReason
from jupyter_affinode.node.model.snapshot import Gpu, Host, Kernel, Node, Reservation, Residency, RoomRequest
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.victims.eviction_cost import park_s, resume_s
from jupyter_affinode.node.policy.wait_blockers import Blocker
from jupyter_affinode.node.policy.wait_estimates import estimate_waits
from jupyter_affinode.settings.policy import GIB, Settings

GPU, NOW, STEP_S = "GPU-0", 10_000.0, 0.25
TOTAL = 80 * GIB
SLICES = Settings(when_full="time_slice", time_slice_s=30.0)
MODES = [Settings(), SLICES]
MODES += [mode.changed(max_computing_per_gpu=2) for mode in MODES]


@dataclass
class StillMachine:
    """A GPU whose kernels do nothing that they do not do already; moves last as long as the policy takes them to.

    A kernel that is served uses the GPU from then on.
    """

    kernels: dict[str, Kernel]
    settings: Settings
    outside: int = 0
    now: float = NOW

    def __post_init__(self):
        self._ends: dict[str, tuple[float, Kernel]] = {}
        self.served: dict[str, float] = {}

    def node(self) -> Node:
        kernels = tuple(self.kernels.values())
        used = self.outside + sum(kernel.resident_bytes[GPU] for kernel in kernels)
        granted = tuple(
            Reservation(name, GPU, after.resident_bytes[GPU])
            for name, (_, after) in self._ends.items()
            if after.residency is Residency.RESIDENT
        )
        return Node({GPU: Gpu(GPU, TOTAL - used, TOTAL, self.now)}, kernels, Host(1 << 50), granted)

    def step(self) -> None:
        for name, (ends, after) in list(self._ends.items()):
            if ends <= self.now:
                del self._ends[name]
                self.kernels[name] = after
                if after.residency is Residency.RESIDENT:
                    self.served.setdefault(name, self.now)
        for action in decide(self.now, self.node(), self.settings):
            kernel = self.kernels[action.kernel_id]
            if isinstance(action, Park):
                self._park(kernel)
            elif isinstance(action, Resume):
                size = kernel.parked_bytes[GPU] + sum(room.bytes for room in kernel.rooms)
                after = self._at_work(replace(kernel, parked_bytes={GPU: 0}, rooms=()), size)
                self._move(kernel, Residency.RESUMING, resume_s(kernel, {}), after)
            elif isinstance(action, GrantRoom):
                left = tuple(room for room in kernel.rooms if room.key != action.key)
                size = kernel.resident_bytes[GPU] + action.bytes
                self.kernels[kernel.id] = self._at_work(replace(kernel, rooms=left), size)
                self.served.setdefault(kernel.id, self.now)
            else:
                assert not isinstance(action, DenyRoom)
        self.now += STEP_S

    def _park(self, kernel: Kernel) -> None:
        wants = (
            self.now + STEP_S if kernel.calls_in_flight or kernel.rooms else kernel.wants_since
        )  # its next call
        after = replace(
            kernel,
            residency=Residency.PARKED if wants is None else Residency.QUEUED,
            resident_bytes={GPU: 0},
            parked_bytes={GPU: kernel.resident_bytes[GPU]},
            wants_since=wants,
            calls_in_flight=0,
        )
        self._move(kernel, Residency.PARKING, park_s(kernel, {}), after)

    def _at_work(self, kernel: Kernel, size: int) -> Kernel:
        return replace(
            kernel,
            residency=Residency.RESIDENT,
            resident_bytes={GPU: size},
            wants_since=None,
            calls_in_flight=0 if kernel.rooms else 1,
            last_activity=self.now,
            resident_since=self.now,
        )

    def _move(self, kernel: Kernel, residency: Residency, lasts_s: float, after: Kernel) -> None:
        self.kernels[kernel.id] = replace(kernel, residency=residency, is_moving=True, moves_since=self.now)
        self._ends[kernel.id] = self.now + lasts_s, after


@st.composite
def machines(draw):
    kernels, left = {}, TOTAL
    for number in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, 60)) * GIB
        if size > left:
            continue
        left -= size
        name = f"k{number}"
        idle = draw(st.sampled_from([0.0, 0.5, 3.0, 20.0, 200.0, 1000.0]))
        kernels[name] = Kernel(
            name,
            Residency.RESIDENT,
            {GPU: size},
            {GPU: 0},
            last_activity=NOW - idle,
            calls_in_flight=draw(st.sampled_from([0, 0, 1])),
            cell_open=draw(st.booleans()),
            held_until=draw(st.sampled_from([None, None, NOW + 40])),
            is_opted_out=draw(st.sampled_from([False, False, False, True])),
            resident_since=NOW - draw(st.sampled_from([0.0, 25.0, 1000.0])),
        )
    for number in range(draw(st.integers(1, 4))):
        name, since = f"w{number}", NOW - draw(st.sampled_from([0.0, 1.0, 15.0, 120.0]))
        size = draw(st.integers(1, 50)) * GIB
        if draw(st.booleans()):
            kernels[name] = Kernel(name, Residency.QUEUED, {GPU: 0}, {GPU: size}, wants_since=since)
        else:
            own = min(draw(st.sampled_from([0, 0, 2])) * GIB, left)
            left -= own
            rooms = (RoomRequest((number, 1), GPU, size, since),)
            kernels[name] = Kernel(
                name, Residency.RESIDENT, {GPU: own}, {GPU: 0}, rooms=rooms, last_activity=since
            )
    return StillMachine(kernels, draw(st.sampled_from(MODES)), draw(st.sampled_from([0, left])))


@settings(deadline=None, max_examples=60)
@given(machines())
def test_a_waiter_is_served_within_its_estimate_if_nothing_changes(machine):
    told = estimate_waits(machine.now, machine.node(), machine.settings)
    by = {name: NOW + each.estimate_s for name, each in told.items() if each.estimate_s is not None}
    allocations_fail = [
        each for each in told.values() if each.code in (WaitReason.TOO_LARGE, WaitReason.OUTSIDE)
    ]
    if not by or allocations_fail:
        return
    while machine.now < max(by.values()) + STEP_S and by.keys() - machine.served.keys():
        machine.step()
    for name, moment in by.items():
        assert name in machine.served, (name, told[name])
        assert machine.served[name] <= moment, (name, machine.served[name] - NOW, told[name])


@settings(deadline=None, max_examples=60)
@given(machines())
def test_each_blocker_has_memory_and_is_what_it_is_said_to_be(machine):
    node = machine.node()
    by_id = {kernel.id: kernel for kernel in node.kernels}
    for name, estimate in estimate_waits(NOW, node, machine.settings).items():
        assert len(estimate.blockers) <= 5 and len(set(estimate.blockers)) == len(estimate.blockers)
        for blocker in estimate.blockers:
            if blocker.kernel_id is None:
                assert blocker.why is BlockerReason.OUTSIDE and machine.outside
                continue
            kernel = by_id[blocker.kernel_id]
            assert kernel.id != name and kernel.resident_bytes[GPU]
            assert (blocker.why is BlockerReason.OPTED_OUT) == kernel.is_opted_out
            if blocker.why is BlockerReason.HELD:
                assert kernel.held_until
            elif blocker.why is BlockerReason.IDLE:
                assert not kernel.calls_in_flight
            elif blocker.why is BlockerReason.COMPUTING and not kernel.rooms:
                assert kernel.calls_in_flight or NOW - kernel.last_activity < 30


def waiting_for(*kernels, size=60, outside=0, **changes):
    """What a waiter for that many GiB is told beside kernels."""
    waiter = Kernel("w", Residency.QUEUED, {GPU: 0}, {GPU: size * GIB}, wants_since=NOW - 1)
    machine = StillMachine({each.id: each for each in (*kernels, waiter)}, Settings(**changes), outside * GIB)
    return estimate_waits(NOW, machine.node(), machine.settings)["w"]


def is_served_by_its_estimate(machine, name):
    promised = NOW + estimate_waits(NOW, machine.node(), machine.settings)[name].estimate_s
    while machine.now < promised + STEP_S:
        machine.step()
    return machine.served.get(name, math.inf) <= promised


def test_an_estimate_allows_for_the_park_of_a_large_kernel_that_used_the_gpu_just_now():
    """It is not counted on, but it is idle by the time that the small one's hold ends, and may be chosen."""
    kernels = [
        resident("large", 45, last_activity=NOW, held_until=NOW + 40, resident_since=NOW),
        resident("small", 1, last_activity=NOW - 3, resident_since=NOW),
        resident("held", 1, last_activity=NOW - 3, held_until=NOW + 40, resident_since=NOW),
        resident("w", 0, last_activity=NOW, rooms=(RoomRequest((0, 1), GPU, 35 * GIB, NOW),)),
    ]
    machine = StillMachine({each.id: each for each in kernels}, Settings())
    assert is_served_by_its_estimate(machine, "w")


def test_an_estimate_allows_for_a_park_that_is_begun_for_the_waiter_before():
    """Which has waited for so long that the large kernel may be chosen sooner than for the others alone."""
    kernels = [
        resident("large", 43, last_activity=NOW - 0.5, resident_since=NOW),
        resident("preempted", 2, last_activity=NOW, resident_since=NOW - 1000),
        resident("first", 0, last_activity=NOW - 120, rooms=(RoomRequest((0, 1), GPU, GIB, NOW - 120),)),
        Kernel("w", Residency.QUEUED, {GPU: 0}, {GPU: GIB}, wants_since=NOW),
    ]
    settings = Settings(when_full="time_slice", time_slice_s=30.0)
    machine = StillMachine({each.id: each for each in kernels}, settings, 35 * GIB)
    assert is_served_by_its_estimate(machine, "w")


def test_an_estimate_allows_for_a_park_for_the_margin_that_preempting_leaves_out():
    """A waiter behind is parked and leaves just enough, so none is preempted; then a large kernel is idle."""
    kernels = [
        resident("large", 43, last_activity=NOW - 0.5, resident_since=NOW),
        resident("busy", 25, last_activity=NOW, resident_since=NOW - 1000, calls_in_flight=1),
        resident("behind", 2, last_activity=NOW, rooms=(RoomRequest((2, 1), GPU, GIB, NOW),)),
        resident("w", 0, last_activity=NOW - 120, rooms=(RoomRequest((3, 1), GPU, 12 * GIB, NOW - 120),)),
    ]
    machine = StillMachine({each.id: each for each in kernels}, SLICES)
    assert is_served_by_its_estimate(machine, "w")


def test_no_moment_is_promised_to_an_allocation_whose_kernel_may_be_parked_and_need_a_slot():
    """It is parked for the one before, which then computes beside another: no third may come back."""
    kernels = [
        resident("idle", 15, last_activity=NOW, resident_since=NOW),
        resident("large", 32, last_activity=NOW, resident_since=NOW),
        resident("busy", 1, last_activity=NOW, resident_since=NOW, calls_in_flight=1, is_opted_out=True),
        resident("first", 0, last_activity=NOW, rooms=(RoomRequest((0, 1), GPU, 33 * GIB, NOW),)),
        resident("w", 2, last_activity=NOW, rooms=(RoomRequest((1, 1), GPU, 13 * GIB, NOW),)),
    ]
    machine = StillMachine({each.id: each for each in kernels}, SLICES.changed(max_computing_per_gpu=2))
    told = estimate_waits(NOW, machine.node(), machine.settings)
    promised = NOW + told["first"].estimate_s
    assert told["w"].estimate_s is None
    while "first" not in machine.served:
        machine.step()
    assert machine.served["first"] <= promised
    assert machine.kernels["w"].residency is Residency.QUEUED


def resident(name, size, **fields):
    return Kernel(
        name, Residency.RESIDENT, {GPU: size * GIB}, {GPU: 0}, **{"last_activity": NOW - 5, **fields}
    )


@pytest.mark.parametrize(
    ("fields", "code", "why"),
    [
        ({"calls_in_flight": 1}, WaitReason.COMPUTING, BlockerReason.COMPUTING),
        ({"held_until": NOW + 600}, WaitReason.HELD, BlockerReason.HELD),
        ({}, WaitReason.FULL, BlockerReason.IDLE),
        ({"is_opted_out": True}, WaitReason.TOO_LARGE, BlockerReason.OPTED_OUT),
        ({"is_moving": True, "residency": Residency.PARKING}, WaitReason.MOVING, BlockerReason.MOVING),
    ],
)
def test_a_wait_names_the_kernel_in_the_way_and_why_it_stays(fields, code, why):
    kernel = replace(resident("train", 70), **fields)
    told = waiting_for(kernel)
    assert (told.code, [(each.kernel_id, each.why) for each in told.blockers]) == (code, [("train", why)])
    assert told.arguments == {"bytes": 60 * GIB}


def test_programs_that_are_not_managed_are_named_only_where_they_have_the_memory():
    told = waiting_for(outside=50)
    assert (told.code, told.blockers) == (WaitReason.OUTSIDE, (Blocker(None, BlockerReason.OUTSIDE),))
    told = waiting_for(resident("k", 60, calls_in_flight=1))
    assert [each.kernel_id for each in told.blockers] == ["k"]
    told = waiting_for(size=90)
    assert (told.code, told.blockers) == (WaitReason.TOO_LARGE, ())


HELD, BUSY = {"held_until": NOW + 600}, {"calls_in_flight": 1}


@pytest.mark.parametrize(
    ("kernels", "named"),
    [
        ([("small", 10, HELD), ("large", 60, BUSY)], ["large"]),  # releasing the small one would not help
        ([("held", 30, HELD), ("large", 30, BUSY)], ["held"]),  # it would
        ([("a", 30, BUSY), ("b", 25, BUSY), ("c", 25, HELD)], ["c", "a"]),  # two, and the one to be released
        ([("a", 45, BUSY), ("b", 31, BUSY), ("c", 4, HELD)], ["a", "b"]),
        ([("a", 30, BUSY), ("b", 20, HELD), ("c", 20, BUSY), ("d", 10, HELD)], ["b", "a"]),
        ([("small", 15, HELD), ("own", 25, {"is_opted_out": True}), ("large", 40, BUSY)], ["small", "large"]),
    ],
)
def test_a_wait_names_a_smallest_set_that_suffices(kernels, named):
    """Of several, the one that a user can do most about."""
    told = waiting_for(*(resident(name, size, **fields) for name, size, fields in kernels), size=50)
    assert [each.kernel_id for each in told.blockers] == named


def test_of_the_idle_kernels_that_will_be_parked_those_that_are_needed_are_named():
    early = [resident(f"early-{number}", 2, last_activity=NOW - 200) for number in range(4)]
    late = resident("late", 60, **HELD)
    assert [each.kernel_id for each in waiting_for(*early, late, size=50).blockers] == ["late"]


def test_a_kernel_that_has_gone_or_is_not_in_the_way_is_not_named():
    idle, busy = resident("idle", 30, last_activity=NOW - 500), resident("busy", 20, calls_in_flight=1)
    told = waiting_for(idle, busy, size=50)
    assert [each.kernel_id for each in told.blockers] == ["idle"] and told.estimate_s is not None
    told = waiting_for(busy, size=50)
    assert (told.code, told.blockers) == (WaitReason.TURN, ())
