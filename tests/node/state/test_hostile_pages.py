"""Whatever pages, replies and NVML say, in whatever order: every look, decision and answer ends without a failure.

The controller's own parts, on a virtual clock. AFFINODE_HISTORIES is how many histories are tried.
"""

from __future__ import annotations

import logging
import os
import random
from types import SimpleNamespace

from drawn import examples

from jupyter_affinode.node.execution.allocations import Allocations
from jupyter_affinode.node.execution.effects import Effects, Parts
from jupyter_affinode.node.execution.notices import Notices
from jupyter_affinode.node.execution.operations import Operations
from jupyter_affinode.node.execution.room_requests import RoomRequests
from jupyter_affinode.node.execution.user_requests import UserRequests
from jupyter_affinode.node.identity.identity import OWN_USER, Identity
from jupyter_affinode.node.model.actions import Resume
from jupyter_affinode.node.model.gpu import NvmlGpu
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.queue import waiters, waits_since
from jupyter_affinode.node.policy.wait_estimates import estimate_waits
from jupyter_affinode.node.protocol.page import Depth, PageData, PageError, PageFlag, PageGpu, State
from jupyter_affinode.node.protocol.wire import (
    HelloFlag,
    Notify,
    NotifyKind,
    Reply,
    Status,
    gpu_uuid,
)
from jupyter_affinode.node.state import registry as state
from jupyter_affinode.node.state.host import host_figures
from jupyter_affinode.node.state.host.host_figures import disk_used_bytes
from jupyter_affinode.node.state.observer import Observers
from jupyter_affinode.node.state.registry import NodeState
from jupyter_affinode.node.state.snapshot_builder import snapshot
from jupyter_affinode.node.system.host_memory import CgroupMemory, HostMemory
from jupyter_affinode.node.system.nvml import NvmlSample
from jupyter_affinode.node.views import serializers as describe
from jupyter_affinode.settings.policy import GIB, MIB, Settings

HISTORIES = int(os.environ.get("AFFINODE_HISTORIES", examples(8)))
STEPS = 60
PROCESSES_MAX = 12
GPUS = [gpu_uuid(bytes([number] * 16)) for number in range(4)]  # NVML knows the first two or three
TOTAL = 16 * GIB
FIRST_PID = 10_000_000  # no pid of this machine
QUIET = logging.Logger("hostile", level=logging.CRITICAL)


class Link:
    """A connection that keeps what it is told."""

    def __init__(self, pid, identity):
        self.peer, self.identity, self.told = SimpleNamespace(pid=pid, uid=1), identity, []

    def command(self, kind, **_):
        self.told.append(kind)
        return len(self.told)

    def notice(self, *_):
        """It is not read."""


class HostilePage:
    """Now and then it says something else; rarely, nonsense."""

    def __init__(self, play):
        self.play, self.last, self.inode = play, play.page(), id(self)

    def read(self):
        dice = self.play.dice
        if dice.random() < 0.02:
            raise PageError("nonsense")
        if dice.random() < 0.3:
            self.last = self.play.page()
        return self.last

    def close(self):
        """There is no file."""


