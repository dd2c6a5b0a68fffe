"""A crowd of one person's processes that look like the best victims, and never give anything, keeps nobody waiting."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from model_node import QUIET, Clock

from jupyter_affinode.node import lapse_watch, moves, together
from jupyter_affinode.node.actions import Cause, Park, Resume
from jupyter_affinode.node.host import HostMemory
from jupyter_affinode.node.identity import Identity
from jupyter_affinode.node.lapses import EXCUSES_MAX, FIRST_S, FORGOTTEN_S, LAST_S, Lapses
from jupyter_affinode.node.lateness import is_given_up, is_late
from jupyter_affinode.node.moves import Moves
from jupyter_affinode.node.nvml import NvmlGpu, NvmlSample
from jupyter_affinode.node.observer import Observers
from jupyter_affinode.node.page import PageData, PageFlag, PageGpu, State
from jupyter_affinode.node.policy import decide
from jupyter_affinode.node.settings import GIB, Settings
from jupyter_affinode.node.snapshot import Gpu, Host, HostUse, Kernel, Node, Residency
from jupyter_affinode.node.state import NodeState
from jupyter_affinode.node.wire import CommandKind, HelloFlag, Reply, Status, gpu_uuid

NOW = 10_000.0
A = gpu_uuid(bytes(16))
LIARS = 30
SETTINGS = Settings(host_reserve_bytes=0, margin_bytes=0)


# ---- who is behind, and for how long


def test_each_lapse_puts_a_person_behind_for_twice_as_long():
    lapses, now, lasts = Lapses(), NOW, []
    for _ in range(8):
        assert lapses.failed("uid-1", now, now)
        lasts.append(lapses.behind_until("uid-1") - now)
        now = lapses.behind_until("uid-1")
    assert lasts == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, LAST_S, LAST_S]
    assert lapses.behind_until("uid-2") == 0.0


def test_parks_that_were_asked_together_are_one_lapse():
    lapses = Lapses()
    assert lapses.failed("uid-1", NOW, NOW + 20)
    assert not lapses.failed("uid-1", NOW + 5, NOW + 21)
    assert lapses.behind_until("uid-1") == NOW + 20 + FIRST_S


def test_lapses_are_forgotten_slowly_once_they_are_over():
    lapses = Lapses()
    for step in range(3):
        lapses.failed("uid-1", NOW + step, NOW + step)
    over = lapses.behind_until("uid-1")
    assert over - (NOW + 2) == 4 * FIRST_S
    lapses.failed("uid-1", over + 2 * FORGOTTEN_S, over + 2 * FORGOTTEN_S)
    assert lapses.behind_until("uid-1") - (over + 2 * FORGOTTEN_S) == pytest.approx(2 * FIRST_S)


def test_an_honest_reason_now_and_then_is_no_lapse():
    lapses = Lapses()
    for step in range(100):
        assert not lapses.excused("uid-1", NOW + step, NOW + step + 1)
        lapses.delivered("uid-1")
    for step in range(100):
        assert not lapses.excused("uid-2", NOW + 700 * step, NOW + 700 * step + 1)
    assert lapses.behind_until("uid-1") == lapses.behind_until("uid-2") == 0.0


def test_reasons_one_after_the_other_and_late_ones_are_lapses():
    lapses = Lapses()
    counted = [lapses.excused("uid-1", NOW + step, NOW + step) for step in range(EXCUSES_MAX + 1)]
    assert counted == [False] * EXCUSES_MAX + [True]
    assert lapses.excused("uid-2", NOW, NOW + 60)


def test_on_a_controller_of_ones_own_nobody_is_behind():
    lapses = Lapses()
    lapses.failed(None, NOW, NOW)
    lapses.excused(None, NOW, NOW + 60)
    assert lapses.behind_until(None) == 0.0


# ---- what the policy makes of it


def resident(name, size=4 * GIB, *, idle=1000.0, **fields):
    return Kernel(name, Residency.RESIDENT, {A: size}, last_activity=NOW - idle, **fields)


def queued(name, size, *, waits, **fields):
    return Kernel(name, Residency.QUEUED, fields.pop("has", {}), {A: size}, wants_since=NOW - waits, **fields)


def parked_for(kernels, settings=SETTINGS, host=64 * GIB):
    node = Node({A: Gpu(A, 0, 80 * GIB, NOW)}, tuple(kernels), Host(host))
    return [action.kernel_id for action in decide(NOW, node, settings) if isinstance(action, Park)]


BEHIND = {"behind_until": NOW + 1}


def test_who_is_behind_is_parked_after_all_others():
    """However good a victim, and though the other has not been idle for as long, or waits itself."""
    waiter = queued("waiter", 4 * GIB, waits=60)
    liar, honest = resident("liar", idle=9000, **BEHIND), resident("honest", idle=60)
    assert parked_for([waiter, liar, honest]) == ["honest"]
    assert parked_for([waiter, replace(liar, behind_until=NOW), honest]) == ["liar"]
    blocked = queued("blocked", 4 * GIB, waits=30, has={A: 4 * GIB})
    assert parked_for([waiter, liar, blocked]) == ["blocked"]
    assert parked_for([waiter, liar]) == ["liar"], "there is nobody else"


def test_turns_end_last_for_who_is_behind():
    settings = replace(SETTINGS, when_full="time_slice", quantum_s=10)
    at_work = {"idle": 0, "calls_in_flight": 1}
    old = resident("old", **at_work, resident_since=NOW - 500, **BEHIND)
    new = resident("new", **at_work, resident_since=NOW - 50)
    assert parked_for([queued("waiter", 4 * GIB, waits=60), old, new], settings) == ["new"]


@pytest.mark.parametrize(("since", "parked"), [(30.0, []), (31.0, ["honest"])])
def test_somebody_else_is_asked_too_when_a_park_lasts_too_long(since, parked):
    """40 GiB at 8 GB/s are 5.4 s: not for three times that and 5 s more is the second asked."""
    limit_s = 3 * (0.05 + 40 * GIB / 8e9) + 5
    moving = resident("moving", 40 * GIB, is_moving=True, moves_since=NOW - since * limit_s / 30.5)
    waiter = queued("waiter", 4 * GIB, waits=60)
    assert parked_for([waiter, replace(moving, residency=Residency.PARKING), resident("honest")]) == parked


def test_who_let_others_wait_before_is_waited_for_half_as_long_and_keeps_no_host_memory_for_ever():
    slow = resident("slow", 40 * GIB, moves_since=NOW - 15, is_moving=True)
    assert not is_late(NOW, slow, {}) and is_late(NOW, replace(slow, **BEHIND), {})
    slow = replace(slow, residency=Residency.PARKING, host=HostUse(is_frugal=True, budget_bytes=60 * GIB))
    waiter, honest = queued("waiter", 4 * GIB, waits=60), resident("honest", 30 * GIB)
    for since, behind, parked in ((100, NOW + 1, ["honest"]), (30, NOW + 1, []), (100, 0, [])):
        late = replace(slow, moves_since=NOW - since, behind_until=behind)
        assert is_given_up(NOW, late, {}) is bool(parked)
        assert parked_for([waiter, late, honest], host=64 * GIB) == parked


# ---- a crowd


class Says:
    """A page, a file of its own, that says what its process wants."""

    def __init__(self, where, resident, parked, last_activity):
        gpus = (PageGpu(A, resident, parked, (0,) * 8),)
        self.inode = 0, id(self)
        self.last = PageData(
            where,
            last_activity,
            last_activity,
            PageFlag(0),
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            None,
            None,
            gpus,
            calls=(0,) * 8,
        )

    def read(self):
        return self.last

    def say(self, **changes):
        self.last = replace(self.last, **changes)

    def close(self):
        """There is no file."""


class Link:
    """Numbers what it is told."""

    def __init__(self, person, told, name):
        self.peer, self.identity = SimpleNamespace(pid=0, uid=1), Identity(person, person)
        self.told, self.name, self.number = told, name, 0

    def command(self, kind, **_):
        self.number += 1
        self.told.append((kind, self.name, self.number))
        return self.number


class Crowd:
    """One person's processes that all say they have been idle longest, with most; an honest one; and who waits."""

    def __init__(self, clock, answer, monkeypatch):
        self.clock, self.answer = clock, answer
        for module in (moves, together, lapse_watch):
            monkeypatch.setattr(module, "time", clock)
        clock.now = NOW
        self.state = NodeState(SETTINGS, HostMemory(1 << 50, 1 << 50))
        self.moves = Moves(self.state, QUIET, lambda: None, Observers(QUIET))
        self.told, self.asked, self.due = [], [], []
        self.seen = Node({}, (), Host(0))
        self.used, self.resumed = 80 * GIB, False
        for number in range(LIARS):
            self.add("uid-666", f"liar-{number}", State.RESIDENT, 40 * GIB, 0, idle=90_000)
        self.add("uid-1", "honest", State.RESIDENT, 12 * GIB, 0, idle=400)
        self.add("uid-2", "waiter", State.QUEUED, 0, 10 * GIB, idle=5)

    def add(self, person, name, where, resident, parked, *, idle):
        hello = SimpleNamespace(flags=HelloFlag(0), kernel_id=name, command="python", shim_version="1")
        page = Says(where, resident, parked, NOW - idle)
        self.state.add_process(Link(person, self.told, name), hello, page, NOW)

    def pass_time(self, seconds):
        """A pass of the controller, and what the crowd makes of what it was told."""
        now = self.clock.now = self.clock.now + seconds
        gpu = NvmlGpu(A, 0, "A GPU", 80 * GIB, self.used, 80 * GIB - self.used, 0)
        self.state.take_sample(NvmlSample(now, "580", (gpu,)))
        self.state.refresh(now)
        self.moves.look_for_late_parks(self.seen, now)
        self.seen = self.state.snapshot(now, is_settled=True)
        for action in decide(now, self.seen, SETTINGS):
            kernel = self.state.kernels[action.kernel_id]
            if isinstance(action, Resume):
                self.resumed = True
                self.moves.resume(kernel, action.reserved_bytes, action.reason)
                continue
            assert isinstance(action, Park), action
            self.moves.park(kernel, action.reason, cause=Cause.ROOM, for_kernel=action.for_kernel)
        for kind, name, number in self.told:
            if kind is not CommandKind.PARK:
                continue
            self.asked.append((now, name))
            if name == "honest":
                self.process("uid-1/honest").page.say(state=State.PARKING, epoch=number)
            else:
                self.answer(self, f"uid-666/{name}", number, now)
        self.told.clear()
        for at, process, reply in list(self.due):
            if at <= now:
                self.due.remove((at, process, reply))
                self.moves.take_reply(process, reply)
        self.moves.look_for_lost_replies(now)

    def process(self, kernel_id):
        (process,) = self.state.kernels[kernel_id].processes.values()
        return process

    def until_the_honest_one_is_asked(self, most_s):
        while self.clock.now < NOW + most_s:
            self.pass_time(0.5)
            if self.asked and self.asked[-1][1] == "honest":
                return self.clock.now - NOW
        raise AssertionError(f"not within {most_s} s; asked were {self.asked}")


