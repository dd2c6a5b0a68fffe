"""A scene whose host memory is short and which has a disk: kernels are parked, and spilled or hibernated.

Sizes are whole GiB. Host memory is given back as contents are written; a call ends the writing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from scenes import Actor, SceneKernel
from short_host import ShortHost

from jupyter_affinode.node.model.actions import Hibernate
from jupyter_affinode.node.model.snapshot import Residency
from jupyter_affinode.node.policy.resources.disk import LEAST_AWAKE_S
from jupyter_affinode.settings.policy import GIB

GPU = "GPU"


class DiskHost(ShortHost):
    """One GPU, 3 GiB of host memory as a reserve, and a disk; kernels that can hibernate, if that is said."""

    def __init__(
        self,
        gpu: int,
        host: int,
        disk: int,
        actors: Sequence[Actor],
        *,
        exchanges: bool = False,
        hibernate: bool = False,
    ):
        self.disk_bytes = disk * GIB
        super().__init__({GPU: gpu}, host, actors, reserve=3, disk=disk, exchanges=exchanges)
        self.hibernates = hibernate
        for kernel in self.kernels if hibernate else ():
            kernel.hibernates_after_s = math.inf

    def begin_somewhere(self, draw: random.Random, residents: Sequence[SceneKernel]) -> None:
        """Have these on the GPU and all others on disk, or hibernated, each idle for a while."""
        away = Residency.HIBERNATED if self.hibernates else Residency.PARKED
        for kernel in self.kernels:
            self.begin_as(kernel, Residency.RESIDENT if kernel in residents else away)
            kernel.on_disk, kernel.has_parked = 0 if kernel in residents else kernel.held, True
            kernel.last_activity = self.now - draw.uniform(1, 100)
            kernel.awake_since = self.now - draw.uniform(0, 2 * LEAST_AWAKE_S)

    def _hibernate(self, kernel: SceneKernel, action: Hibernate) -> None:
        assert self.now - kernel.awake_since >= LEAST_AWAKE_S, f"{kernel.id} was woken a moment ago"
        super()._hibernate(kernel, action)

    @property
    def refused(self) -> list[str]:
        """Why parks were refused; a call that ends one is no refusal."""
        return [name for name in self.outcome.counts if "refused" in name and "came-back" not in name]

    def step(self) -> None:
        super().step()
        if not self.hibernates:
            assert sum(each.on_disk + each.spilling for each in self.kernels) <= self.disk_bytes
