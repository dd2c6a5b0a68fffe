"""Room reserved for a resume is others' again within seconds if nothing comes of it, and not while it is used."""

from __future__ import annotations

import logging

import pytest
from said_pages import NOW, TOTAL, A, Heart

from jupyter_affinode.node.model.backoff import UserBackOff
from jupyter_affinode.node.protocol.page import State
from jupyter_affinode.node.protocol.wire import CommandKind, Status
from jupyter_affinode.node.state.gpus.reservations import NOTHING_COMES_S, UNSEEN_LASTS_S
from jupyter_affinode.node.state.snapshot_builder import snapshot
from jupyter_affinode.settings.policy import GIB, MIB

MOVE_S = 0.5  # an honest resume on an empty GPU


class Rivals(Heart):
    """Fakes of one user that ask for the whole GPU, and an honest kernel of another's."""

    def __init__(self, monkeypatch, answer, fakes=12, **fields):
        super().__init__(monkeypatch, **fields)
        self.answer, self.asked = answer, []
        for number in range(fakes):
            self.add("uid-666", f"fake-{number}", State.QUEUED, parked=TOTAL)
        self.honest = None

    def honest_wait_s(self, most_s):
        """How long an honest kernel that comes now waits until it has the GPU."""
        began, resumes_at = self.clock.now, None
        self.honest = self.honest or self.add("uid-1", "honest", State.QUEUED, parked=40 * GIB)
        self.honest.say(state=State.QUEUED, state_since=began)
        self.honest.has(0, 40 * GIB)
        while self.clock.now < began + most_s:
            self.live()
            if resumes_at is None:
                resumes_at = self.resumes("uid-1/honest")
            elif self.clock.now >= resumes_at[0] + MOVE_S:
                self.used = 40 * GIB
                self.honest.say(state=State.RESIDENT)
                self.honest.has(40 * GIB, 0)
                self.reply("uid-1/honest", resumes_at[1], CommandKind.RESUME, Status.OK, 40 * GIB)
                return self.clock.now - began
        raise AssertionError(f"not within {most_s} s; {len(self.asked)} fakes were given the GPU")

    def honest_leaves(self):
        """It is idle, parked, and its memory free."""
        self.used = 0
        self.honest.say(state=State.PARKED)
        self.honest.has(0, 40 * GIB)

    def live(self):
        """A pass, and what fakes do with their commands."""
        self.told.clear()
        self.pass_time(0.25)
        self.expire()
        for kind, name, number in self.told:
            if kind is CommandKind.RESUME and name.startswith("uid-666"):
                self.asked.append(self.clock.now)
                self.answer(self, name, number)

    def resumes(self, kernel_id):
        """When and by which command a kernel was told to resume, if it was just now."""
        for kind, name, number in self.told:
            if kind is CommandKind.RESUME and name == kernel_id:
                self.process(kernel_id).page.say(state=State.RESUMING, epoch=number)
                return self.clock.now, number
        return None


def says_nothing(rivals, kernel_id, number):
    """As if its thread hung; its heartbeats go on."""


def resumes_for_ever(rivals, kernel_id, number):
    rivals.process(kernel_id).page.say(state=State.RESUMING, epoch=number)


def gives_up_late(rivals, kernel_id, number):
    """It says that it resumes, and after four seconds that it could not."""
    page = rivals.process(kernel_id).page
    page.say(state=State.RESUMING, epoch=number)
    due = rivals.clock.now + 4.0
    earlier = rivals.live

    def live():
        earlier()
        if rivals.clock.now >= due and rivals.state.kernels[kernel_id].move is not None:
            page.say(state=State.QUEUED)
            rivals.reply(kernel_id, number, CommandKind.RESUME, Status.FAILED)

    rivals.live = live