def begins_and_never_ends(crowd, kernel_id, number, now):
    crowd.process(kernel_id).page.say(state=State.PARKING, epoch=number)


def says_nothing(crowd, kernel_id, number, now):
    """As a stopped process does."""


def gives_nothing(crowd, kernel_id, number, now):
    """It says that it is parked; what it said it had was never there."""
    process = crowd.process(kernel_id)
    (gpu,) = process.page.last.gpus
    process.page.say(state=State.PARKED, epoch=number, gpus=(PageGpu(A, 0, gpu.resident_bytes, (0,) * 8),))
    crowd.due.append((now, process, Reply(1, number, CommandKind.PARK, Status.OK, 40 * GIB, 0.1, "")))


def replies(status, after_s):
    def answer(crowd, kernel_id, number, now):
        reply = Reply(1, number, CommandKind.PARK, status, 0, 0.1, "")
        crowd.due.append((now + after_s, crowd.process(kernel_id), reply))
        crowd.process(kernel_id).page.say(epoch=number)

    return answer


@pytest.mark.parametrize(
    ("answer", "within_s"),
    [
        (begins_and_never_ends, 25),  # three times the 5 s that 40 GiB take, and 5 s
        (says_nothing, 8),  # a command that is not begun in time is over
        (replies(Status.FAILED, 1), 3),
        (replies(Status.BUSY, 0.5), 12),  # some are believed
        (replies(Status.REVOKED, 12), 16),  # one that comes so late is not
        (replies(Status.BUSY, 40), 25),
        (replies(Status.NOTHING, 0.5), 12),  # it still says that it has what it was asked for
        (gives_nothing, 6),  # NVML says so, after a while if others come and go meanwhile
    ],
)  # fmt: skip
def test_one_persons_crowd_keeps_a_waiter_waiting_once(answer, within_s, monkeypatch):
    """Not once for each of its processes: then the honest victim of somebody else is asked, and stays so."""
    crowd = Crowd(Clock(), answer, monkeypatch)
    crowd.until_the_honest_one_is_asked(within_s)
    liars = {name for _, name in crowd.asked} - {"honest"}
    assert 1 <= len(liars) <= EXCUSES_MAX + 1 < LIARS
    before = len(crowd.asked)
    for _ in range(16):  # it takes its time
        crowd.pass_time(0.5)
    assert len(crowd.asked) == before, "nobody of the crowd is asked beside it"