class Play:
    """One machine and its hostile processes, all of it from one seed."""

    def __init__(self, seed, clock):
        self.dice, self.clock, self.pids = random.Random(seed), clock, []
        host = HostMemory(256 * GIB, self.dice.choice([0, 10 * GIB, 200 * GIB]))
        self.state = NodeState(self.settings(), host)
        observers = Observers(QUIET, Notices(self.state, lambda notice: None))
        self.operations = Operations(self.state, QUIET, observers)
        self.rooms = Allocations(self.state, QUIET, observers)
        user_requests = UserRequests(self.state, QUIET, lambda: None)
        lots = SimpleNamespace(
            give=lambda kernel, size: [], held_bytes=lambda key: 0, make_room=lambda size, host: None
        )
        requests = RoomRequests(self.state, QUIET, lambda: None)
        parts = Parts(self.operations, user_requests, self.rooms, lots, requests)
        self.effects = Effects(self.state, QUIET, observers, lambda notice: None, parts)

    def size(self):
        return self.dice.choice([0, 0, 1, MIB, 500 * MIB, GIB, 4 * GIB, 15 * GIB, 80 * GIB, 1 << 50])

    def settings(self):
        pick = self.dice.choice
        return Settings().changed(
            depth=pick(["context", "memory"]),
            allow_migration=pick([True, True, False]),
            when_full=pick(["wait", "time_slice", "terminate_newest"]),
            park_when=pick(["needed", "idle"]),
            idle_timeout_s=pick([0.5, 60.0]),
            drop_caches_before_park=pick([True, False, False]),
            quotas=pick(["", "alice=4GiB", "*=20GiB"]),
            time_slice_s=1.0,
            spill_dir=pick(["", "/", "/", "/not there"]),
            share_dir=pick(["", "/", "/"]),
            spill_limit_bytes=pick([None, 0, GIB, 100 * GIB]),
            spill_daily_bytes=pick([0, 50 * GIB, 1 << 50]),
        )

    def page(self):
        dice, now, size = self.dice, self.clock.now, self.size
        pick = dice.choice
        gpus = tuple(
            PageGpu(uuid, size(), size(), tuple(pick([0, 0, 0, size()]) for _ in range(8)))
            for uuid in dice.sample(GPUS, pick([0, 1, 1, 1, 1, 2, 3]))
        )
        parks = pick([0, 0, 1, 5])
        return PageData(
            state=pick(list(State)),
            state_since=pick([0.0, now - dice.random() * 100]),
            last_activity=pick([0.0, now - dice.random() * 1000]),
            flags=PageFlag(pick([0, 0, 0, dice.randrange(32)])),
            want=pick([0, 0, 1]),
            calls_in_flight=pick([0, 0, 1]),
            captures=pick([0, 0, 0, 1]),
            epoch=dice.randrange(6),
            parks=parks,
            resumes=pick([0, 1]),
            last_park=(size(), pick([0.0, 1.0, 1.8e10])) if parks else None,
            last_resume=(size(), pick([0.0, 1.8e10])),
            gpus=gpus,
            copy_bytes=size(),
            retained_bytes=size(),
            last_park_copied_bytes=size(),
            last_park_zero_bytes=size(),
            depth=pick(list(Depth)),
            lot_bytes=pick([0, size()]),
            context_bytes=size(),
            calls=(0,) * 8,
            disk_bytes=size(),
            last_resume_disk_bytes=pick([0, size()]),
            shared_bytes=pick([0, size()]),
            shared_part_bytes=pick([0, size()]),
        )

    def sample(self):
        """What NVML says; None: it does not answer."""
        dice, pids = self.dice, [process.pid for process in self.state.processes()]
        if dice.random() < 0.1:
            return None
        gpus = []
        for index, uuid in enumerate(GPUS[: dice.choice([2, 3, 3])]):
            free = dice.choice([0, GIB, 5 * GIB, 15 * GIB, TOTAL])
            used_by = {pid: dice.choice([None, 0, GIB, 8 * GIB]) for pid in pids if dice.random() < 0.5}
            if dice.random() < 0.1:
                used_by[FIRST_PID - 1] = 1  # a stranger
            listed = frozenset(used_by) if dice.random() < 0.9 else None
            busy, is_mig = dice.choice([None, frozenset(pids[:1])]), dice.random() < 0.05
            percents = dice.choice([None, {}, dict.fromkeys(pids[:2], 70)])
            gpus.append(
                NvmlGpu(
                    uuid,
                    index,
                    "A GPU",
                    TOTAL,
                    TOTAL - free,
                    free,
                    3,
                    listed,
                    used_by,
                    busy,
                    percents,
                    is_mig,
                )
            )
        return NvmlSample(self.clock.now - 0.05, "580", tuple(gpus))

    def arrive(self):
        if len(self.pids) == PROCESSES_MAX:
            return
        self.pids.append(FIRST_PID + len(self.pids))
        identity = self.dice.choice([Identity("uid-1", "alice"), OWN_USER])
        hello = SimpleNamespace(
            flags=HelloFlag(self.dice.randrange(512)),
            kernel_id=self.dice.choice(["k1", "k2", "k3", "k4", ""]),
            command="hostile",
            shim_version="1",
        )
        link = Link(self.pids[-1], identity)
        self.operations.process_came(self.state.add_process(link, hello, HostilePage(self), self.clock.now))

    def something_happens(self):
        """To one process."""
        dice, now = self.dice, self.clock.now
        processes = list(self.state.processes())
        if not processes or dice.random() < 0.15:
            self.arrive()
            return
        process = dice.choice(processes)
        kernel, is_there = self.state.kernels[process.kernel_id], process.connection is not None
        what = dice.choice(["room", "room end", "reply", "hangs up", "ends", "wish", "cell", "wants"])
        if what == "hangs up" and is_there:
            self.state.disconnect(process)
            process.silent_since, process.is_stopped = now, dice.random() < 0.5
            process.allocations.clear()
            self.operations.process_gone(process, kernel)
        elif what == "ends":
            self.end(process)
        elif what == "wish":
            kernel.requests.park, kernel.requests.park_until = dice.choice([None, "asked"]), now + 10
            kernel.requests.resume = dice.random() < 0.5
        elif what == "cell":
            kernel.cell.is_open = dice.random() < 0.5
        elif is_there:
            self.says(process, what)

    def says(self, process, what):
        dice, now = self.dice, self.clock.now
        if what in ("room", "room end"):
            kind = NotifyKind.ROOM if what == "room" else NotifyKind.ROOM_END
            message = Notify(dice.randrange(5), kind, self.size(), dice.choice(GPUS))
            self.rooms.take_notify(process, message, now)
        elif what == "wants":
            self.operations.process_wants(process)
        elif what == "reply" and process.connection.told:
            told = process.connection.told
            epoch = max(len(told) - dice.randrange(3), 1)
            status = dice.choice(list(Status))
            reply = Reply(epoch, told[epoch - 1], status, self.size(), 1.8e10, "said")
            self.operations.take_reply(process, reply)

    def end(self, process):
        kernel = self.state.kernels[process.kernel_id]
        self.state.disconnect(process)
        self.state.remove_process(process, self.clock.now)
        self.operations.process_gone(process, kernel)

    def step(self):
        """Time passes, things happen, and the controller makes a pass."""
        self.clock.now += self.dice.choice([0.01, 0.25, 1, 20])
        now = self.clock.now
        for _ in range(self.dice.randrange(4)):
            self.something_happens()
        if self.dice.random() < 0.5:
            self.state.take_sample(self.sample())
        self.state.refresh(now)
        self.state.host.read_limits(self.state.kernels.values())
        self.state.host.disk.measure(
            self.state.settings, disk_used_bytes(self.state.kernels.values()), now, QUIET
        )
        node = snapshot(self.state, now, is_settled=True, is_complete=self.dice.random() < 0.7)
        actions = decide(now, node, self.state.settings)
        assert len({action.kernel_id for action in actions}) == len(actions), actions
        elsewhere = {kernel.id: kernel.migration_targets for kernel in node.kernels}
        for action in actions:
            if isinstance(action, Resume) and action.gpu is not None:
                assert action.gpu in elsewhere[action.kernel_id] and set(action.reserved_bytes) == {
                    action.gpu
                }
            self.effects.carry_out(action, now)
        self.show(now)
        self.operations.expire(now)
        for process in self.state.stale_processes(now):
            self.end(process)

    def show(self, now):
        seen = snapshot(self.state, now, is_settled=True)
        kernels, told = (
            {kernel.id: kernel for kernel in seen.kernels},
            estimate_waits(now, seen, self.state.settings),
        )
        since = waits_since(waiters(seen, self.state.settings))
        for kernel in self.state.kernels.values():
            there = kernels.get(kernel.id)
            describe.kernel_json(self.state, kernel, there, told.get(kernel.id), now, waits_since=since)


def played(seed, clock, patch):
    """One history from a seed."""
    clock.now = 1000.0
    play = Play(seed, clock)
    pick = play.dice.choice
    cgroups = [None, *(CgroupMemory("/a", used, 64 * GIB) for used in (0, GIB, 40 * GIB))]
    patch.setattr(host_figures, "cgroup_limits", lambda pid, known=None: tuple(filter(None, [pick(cgroups)])))
    patch.setattr(state, "read_visible", lambda pid: pick([None, (), ("0", "1")]))
    for _ in range(STEPS):
        play.step()


def test_nothing_that_a_process_says_ends_a_pass(monkeypatch, clock):
    first = random.randrange(1 << 32)
    for seed in range(first, first + HISTORIES):
        try:
            played(seed, clock, monkeypatch)
        except Exception:
            print(f"played({seed}, …)")
            raise
