"""Whatever happens in whatever order, an exchange ends: no kernel is stuck, and no room stays reserved."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from model_node import SETTINGS, Clock, Machine

from jupyter_affinode.node.execution import exchanges, failed_parks, moves
from jupyter_affinode.node.execution import group_commit as together
from jupyter_affinode.node.protocol.page import State

GPU = "GPU-0"
ON_GPU = (State.RESIDENT, State.PARKING)


@pytest.fixture(scope="module", autouse=True)
def virtual_time():
    """The controller's modules read a virtual clock."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (moves, together, exchanges, failed_parks):
            patch.setattr(module, "time", clock)
        yield clock


def begun(clock: Clock, *sizes: int, when_full: str = "wait") -> Machine:
    """A GPU of 100 units and a kernel of each size, on the GPU as far as there is room, else parked."""
    machine = Machine(clock, {GPU: 100}, SETTINGS.changed(when_full=when_full))
    for number, size in enumerate(sizes):
        state = State.RESIDENT if machine.fits({GPU: size}) else State.PARKED
        machine.start(f"k{number}", {GPU: size}, exchanges=True, state=state)
    machine.pass_time(10.0)
    return machine


def check(machine: Machine) -> None:
    """What holds at every moment."""
    assert machine.free(GPU) >= 0, "more than the GPU has"
    told = [shim for shim in machine.shims if shim.work is not None]
    assert all(shim.state in (State.PARKING, State.RESUMING) for shim in told)


def check_at_rest(machine: Machine) -> None:
    kernels = machine.state.kernels.values()
    assert [(each.id, each.move) for each in kernels if each.move is not None] == []
    assert [each.id for each in kernels if each.exchange is not None] == []
    assert not machine.state.reservations.entries
    for shim in machine.shims:
        assert shim.work is None
        assert shim.state in (State.RESIDENT, State.PARKED), "it waits for ever"
        if shim.here is not None:
            assert not machine.fits(shim.lacks), (
                "a part of it stays on the GPU although there is room for the rest"
            )


def prepare(machine: Machine) -> None:
    """Those that are told to park say that they are prepared."""
    for shim in [each for each in machine.shims if each.state is State.RESIDENT and each.inbox]:
        shim.hear()
        shim.go_on()
        machine.deliver(shim)


def prepared(clock: Clock, *sizes: int) -> Machine:
    """k0 is about to leave for the last kernel, which waits; COMMIT and RESUME are on their way."""
    machine = begun(clock, *sizes)
    machine.shims[-1].call()
    machine.pass_time()
    prepare(machine)
    return machine


def test_a_waiter_comes_in_while_its_victim_goes_out(virtual_time):
    machine = prepared(virtual_time, 60, 30, 70)
    goes, stays, comes = machine.shims
    while goes.inbox or comes.inbox:
        for shim in (goes, comes):
            while shim.inbox:
                shim.hear()
    assert (goes.state, stays.state, comes.state) == (State.PARKING, State.RESIDENT, State.RESUMING)
    comes.go_on()
    assert comes.here == {GPU: 10} and not comes.can_go_on
    goes.go_on()
    comes.go_on()
    assert comes.here == {GPU: 40}, "what its victim has released so far"
    machine.settle()
    assert (goes.state, comes.state, machine.exchanged) == (State.PARKED, State.RESIDENT, 1)
    check_at_rest(machine)


def test_its_room_is_no_others(virtual_time):
    """Of what the victim frees, a second waiter gets what the first leaves."""
    machine = begun(virtual_time, 90, 60, 50, 10)
    first, second = machine.shims[1], machine.shims[2]
    first.call()
    machine.pass_time()
    second.call()
    prepare(machine)
    machine.pass_time()
    assert machine.state.kernels["k1"].move is not None
    assert machine.state.kernels["k2"].move is None
    (reserved,) = machine.state.reservations.entries
    assert (reserved.kernel_id, reserved.bytes) == ("k1", 60)
    machine.settle()
    check_at_rest(machine)


def test_a_kernel_parked_in_part_is_whole_again_before_others_are_served(virtual_time):
    machine = prepared(virtual_time, 80, 70)
    goes, comes = machine.shims
    goes.fails = True
    while goes.state is not State.PARKED:
        goes.hear() if goes.inbox else goes.go_on()
    assert goes.here == {GPU: 40}
    goes.fails = False
    comes.hear()
    comes.go_on()
    machine.deliver(goes)
    machine.pass_time()
    comes.give_up()
    while comes.outbox:
        machine.deliver(comes)
    waits = machine.state.kernels["k1"]
    assert waits.move is None and waits.failures.resume.retry_at == 0.0, "the victim was to blame"
    assert waits.wants_since is not None
    machine.pass_time()
    assert machine.state.kernels["k0"].move is not None, "the rest of it comes back"
    machine.settle()
    assert comes.resumes == 1
    check_at_rest(machine)