def test_an_honest_person_whose_kernel_was_stopped_is_asked_again_when_there_is_nobody_else(monkeypatch):
    crowd = Crowd(Clock(), says_nothing, monkeypatch)
    for number in range(1, LIARS):
        crowd.state.remove_process(crowd.process(f"uid-666/liar-{number}"), NOW)
    crowd.state.remove_process(crowd.process("uid-1/honest"), NOW)
    for _ in range(60):
        crowd.pass_time(0.5)
    assert len([name for _, name in crowd.asked if name == "liar-0"]) >= 3


@pytest.mark.parametrize("preempts", [True, False])
def test_a_turn_that_ends_with_the_work_under_way_is_no_lapse(preempts, monkeypatch):
    """Of somebody who is behind, too: else every turn would put them further behind, and who is behind keeps theirs."""
    crowd = Crowd(Clock(), begins_and_never_ends, monkeypatch)
    crowd.state.lapses.failed("uid-1", NOW, NOW)
    kernel = crowd.state.kernels["uid-1/honest"]
    crowd.state.refresh(NOW)
    crowd.moves.park(kernel, "its turn is over", preempts=preempts, for_kernel="uid-2/waiter")
    crowd.process("uid-1/honest").page.say(state=State.PARKING, epoch=1)
    behind = []
    for seconds in (6.0, 6.0):  # 12 GiB take 1.7 s: late after 4.5 s, or 8.5 s
        now = crowd.clock.now = crowd.clock.now + seconds
        crowd.state.refresh(now)
        crowd.moves.look_for_late_parks(crowd.state.snapshot(now, is_settled=True), now)
        behind.append(crowd.state.lapses.behind_until("uid-1") - NOW)
    assert behind == ([FIRST_S, 12 + 2 * FIRST_S] if preempts else [6 + 2 * FIRST_S] * 2)


def test_who_gives_what_they_said_is_not_taken_for_a_liar(monkeypatch):
    """Though others come and go at the same time: somebody is resumed into the room."""
    crowd = Crowd(Clock(), gives_nothing, monkeypatch)
    for number in range(LIARS):
        crowd.state.remove_process(crowd.process(f"uid-666/liar-{number}"), NOW)
    crowd.until_the_honest_one_is_asked(2)
    crowd.used -= 12 * GIB
    gives_nothing(crowd, "uid-1/honest", 1, crowd.clock.now)
    waiter = crowd.process("uid-2/waiter")
    while waiter.page.last.state is not State.RESIDENT:
        crowd.pass_time(0.5)
        if crowd.resumed:
            crowd.used += 10 * GIB  # while its page does not say so yet
            for _ in range(3):
                crowd.pass_time(0.5)
            waiter.page.say(state=State.RESIDENT, gpus=(PageGpu(A, 10 * GIB, 0, (0,) * 8),))
    for _ in range(8):
        crowd.pass_time(0.5)
    assert crowd.state.lapses.behind_until("uid-1") == 0.0
