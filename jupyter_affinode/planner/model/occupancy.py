"""Occupancy: what each GPU and the host hold in a replay, kept up to date by the kernels that changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ...node.model.snapshot import Kernel, Reservation, Residency
from .machine import Machine
from .simulated_kernel import SimulatedKernel
from .simulation import ModelBroken

# how old the last activity of a computing kernel may look; its calls in flight tell all
ACTIVITY_LATE_S = 10.0


class Part(NamedTuple):
    """What one kernel has: on each of its GPUs, reserved there, and on the host."""

    gpus: tuple[str, ...]
    held: int
    reserved: int
    on_host: int


class Books:
    """Sums and snapshots of all kernels; `renew` looks at those that changed and checks every capacity."""

    def __init__(self, machine: Machine):
        self._machine = machine
        self.free = machine.gpu_sizes()  # reserved room is not taken yet
        self.unreserved = dict(self.free)
        self.host_bytes = 0
        self.seen: dict[int, Kernel] = {}
        self.reserved: dict[int, tuple[Reservation, ...]] = {}
        self.waiting: dict[int, SimulatedKernel] = {}
        self.computing: dict[int, SimulatedKernel] = {}
        self.renewed: list[int] = []  # whose snapshots are new since this list was emptied
        self._parts: dict[int, Part] = {}
        self._changed: dict[int, SimulatedKernel] = {}

    def touch(self, kernel: SimulatedKernel) -> None:
        """Note that something of the kernel is different, or will be in a moment."""
        self._changed[kernel.live.number] = kernel

    def room(self, gpus: Iterable[str]) -> int:
        """Return what is free and not reserved on the fullest of the GPUs."""
        self._add_up()
        return min(self.unreserved[uuid] for uuid in gpus)

    def renew(self, there: Mapping[int, SimulatedKernel], now: float) -> None:
        """Bring everything up to date. Raises ModelBroken where something holds more than there is."""
        self._add_up()
        for number, kernel in self._changed.items():
            if number not in there:
                self._forget(number)
                continue
            self.seen[number] = kernel.seen(now)
            if kernel.residency is Residency.RESUMING:
                size = kernel.resume_bytes()
                self.reserved[number] = tuple(Reservation(kernel.id, uuid, size) for uuid in kernel.on)
            else:
                self.reserved.pop(number, None)
            if kernel.room is not None or kernel.wants_since is not None:
                self.waiting[number] = kernel
            else:
                self.waiting.pop(number, None)
            if kernel.computes_since is not None:
                self.computing[number] = kernel
            else:
                self.computing.pop(number, None)
            self.renewed.append(number)
        self._changed.clear()
        for number, kernel in self.computing.items():  # its last activity is now
            if now - self.seen[number].last_activity > ACTIVITY_LATE_S:
                self.seen[number] = kernel.seen(now)
        least = min(self.unreserved.values())
        if least < 0:
            raise ModelBroken(f"at {now:.3f} s a GPU holds {-least} bytes more than it has")
        if self.host_bytes > self._machine.host_bytes:
            raise ModelBroken(f"at {now:.3f} s the host holds more than it has")

    def forget(self, kernel: SimulatedKernel) -> None:
        """Remove a kernel whose processes have ended."""
        number = kernel.live.number
        self._changed.pop(number, None)
        self._enter(number, Part((), 0, 0, 0))
        self._forget(number)

    def _forget(self, number: int) -> None:
        for table in (self.seen, self.reserved, self.waiting, self.computing, self._parts):
            table.pop(number, None)

    def _add_up(self) -> None:
        for number, kernel in self._changed.items():
            is_resuming = kernel.residency is Residency.RESUMING
            here = 0 if is_resuming else kernel.on_gpu
            reserved = kernel.reserved_bytes()
            self._enter(number, Part(kernel.on, here + kernel.context_on_gpu, reserved, kernel.on_host))

    def _enter(self, number: int, part: Part) -> None:
        before = self._parts.get(number)
        if before == part:
            return
        if before is not None:
            self._post(before, -1)
        self._post(part, 1)
        self._parts[number] = part

    def _post(self, part: Part, sign: int) -> None:
        for uuid in part.gpus:
            self.free[uuid] -= sign * part.held
            self.unreserved[uuid] -= sign * (part.held + part.reserved)
        self.host_bytes += sign * part.on_host
