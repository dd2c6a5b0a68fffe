"""A scene whose host memory is short and which has a disk: kernels are parked and their contents spilled.

Sizes are whole GiB. Host memory is given back as contents are written; a call ends the writing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from scenes import Actor, SceneKernel
from short_host import RESUME_S, ShortHost

from jupyter_affinode.node.model.actions import Spill
from jupyter_affinode.node.model.snapshot import Host, Kernel, Residency
from jupyter_affinode.planner.model.simulated_kernel import AWAY, SimulatedKernel
from jupyter_affinode.planner.model.simulation import LiveSession
from jupyter_affinode.settings.policy import GIB

GPU = "GPU"
DISK_S = 0.25  # to write a GiB, or to read it


class SpillingKernel(SceneKernel):
    """A kernel a part of whose copy is on disk, or on its way there."""

    on_disk = 0
    spilling = 0
    writes_until = 0.0

    @property
    def on_host(self) -> int:
        return super().on_host - self.on_disk

    def seen(self, now: float) -> Kernel:
        kernel, is_away = super().seen(now), self.residency in AWAY
        host = replace(
            kernel.host,
            park_takes_bytes=self.movable,
            spillable_bytes=(self.movable - self.on_disk) * is_away,
            spilling_bytes=self.spilling,
            disk_bytes=self.on_disk,
        )
        return replace(kernel, is_moving=kernel.is_moving or self.spilling > 0, host=host)


class DiskHost(ShortHost):
    """One GPU, 3 GiB of host memory as a reserve, and a disk."""

    kernel_type = SpillingKernel

    def __init__(self, gpu: int, host: int, disk: int, actors: Sequence[Actor]):
        self.disk_bytes = disk * GIB
        super().__init__({GPU: gpu}, host, actors, reserve=3)
        self._carry_out[Spill] = self._spill

    def begin_somewhere(self, draw: random.Random, residents: Sequence[SceneKernel]) -> None:
        """Have these on the GPU and all others on disk, each idle for a while."""
        for kernel in self.kernels:
            self.begin_as(kernel, Residency.RESIDENT if kernel in residents else Residency.PARKED)
            kernel.on_disk = 0 if kernel in residents else kernel.held
            kernel.last_activity = self.now - draw.uniform(1, 100)

    @property
    def refused(self) -> list[str]:
        """Why parks were refused; a call that ends one is no refusal."""
        return [name for name in self.outcome.counts if "refused" in name and "came-back" not in name]

    def step(self) -> None:
        super().step()
        assert sum(each.on_disk + each.spilling for each in self.kernels) <= self.disk_bytes

    def _host(self) -> Host:
        on_disk = sum(each.on_disk + each.spilling for each in self.kernels)
        writable = max(self.disk_bytes - on_disk, 0)
        return replace(super()._host(), disk_limit_bytes=self.disk_bytes, disk_writable_bytes=writable)

    def wants(self, live: LiveSession) -> None:
        self._kernel_of[live.session.id].spilling = 0
        super().wants(live)

    def _resume(self, kernel, action) -> None:
        self._speeds = replace(self._speeds, each_resume_s=RESUME_S + DISK_S * kernel.on_disk / GIB)
        super()._resume(kernel, action)

    def _resumed(self, kernel: SimulatedKernel) -> None:
        super()._resumed(kernel)
        kernel.kept, kernel.on_disk = kernel.movable - kernel.on_disk, 0
        self._books.touch(kernel)

    def _spill(self, kernel: SpillingKernel, action: Spill) -> None:
        assert kernel.residency in AWAY and not kernel.spilling and action.bytes > 0
        kernel.spilling = size = min(-(-action.bytes // GIB) * GIB, kernel.movable - kernel.on_disk)
        self.outcome.counts["spills"] += 1
        kernel.writes_until = self.now + DISK_S * size / GIB
        self.timeline.at(kernel.writes_until, partial(self._spilled, kernel))

    def _spilled(self, kernel: SpillingKernel) -> None:
        if self.now >= kernel.writes_until:  # else a call ended that write, and this is a later one
            kernel.on_disk, kernel.spilling = kernel.on_disk + kernel.spilling, 0
            self._books.touch(kernel)