@pytest.mark.parametrize(
    "answer",
    [
        says_nothing,
        *(pytest.param(each, marks=pytest.mark.long) for each in (resumes_for_ever, gives_up_late)),
    ],
)
@pytest.mark.parametrize(
    "used_by", [pytest.param(None, id="containers", marks=pytest.mark.long), pytest.param({}, id="pids")]
)
def test_room_that_fakes_reserve_and_never_take_keeps_a_waiter_waiting_for_seconds(
    answer, used_by, monkeypatch
):
    rivals = Rivals(monkeypatch, answer)
    rivals.used_by = used_by
    while rivals.clock.now < NOW + 30:
        rivals.live()
    assert rivals.honest_wait_s(200) <= NOTHING_COMES_S + 2.0
    waits = []
    for _ in range(5):
        rivals.honest_leaves()
        while rivals.clock.now % 30:
            rivals.live()
        waits.append(rivals.honest_wait_s(200))
    assert sum(waits) <= 2 * NOTHING_COMES_S + 5 * 2.0, "they are tried ever less often"


def test_a_page_that_claims_less_and_less_bears_out_no_other_kernels_resume(monkeypatch):
    """Where NVML names no processes. It claimed memory that was never there, for another process of its user's."""
    rivals = Rivals(monkeypatch, resumes_for_ever, fakes=0)
    helper = rivals.add("uid-666", "helper", State.RESIDENT, resident=60 * GIB)
    for _ in range(8):
        rivals.live()
    rivals.add("uid-666", "fake", State.QUEUED, parked=TOTAL)
    rivals.live()
    claims = 60
    while rivals.clock.now < rivals.asked[0] + NOTHING_COMES_S + 1.0:
        rivals.live()
        claims -= 1
        helper.has(claims * GIB, 0)
    assert rivals.state.reservations.entries == []


def test_without_nvml_a_resume_of_which_nothing_is_heard_keeps_its_room_for_a_bounded_time(monkeypatch):
    rivals = Rivals(monkeypatch, resumes_for_ever)
    rivals.has_nvml = False
    rivals.live()
    assert rivals.asked
    assert rivals.honest_wait_s(200) <= UNSEEN_LASTS_S + 2.0


