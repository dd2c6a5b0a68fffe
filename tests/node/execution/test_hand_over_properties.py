"""Whatever happens in whatever order, an exchange that hands host memory over ends, and all kernels go on.

There is one GPU for two kernels, and host memory for the others with two windows beside. Sizes in slabs of 32 MiB.
"""

from __future__ import annotations

import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from model_node import SETTINGS, Clock
from random_events import Events, Story, stories
from short_node import ShortNode

from jupyter_affinode.node.model.snapshot import SLAB_BYTES
from jupyter_affinode.node.policy.resources.host_memory import begins_with, with_margin
from jupyter_affinode.node.protocol.page import State

GPU = "GPU-0"
SIZE, TOTAL = 40 * SLAB_BYTES, 90 * SLAB_BYTES
RESERVE = 8 * SLAB_BYTES
LEAVES_BESIDE = with_margin(RESERVE) + begins_with(SIZE)


def begun(clock: Clock, count: int = 3) -> ShortNode:
    """So many kernels, two of them on the GPU, and host memory for the others."""
    host_bytes = (count - 2) * SIZE + LEAVES_BESIDE
    machine = ShortNode(clock, {GPU: TOTAL}, SETTINGS.changed(host_reserve_bytes=RESERVE), host_bytes)
    for number in range(count):
        state = State.RESIDENT if number < 2 else State.PARKED
        machine.start(f"k{number}", {GPU: SIZE}, state=state)
    machine.pass_time(10.0)
    return machine


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
    machine.check_at_rest()


def test_while_it_goes_on_no_other_park_takes_what_was_promised(virtual_time):
    machine, goes, comes = under_way(virtual_time)
    stays = next(shim for shim in machine.shims if shim not in (goes, comes))
    machine.totals[GPU] = TOTAL + SIZE
    for _ in range(40):
        machine.state.kernels[stays.kernel_id].requests.park = "its user asked for it"
        machine.pass_time()
        for shim in (goes, comes, stays):
            if shim.inbox or shim.outbox or shim.can_go_on:
                shim.hear() if shim.inbox else machine.deliver(shim) if shim.outbox else shim.go_on()
            machine.check()
        machine.lend()
        machine.check()
    assert (goes.state, comes.state) == (State.PARKED, State.RESIDENT)
    machine.settle()
    machine.check_at_rest()


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
    machine.check_at_rest()
    assert comes.resumes + goes.resumes >= 1


@pytest.mark.parametrize("which", ["goes", "comes"])
def test_of_two_one_may_be_killed(virtual_time, which):
    machine, goes, comes = under_way(virtual_time)
    for shim in (goes, comes):
        shim.go_on()
    machine.lend()
    machine.end_process(goes if which == "goes" else comes)
    machine.settle()
    machine.check_at_rest()
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
    machine.check_at_rest()


class HandOvers(Story):
    """Host memory is lent, too."""

    def events(self) -> Events:
        """Of the machine."""
        assert isinstance(self.machine, ShortNode)
        return {**super().events(), "lend": (3 * bool(self.machine.promises), self.machine.lend)}


@given(st.integers(3, 5), st.data())
@stories(examples(60), derandomize=True)
def test_whatever_happens_no_kernel_is_stuck_and_no_reserve_is_touched(virtual_time, count, data):
    """Processes end, controllers are killed between any two messages, copies fail, calls come at any moment."""
    machine = begun(virtual_time, count)
    if data.draw(st.booleans(), label="under way"):
        machine, goes, comes = under_way(virtual_time)
        for shim in (goes, comes) * data.draw(st.integers(0, 4)):
            if shim.can_go_on:
                shim.go_on()
                machine.lend()
    HandOvers(machine, data).go_through(data.draw(st.integers(0, 60)))
    for shim in machine.shims:
        shim.fails = False
    machine.settle()
    machine.check_at_rest()
