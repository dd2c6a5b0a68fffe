"""The machine of model processes (model_node.py) with host memory that is short, and shims that hand it over.

The shims follow MOVE_HAND_OVER of protocol.h. What stands in for the controller's stock of lots lends any amount, as
soon as a test lets it, and never what would come out of the reserve.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from model_node import Clock, Machine
from model_shim import Shim, Told, Work

from jupyter_affinode.node.model.actions import Park
from jupyter_affinode.node.model.snapshot import SLAB_BYTES
from jupyter_affinode.node.policy.resources.host_memory import with_margin
from jupyter_affinode.node.protocol.page import PageData, State
from jupyter_affinode.node.protocol.wire import (
    MOVE_BUDGET_SHIFT,
    WINDOW_BYTES,
    CommandKind,
    MoveFlag,
    Reply,
    Status,
)
from jupyter_affinode.node.state.host.host_lending import SLAB_TAKES_BYTES
from jupyter_affinode.node.state.host.host_usage import parks_take_bytes
from jupyter_affinode.node.state.records.process import Process
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.settings.policy import MIB, Settings


@dataclass
class HostWork(Work):
    """A move that may hand host memory over."""

    hands_over: bool = False
    budget_bytes: int | None = None


@dataclass(eq=False)
class HostShim(Shim):
    """A process whose parked contents take host memory, `slots_bytes` in all."""

    slots_bytes: int = 0

    @property
    def host_work(self) -> HostWork:
        """The move under way."""
        assert isinstance(self.work, HostWork)
        return self.work

    @property
    def on_gpu_bytes(self) -> int:
        """What of it is on the GPU."""
        if self.here is not None:
            return sum(self.here.values())
        return self._all if self.state in (State.RESIDENT, State.PARKING) else 0

    @property
    def in_host_bytes(self) -> int:
        """… and what is in host memory alone."""
        return self._all - self.on_gpu_bytes

    def read(self) -> PageData:
        """The page."""
        return replace(super().read(), copy_bytes=self.in_host_bytes, last_park=(self._all, 0.1))

    @property
    def _goes(self) -> bool:
        return self.work is not None and self.work.kind is CommandKind.PARK

    @property
    def _may_copy_bytes(self) -> int:
        """What can go out now."""
        return min(self.slots_bytes - self.in_host_bytes, self.on_gpu_bytes)

    @property
    def can_go_on(self) -> bool:
        """Whether its move is at work, not waiting for a decision or for memory."""
        if self._goes and self.host_work.is_committed and self.host_work.streams:
            return self.on_gpu_bytes == 0 or self._may_copy_bytes > 0 or self.fails
        return super().can_go_on

    @property
    def may_give_up(self) -> bool:
        """Whether it waits for room or host memory: AFFINODE_STREAM_MS may be over."""
        waits = self._goes and self.host_work.is_committed and self.host_work.streams and not self.can_go_on
        return waits or super().may_give_up

    def give_up(self) -> None:
        """They are over."""
        self._end(Status.NO_HOST_ROOM if self._goes else Status.NO_GPU_ROOM)

    def _begin(self, told: Told) -> None:
        parks, flags = told.kind is CommandKind.PARK, MoveFlag(told.argument & 0xFF)
        work = HostWork(told.kind, told.epoch, bool(flags & MoveFlag.PREPARE))
        work.streams, work.hands_over = bool(flags & MoveFlag.STREAM), bool(flags & MoveFlag.HAND_OVER)
        budget = (told.argument >> MOVE_BUDGET_SHIFT) * MIB
        work.budget_bytes = budget // SLAB_TAKES_BYTES * SLAB_BYTES
        assert not work.hands_over or work.streams
        is_away = self.state in (State.PARKED, State.QUEUED)
        in_part = is_away and self.here is not None
        if parks and in_part:
            assert work.streams and not work.in_two_steps
            work.is_prepared = work.is_committed = True
        else:
            assert not work.streams or work.in_two_steps == parks
        if self.work is not None:
            self._say(work, Status.BUSY)
        elif not self.sizes or not (is_away if not parks else in_part or self.state is State.RESIDENT):
            self._say(work, Status.NOTHING)
        elif parks and self.is_busy and not in_part:
            self._say(work, Status.BUSY)
        else:
            work.before = self.here
            self.work = work
            self.state = State.PARKING if parks else State.RESUMING
            if parks and in_part:
                self._take_host(work)
                least = min(WINDOW_BYTES, self.on_gpu_bytes) if work.hands_over else self.on_gpu_bytes
                if self.slots_bytes - self.in_host_bytes < least:
                    self._end(Status.NO_HOST_ROOM)

    def _take_host(self, work: HostWork) -> None:
        """Make what it may of what it lacks."""
        assert work.budget_bytes is not None
        self.slots_bytes += min(max(self._all - self.slots_bytes, 0), work.budget_bytes)

    def go_on(self) -> None:
        """The next piece of its move."""
        work = self.host_work
        if not self._goes or work.is_prepared:
            return super().go_on()
        self._take_host(work)
        least = min(WINDOW_BYTES, self._all) if work.hands_over else self._all
        if self.slots_bytes < least:
            self._end(Status.NO_HOST_ROOM)
        elif work.in_two_steps:
            work.is_prepared = True
            self._say(work, Status.PREPARED)
        else:
            self._end(Status.OK)
        return None

    def _go_out(self) -> None:
        """The half of what is left, as far as there is host memory for it."""
        if self.here is None:
            self.here = dict(self.sizes)
        (uuid,) = self.sizes
        if self.fails and self.in_host_bytes:
            self._end(Status.FAILED)
        elif not self.on_gpu_bytes:
            self._end(Status.OK)
        else:
            self.here[uuid] -= min(self._may_copy_bytes, max(self.on_gpu_bytes // 2, MIB))

    def _come_in(self, work: Work) -> None:
        super()._come_in(work)
        if self.work is not None and self.host_work.hands_over:
            self.slots_bytes = self.in_host_bytes

    def _end(self, status: Status) -> None:
        work, is_done = self.host_work, status is Status.OK
        if not self._goes and not is_done and work.hands_over:
            work.before = self.here if self.on_gpu_bytes else None
            self.machine.parked_in_part += work.before is not None
        super()._end(status)
        self.slots_bytes = self.in_host_bytes

    def _say(self, work: Work, status: Status) -> None:
        if status is not Status.PREPARED or self.connection is None or not work.is_awaited:
            return super()._say(work, status)
        lacks = max(self._all - self.slots_bytes, 0)
        return self.outbox.append(Reply(work.epoch, work.kind, status, lacks, 0.1, ""))


class ShortNode(Machine):
    """One GPU, and so much host memory."""

    shim_type = HostShim

    def __init__(self, clock: Clock, totals: dict[str, int], settings: Settings, host_bytes: int):
        self.host_bytes = host_bytes
        self.promises: dict[int, int] = {}  # by process
        self.shims: list[Shim] = []
        super().__init__(clock, totals, settings)

    def new_controller(self) -> None:
        """One that knows nothing, and has promised nothing."""
        super().new_controller()
        self.promises.clear()

    def connect(self, shim: Shim) -> None:
        """HELLO."""
        assert isinstance(shim, HostShim)
        shim.slots_bytes = max(shim.slots_bytes, shim.in_host_bytes)
        super().connect(shim)

    @property
    def host_free_bytes(self) -> int:
        """What no process has."""
        return self.host_bytes - sum(shim.slots_bytes for shim in self.shims if isinstance(shim, HostShim))

    @property
    def host_left_bytes(self) -> int:
        """What parks may take of it."""
        return self.host_free_bytes - with_margin(self.settings.host_reserve(self.host_bytes))

    def promise(self, process: Process, size: int) -> None:
        """A process is lent host memory as it comes."""
        self.promises.pop(process.key, None)
        if size:
            self.promises[process.key] = size

    def end_process(self, shim: Shim) -> None:
        """It is killed, and lent nothing any more."""
        self.promises.pop(shim.key or 0, None)
        super().end_process(shim)

    def lend(self) -> bool:
        """Lend what is free to those that were promised some; whether there was any."""
        has_lent = False
        for shim in self.shims:
            left = self.host_left_bytes - parks_take_bytes(self.state.kernels.values())
            size = min(self.promises.get(shim.key or 0, 0), left)
            if size > 0 and isinstance(shim, HostShim):
                assert shim.state is State.PARKING or shim.inbox, "lent to one that does not park"
                shim.slots_bytes += size
                self.promises[shim.key or 0] -= size
                has_lent = True
        return has_lent

    def budget_bytes(self, action: Park) -> int | None:
        """What it may take."""
        return action.budget_bytes

    def pass_time(self, seconds: float = 0.25) -> None:
        """A pass of the controller."""
        self.state.host.memory = HostMemory(self.host_bytes, self.host_free_bytes)
        self.state.host.lots_promised = dict(self.promises)
        super().pass_time(seconds)

    def check(self) -> None:
        """Fail unless contents are somewhere, and the reserve is untouched."""
        assert self.host_left_bytes >= 0, "the reserve was touched"
        for shim in self.shims:
            assert isinstance(shim, HostShim)
            assert shim.in_host_bytes <= shim.slots_bytes, "contents are nowhere"
        super().check()

    def check_at_rest(self) -> None:
        """Fail if anything is under way, promised, reserved or half done."""
        assert not any(self.promises.values())
        super().check_at_rest()

    def settle_all(self) -> None:
        """Until none can go on, and nothing can be lent."""
        super().settle_all()
        while self.lend():
            super().settle_all()
