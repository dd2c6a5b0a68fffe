"""A scene in which NVML's figures are right but late, as the real ones are.

Some allocations succeed without asking, as real ones do; only those may make a grant fail, and the scene checks that
nothing else does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from scenes import Actor, Scene

from jupyter_affinode.node.model.actions import GrantRoom, RefusePark, Resume
from jupyter_affinode.node.model.snapshot import Gpu, Node, Reservation, Residency
from jupyter_affinode.planner.model.simulated_kernel import SimulatedKernel
from jupyter_affinode.settings.policy import Settings

GPU = "GPU-0"


def grower(name: str, sizes: Sequence[int], computes_s: float) -> Actor:
    """A kernel that allocates again and again, and computes after each allocation."""
    cells = [(0.0, computes_s, sum(sizes[: place + 1])) for place in range(len(sizes))]
    return Actor(name, (GPU,), cells)


class LateFigures(Scene):
    """One GPU; the figure in a snapshot is one step old, and what happened since is uncertain."""

    def __init__(self, total: int, actors: Sequence[Actor], settings: Settings):
        self._figures: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []
        self._promised: list[tuple[Reservation, float | None]] = []  # …, and when it was taken or given up
        self._unannounced_at = 0.0
        super().__init__({GPU: total}, actors, settings)

    def step(self) -> None:
        super().step()
        self._figures = [*self._figures[-1:], (self.now, self.free(GPU))]

    def _snapshot(self) -> Node:
        node = super()._snapshot()
        sampled_at, free = self._figures[0] if self._figures else (self.now, self.free(GPU))
        self._promised = [entry for entry in self._promised if entry[1] is None or entry[1] >= sampled_at]
        uncertain = sum(size for moment, size in self._changes if moment >= sampled_at)
        gpu = Gpu(GPU, free, node.gpus[GPU].total_bytes, sampled_at, uncertain)
        reservations = tuple(reservation for reservation, _ in self._promised)
        return replace(node, gpus={GPU: gpu}, reservations=reservations)

    def act(self, node, decided):
        assert not any(isinstance(action, RefusePark) for action in decided), "there is host memory for all"
        super().act(node, decided)

    def _promise(self, kernel: SimulatedKernel, size: int) -> None:
        self._promised.append((Reservation(kernel.id, GPU, size), None))

    def _redeem(self, kernel: SimulatedKernel) -> None:
        """What was promised is taken, or given up: from the next figure on it shows."""
        self._promised = [
            (each, self.now if each.kernel_id == kernel.id and at is None else at)
            for each, at in self._promised
        ]

    def _failed(self, kernel: SimulatedKernel) -> None:
        assert self.now - self._unannounced_at <= 4 * self.step_s, "granted what was not there"
        kernel.resume_backoff.wait(self.now, 0.5)

    def _may_take(self, kernel: SimulatedKernel, need: int) -> bool:
        may = super()._may_take(kernel, need)
        if may and kernel.room is None:
            self._unannounced_at = self.now
            self._changes.append((self.now, need))
        return may

    def _grant(self, kernel: SimulatedKernel, action: GrantRoom) -> None:
        self.kernel(kernel.id).is_granted = True
        self._promise(kernel, action.bytes)
        self.timeline.after(self.step_s, partial(self._try_again, kernel, action))

    def _try_again(self, kernel: SimulatedKernel, action: GrantRoom) -> None:
        self.kernel(kernel.id).is_granted = False
        self._redeem(kernel)
        if kernel.residency is not Residency.RESIDENT:
            return  # parked meanwhile: it waits on at its old place
        if action.bytes > self.free(GPU):
            self._failed(kernel)  # and so it does here
        else:
            self._changes.append((self.now, action.bytes))
            super()._grant(kernel, action)

    def _resume(self, kernel: SimulatedKernel, action: Resume) -> None:
        if kernel.resume_bytes() > self.free(GPU):  # the shim: NO_GPU_ROOM, everything as it was
            self._failed(kernel)
            return
        super()._resume(kernel, action)
        self._promise(kernel, kernel.resume_bytes())

    def _resumed(self, kernel: SimulatedKernel) -> None:
        self._changes.append((self.now, kernel.held))
        self._redeem(kernel)
        super()._resumed(kernel)

    def _parked(self, kernel: SimulatedKernel, leaves: bool) -> None:
        self._changes.append((self.now, kernel.held))
        super()._parked(kernel, leaves)
