"""Whatever happens in whatever order, the processes of a kernel agree in the end, and nothing is half done."""

from __future__ import annotations

from functools import partial

import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from model_node import Clock, Machine
from model_shim import Shim
from random_events import Events, Story, stories

from jupyter_affinode.node.protocol.page import State

GPUS = {"GPU-0": 100, "GPU-1": 100}
SIZES = st.fixed_dictionaries({}, optional={"GPU-0": st.integers(1, 30), "GPU-1": st.integers(1, 30)})
KERNELS = ("k0", "k1", "k2")


class Groups(Story):
    """Users ask for parks; processes end and begin at any moment."""

    def events(self) -> Events:
        """Of the machine."""
        kernels = self.machine.state.kernels
        return {
            **super().events(),
            "start": (self.disasters, self._start),
            **{f"park {name}": (1, partial(self.ask_for_park, name)) for name in KERNELS if name in kernels},
        }

    def events_of(self, shim: Shim) -> Events:
        """Of one process."""
        return {**super().events_of(shim), "end": (self.disasters, lambda: self.machine.end_process(shim))}

    def _start(self) -> None:
        sizes = self.data.draw(SIZES, label="sizes")
        self.machine.start(self.data.draw(st.sampled_from(KERNELS)), sizes)


def begun(clock: Clock, data: st.DataObject) -> Machine:
    """Up to three kernels of up to three processes."""
    machine = Machine(clock, GPUS)
    for kernel in KERNELS[: data.draw(st.integers(1, 3))]:
        for _ in range(data.draw(st.integers(1, 3))):
            machine.start(kernel, data.draw(SIZES))
    return machine


def check_at_rest(machine: Machine) -> None:
    machine.check_at_rest()
    for kernel in KERNELS:
        holders = [shim for shim in machine.shims if shim.kernel_id == kernel and shim.sizes]
        parked = [shim for shim in holders if shim.state is State.PARKED]
        if parked and len(parked) < len(holders):
            needs = {uuid: sum(shim.sizes.get(uuid, 0) for shim in parked) for uuid in GPUS}
            assert not machine.fits(needs), f"{kernel} is split although there is room for the rest of it"


@pytest.mark.long
@given(st.data())
@stories(examples(60))
def test_in_any_order_the_processes_of_a_kernel_move_as_often_as_each_other(virtual_time, data):
    """With no process lost and no patience over: each park and resume was that of all processes, or of none."""
    machine = begun(virtual_time, data)
    Groups(machine, data, disasters=False).go_through(data.draw(st.integers(0, 60)))
    machine.settle()
    check_at_rest(machine)
    for kernel in KERNELS:
        peers = [shim for shim in machine.shims if shim.kernel_id == kernel and shim.sizes]
        assert len({(shim.parks, shim.resumes, shim.state) for shim in peers}) <= 1


@given(st.data())
@stories(examples(100))
def test_whatever_happens_the_processes_of_a_kernel_agree_in_the_end(virtual_time, data):
    """Processes come and go, controllers are killed between any two messages, calls come at any moment."""
    machine = begun(virtual_time, data)
    Groups(machine, data, disasters=True).go_through(data.draw(st.integers(0, 80)))
    machine.settle()
    check_at_rest(machine)


def test_half_a_park_is_undone_at_once_with_room_for_the_sum(virtual_time):
    """Two of three have parked, the third was called just before its COMMIT came."""
    machine = Machine(virtual_time, {"GPU-0": 80})
    group = [machine.start("k0", {"GPU-0": 20}) for _ in range(3)]
    machine.pass_time()
    machine.state.kernels["k0"].requests.park = "asked"
    machine.pass_time()
    for shim in group:
        shim.hear()
        shim.go_on()
        machine.deliver(shim)
    hasty = group[2]
    hasty.call()
    hasty.lose_patience()
    for shim in group:
        shim.hear()
        while shim.can_go_on:
            shim.go_on()
        while shim.outbox:
            machine.deliver(shim)
    assert [shim.state for shim in group] == [State.PARKED, State.PARKED, State.RESIDENT]
    (reserved,) = machine.state.reservations.entries
    assert (reserved.gpu, reserved.bytes) == ("GPU-0", 40)
    machine.settle()
    assert all(shim.state is State.RESIDENT for shim in group)
