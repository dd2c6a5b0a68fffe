"""A controller's heart among processes whose pages say what a test wants them to; under a virtual clock."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

from model_node import Clock

from jupyter_affinode.node.execution.operations import Operations
from jupyter_affinode.node.identity.identity import Identity
from jupyter_affinode.node.model.actions import GrantRoom, Park, Resume
from jupyter_affinode.node.model.gpu import NvmlGpu
from jupyter_affinode.node.model.snapshot import Host, Node
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.protocol.page import PageData, PageFlag, PageGpu, State
from jupyter_affinode.node.protocol.wire import CommandKind, HelloFlag, Reply, Status, gpu_uuid
from jupyter_affinode.node.state.gpus import gpu_processes
from jupyter_affinode.node.state.observer import Observers
from jupyter_affinode.node.state.records.process import Process
from jupyter_affinode.node.state.registry import NodeState
from jupyter_affinode.node.state.snapshot_builder import snapshot
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.node.system.nvml import NvmlSample
from jupyter_affinode.settings.policy import GIB, Settings

NOW = 10_000.0
A = gpu_uuid(bytes(16))
TOTAL = 80 * GIB
SETTINGS = Settings(host_reserve_bytes=0, margin_bytes=0)


# A page of a process that has done nothing; a test replaces what matters to it.
NOTHING = PageData(State.NONE, 0.0, 0.0, PageFlag(0), 0, 0, 0, 0, 0, 0, None, None, ())


class Says:
    """A page, a file of its own, that says what its process wants."""

    def __init__(self, where: State, resident: int = 0, parked: int = 0, last_activity: float = 0.0):
        self.inode = 0, id(self)
        self.last = replace(
            NOTHING, state=where, state_since=last_activity, last_activity=last_activity, calls=(0,) * 8
        )
        self.has(resident, parked)

    def read(self) -> PageData:
        """The page."""
        return self.last

    def say(self, **changes: object) -> None:
        """Say something else."""
        self.last = replace(self.last, **changes)  # type: ignore[arg-type]

    def has(self, resident: int, parked: int) -> None:
        """Say how much memory there is, in bytes."""
        self.say(gpus=(PageGpu(A, resident, parked, (0,) * 8),))

    def close(self) -> None:
        """There is no file."""


class Link:
    """Numbers what it is told, and notes it for the test."""

    def __init__(self, user: str, name: str, told: list[tuple[CommandKind, str, int]], pid: int):
        self.peer, self.identity = SimpleNamespace(pid=pid, uid=1), Identity(user, user)
        self.name, self._told, self._number = f"{user}/{name}", told, 0

    def command(self, kind: CommandKind, **_: object) -> int:
        """As Connection.command."""
        self._number += 1
        self._told.append((kind, self.name, self._number))
        return self._number


class Heart:
    """State, moves and decisions of the controller of all users, with one GPU of which `used` bytes are in use."""

    def __init__(self, monkeypatch, settings: Settings = SETTINGS, *, log: logging.Logger | None = None):
        self.clock, self.settings = Clock.for_moves(monkeypatch), settings
        monkeypatch.setattr(gpu_processes, "sees_all_pids", lambda: self.used_by is not None)
        self.clock.now = NOW
        self.state = NodeState(settings, HostMemory(1 << 50, 1 << 50))
        self.state.pages_say_since_until = NOW - 1000.0
        quiet = log or logging.Logger("quiet", level=logging.CRITICAL)
        self.operations = Operations(self.state, quiet, Observers(quiet))
        self.told: list[tuple[CommandKind, str, int]] = []
        self.seen = Node({}, (), Host(0))
        self.used = 0
        self.used_by: Mapping[int, int] | None = (
            None  # by pid; None: NVML names no processes, as in containers
        )
        self.has_nvml = True
        self.pids = 10_000_000

    def add(
        self, user: str, name: str, where: State, resident: int = 0, parked: int = 0, *, idle: float = 5.0
    ) -> Says:
        """A process of a kernel of its own; its page."""
        hello = SimpleNamespace(flags=HelloFlag(0), kernel_id=name, command="python", shim_version="1")
        page = Says(where, resident, parked, self.clock.now - idle)
        self.pids += 1
        self.state.add_process(Link(user, name, self.told, self.pids), hello, page, self.clock.now)
        return page

    def process(self, kernel_id: str) -> Process:
        """A kernel's only process."""
        (process,) = self.state.kernels[kernel_id].processes.values()
        return process

    def pass_time(self, seconds: float = 0.5) -> None:
        """A look at NVML and a pass of the controller; what it commands is in `told` then."""
        now = self.clock.now = self.clock.now + seconds
        pids = None if self.used_by is None else frozenset(self.used_by)
        gpu = NvmlGpu(A, 0, "A GPU", TOTAL, self.used, TOTAL - self.used, 0, pids, self.used_by or {})
        self.state.take_sample(NvmlSample(now, "580", (gpu,)) if self.has_nvml else None)
        self.state.refresh(now)
        self.operations.count_broken_promises(self.seen, now)
        self.seen = snapshot(self.state, now, is_settled=True)
        for action in decide(now, self.seen, self.settings):
            kernel = self.state.kernels[action.kernel_id]
            if isinstance(action, Resume | GrantRoom):
                self.state.last_served.take(kernel.account.charged_user or "", 0, [A], now)
            assert isinstance(action, Park | Resume), action
            self.operations.begin(kernel, action)

    def reply(self, kernel_id: str, number: int, kind: CommandKind, status: Status, size: int = 0) -> None:
        """A shim answers."""
        self.state.refresh(self.clock.now)
        self.operations.take_reply(self.process(kernel_id), Reply(number, kind, status, size, 0.1, ""))

    def expire(self) -> None:
        """As each pass ends."""
        self.operations.expire(self.clock.now)


class FirstCommand:
    """Everything that it is told is the first command."""

    def __init__(self, identity, pid):
        self.peer, self.identity = SimpleNamespace(pid=pid, uid=1), identity

    def command(self, kind, **_):
        return 1


def comes(kernels, page, now, pid=0, kernel_id="k"):
    """A process of alice's that connects, with this page."""
    hello = SimpleNamespace(flags=HelloFlag(0), kernel_id=kernel_id, command="python", shim_version="1")
    return kernels.add_process(FirstCommand(Identity("uid-1", "alice"), pid), hello, page, now)
