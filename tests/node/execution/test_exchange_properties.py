"""Whatever happens in whatever order, an exchange ends: no kernel is stuck, and no room stays reserved."""

from __future__ import annotations

from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from model_node import SETTINGS, Clock, Machine
from random_events import Events, Story, stories

from jupyter_affinode.node.protocol.page import State

GPU = "GPU-0"


def begun(clock: Clock, *sizes: int, when_full: str = "wait") -> Machine:
    """A GPU of 100 units and a kernel of each size, on the GPU as far as there is room, else parked."""
    machine = Machine(clock, {GPU: 100}, SETTINGS.changed(when_full=when_full))
    for number, size in enumerate(sizes):
        state = State.RESIDENT if machine.fits({GPU: size}) else State.PARKED
        machine.start(f"k{number}", {GPU: size}, state=state)
    machine.pass_time(10.0)
    return machine


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
    machine.check_at_rest()


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
    machine.check_at_rest()


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
    machine.check_at_rest()


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
    machine.check_at_rest()


def test_a_victim_that_prepares_for_too_long_lets_the_others_go(virtual_time):
    machine = begun(virtual_time, 40, 40, 75)
    *victims, comes = machine.shims
    kernels, failed = machine.state.kernels, machine.state.failed_parks
    kernels["k0"].account.charged_user, kernels["k1"].account.charged_user = "ann", "ben"
    comes.call()
    machine.pass_time()
    quick = victims[0]
    for shim in victims:
        shim.hear()
    quick.go_on()
    machine.deliver(quick)
    assert kernels["k2"].awaits_exchange
    machine.pass_time(60.0)
    machine.pass_time()
    assert not kernels["k2"].awaits_exchange and kernels["k1"].move.failure is not None
    quick.hear()
    machine.deliver(quick)
    assert kernels["k0"].failures.park.retry_at <= virtual_time.now, "it is not to blame"
    assert (failed.until("ann"), failed.until("ben") > virtual_time.now) == (0.0, True)
    machine.settle()
    assert comes.resumes == 1
    machine.check_at_rest()


class Exchanges(Story):
    """Kernels come, too."""

    def events(self) -> Events:
        """Of the machine."""
        return {**super().events(), "start": (1, self._start)}

    def _start(self) -> None:
        size = self.data.draw(st.integers(10, 90))
        state = State.RESIDENT if self.machine.fits({GPU: size}) else State.PARKED
        name = f"n{next(self.numbers)}"
        self.machine.start(name, {GPU: size}, state=state)


@given(st.lists(st.integers(10, 95), min_size=2, max_size=4), st.data())
@stories(examples(100), derandomize=True)
def test_whatever_happens_no_kernel_is_stuck_and_nothing_stays_reserved(virtual_time, sizes, data):
    """Processes come and go, controllers are killed between any two messages, copies fail, calls come at any moment."""
    machine = begun(virtual_time, *sizes)
    for shim in machine.shims:
        shim.fails = data.draw(st.booleans(), label="fails")
    Exchanges(machine, data).go_through(data.draw(st.integers(0, 60)))
    for shim in machine.shims:
        shim.fails = False
    machine.settle()
    machine.check_at_rest()