def test_a_foreign_program_that_took_the_memory_costs_the_waiter_its_pause(virtual_time):
    machine = prepared(virtual_time, 80, 70)
    goes, comes = machine.shims
    machine.totals[GPU] = 90
    for shim in (goes, comes):
        shim.hear()
    while goes.can_go_on:
        goes.go_on()
    machine.totals[GPU] = 30
    while comes.can_go_on:
        comes.go_on()
    comes.give_up()
    for shim in (goes, comes):
        while shim.outbox:
            machine.deliver(shim)
    waits = machine.state.kernels["k1"]
    assert waits.failures.resume.retry_at > virtual_time.now
    assert waits.wants_since is not None
    machine.totals[GPU] = 100
    machine.settle()
    assert comes.resumes == 1
    check_at_rest(machine)


def test_a_victim_that_prepares_for_too_long_lets_the_others_go(virtual_time):
    machine = begun(virtual_time, 40, 40, 75)
    *victims, comes = machine.shims
    comes.call()
    machine.pass_time()
    quick = victims[0]
    for shim in victims:
        shim.hear()
    quick.go_on()
    machine.deliver(quick)
    assert machine.state.kernels["k2"].exchange is not None
    machine.pass_time(60.0)
    machine.pass_time()
    assert machine.state.kernels["k2"].exchange is None
    assert machine.state.kernels["k0"].failures.park.retry_at <= virtual_time.now, "it is not to blame"
    assert machine.state.kernels["k1"].move.failure is not None
    machine.settle()
    assert comes.resumes == 1
    check_at_rest(machine)


class Story:
    """Draws what happens next."""

    def __init__(self, machine: Machine, data: st.DataObject):
        self.machine = machine
        self.data = data
        self._started = 0

    def step(self) -> None:
        """One thing happens."""
        machine = self.machine
        events = [("time", 0), ("long", 0), ("kill", 0), ("start", 0)]
        for number, shim in enumerate(machine.shims):
            events += [("hear", number)] * (3 * bool(shim.inbox))
            events += [("deliver", number)] * (3 * bool(shim.outbox))
            events += [("go on", number)] * (3 * shim.can_go_on)
            events += [("call", number)] * 2 + [("busy", number), ("fail", number)]
            events += [("patience", number)] * shim.may_lose_patience + [
                ("give up", number)
            ] * shim.may_give_up
            if shim.state is not State.RESIDENT:
                events.append(("end", number))
        what, which = self.data.draw(st.sampled_from(events), label="event")
        if what == "time":
            machine.pass_time()
        elif what == "long":
            machine.pass_time(3.0)
        elif what == "kill":
            machine.kill_controller(lambda many: self.data.draw(st.integers(0, many), label="arrive"))
        elif what == "start":
            size = self.data.draw(st.integers(10, 90))
            state = State.RESIDENT if machine.fits({GPU: size}) else State.PARKED
            self._started += 1
            machine.start(f"n{self._started}", {GPU: size}, exchanges=True, state=state)
        else:
            self._do(machine.shims[which], what)

    def _do(self, shim, what):
        if what == "busy":
            shim.is_busy = not shim.is_busy
        elif what == "fail":
            shim.fails = not shim.fails
        elif what == "end":
            self.machine.end_process(shim)
        elif what == "deliver":
            self.machine.deliver(shim)
        else:
            steps = {
                "hear": shim.hear,
                "go on": shim.go_on,
                "call": shim.call,
                "patience": shim.lose_patience,
            }
            (shim.give_up if what == "give up" else steps[what])()


@given(st.lists(st.integers(10, 95), min_size=2, max_size=4), st.data())
@settings(
    max_examples=100,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_whatever_happens_no_kernel_is_stuck_and_nothing_stays_reserved(virtual_time, sizes, data):
    """Processes come and go, controllers are killed between any two messages, copies fail, calls come at any moment."""
    machine = begun(virtual_time, *sizes)
    for shim in machine.shims:
        shim.fails = data.draw(st.booleans(), label="fails")
    story = Story(machine, data)
    for _ in range(data.draw(st.integers(0, 60))):
        story.step()
        check(machine)
    for shim in machine.shims:
        shim.fails = False
    machine.settle()
    check_at_rest(machine)
