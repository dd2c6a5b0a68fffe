"""Whatever happens in whatever order, no migration is given a GPU's room twice, and no kernel is lost."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from model_node import SETTINGS, Machine

from jupyter_affinode.node.protocol.page import Depth, State
from jupyter_affinode.settings.policy import GIB

TOTALS = {"GPU-0": 12 * GIB, "GPU-1": 12 * GIB}
EXAMPLES = int(os.environ.get("AFFINODE_HISTORIES", "8"))
DEEP = SETTINGS.changed(depth="context", low_watermark=0.0)


def begun(clock, data):
    """Some kernels, most on the first GPU, which they fill."""
    machine = Machine(clock, TOTALS, DEEP)
    for number in range(data.draw(st.integers(3, 6), label="kernels")):
        size, gpu = data.draw(st.integers(2, 6)), data.draw(st.sampled_from(["GPU-0", "GPU-0", "GPU-1"]))
        machine.start(f"k{number}", {gpu: size * GIB}, deep=True)
        if data.draw(st.booleans()):
            machine.pass_time()
            machine.state.kernels[f"k{number}"].asked.park = "asked"
            run(machine)
    return machine


def step(machine, data, *, kills):
    """One thing happens."""
    events = [("time", None)] * len(machine.shims) + [("kill", None)] * kills
    for shim in machine.shims:
        events += [("hear", shim)] * (2 * bool(shim.inbox)) + [("deliver", shim)] * (2 * bool(shim.outbox))
        events += [("go on", shim)] * (2 * shim.can_go_on)
        events += [("call", shim), ("busy", shim), ("park", shim), ("stays", shim)]
    what, shim = data.draw(st.sampled_from(events), label="event")
    if what == "time":
        machine.pass_time()
    elif what == "kill":
        machine.kill_controller(lambda many: data.draw(st.integers(0, many), label="arrive"))
    elif what == "park":
        machine.state.kernels[shim.kernel_id].asked.park = "asked"
    elif what == "busy":
        shim.is_busy = not shim.is_busy
    elif what == "stays":
        shim.stays = not shim.stays
    elif what == "deliver":
        machine.deliver(shim)
    else:
        {"hear": shim.hear, "go on": shim.go_on, "call": shim.call}[what]()
    assert all(machine.free(uuid) >= 0 for uuid in TOTALS)


def check_at_rest(machine, sizes):
    assert all(kernel.move is None for kernel in machine.state.kernels.values())
    assert not machine.state.reservations.entries
    for shim, size in zip(machine.shims, sizes, strict=True):
        assert shim.work is None and shim.state in (State.RESIDENT, State.PARKED), "it waits for ever"
        assert sum(shim.sizes.values()) == size


@pytest.mark.parametrize("kills", [False, True])
@given(data=st.data())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_whatever_happens_no_gpu_is_given_twice(virtual_time, kills, data):
    """Without an end of the controller between two messages, every kernel told to resume finds its room, too."""
    machine = begun(virtual_time, data)
    sizes = [sum(shim.sizes.values()) for shim in machine.shims]
    for _ in range(data.draw(st.integers(0, 80), label="steps")):
        step(machine, data, kills=kills)
    assert kills or not machine.found_no_room
    machine.settle()
    check_at_rest(machine, sizes)


def test_a_kernel_whose_gpu_is_full_of_busy_ones_goes_to_the_other_and_its_home_is_there_now(virtual_time):
    machine = Machine(virtual_time, TOTALS, DEEP)
    first = machine.start("k0", {"GPU-0": 6 * GIB}, deep=True)
    machine.pass_time()
    machine.state.kernels["k0"].asked.park = "asked"
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
    for shim in machine.shims:
        while shim.inbox or shim.outbox or shim.can_go_on:
            if shim.inbox:
                shim.hear()
            elif shim.can_go_on:
                shim.go_on()
            else:
                machine.deliver(shim)
