"""A machine of model processes (model_shim.py) and one real controller's heart, step by step under a virtual clock.

Every message, every piece of work and every time-out is a step of its own, so that a test can put them in any order.
`NodeState`, `Operations` and `decide` are the real ones.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
from model_shim import Link, Shim, Work

from jupyter_affinode.node.execution import (
    cache_drops,
    disk_transfers,
    exchanges,
    failed_moves,
    moves,
    notices,
    operations,
    outcomes,
    user_requests,
)
from jupyter_affinode.node.execution.operations import Operations
from jupyter_affinode.node.model.actions import Park, RefusePark, Resume
from jupyter_affinode.node.model.gpu import NvmlGpu
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.protocol.page import State
from jupyter_affinode.node.protocol.wire import PROTOCOL_VERSION, Hello, HelloFlag, Reply, Status
from jupyter_affinode.node.state.observer import Observers
from jupyter_affinode.node.state.records.process import Process
from jupyter_affinode.node.state.registry import NodeState
from jupyter_affinode.node.state.snapshot_builder import snapshot
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.node.system.nvml import NvmlSample
from jupyter_affinode.settings.policy import Settings

STEP_S = 0.25
SETTINGS = Settings(idle_timeout_s=2.0, margin_bytes=0, host_reserve_bytes=0)
QUIET = logging.Logger("model", level=logging.CRITICAL)


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    @classmethod
    def for_moves(cls, patch: pytest.MonkeyPatch) -> Clock:
        """The clock that the modules about moves read from now on."""
        clock = cls()
        for module in (
            cache_drops,
            disk_transfers,
            exchanges,
            failed_moves,
            moves,
            notices,
            operations,
            outcomes,
            user_requests,
        ):
            patch.setattr(module, "time", clock)
        return clock

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self.now


class Machine:
    """GPUs of some size, shims, and a controller that may be killed."""

    shim_type = Shim

    def __init__(self, clock: Clock, totals: dict[str, int], settings: Settings = SETTINGS):
        self.settings = settings
        self.moved_elsewhere = self.found_no_room = self.exchanged = self.parked_in_part = 0
        self.clock = clock
        self.totals = totals
        self.shims: list[Shim] = []
        self._pids = itertools.count(10_000_000)  # no pid of this machine
        self.new_controller()

    def new_controller(self) -> None:
        """One that knows nothing."""
        self.state = NodeState(self.settings, HostMemory(1 << 50, 1 << 50))
        self.operations = Operations(self.state, QUIET, Observers(QUIET), promise=self.promise)

    def start(
        self,
        kernel_id: str,
        sizes: dict[str, int],
        *,
        deep: bool = False,
        state: State = State.RESIDENT,
    ) -> Shim:
        """A process that has its memory, if there is room for it."""
        pid = next(self._pids)
        shim = self.shim_type(self, kernel_id, pid, sizes, deep, last_activity=self.clock.now)
        shim.state = state
        if not self.fits(shim.takes):
            shim.sizes = {}
        self.shims.append(shim)
        self.connect(shim)
        return shim

    def connect(self, shim: Shim) -> None:
        """HELLO."""
        shim.connection = Link(shim, itertools.count(1))
        flags = HelloFlag.CONTEXT | HelloFlag.MIGRATES if shim.deep else HelloFlag(0)
        hello = Hello(PROTOCOL_VERSION, shim.pid, flags, shim.kernel_id, "model", "0")
        process = self.state.add_process(shim.connection, hello, shim, self.clock.now)  # type: ignore[arg-type]
        shim.key = process.key
        process.visible = None  # there is no such process that could be asked
        self.state.refresh(self.clock.now)
        self.operations.process_came(process)

    def process(self, shim: Shim) -> Process:
        """The controller's record."""
        return self.state.kernels[shim.kernel_id].processes[shim.key or 0]

    def deliver(self, shim: Shim) -> None:
        """The controller takes one message of a shim."""
        said = shim.outbox.popleft()
        if isinstance(said, Reply):
            self.operations.take_reply(self.process(shim), said)
        else:
            self.operations.process_wants(self.process(shim))

    def end_process(self, shim: Shim) -> None:
        """The process is killed."""
        process = self.process(shim)
        self.shims.remove(shim)
        shim.is_alive, process.connection = False, None
        kernel = self.state.kernels[shim.kernel_id]
        self.state.remove_process(process, self.clock.now)
        self.operations.process_gone(process, kernel)

    def kill_controller(self, reached: Callable[[int], int]) -> None:
        """Its last messages may not have been sent: of n in an inbox, `reached(n)` arrive."""
        for shim in self.shims:
            arrive = reached(len(shim.inbox))
            while len(shim.inbox) > arrive:
                shim.inbox.pop()
            shim.lose_link()
        self.new_controller()
        for shim in self.shims:
            self.connect(shim)

    def pass_time(self, seconds: float = STEP_S) -> None:
        """A pass of the controller."""
        now = self.clock.now = self.clock.now + seconds
        free = {uuid: self.free(uuid) for uuid in self.totals}
        gpus = tuple(
            NvmlGpu(uuid, index, "model", total, total - free[uuid], free[uuid], None, self._pids_on(uuid))
            for index, (uuid, total) in enumerate(self.totals.items())
        )
        self.state.gpus.take(NvmlSample(now, "0", gpus), self.settings)
        self.state.refresh(now)
        node = snapshot(self.state, now, is_settled=True)
        self.operations.count_broken_promises(node, now)
        for action in decide(now, node, self.settings):
            kernel = self.state.kernels[action.kernel_id]
            if isinstance(action, Park):
                self.operations.begin(kernel, replace(action, budget_bytes=self.budget_bytes(action)))
            elif isinstance(action, Resume):
                self.operations.begin(kernel, action)
            else:
                assert isinstance(action, RefusePark), action
                self.operations.refuse_park(kernel, Status.REFUSED, action.slug, action.reason)
        self.operations.expire(now)

    def promise(self, process: Process, size: int) -> None:
        """No process waits for host memory."""

    def budget_bytes(self, action: Park) -> int:
        """There is host memory enough for all."""
        return action.budget_bytes

    def free(self, uuid: str) -> int:
        """Of a GPU."""
        free = self.totals[uuid] - sum(shim.takes.get(uuid, 0) for shim in self.shims)
        assert free >= 0 or not any(shim.deep for shim in self.shims), "more than the GPU has"
        return free

    def _pids_on(self, uuid: str) -> frozenset[int] | None:
        """The processes that NVML lists, where it does."""
        if self.settings.depth != "context":
            return None
        return frozenset(shim.pid for shim in self.shims if shim.takes.get(uuid))

    def fits(self, sizes: dict[str, int]) -> bool:
        """Whether there is room."""
        return all(self.free(uuid) >= size for uuid, size in sizes.items())

    def check_room(self, shim: Shim, work: Work) -> None:
        """What is resumed has its room already, or (in one step) finds it now."""
        has_room = work.is_prepared or work.streams or shim.holds or self.fits(shim.lacks)
        assert has_room, "more than the GPU has"
        assert all(self.free(uuid) >= 0 for uuid in self.totals), "more than the GPU has"

    def settle_one(self, shim: Shim) -> None:
        """Let what is under way in one shim come to its end."""
        while shim.inbox or shim.outbox or shim.can_go_on:
            if shim.inbox:
                shim.hear()
            elif shim.outbox:
                self.deliver(shim)
            else:
                shim.go_on()

    def settle_all(self) -> None:
        """The same in all shims."""
        for shim in self.shims:
            self.settle_one(shim)

    def check(self) -> None:
        """Fail unless what always holds holds."""
        assert all(self.free(uuid) >= 0 for uuid in self.totals), "more than the GPU has"
        moving = (State.PARKING, State.RESUMING)
        assert all(shim.state in moving for shim in self.shims if shim.work is not None)

    def check_at_rest(self) -> None:
        """Fail if anything is under way, reserved or half done."""
        self.check()
        assert not [kernel for kernel in self.state.kernels.values() if kernel.operation]
        assert not self.state.reservations.entries
        for shim in self.shims:
            assert shim.work is None
            assert shim.state in (State.RESIDENT, State.PARKED), "it waits for ever"
            if shim.here is not None:
                assert not self.fits(shim.lacks), "a part of it is on the GPU, and there is room for the rest"

    def settle(self) -> None:
        """Let everything that is under way come to its end, and time pass, until nothing moves any more."""
        for shim in self.shims:
            shim.is_busy = False
        for _ in range(80):
            self.settle_all()
            for shim in self.shims:
                if shim.may_lose_patience:
                    shim.lose_patience()
                if shim.may_give_up:
                    shim.give_up()
            self.pass_time(2.0)
