"""A scene in which users share some GPUs, held at each decision against what must never happen.

Figures are exact and every allocation that does not fit asks. With `faults`, users hold kernels and ask for parks,
parks are refused, kernels are killed, and the controller stands still for a while.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from scenes import Actor, Scene, comes_in_exchange

from jupyter_affinode.node.model.actions import Action, DenyRoom, EndKernel, GrantRoom, Park, Resume
from jupyter_affinode.node.model.reasons import Cause
from jupyter_affinode.node.model.snapshot import Kernel, Node, Residency, Waiter
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.queue import LastServed, overtaking_s, waiters
from jupyter_affinode.planner.model.simulated_kernel import SimulatedKernel
from jupyter_affinode.settings.policy import Settings

STEP_S = 0.5
MOVE_S = 1.0


def notebook(
    name: str,
    sizes: Mapping[str, int],
    cells: Sequence[tuple[float, float]],
    *,
    residency: Residency = Residency.NONE,
    one_long_call: bool = False,
    **seen: object,
) -> Actor:
    """A kernel of as many bytes on each of its GPUs; each cell is a pause and how long it computes then."""
    (size,) = set(sizes.values())
    made = [(pause, computes, size) for pause, computes in cells]
    return Actor(name, tuple(sizes), made, residency, one_long_call, seen=seen)


class SharedGpus(Scene):
    """The GPUs, their users, and what was decided for them."""

    step_s = STEP_S

    def __init__(
        self,
        totals: Mapping[str, int],
        notebooks: Sequence[Actor],
        settings: Settings,
        faults: random.Random | None = None,
    ):
        self.last_served = LastServed()
        self.served: list[tuple[float, Waiter]] = []
        self._passed_by: dict[str, set[tuple[str, frozenset[str]]]] = {}  # by waiter: user, GPUs
        self._faults = faults
        super().__init__(totals, notebooks, settings)

    def step(self) -> None:
        if self._faults is not None:
            self._disturb(self._faults)
        super().step()

    def _snapshot(self) -> Node:
        return replace(super()._snapshot(), last_served=self.last_served.seen())

    def _may_take(self, kernel: SimulatedKernel, need: int) -> bool:
        asks_first = self.settings.quotas and kernel.room is None
        return not asks_first and super()._may_take(kernel, need)

    def act(self, node: Node, decided: Sequence[Action]) -> None:
        self._check(node, decided)
        by_id = {kernel.id: kernel for kernel in node.kernels}
        for action in decided:
            kernel = by_id[action.kernel_id]
            if isinstance(action, Resume | GrantRoom):
                self._takes_turn(kernel)
            elif isinstance(action, Park):
                self.change(kernel.id, park_requested=None)
        for kernel_id in comes_in_exchange(decided):
            self._takes_turn(by_id[kernel_id])
        super().act(node, decided)

    def _takes_turn(self, kernel: Kernel) -> None:
        self.last_served.take(kernel.charged_user, kernel.priority, self.actors[kernel.id].on, self.now)

    # ---- what users and faults do

    def _disturb(self, draw: random.Random) -> None:
        actor = draw.choice(list(self.actors.values()))
        if actor.is_over or actor.id not in self._by_id:
            return
        kernel, what = self.kernel(actor.id), draw.randrange(60)
        if what == 0:
            self.change(actor.id, held_until=self.now + draw.choice((1.0, 5.0, 20.0)))
        elif what == 1 and kernel.residency is Residency.RESIDENT:
            self.change(actor.id, park_requested="asked", held_until=None)
        elif what == 2 and draw.random() < 0.2:
            self.kill(actor)
        elif what == 3 and kernel.residency is Residency.PARKING and kernel.exchange is None:
            self._revoke(kernel)
            if kernel.preempted_s is not None:
                self._compute_cell(kernel)
        elif what == 4:
            self.asleep_until = self.now + draw.choice((0.0, 3.0, 60.0))
        elif what == 5:
            for other in self.actors.values():
                if other.seen.get("user") == actor.seen.get("user"):
                    self.change(other.id, demoted_until=self.now + draw.choice((5.0, 60.0, 3600.0)))

    # ---- what always holds

    def _check(self, node: Node, actions: Sequence[Action]) -> None:
        assert decide(self.now, node, self.settings) == actions, "decided differently on the same"
        queue = waiters(node, self.settings)
        for action in actions:
            kernel = next(kernel for kernel in node.kernels if kernel.id == action.kernel_id)
            assert not kernel.is_moving and not kernel.is_ending
            if isinstance(action, Park):
                self._check_park(action, kernel, queue)
            elif isinstance(action, EndKernel):
                self._check_end(action, kernel, node)
        self._check_order(actions, queue)
        self._check_computing(node, actions)
        self._check_quotas(node, actions)

    def _check_park(self, action: Park, kernel: Kernel, queue: Sequence[Waiter]) -> None:
        asked = kernel.park_requested is not None
        assert asked or kernel.held_until is None or kernel.held_until <= self.now, "a hold was not honoured"
        is_slice = self.settings.when_full == "time_slice" and action.preempts
        assert asked or not kernel.calls_in_flight or is_slice, "parked while busy"
        if self.settings.park_when == "needed":
            assert asked or queue or action.cause is Cause.LIMIT, "parked without need"
        if action.preempts:
            assert queue and kernel.may_be_preempted
            resident_s = self.now - kernel.resident_since
            assert resident_s >= self.settings.time_slice_s, "before its time slice was over"

    def _check_end(self, action: EndKernel, kernel: Kernel, node: Node) -> None:
        head = next(each for each in node.kernels if each.id == action.for_kernel)
        assert self.settings.when_full == "terminate_newest"
        assert kernel.started_at > head.started_at, "an older kernel was ended for a younger"
        assert kernel.held_until is None or kernel.held_until <= self.now

    def _check_order(self, actions: Sequence[Action], queue: Sequence[Waiter]) -> None:
        """First come, first served within a class, and the bound on overtaking between classes.

        By moments and classes alone, whatever order the queue came in.
        """
        served = {action.kernel_id for action in actions if isinstance(action, Resume | GrantRoom | DenyRoom)}
        served |= comes_in_exchange(actions)
        parked_now = {action.kernel_id for action in actions if isinstance(action, Park)}
        left = []
        if self.settings.max_computing_per_gpu is not None:  # allocations pass those that may not compute
            queue = [waiter for waiter in queue if waiter.room is None]
        for waiter in queue:
            kernel = waiter.kernel
            if kernel.id in served:
                self.served.append((self.now, waiter))
            elif not (kernel.is_moving or kernel.is_ending or kernel.id in parked_now):
                left.append(waiter)
        if self.settings.quotas:
            return  # a waiter over its quota is passed by
        self._check_turns(queue, served, left)
        for waiter in queue:
            for other in left if waiter.kernel.id in served else ():
                if waiter.kernel.charged_user or other.kernel.charged_user:
                    continue
                if other.needs.keys() & waiter.needs.keys() and other.since < waiter.since:
                    assert other.kernel.priority < waiter.kernel.priority, "overtaken within a class"
                    assert waiter.since - other.since <= overtaking_s(self.settings), "overtaken too late"

    def _check_turns(self, queue: Sequence[Waiter], served: Set[str], left: Sequence[Waiter]) -> None:
        """The oldest waiter of a user, class and GPU is passed by each other user of the class once at most, by that
        user's kernels of each set of GPUs.
        """
        first: dict[tuple[str, int, str], Waiter] = {}
        for waiter in sorted(queue, key=lambda each: each.since):
            for uuid in waiter.needs:
                first.setdefault((waiter.kernel.charged_user, waiter.kernel.priority, uuid), waiter)
        for waiter in queue:
            if waiter.kernel.id not in served:
                continue
            self._passed_by.pop(waiter.kernel.id, None)
            for other in left:
                line = {uuid for uuid in waiter.needs if uuid in other.needs}
                is_first = all(
                    first[other.kernel.charged_user, other.kernel.priority, uuid] is other
                    for uuid in other.needs
                )
                if not line or not is_first or waiter.kernel.priority != other.kernel.priority:
                    continue
                if other.kernel.charged_user == waiter.kernel.charged_user:
                    # One of more GPUs counts by the GPU on which its user was served longest ago.
                    has_more = waiter.needs.keys() > other.needs.keys()
                    in_order = has_more or waiter.since <= other.since
                    assert not other.kernel.charged_user or in_order, "out of order"
                    self._passed_by.pop(other.kernel.id, None)
                    continue
                passed = self._passed_by.setdefault(other.kernel.id, set())
                if waiter.kernel.charged_user and other.kernel.charged_user:
                    turn = (waiter.kernel.charged_user, frozenset(waiter.needs))
                    assert turn not in passed, "a user was served twice before another"
                    passed.add(turn)

    def _check_computing(self, node: Node, actions: Sequence[Action]) -> None:
        """No waiter comes back to a GPU where as many kernels compute as may, or come back to."""
        most = self.settings.max_computing_per_gpu
        computing: dict[str, set[str]] = {uuid: set() for uuid in node.gpus}
        for kernel in self.kernels:
            if kernel.computes_since is not None or kernel.residency is Residency.RESUMING:
                for uuid in kernel.on:
                    computing[uuid].add(kernel.id)
        for action in actions if most is not None else ():
            if isinstance(action, Resume):
                for uuid in action.reserved_bytes:
                    assert len(computing[uuid] - {action.kernel_id}) < most, "more compute than may"
                    computing[uuid].add(action.kernel_id)

    def _check_quotas(self, node: Node, actions: Sequence[Action]) -> None:
        if not self.settings.quotas:
            return
        most = int(self.settings.quotas.partition("=")[2])
        for user in {kernel.user for kernel in node.kernels}:
            theirs = {kernel.id for kernel in node.kernels if kernel.user == user}
            have = sum(kernel.movable_bytes for kernel in node.kernels if kernel.id in theirs)
            have += sum(each.bytes for each in node.reservations if each.kernel_id in theirs)
            given = 0
            for action in actions:
                if action.kernel_id in theirs and isinstance(action, Resume):
                    given += sum(action.reserved_bytes.values())
                elif action.kernel_id in theirs and isinstance(action, GrantRoom):
                    given += action.bytes
            assert not given or have == 0 or have + given <= most, "a user's quota was exceeded"
