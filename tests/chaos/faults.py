"""What can go wrong on a machine, each as a function that makes it go wrong once.

A fault has a kind, the residency at which it should hit, and numbers of its own, all drawn from the seed in
advance; it hits a kernel that is there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import floods
from light_kernels import wish_path

if TYPE_CHECKING:
    from chaos import Chaos
    from light_kernels import LightKernel

AIMS = ("resident", "parking", "parked", "queued", "resuming")
JUMPS_S = (1.0, 10.0, 60.0, 3600.0)
DAY_S = 86400.0
DISK_ERRORS = (
    (errno.ENOSPC, 0),
    (errno.EIO, 0),
    (0, errno.EIO),
    (errno.EIO, errno.EIO),
)  # of writing, of reading
ERRORS = struct.Struct("=ii")  # `struct errors` of disk.c


@dataclass(frozen=True)
class Fault:
    """One fault as it was drawn. `amount` is between 0 and 1; what it means depends on the kind."""

    kind: str
    aim: str
    amount: float
    choice: int

    def __str__(self) -> str:
        return f"{self.kind} ({self.aim}, {self.amount:.2f}, {self.choice})"


def kill_controller(chaos: Chaos, fault: Fault) -> str:
    """At a moment when some kernel is in the state aimed at."""
    _, state = chaos.aim(fault)
    chaos.signal_controller(signal.SIGKILL)
    return state


def stop_controller(chaos: Chaos, fault: Fault) -> str:
    """The whole process, threads too; for up to six seconds."""
    _, state = chaos.aim(fault)
    pid = chaos.signal_controller(signal.SIGSTOP)
    if pid is not None:
        chaos.later(6 * fault.amount, lambda: send(pid, signal.SIGCONT))
    return state


def block_controller(chaos: Chaos, fault: Fault) -> str:
    """Its event loop alone (hooks/sitecustomize.py)."""
    _, state = chaos.aim(fault)
    chaos.signal_controller(signal.SIGUSR1)
    return state


def kill_server(chaos: Chaos, fault: Fault) -> str:
    """Its kernels end as ipykernel does when its parent is gone; another server is started."""
    victim, state = chaos.aim(fault, of_server=True)
    name = victim.id.rpartition("-")[0] if victim is not None else next(iter(chaos.light.servers))
    chaos.kill_server(name)
    return state


def kill_kernel(chaos: Chaos, fault: Fault) -> str:
    """Its server starts it again under the same id."""
    victim, state = chaos.aim(fault)
    if victim is not None:
        victim.may_die = True
        send(victim.pid, signal.SIGKILL)
    return state


def stop_kernel(chaos: Chaos, fault: Fault) -> str:
    """For up to eight seconds, mostly less: heartbeats are missed after three."""
    victim, state = chaos.aim(fault)
    if victim is not None:
        pid = victim.pid
        send(pid, signal.SIGSTOP)
        chaos.later(8 * fault.amount**3, lambda: send(pid, signal.SIGCONT))
    return state


def fill_host_memory(chaos: Chaos, fault: Fault) -> str:
    """The reserve is raised to all that is free, so that no park may take anything."""
    _, state = chaos.aim(fault)
    chaos.set_policy(host_reserve_bytes=1 << 50)  # a controller that is stuck may take it later
    chaos.later(3 * fault.amount, chaos.give_host_memory_back)
    return state


def fail_disk(chaos: Chaos, fault: Fault) -> str:
    """It is full, cannot be written, cannot be read, or its folder is gone."""
    _, state = chaos.aim(fault)
    which = fault.choice % (len(DISK_ERRORS) + 1)
    if which < len(DISK_ERRORS):
        chaos.disk.fail(*DISK_ERRORS[which])
    else:
        chaos.disk.take_away()
    chaos.later(3 * fault.amount, chaos.disk.mend)
    return state


def jump_clocks(chaos: Chaos, fault: Fault) -> str:
    """Both clocks forward, as after a pause of a virtual machine; or the time of day, either way."""
    _, state = chaos.aim(fault)
    jump = JUMPS_S[fault.choice % len(JUMPS_S)]
    if fault.amount < 0.5:
        chaos.clocks.move(jump, jump)
    else:
        chaos.clocks.move(0.0, (fault.amount - 0.75) * 4 * DAY_S)
    return state


def flood_sockets(chaos: Chaos, fault: Fault) -> str:
    """One of the floods, beside everything else."""
    _, state = chaos.aim(fault)
    flood = floods.FLOODS[fault.choice % len(floods.FLOODS)]
    folder, source = chaos.machine.socket.parent, random.Random(fault.choice)
    thread = threading.Thread(target=flood, args=(folder, source, 0.2 + 1.8 * fault.amount), daemon=True)
    thread.start()
    chaos.threads.append(thread)
    return state


def hibernate_kernel(chaos: Chaos, fault: Fault) -> str:
    """To disk, process and all, and back after up to three seconds; other faults hit it on its way."""
    victim, state = chaos.aim(fault)
    if victim is not None:
        wish = wish_path(victim.board.path)
        fresh = wish.with_suffix(".new")
        fresh.write_text(str(3 * fault.amount))
        fresh.rename(wish)
    return state


def kill_criu(chaos: Chaos, fault: Fault) -> str:
    """While it wakes a kernel, if it does in a while.

    Not while it writes one: it has code of its own in the process for moments, and the process may die of that.
    """
    marks = [os.fsencode(chaos.images)]

    def at_work() -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                command = path.read_bytes()
                if b"restore" in command.split(b"\0") and all(mark in command for mark in marks):
                    found.append(int(path.parent.name))
        return found

    deadline = time.monotonic() + 2
    while not (pids := at_work()) and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.1 * fault.amount)
    for pid in pids:
        send(pid, signal.SIGKILL)
    return "at work" if pids else "idle"


Inject = Callable[["Chaos", Fault], str]

# How often each is drawn, beside the others.
KINDS: dict[str, tuple[int, Inject]] = {
    "kill the controller": (15, kill_controller),
    "stop the controller": (6, stop_controller),
    "block the controller's loop": (4, block_controller),
    "kill a server": (6, kill_server),
    "kill a kernel": (16, kill_kernel),
    "stop a kernel": (24, stop_kernel),
    "fill host memory": (8, fill_host_memory),
    "the disk fails": (8, fail_disk),
    "jump the clocks": (8, jump_clocks),
    "flood the sockets": (8, flood_sockets),
}


HIBERNATING: dict[str, tuple[int, Inject]] = {
    "hibernate a kernel": (40, hibernate_kernel),
    "kill CRIU": (10, kill_criu),
}


def draw(source: random.Random, count: int, kinds_of: dict[str, tuple[int, Inject]] = KINDS) -> list[Fault]:
    """So many faults, every kind once at least if there are enough; the same for the same seed."""
    names = list(kinds_of)
    weights = [kinds_of[name][0] for name in names]
    kinds = names[:count] + source.choices(names, weights, k=max(count - len(names), 0))
    source.shuffle(kinds)
    return [Fault(kind, source.choice(AIMS), source.random(), source.randrange(1 << 16)) for kind in kinds]


class Clocks:
    """The file that clock.c reads."""

    def __init__(self, path: os.PathLike[str]):
        self._path = path
        self._monotonic_ns = self._realtime_ns = 0
        with open(path, "wb") as file:
            file.write(struct.pack("=qq", 0, 0))

    def move(self, monotonic_s: float, realtime_s: float) -> None:
        """Let them jump, in every process at once."""
        self._monotonic_ns += int(monotonic_s * 1e9)
        self._realtime_ns += int(realtime_s * 1e9)
        with open(self._path, "r+b") as file:
            file.write(struct.pack("=qq", self._monotonic_ns, self._realtime_ns))


class Disk:
    """The folder for parked memory, and the file that disk.c reads."""

    def __init__(self, folder: Path | None, errors: Path):
        self._folder, self._errors = folder, errors
        self._errors.write_bytes(bytes(ERRORS.size))

    def fail(self, writing: int, reading: int) -> None:
        """Answer with these errors from now on, in every process at once; 0: none."""
        with self._errors.open("r+b") as file:
            file.write(ERRORS.pack(writing, reading))

    def take_away(self) -> None:
        """Have no folder; files that are open stay."""
        if self._folder is not None and self._folder.exists():
            self._folder.rename(self._elsewhere)

    def mend(self) -> None:
        """Have everything as it was."""
        self.fail(0, 0)
        if self._folder is not None and self._elsewhere.exists():
            self._elsewhere.rename(self._folder)

    @property
    def _elsewhere(self) -> Path:
        assert self._folder is not None
        return self._folder.with_name(f"{self._folder.name}-elsewhere")


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False if the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        if pid > 0:
            os.kill(pid, number)
            return True
    return False


def pick(victims: list[LightKernel], fault: Fault) -> LightKernel:
    """One of them, by the fault's number."""
    return victims[fault.choice % len(victims)]
