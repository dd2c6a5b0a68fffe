"""A simple simulated machine with a virtual clock, for properties of the policy.

Kernels have scripts: use the GPU, allocate, wait. Parks and resumes take time; NVML's figure is right but
late, as the real one is. Some allocations succeed without asking, as real ones do; only those may make a
grant fail, and the world checks that nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jupyter_affinode.node.model.actions import Action, DenyRoom, GrantRoom, Park, RefusePark, Resume
from jupyter_affinode.node.model.snapshot import Gpu, Host, Kernel, Node, Reservation, Residency, RoomRequest
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.settings.policy import Settings

GPU = "GPU-0"
STEP_S = 0.25


@dataclass
class SimulatedKernel:
    """One kernel; sizes in bytes."""

    id: str
    wanted_bytes: list[int]  # its allocations, one after the other
    works_s: float  # how long it computes between two allocations, and at the end
    resident: int = 0
    parked: int = 0
    moving: str | None = None
    moving_until: float = 0.0
    waits_since: float | None = None
    room: RoomRequest | None = None
    granted: bool = False
    last_activity: float = 0.0
    busy_until: float = 0.0
    denied: int = 0
    parks: int = 0
    done_at: float | None = None
    resume_retry_at: float = 0.0

    @property
    def residency(self) -> Residency:
        """As the controller would see it."""
        if self.moving:
            return Residency.PARKING if self.moving == "park" else Residency.RESUMING
        if self.parked:
            return Residency.PARKED if self.waits_since is None else Residency.QUEUED
        return Residency.RESIDENT if self.resident else Residency.NONE

    def seen(self) -> Kernel:
        """For the snapshot."""
        return Kernel(
            self.id,
            self.residency if self.residency is not Residency.NONE else Residency.RESIDENT,
            {GPU: self.resident},
            {GPU: self.parked},
            last_activity=self.last_activity,
            is_moving=self.moving is not None,
            wants_since=self.waits_since,
            resume_retry_at=self.resume_retry_at,
            rooms=(self.room,) if self.room is not None and not self.granted else (),
        )


@dataclass
class World:
    """The machine."""

    total: int
    kernels: list[SimulatedKernel]
    settings: Settings
    move_s: float = 1.0
    now: float = 1000.0
    figures: list[tuple[float, int]] = field(default_factory=list)  # (moment, free), the last few
    actions: list[tuple[float, Action]] = field(default_factory=list)
    number: int = 0
    reserved: list[tuple[Reservation, float | None]] = field(default_factory=list)  # …, when it was used
    unannounced_at: float = 0.0  # when an allocation last succeeded without asking
    changes: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for kernel in self.kernels:
            kernel.last_activity = self.now

    @property
    def used(self) -> int:
        """What is really on the GPU; a resuming kernel has its room from the start."""
        return sum(
            kernel.resident + (kernel.parked if kernel.moving == "resume" else 0) for kernel in self.kernels
        )

    def snapshot(self) -> Node:
        """What the controller sees: NVML's figure is one step old."""
        sampled_at, free = self.figures[0] if self.figures else (self.now, self.total - self.used)
        self.reserved = [entry for entry in self.reserved if entry[1] is None or entry[1] >= sampled_at]
        reservations = [reservation for reservation, _ in self.reserved]
        uncertain = sum(size for moment, size in self.changes if moment >= sampled_at)
        gpu = Gpu(GPU, free, self.total, sampled_at, uncertain)
        kernels = tuple(kernel.seen() for kernel in self.kernels)
        return Node({GPU: gpu}, kernels, Host(1 << 50), tuple(reservations))

    def step(self) -> list[Action]:
        """Decide, act, let time pass."""
        for kernel in self.kernels:
            self._live(kernel)
        actions = decide(self.now, self.snapshot(), self.settings)
        for action in actions:
            self.actions.append((self.now, action))
            self._apply(action)
        assert self.used <= self.total, "over-committed"
        self.figures = [*self.figures[-1:], (self.now, self.total - self.used)]
        self.now += STEP_S
        return actions

    def _kernel(self, kernel_id: str) -> SimulatedKernel:
        return next(kernel for kernel in self.kernels if kernel.id == kernel_id)

    def _apply(self, action: Action) -> None:
        kernel = self._kernel(action.kernel_id)
        if isinstance(action, Park):
            assert kernel.moving is None and kernel.resident
            kernel.moving, kernel.moving_until = "park", self.now + self.move_s
            kernel.parks += 1
        elif isinstance(action, Resume):
            assert kernel.moving is None and kernel.parked
            if self.used + kernel.parked > self.total:  # the shim: NO_GPU_ROOM, everything as it was
                self._failed(kernel)
                return
            kernel.moving, kernel.moving_until = "resume", self.now + self.move_s
            self._reserve(kernel, kernel.parked)
        elif isinstance(action, GrantRoom):
            assert kernel.room is not None
            kernel.granted = True
            self._reserve(kernel, kernel.room.bytes)
        elif isinstance(action, DenyRoom):
            kernel.room, kernel.denied, kernel.wanted_bytes = None, kernel.denied + 1, []
            kernel.waits_since = None
        elif isinstance(action, RefusePark):
            raise AssertionError("there is host memory for all")

    def _live(self, kernel: SimulatedKernel) -> None:
        if kernel.moving and self.now >= kernel.moving_until:
            if kernel.moving == "park":
                kernel.parked, kernel.resident = kernel.resident, 0
            else:
                kernel.resident, kernel.parked = kernel.parked, 0
                kernel.waits_since = None
                self._used(kernel)
            kernel.moving = None
            self.changes.append((self.now, kernel.resident + kernel.parked))
        if kernel.moving or kernel.done_at is not None or self.now < kernel.busy_until:
            return
        if kernel.parked:
            if kernel.waits_since is None and kernel.room is None:
                kernel.waits_since = self.now  # it goes on computing, and meets the closed gate
            return
        self._go_on(kernel)

    def _go_on(self, kernel: SimulatedKernel) -> None:
        kernel.last_activity = self.now
        if kernel.room is not None:
            if not kernel.granted:
                return
            kernel.granted = False
            self._used(kernel)
            if self.used + kernel.room.bytes > self.total:
                self._failed(kernel)  # and it waits on at its old place
                return
            size, kernel.room = kernel.room.bytes, None
            self._allocate(kernel, size)
        elif kernel.wanted_bytes:
            if self.used + kernel.wanted_bytes[0] <= self.total:
                self.unannounced_at = self.now
                self._allocate(kernel, kernel.wanted_bytes[0])
            else:
                self.number += 1
                kernel.room = RoomRequest((1, self.number), GPU, kernel.wanted_bytes[0], self.now)
        else:
            kernel.done_at = self.now

    def _reserve(self, kernel: SimulatedKernel, size: int) -> None:
        self.reserved.append((Reservation(kernel.id, GPU, size), None))

    def _used(self, kernel: SimulatedKernel) -> None:
        """What was reserved is taken, or given up: from the next figure on it shows."""
        self.reserved = [
            (entry, self.now if entry.kernel_id == kernel.id and used is None else used)
            for entry, used in self.reserved
        ]

    def _failed(self, kernel: SimulatedKernel) -> None:
        """A grant failed: only an allocation that nobody announced can have taken its room."""
        assert self.now - self.unannounced_at <= 4 * STEP_S, "granted what was not there"
        kernel.resume_retry_at = self.now + 0.5

    def _allocate(self, kernel: SimulatedKernel, size: int) -> None:
        kernel.resident += size
        kernel.wanted_bytes = kernel.wanted_bytes[1:]
        kernel.busy_until = self.now + kernel.works_s
        kernel.last_activity = kernel.busy_until
        self.changes.append((self.now, size))
