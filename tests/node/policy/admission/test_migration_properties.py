"""Whatever happens in whatever order, no migration is given a GPU's room twice, and no kernel is lost."""

from __future__ import annotations

import os

import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from model_node import SETTINGS, Machine
from model_shim import Shim
from random_events import Events, Story, change, stories

from jupyter_affinode.node.protocol.page import Depth, State
from jupyter_affinode.settings.policy import GIB

TOTALS = {"GPU-0": 12 * GIB, "GPU-1": 12 * GIB}
EXAMPLES = int(os.environ.get("AFFINODE_HISTORIES", examples(8)))
DEEP = SETTINGS.changed(depth="context", low_watermark=0.0)


def begun(clock, data):
    """Some kernels, most on the first GPU, which they fill."""
    machine = Machine(clock, TOTALS, DEEP)
    for number in range(data.draw(st.integers(3, 6), label="kernels")):
        size, gpu = data.draw(st.integers(2, 6)), data.draw(st.sampled_from(["GPU-0", "GPU-0", "GPU-1"]))
        machine.start(f"k{number}", {gpu: size * GIB}, deep=True)
        if data.draw(st.booleans()):
            machine.pass_time()
            machine.state.kernels[f"k{number}"].requests.park = "asked"
            run(machine)
    return machine


class Migrations(Story):
    """Users ask for parks, and processes refuse to come back elsewhere; `disasters`: the controller ends."""

    def events_of(self, shim: Shim) -> Events:
        """Of one process."""
        its = super().events_of(shim)
        del its["end"]
        its["time passes beside"] = (1, self.machine.pass_time)
        its["park"] = (1, lambda: self.ask_for_park(shim.kernel_id))
        its["stays"] = (1, lambda: change(shim, "stays"))
        return its


@pytest.mark.parametrize("kills", [False, True])
@given(data=st.data())
@stories(EXAMPLES)
def test_whatever_happens_no_gpu_is_given_twice(virtual_time, kills, data):
    """Without an end of the controller between two messages, every kernel told to resume finds its room, too."""
    machine = begun(virtual_time, data)
    sizes = [sum(shim.sizes.values()) for shim in machine.shims]
    Migrations(machine, data, disasters=kills).go_through(data.draw(st.integers(0, 80), label="steps"))
    assert kills or not machine.found_no_room
    machine.settle()
    machine.check_at_rest()
    assert [sum(shim.sizes.values()) for shim in machine.shims] == sizes


def test_a_kernel_whose_gpu_is_full_of_busy_ones_goes_to_the_other_and_its_home_is_there_now(virtual_time):
    machine = Machine(virtual_time, TOTALS, DEEP)
    first = machine.start("k0", {"GPU-0": 6 * GIB}, deep=True)
    machine.pass_time()
    machine.state.kernels["k0"].requests.park = "asked"
    run(machine)
    assert (first.state, first.depth) == (State.PARKED, Depth.CONTEXT)
    second = machine.start("k1", {"GPU-0": 10 * GIB}, deep=True)
    second.is_busy = True
    first.call()
    for _ in range(8):
        second.call()  # it computes all the time
        run(machine)
    assert first.state is State.RESIDENT and first.sizes == {"GPU-1": 6 * GIB}
    assert machine.state.kernels["k0"].last_move.from_gpu == "GPU-0" and machine.moved_elsewhere == 1
    assert machine.free("GPU-0") < 2 * GIB


def run(machine):
    """A pass, and all that follows of it."""
    machine.pass_time()
    machine.settle_all()
