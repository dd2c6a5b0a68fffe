"""A crowd of one user's processes that look like the best victims, and never give anything, keeps no kernel waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest
import snapshots
from said_pages import NOW, SETTINGS, TOTAL, Heart
from snapshots import A, node, parks, resident

from jupyter_affinode.node.model.actions import Park
from jupyter_affinode.node.model.snapshot import Host, HostUse, Residency
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.victims.eviction_cost import is_late
from jupyter_affinode.node.protocol.page import State
from jupyter_affinode.node.protocol.wire import CommandKind, Status
from jupyter_affinode.node.state.snapshot_builder import snapshot
from jupyter_affinode.settings.policy import GIB

LIARS = 30
FIRST_S = 10.0


# ---- what the policy makes of it


def queued(name, *, waits):
    return snapshots.parked(name, waits=waits)


def parked_for(kernels, settings=SETTINGS, host=64 * GIB):
    return parks(decide(NOW, node(*kernels, total=80 * GIB, host=Host(host)), settings))


BEHIND = {"demoted_until": NOW + 1}


def test_a_user_with_failed_parks_is_parked_after_all_others():
    """However good a victim, and though the other has not been idle for as long, or waits itself."""
    waiter = queued("waiter", waits=60)
    liar, honest = resident("liar", idle=9000, **BEHIND), resident("honest", idle=60)
    assert parked_for([waiter, liar, honest]) == ["honest"]
    assert parked_for([waiter, replace(liar, demoted_until=NOW), honest]) == ["liar"]
    blocked = replace(queued("blocked", waits=30), resident_bytes={A: 4 * GIB})
    assert parked_for([waiter, liar, blocked]) == ["blocked"]
    assert parked_for([waiter, liar]) == ["liar"], "there is no other"


def test_a_user_with_failed_parks_is_preempted_last():
    settings = replace(SETTINGS, when_full="time_slice", time_slice_s=10)
    at_work = {"idle": 0, "calls_in_flight": 1}
    old = resident("old", **at_work, resident_since=NOW - 500, **BEHIND)
    new = resident("new", **at_work, resident_since=NOW - 50)
    assert parked_for([queued("waiter", waits=60), old, new], settings) == ["new"]


@pytest.mark.parametrize(("since", "parked"), [(30.0, []), (31.0, ["honest"])])
def test_another_kernel_is_parked_too_when_a_park_lasts_too_long(since, parked):
    """40 GiB at 8 GB/s are 5.4 s: not for three times that and 5 s more is the second asked."""
    limit_s = 3 * (0.05 + 40 * GIB / 8e9) + 5
    moving = resident("moving", 40 * GIB, is_moving=True, moves_since=NOW - since * limit_s / 30.5)
    waiter = queued("waiter", waits=60)
    assert parked_for([waiter, replace(moving, residency=Residency.PARKING), resident("honest")]) == parked


def test_a_late_park_of_a_user_that_is_behind_keeps_no_host_memory_from_others():
    """What it may take is a promise that would keep all others' memory on the GPU."""
    slow = resident("slow", 40 * GIB, is_moving=True)
    slow = replace(slow, residency=Residency.PARKING, host=HostUse(budget_bytes=60 * GIB))
    takes_all = HostUse(park_takes_bytes=30 * GIB)
    waiter, honest = queued("waiter", waits=60), resident("honest", 30 * GIB, host=takes_all)
    for since, behind, parked in ((100, NOW + 1, ["honest"]), (15, 0, []), (100, 0, [])):
        moving = replace(slow, moves_since=NOW - since, demoted_until=behind)
        assert is_late(NOW, moving, {}) is (since == 100)
        assert parked_for([waiter, moving, honest], host=64 * GIB) == parked


def test_no_waiter_waits_for_a_park_of_a_user_that_is_behind():
    """Neither for its GPU memory, nor for an end of moves on the GPU."""
    moving = resident("moving", 40 * GIB, is_moving=True, moves_since=NOW - 1)
    moving = replace(moving, residency=Residency.PARKING)
    waiter = replace(queued("waiter", waits=60), may_resume_in_parts=True)
    honest = resident("honest", 30 * GIB)
    assert parked_for([waiter, moving, honest], host=128 * GIB) == []
    for waits in (60, 5):
        waiter = replace(waiter, wants_since=NOW - waits)
        assert parked_for([waiter, replace(moving, **BEHIND), honest], host=128 * GIB) == ["honest"]


def test_of_users_that_are_behind_no_more_are_asked_than_would_do():
    first = resident("first", 8 * GIB, is_moving=True, moves_since=NOW - 1, **BEHIND)
    second = resident("second", 8 * GIB, **BEHIND)
    waiter = queued("waiter", waits=60)
    assert parked_for([waiter, first, second]) == []
    assert parked_for([waiter, replace(first, resident_bytes={A: 1 * GIB}), second]) == ["second"]


def test_no_kernel_of_a_user_that_is_behind_takes_part_in_an_exchange():
    """It could break that off for all others."""
    waiter = replace(queued("waiter", waits=60), may_resume_in_parts=True)
    victim = resident("victim")
    for behind, exchanges in (({}, True), (BEHIND, False)):
        (park,) = decide(NOW, node(waiter, replace(victim, **behind), total=80 * GIB), SETTINGS)
        assert (park.kernel_id, park.exchanges) == ("victim", exchanges)


# ---- a crowd


