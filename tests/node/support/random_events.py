"""What may happen next to the processes of a model machine and to its controller, drawn by Hypothesis."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from model_node import Machine
from model_shim import Shim

from jupyter_affinode.node.protocol.page import State

Events = dict[str, tuple[int, Callable[[], object]]]  # each with its weight


def stories(count: int, **options: Any) -> settings:
    """The settings of a test that draws so many."""
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
        **options,
    )


class Story:
    """Draws what happens next. `disasters`: processes and controllers end, and copies fail."""

    def __init__(self, machine: Machine, data: st.DataObject, *, disasters: bool = True):
        self.machine, self.data, self.disasters = machine, data, disasters
        self.numbers = itertools.count()  # of kernels that begin meanwhile

    def go_through(self, steps: int) -> None:
        """So many things happen, one after the other."""
        for _ in range(steps):
            self.step()
            self.machine.check()

    def step(self) -> None:
        """One thing happens."""
        events = self.events()
        for number, shim in enumerate(self.machine.shims):
            for name, event in self.events_of(shim).items():
                events[f"{name} {number}"] = event
        names = [name for name, (weight, _) in events.items() for _ in range(weight)]
        _, happens = events[self.data.draw(st.sampled_from(names), label="event")]
        happens()

    def events(self) -> Events:
        """Of the machine."""
        return {
            "time": (1, self.machine.pass_time),
            "long": (self.disasters, lambda: self.machine.pass_time(3.0)),
            "kill": (self.disasters, lambda: self.machine.kill_controller(self._arrive)),
        }

    def events_of(self, shim: Shim) -> Events:
        """Of one process."""
        may_end = self.disasters and shim.state is not State.RESIDENT
        may_lose_patience = self.disasters and shim.may_lose_patience
        return {
            "hear": (3 * bool(shim.inbox), shim.hear),
            "deliver": (3 * bool(shim.outbox), lambda: self.machine.deliver(shim)),
            "go on": (3 * shim.can_go_on, shim.go_on),
            "call": (2, shim.call),
            "busy": (1, lambda: change(shim, "is_busy")),
            "fail": (self.disasters, lambda: change(shim, "fails")),
            "patience": (2 * may_lose_patience, shim.lose_patience),
            "give up": (self.disasters and shim.may_give_up, shim.give_up),
            "end": (may_end, lambda: self.machine.end_process(shim)),
        }

    def ask_for_park(self, kernel_id: str) -> None:
        """Its user asks for it."""
        self.machine.state.kernels[kernel_id].requests.park = "asked"

    def _arrive(self, many: int) -> int:
        return self.data.draw(st.integers(0, many), label="arrive")


def change(shim: Shim, flag: str) -> None:
    """Turn one of its flags over."""
    setattr(shim, flag, not getattr(shim, flag))
