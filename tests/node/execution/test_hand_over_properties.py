"""Whatever happens in whatever order, an exchange that hands host memory over ends, and all kernels go on.

There is one GPU for two kernels, and host memory for the others with two windows beside. Sizes in slabs of 32 MiB.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from model_node import SETTINGS, Clock
from short_node import ShortNode

from jupyter_affinode.node.execution import exchanges, failed_parks, moves
from jupyter_affinode.node.execution import group_commit as together
from jupyter_affinode.node.policy.host_memory import SLAB_BYTES, begins_with, with_margin
from jupyter_affinode.node.protocol.page import State

GPU = "GPU-0"
SIZE, TOTAL = 40 * SLAB_BYTES, 90 * SLAB_BYTES
RESERVE = 8 * SLAB_BYTES
LEAVES_BESIDE = with_margin(RESERVE) + begins_with(SIZE)


@pytest.fixture(scope="module", autouse=True)
def virtual_time():
    """The controller's modules read a virtual clock."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (moves, together, exchanges, failed_parks):
            patch.setattr(module, "time", clock)
        yield clock


def begun(clock: Clock, count: int = 3) -> ShortNode:
    """So many kernels, two of them on the GPU, and host memory for the others."""
    host_bytes = (count - 2) * SIZE + LEAVES_BESIDE
    machine = ShortNode(clock, {GPU: TOTAL}, SETTINGS.changed(host_reserve_bytes=RESERVE), host_bytes)
    for number in range(count):
        state = State.RESIDENT if number < 2 else State.PARKED
        machine.start(f"k{number}", {GPU: SIZE}, exchanges=True, state=state)
    machine.pass_time(10.0)
    return machine


def check(machine: ShortNode) -> None:
    """What holds at every moment."""
    assert machine.free(GPU) >= 0, "more than the GPU has"
    assert machine.host_left_bytes >= 0, "the reserve was touched"
    for shim in machine.shims:
        assert shim.in_host_bytes <= shim.slots_bytes, "contents are nowhere"
        if shim.work is not None:
            assert shim.state in (State.PARKING, State.RESUMING)


def check_at_rest(machine: ShortNode) -> None:
    check(machine)
    kernels = machine.state.kernels.values()
    assert [(each.id, each.move) for each in kernels if each.move is not None] == []
    assert [each.id for each in kernels if each.exchange is not None] == []
    assert not machine.state.reservations.entries
    assert not any(machine.promises.values())
    for shim in machine.shims:
        assert shim.work is None
        assert shim.state in (State.RESIDENT, State.PARKED), "it waits for ever"
        if shim.here is not None:
            assert not machine.fits(shim.lacks), "a part of it is on the GPU, and there is room for the rest"


def under_way(clock: Clock):
    """k0 goes out while k2 comes in."""
    machine = begun(clock)
    comes = machine.shims[2]
    comes.call()
    while comes.state is not State.RESUMING:
        machine.pass_time()
        for shim in machine.shims:
            while shim.inbox:
                shim.hear()
            if shim.state is State.PARKING and not shim.work.is_prepared:
                shim.go_on()
            while shim.outbox:
                machine.deliver(shim)
    (goes,) = (shim for shim in machine.shims if shim.state is State.PARKING)
    while goes.inbox:
        goes.hear()
    return machine, goes, comes


def test_two_kernels_change_places_with_host_memory_for_one_and_two_windows(virtual_time):
    machine, goes, comes = under_way(virtual_time)
    assert machine.promises == {goes.key: SIZE - begins_with(SIZE)}
    machine.settle()
    assert (goes.state, comes.state, machine.exchanged) == (State.PARKED, State.RESIDENT, 1)
    assert machine.parked_in_part == 0
    check_at_rest(machine)


