"""A scene whose host memory may be short: kernels think, want the GPU, and are parked.

Sizes are whole GiB. Host memory is taken while a park goes on and given back a while after it was asked for; shims keep
to their budgets, and say what a park would have taken. `ways` tries every way of making room there is.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from scenes import NEVER_S, Actor, SameMoves, Scene, SceneKernel

from jupyter_affinode.node.model.actions import Action, Park, Trim
from jupyter_affinode.node.model.snapshot import SLAB_BYTES, Host, Residency
from jupyter_affinode.node.policy.resources.host_memory import (
    MARGIN_PART,
    begins_with,
    cgroup_reserve,
    with_margin,
)
from jupyter_affinode.planner.model.simulated_kernel import SimulatedKernel
from jupyter_affinode.settings.policy import GIB, Settings

PARK_S, RESUME_S, TRIM_S = 1.5, 1.0, 0.75
SETTINGS = Settings(
    idle_timeout_s=3600.0, contended_idle_timeout_s=1.0, low_watermark=0.0, margin_bytes=0, depth="context"
)


def sharer(
    name: str,
    size: int,
    gpu: str,
    cgroups: tuple[str, ...] = (),
    *,
    leaves: bool = False,
    residency: Residency = Residency.RESIDENT,
    thinks: Iterable[float] = (NEVER_S,),
) -> Actor:
    """A kernel that is touched after each time of `thinks`."""
    cells = [(seconds, 0.0, size * GIB) for seconds in thinks]
    return Actor(name, (gpu,), cells, residency, leaves=leaves, seen={"cgroups": cgroups})


class ShortHost(Scene):
    """GPUs, host memory, limits by cgroup, and the kernels that share them."""

    def __init__(
        self,
        gpus: Mapping[str, int],
        host: int,
        actors: Sequence[Actor],
        limits: Mapping[str, int] | None = None,
        *,
        reserve: int = 0,
        context: int = 0,
        others: int = 0,
        disk: int = 0,
        exchanges: bool = False,
    ):
        """`exchanges`: kernels change places and hand host memory over; their contexts stay on the GPU then.

        Without `limits`: what is handed over are lots, which count in the controller's cgroup.
        """
        assert not (exchanges and limits)
        self.host_bytes, self.others_bytes = host * GIB, others * GIB  # the latter are other programs'
        self.limits = {cgroup: limit * GIB for cgroup, limit in (limits or {}).items()}
        self.failed_parks = 0
        # With the margin above it, `reserve` GiB.
        settings = SETTINGS.changed(host_reserve_bytes=reserve * GIB * MARGIN_PART // (MARGIN_PART + 1))
        if exchanges:
            settings = settings.changed(depth="memory")
        self._hands_over = exchanges
        sizes = {uuid: size * GIB for uuid, size in gpus.items()}
        speeds = SameMoves(each_park_s=PARK_S, each_resume_s=RESUME_S)
        super().__init__(sizes, actors, settings, speeds, context_bytes=context * GIB, disk_bytes=disk * GIB)

    def _used(self, place: str) -> int:
        """Of host memory, on the machine ("") or in a cgroup."""
        if not place:
            return self.others_bytes + sum(kernel.on_host for kernel in self.kernels)
        return sum(kernel.on_host for kernel in self.kernels if place in places(kernel))

    def left(self, place: str) -> int:
        """What there is beyond the reserve; at least what the policy leaves."""
        reserve = self.settings.host_reserve(self.host_bytes)
        limit = self.limits[place] if place else self.host_bytes
        return limit - self._used(place) - with_margin(cgroup_reserve(limit, reserve) if place else reserve)

    def _host(self) -> Host:
        headroom = {cgroup: limit - self._used(cgroup) for cgroup, limit in self.limits.items()}
        host = Host(self.host_bytes - self._used(""), headroom, self.host_bytes, self.limits)
        return self._disk.seen(host, self.kernels)

    def _park(self, kernel: SimulatedKernel, action: Park) -> None:
        super()._park(kernel, action)
        self.failed_parks += kernel.residency is Residency.RESIDENT

    def _begin_exchanges(self, decided: Sequence[Action]) -> None:
        super()._begin_exchanges(decided)
        # Not before: what a waiter hands over counts from the beginning of its exchange on.
        for action in decided:
            if isinstance(action, Park):
                self._check_reserve(self._kernel_of[action.kernel_id])

    def _parked(self, kernel: SimulatedKernel, leaves: bool) -> None:
        super()._parked(kernel, leaves)
        self._check_reserve(kernel)

    def _check_reserve(self, kernel: SimulatedKernel) -> None:
        if kernel.residency is not Residency.RESIDENT:
            assert all(self.left(place) >= 0 for place in places(kernel)), "the reserve was touched"

    def _trim(self, kernel: SimulatedKernel, action: Trim) -> None:
        assert kernel.residency is Residency.RESIDENT
        kernel.trimming = max(kernel.retained - action.keep_bytes, 0)
        self.outcome.counts["trims"] += 1
        self.timeline.after(TRIM_S, partial(self._trimmed, kernel))

    def _trimmed(self, kernel: SimulatedKernel) -> None:
        kernel.retained, kernel.trimming = kernel.retained - kernel.trimming, 0
        self._books.touch(kernel)

    # ---- every way there is

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way, and every resident kernel has been idle for long enough to be parked."""
        moving = (Residency.PARKING, Residency.RESUMING)
        return not any(
            kernel.residency in moving
            or kernel.trimming
            or (kernel.residency is Residency.RESIDENT and self.now - kernel.last_activity <= 30)
            for kernel in self.kernels
        )

    def ways(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Every way in which a waiter can be served: on which GPU, and which kernels are parked for it."""
        resident = [kernel for kernel in self.kernels if kernel.residency is Residency.RESIDENT]
        for waiter in self.kernels:
            if waiter.wants_since is None:
                continue
            for uuid in self._uuids if waiter.leaves else waiter.on:
                lacks = waiter.resume_bytes() - self.free(uuid)
                there = [kernel for kernel in resident if uuid in kernel.on]
                most = len(there) if uuid in waiter.on else 0  # kernels are parked for a waiter at home alone
                for count in range(most + 1):
                    for parked in itertools.combinations(there, count):
                        frees = sum(each.held + each.context_bytes * each.leaves for each in parked)
                        if frees >= lacks and (
                            self._host_holds(parked) or self._can_be_handed_over(waiter, parked)
                        ):
                            yield waiter.id, uuid, tuple(each.id for each in parked)

    def _can_be_handed_over(self, waiter: SceneKernel, parked: Sequence[SceneKernel]) -> bool:
        """Whether host memory does for all of them with what the waiter has there, and for what they begin with."""
        if not self._hands_over:
            return False
        takes = [max(each.movable - each.retained, 0) for each in parked]
        left = self.left("") + sum(each.retained for each in self._others_than(parked))
        return sum(map(begins_with, takes)) <= left and sum(takes) - waiter.on_host <= left

    def _others_than(self, parked: Sequence[SceneKernel]) -> Iterator[SceneKernel]:
        for kernel in self.kernels:
            if kernel.residency is Residency.RESIDENT and kernel not in parked:
                yield kernel

    def _host_holds(self, parked: Sequence[SceneKernel]) -> bool:
        """Whether host memory does for all of them, when all others have given back what they keep."""
        for place in ("", *self.limits) if parked else ():
            inside = [kernel for kernel in self.kernels if not place or place in places(kernel)]
            takes = sum(
                -(-(each.movable - each.retained) // SLAB_BYTES) * SLAB_BYTES
                + each.context_bytes * each.leaves
                for each in parked
                if each in inside
            )
            gives = sum(
                each.retained
                for each in inside
                if each.residency is Residency.RESIDENT and each not in parked
            )
            if takes > 0 and takes > self.left(place) + gives:
                return False
        return True


def places(kernel: SimulatedKernel) -> tuple[str, ...]:
    """Where a park of the kernel takes host memory."""
    assert isinstance(kernel, SceneKernel)
    cgroups = kernel.actor.seen["cgroups"]
    assert isinstance(cgroups, tuple)
    return ("", *cgroups)


def thinking(draw: random.Random, least_s: float, most_s: float, times: int = 200) -> list[float]:
    """Times of thought before each cell."""
    return [draw.uniform(least_s, most_s) for _ in range(times)]