class Crowd(Heart):
    """One user's processes that all say they have been idle longest, with most; an honest one; and a waiter."""

    def __init__(self, answer, monkeypatch, liars=LIARS):
        super().__init__(monkeypatch)
        self.answer = answer
        self.asked, self.due = [], []
        self.used = TOTAL
        for number in range(liars):
            self.add("uid-666", f"liar-{number}", State.RESIDENT, 40 * GIB, 0, idle=90_000)
        self.add("uid-1", "honest", State.RESIDENT, 12 * GIB, 0, idle=400)
        self.add("uid-2", "waiter", State.QUEUED, 0, 10 * GIB)
        self.resumes = None

    def live(self):
        """A pass of the controller, and what the crowd makes of what it was told."""
        self.told.clear()
        self.pass_time()
        now = self.clock.now
        for kind, kernel_id, number in self.told:
            if kind is CommandKind.RESUME:
                self.resumes = number
                continue
            self.asked.append((now, kernel_id))
            if kernel_id == "uid-1/honest":
                self.process(kernel_id).page.say(state=State.PARKING, epoch=number)
            else:
                self.answer(self, kernel_id, number, now)
        for at, kernel_id, number, status in list(self.due):
            if at <= now:
                self.due.remove((at, kernel_id, number, status))
                self.reply(kernel_id, number, CommandKind.PARK, status, 40 * GIB)
        self.expire()

    def until_the_honest_one_is_asked(self, most_s):
        while self.clock.now < NOW + most_s:
            self.live()
            if self.asked and self.asked[-1][1] == "uid-1/honest":
                return
        raise AssertionError(f"not within {most_s} s; asked were {self.asked}")


def begins_and_never_ends(crowd, kernel_id, number, now):
    crowd.process(kernel_id).page.say(state=State.PARKING, epoch=number)


def says_nothing(crowd, kernel_id, number, now):
    """As a stopped process does."""


def gives_nothing(crowd, kernel_id, number, now):
    """It says that it is parked; what it said it had was never there."""
    page = crowd.process(kernel_id).page
    page.say(state=State.PARKED, epoch=number)
    page.has(0, page.last.gpus[0].resident_bytes)
    crowd.due.append((now, kernel_id, number, Status.OK))


def replies(status, after_s):
    def answer(crowd, kernel_id, number, now):
        crowd.due.append((now + after_s, kernel_id, number, status))
        crowd.process(kernel_id).page.say(epoch=number)

    return answer


@pytest.mark.parametrize(
    ("answer", "within_s"),
    [
        (begins_and_never_ends, 25),  # three times the 5 s that 40 GiB take, and 5 s
        (says_nothing, 8),  # a command that is not begun in time is over
        (replies(Status.FAILED, 1), 3),
        (replies(Status.BUSY, 0.5), 3),
        (replies(Status.REVOKED, 12), 16),
        (replies(Status.BUSY, 40), 25),
        (replies(Status.NOTHING, 0.5), 3),
        (gives_nothing, 6),  # NVML says so
    ],
)  # fmt: skip
def test_one_users_crowd_keeps_a_waiter_waiting_once(answer, within_s, monkeypatch):
    """Not once for each of its processes: then the honest victim of another user is asked, and stays so."""
    crowd = Crowd(answer, monkeypatch)
    crowd.until_the_honest_one_is_asked(within_s)
    liars = {name for _, name in crowd.asked} - {"uid-1/honest"}
    assert 1 <= len(liars) <= 2 < LIARS
    before = len(crowd.asked)
    for _ in range(16):  # it takes its time
        crowd.live()
    assert len(crowd.asked) == before, "no process of the crowd is asked beside it"


def test_a_user_with_failed_parks_is_parked_again_when_there_is_no_other(monkeypatch):
    crowd = Crowd(says_nothing, monkeypatch, liars=1)
    crowd.state.remove_process(crowd.process("uid-1/honest"), NOW)
    for _ in range(60):
        crowd.live()
    assert len([name for _, name in crowd.asked if name == "uid-666/liar-0"]) >= 3


@pytest.mark.parametrize("preempts", [True, False])
def test_a_time_slice_that_ends_with_the_work_under_way_is_no_failure(preempts, monkeypatch):
    """Else every time slice would put its user further behind, and a user that is behind keeps its GPU."""
    crowd = Crowd(begins_and_never_ends, monkeypatch, liars=0)
    kernel = crowd.state.kernels["uid-1/honest"]
    crowd.state.refresh(NOW)
    park = Park(kernel.id, "its turn is over", preempts=preempts, for_kernel="uid-2/waiter")
    crowd.operations.begin(kernel, park)
    crowd.process("uid-1/honest").page.say(state=State.PARKING, epoch=1)
    behind = []
    for seconds in (11.0, 6.0):  # 12 GiB take 1.7 s: late after 10.0 s, or 14.0 s
        now = crowd.clock.now = crowd.clock.now + seconds
        crowd.state.refresh(now)
        crowd.operations.count_broken_promises(snapshot(crowd.state, now, is_settled=True), now)
        behind.append(crowd.state.failed_parks.until("uid-1") - NOW)
    assert behind == ([-NOW, 17 + FIRST_S] if preempts else [11 + FIRST_S] * 2)


def test_a_user_that_gives_what_it_said_is_not_taken_for_a_liar(monkeypatch):
    """Though others come and go at the same time: the waiter is resumed into the room."""
    crowd = Crowd(gives_nothing, monkeypatch, liars=0)
    crowd.until_the_honest_one_is_asked(2)
    crowd.used -= 12 * GIB
    gives_nothing(crowd, "uid-1/honest", 1, crowd.clock.now)
    waiter = crowd.process("uid-2/waiter").page
    while waiter.last.state is not State.RESIDENT:
        crowd.live()
        if crowd.resumes is not None:
            crowd.used += 10 * GIB  # while its page does not say so yet
            for _ in range(3):
                crowd.live()
            waiter.say(state=State.RESIDENT)
            waiter.has(10 * GIB, 0)
    for _ in range(8):
        crowd.live()
    assert crowd.state.failed_parks.until("uid-1") == 0.0
