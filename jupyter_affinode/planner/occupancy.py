"""What each GPU and the host hold in a replay, kept up to date by the kernels that changed."""

from __future__ import annotations

from collections.abc import Mapping

from ..node.model.snapshot import Kernel, Reservation, Residency
from .machine import Machine
from .simulated_kernel import Sharer
from .simulation import ModelBroken

ACTIVITY_LATE_S = (
    10.0  # how old the last activity of a computing kernel may look; its calls in flight tell all
)


class Books:
    """Sums and snapshots of all kernels; `renew` looks at those that changed and checks every capacity."""

    def __init__(self, machine: Machine):
        self._machine = machine
        self.free = [machine.gpu_bytes] * machine.gpus  # reserved room is not taken yet
        self.unreserved = list(self.free)
        self.host_bytes = machine.host_used_bytes
        self.seen: dict[int, Kernel] = {}
        self.reserved: dict[int, Reservation] = {}
        self.waiting: dict[int, Sharer] = {}
        self.computing: dict[int, Sharer] = {}
        self.renewed: list[int] = []  # whose snapshots are new since this list was emptied
        self._parts: dict[int, tuple[int, int, int, int]] = {}  # GPU, held there, reserved there, on the host
        self._changed: dict[int, Sharer] = {}

    def touch(self, sharer: Sharer) -> None:
        """Something of it is different, or will be in a moment."""
        self._changed[sharer.guest.number] = sharer

    def room(self, gpu: int) -> int:
        """Return what is free on a GPU and not reserved."""
        self._add_up()
        return self.unreserved[gpu]

    def renew(self, there: Mapping[int, Sharer], now: float) -> None:
        """Bring everything up to date. Raises ModelBroken where something holds more than there is."""
        self._add_up()
        for number, sharer in self._changed.items():
            if number not in there:
                self._forget(number)
                continue
            self.seen[number] = sharer.seen(now)
            if sharer.residency is Residency.RESUMING:
                self.reserved[number] = Reservation(sharer.id, sharer.gpu, self._parts[number][2])
            else:
                self.reserved.pop(number, None)
            if sharer.room is not None or sharer.wants_since is not None:
                self.waiting[number] = sharer
            else:
                self.waiting.pop(number, None)
            if sharer.computes_since is not None:
                self.computing[number] = sharer
            else:
                self.computing.pop(number, None)
            self.renewed.append(number)
        self._changed.clear()
        for number, sharer in self.computing.items():  # its last activity is now
            if now - self.seen[number].last_activity > ACTIVITY_LATE_S:
                self.seen[number] = sharer.seen(now)
        if min(self.unreserved) < 0:
            raise ModelBroken(f"at {now:.3f} s a GPU holds {-min(self.unreserved)} bytes more than it has")
        if self.host_bytes > self._machine.host_bytes:
            raise ModelBroken(f"at {now:.3f} s the host holds more than it has")

    def forget(self, sharer: Sharer) -> None:
        """Its processes have ended."""
        number = sharer.guest.number
        self._changed.pop(number, None)
        self._enter(number, (sharer.guest.gpu or 0, 0, 0, 0))
        self._forget(number)

    def _forget(self, number: int) -> None:
        for table in (self.seen, self.reserved, self.waiting, self.computing, self._parts):
            table.pop(number, None)

    def _add_up(self) -> None:
        for number, sharer in self._changed.items():
            gpu, is_resuming = sharer.guest.gpu or 0, sharer.residency is Residency.RESUMING
            here = 0 if is_resuming else sharer.on_gpu
            back = sharer.held + sum(sharer.way_back().values()) if is_resuming else 0
            self._enter(number, (gpu, here + sharer.context_on_gpu, back, sharer.on_host))

    def _enter(self, number: int, part: tuple[int, int, int, int]) -> None:
        before = self._parts.get(number)
        if before == part:
            return
        if before is not None:
            self._post(before, -1)
        self._post(part, 1)
        self._parts[number] = part

    def _post(self, part: tuple[int, int, int, int], sign: int) -> None:
        gpu, here, back, host = part
        self.free[gpu] -= sign * here
        self.unreserved[gpu] -= sign * (here + back)
        self.host_bytes += sign * host