def test_while_it_goes_on_no_other_park_takes_what_was_promised(virtual_time):
    machine, goes, comes = under_way(virtual_time)
    stays = next(shim for shim in machine.shims if shim not in (goes, comes))
    machine.totals[GPU] = TOTAL + SIZE
    for _ in range(40):
        machine.state.kernels[stays.kernel_id].asked.park = "its user asked for it"
        machine.pass_time()
        for shim in (goes, comes, stays):
            if shim.inbox or shim.outbox or shim.can_go_on:
                shim.hear() if shim.inbox else machine.deliver(shim) if shim.outbox else shim.go_on()
            check(machine)
        machine.lend()
        check(machine)
    assert (goes.state, comes.state) == (State.PARKED, State.RESIDENT)
    machine.settle()
    check_at_rest(machine)


@pytest.mark.parametrize("steps", range(8))
def test_a_controller_that_is_killed_leaves_two_halves_that_the_next_one_puts_together(virtual_time, steps):
    machine, goes, comes = under_way(virtual_time)
    for _ in range(steps):
        for shim in (goes, comes):
            if shim.can_go_on:
                shim.go_on()
        machine.lend()
    machine.kill_controller(lambda many: many)
    for shim in (goes, comes):
        while shim.can_go_on:
            shim.go_on()
        if shim.may_give_up:
            shim.give_up()
    for shim in (goes, comes):
        shim.call()
    machine.settle()
    check_at_rest(machine)
    assert comes.resumes + goes.resumes >= 1


@pytest.mark.parametrize("which", ["goes", "comes"])
def test_of_two_one_may_be_killed(virtual_time, which):
    machine, goes, comes = under_way(virtual_time)
    for shim in (goes, comes):
        shim.go_on()
    machine.lend()
    machine.end_process(goes if which == "goes" else comes)
    machine.settle()
    check_at_rest(machine)
    if which == "goes":
        assert comes.state is State.RESIDENT
    else:
        assert goes.here is None


def test_a_foreign_program_that_takes_host_memory_leaves_the_victim_in_part_until_there_is_room(virtual_time):
    machine, goes, comes = under_way(virtual_time)
    for shim in (goes, comes):
        while shim.can_go_on:
            shim.go_on()
    taken = machine.host_left_bytes
    machine.host_bytes -= taken
    assert not machine.lend()
    goes.give_up()
    comes.give_up()
    assert goes.here is not None and comes.here is not None
    machine.host_bytes += taken
    machine.settle()
    assert comes.state is State.RESIDENT
    check_at_rest(machine)


class Story:
    """Draws what happens next."""

    def __init__(self, machine: ShortNode, data: st.DataObject):
        self.machine = machine
        self.data = data

    def step(self) -> None:
        """One thing happens."""
        machine = self.machine
        events = [("time", 0), ("long", 0), ("kill", 0)] + [("lend", 0)] * 3 * bool(machine.promises)
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
        shim = machine.shims[which]
        does = {
            "time": machine.pass_time,
            "long": lambda: machine.pass_time(3.0),
            "kill": lambda: machine.kill_controller(
                lambda many: self.data.draw(st.integers(0, many), label="arrive")
            ),
            "lend": machine.lend,
            "hear": shim.hear,
            "deliver": lambda: machine.deliver(shim),
            "go on": shim.go_on,
            "call": shim.call,
            "busy": lambda: setattr(shim, "is_busy", not shim.is_busy),
            "fail": lambda: setattr(shim, "fails", not shim.fails),
            "patience": shim.lose_patience,
            "give up": shim.give_up,
            "end": lambda: machine.end_process(shim),
        }
        does[what]()


@given(st.integers(3, 5), st.data())
@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_whatever_happens_no_kernel_is_stuck_and_no_reserve_is_touched(virtual_time, count, data):
    """Processes end, controllers are killed between any two messages, copies fail, calls come at any moment."""
    machine = begun(virtual_time, count)
    if data.draw(st.booleans(), label="under way"):
        machine, goes, comes = under_way(virtual_time)
        for shim in (goes, comes) * data.draw(st.integers(0, 4)):
            if shim.can_go_on:
                shim.go_on()
                machine.lend()
    story = Story(machine, data)
    for _ in range(data.draw(st.integers(0, 60))):
        if not machine.shims:
            break
        story.step()
        check(machine)
    for shim in machine.shims:
        shim.fails = False
    machine.settle()
    check_at_rest(machine)