@pytest.mark.parametrize("by_pid", [True, False])
def test_a_slow_resume_keeps_its_room_as_long_as_nvml_shows_that_it_goes_on(by_pid, monkeypatch):
    """64 MiB a second: 20 GiB take more than five minutes, in which no other kernel is given the room."""
    heart = Heart(monkeypatch)
    slow = heart.add("uid-1", "slow", State.QUEUED, parked=20 * GIB)
    pid = heart.pids
    heart.used_by = {pid: 500 * MIB} if by_pid else None
    heart.used = 500 * MIB
    heart.pass_time()
    ((kind, name, number),) = heart.told
    assert (kind, name) == (CommandKind.RESUME, "uid-1/slow")
    slow.say(state=State.RESUMING, epoch=number)
    waits = heart.add("uid-2", "waits", State.QUEUED, parked=70 * GIB)
    other = heart.add("uid-3", "other", State.NONE)
    taken = others = 0
    while taken < 20 * GIB:
        heart.pass_time(1.0)
        taken += 64 * MIB
        others = GIB if taken % (640 * MIB) == 0 else 0  # comes and goes; its page is a second behind
        other.has(heart.used - taken - 500 * MIB + 64 * MIB, 0)
        heart.used = 500 * MIB + taken + others
        slow.has(taken // GIB * GIB, 20 * GIB - taken // GIB * GIB)  # behind, and in blocks
        if by_pid:
            heart.used_by = {pid: 500 * MIB + taken}
        assert len(heart.told) == 1, "the other does not fit beside it"
        reserved = [entry.bytes for entry in heart.state.reservations.entries]
        assert reserved == [20 * GIB] or taken > 19 * GIB
    slow.say(state=State.RESIDENT)
    slow.has(20 * GIB, 0)
    heart.reply("uid-1/slow", number, CommandKind.RESUME, Status.OK, 20 * GIB)
    heart.pass_time()
    heart.pass_time()
    assert heart.state.reservations.entries == [] and heart.state.unused_room.until("uid-1") == 0.0
    assert waits.last.state is State.QUEUED


@pytest.mark.parametrize("taken", [0, 20 * GIB])
def test_a_resume_that_stops_half_way_is_seen_to_have_memory_if_it_took_any(taken, monkeypatch):
    """An allocation that needs it then waits, and is not out of memory (policy/admission/test_denials.py)."""
    heart = Heart(monkeypatch)
    slow = heart.add("uid-1", "slow", State.QUEUED, parked=20 * GIB)
    heart.pass_time()
    ((_, _, number),) = heart.told
    slow.say(state=State.RESUMING, epoch=number)
    heart.used = taken
    while heart.state.reservations.entries:
        heart.pass_time()
    seen = snapshot(heart.state, heart.clock.now, is_settled=True)
    (kernel,) = (each for each in seen.kernels if each.id == "uid-1/slow")
    assert kernel.is_slow is (taken > 0)


@pytest.mark.parametrize("status", [Status.OK, Status.NO_GPU_ROOM])
def test_a_kernel_that_comes_after_all_meets_the_driver_and_not_another_kernel(status, monkeypatch):
    """Its room was given away while nothing came. Then it has what is left of the GPU, or stays parked and waits."""
    heart = Heart(monkeypatch)
    late = heart.add("uid-1", "late", State.QUEUED, parked=50 * GIB)
    heart.pass_time()
    ((_, _, number),) = heart.told
    late.say(state=State.RESUMING, epoch=number)
    heart.add("uid-2", "next", State.QUEUED, parked=20 * GIB if status is Status.OK else 60 * GIB)
    while len(heart.told) < 2:
        heart.pass_time()
        assert heart.clock.now < NOW + NOTHING_COMES_S + 2.0 or status is Status.OK
    assert heart.told[1][:2] == (CommandKind.RESUME, "uid-2/next")
    if status is Status.OK:
        heart.used += 50 * GIB
        late.say(state=State.RESIDENT)
        late.has(50 * GIB, 0)
    else:
        late.say(state=State.QUEUED)
    heart.reply("uid-1/late", number, CommandKind.RESUME, status)
    heart.pass_time()
    kernel = heart.state.kernels["uid-1/late"]
    assert kernel.move is None
    assert (kernel.wants_since is None) is (status is Status.OK), "it keeps its place while it waits"
    room = snapshot(heart.state, heart.clock.now, is_settled=True)
    assert sum(each.bytes for each in room.reservations) in (20 * GIB, 60 * GIB), "the other's alone"


def test_a_grant_that_is_not_used_counts_against_its_user(monkeypatch, caplog):
    log = logging.getLogger("test-reservations")
    heart = Heart(monkeypatch, log=log)
    heart.add("uid-1", "asks", State.RESIDENT, resident=GIB)
    heart.state.reservations.grant("uid-1/asks", A, 70 * GIB, (1, 1), heart.clock.now)
    heart.pass_time(4.0)
    assert heart.state.unused_room.until("uid-1") == 0.0
    heart.pass_time(2.0)
    assert heart.state.reservations.entries == [] and heart.state.unused_room.until("uid-1") > heart.clock.now
    assert "uid-1/asks did not take the GPU memory" in caplog.text


# ---- for how long


def test_each_failure_is_a_pause_of_twice_the_time():
    back_off, now, lasts = UserBackOff(60.0, 3600.0), NOW, []
    for _ in range(8):
        assert back_off.failed("uid-1", now, now)
        lasts.append(back_off.until("uid-1") - now)
        now = back_off.until("uid-1")
    assert lasts == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]
    assert back_off.until("uid-2") == 0.0


def test_moves_that_were_under_way_together_fail_once():
    back_off = UserBackOff(60.0, 3600.0)
    assert back_off.failed("uid-1", NOW, NOW + 20)
    assert not back_off.failed("uid-1", NOW + 5, NOW + 21)
    assert back_off.until("uid-1") == NOW + 20 + 60


def test_failures_are_forgotten_once_none_has_happened_for_ten_times_the_pause():
    back_off, now = UserBackOff(60.0, 3600.0), NOW
    for pause_s in (60.0, 120.0, 240.0):
        assert back_off.failed("uid-1", now, now)
        assert back_off.until("uid-1") - now == pause_s
        now += 11 * pause_s  # ten times after its end
    now += 1.0
    assert back_off.failed("uid-1", now, now)
    assert back_off.until("uid-1") - now == 60.0


def test_on_a_users_own_controller_nothing_counts():
    back_off = UserBackOff(60.0, 3600.0)
    assert not back_off.failed(None, NOW, NOW)
    assert back_off.until(None) == 0.0
