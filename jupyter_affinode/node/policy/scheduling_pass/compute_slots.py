"""Compute slots: how many kernels compute on each GPU, and whether one more may be resumed there
(`max_computing_per_gpu`); pure.

The setting bounds which waiters are resumed. A resident kernel begins its cells unasked, and its further allocations
need no slot: while one of its processes waits for that, another may keep a slot. A partly parked kernel is resumed in
any case (decide.py). So more kernels may compute than the setting allows; as long as they do, no other is resumed.

A waiter without a slot blocks only those behind it that need one as well. With time slices a computing kernel is
preempted for it (preemption.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from ....settings.policy import Settings
from ...model.snapshot import Kernel, Node, Residency
from ..victims.eligibility import LEAST_PAUSE_S
from ..victims.eviction_cost import is_late


class ComputeSlots:
    """The kernels that compute on each GPU or are being resumed to it, with those that a pass has decided to resume."""

    def __init__(self, now: float, node: Node, settings: Settings):
        self.most = settings.max_computing_per_gpu
        self._now = now
        self._node = node
        self._settings = settings

    def lacking(
        self, kernel: Kernel, needs: Mapping[str, int], beside: Mapping[str, int] | None = None
    ) -> list[str]:
        """Return the GPUs on which a kernel may not compute now, of those it needs; `beside`: how many more kernels
        soon compute there.
        """
        if self.most is None:
            return []
        more = beside or {}
        return [
            uuid
            for uuid, need in needs.items()
            if need and len(self.on(uuid, but=kernel)) + more.get(uuid, 0) >= self.most
        ]

    def on(self, uuid: str, but: Kernel) -> list[Kernel]:
        """Return the other kernels that compute on a GPU or are resumed to it."""
        return [each for each in self._by_gpu.get(uuid, {}).values() if each.id != but.id]

    def take(self, kernel: Kernel, gpus: Iterable[str]) -> None:
        """Note that a kernel is resumed."""
        if self.most is not None:
            for uuid in gpus:
                self._by_gpu.setdefault(uuid, {})[kernel.id] = kernel

    @cached_property
    def _by_gpu(self) -> dict[str, dict[str, Kernel]]:
        found: dict[str, dict[str, Kernel]] = {}
        reserved: dict[str, set[str]] = {}  # for resumes that NVML's figures do not show yet
        for each in self._node.reservations:
            if not each.is_taken:
                reserved.setdefault(each.kernel_id, set()).add(each.gpu)
        for kernel in self._node.kernels:
            for uuid in self._gpus_of(kernel, reserved.get(kernel.id, ())):
                found.setdefault(uuid, {})[kernel.id] = kernel
        return found

    def _gpus_of(self, kernel: Kernel, reserved: Iterable[str]) -> Iterable[str]:
        """Return the GPUs on which the kernel computes or is about to."""
        if kernel.residency in (Residency.RESIDENT, Residency.PARKING):
            return _gpus_with_memory(kernel) if is_computing(self._now, kernel, self._settings) else ()
        if kernel.residency is Residency.RESUMING and not is_late(self._now, kernel, self._node.speeds):
            return reserved or [uuid for uuid, size in kernel.parked_bytes.items() if size]
        return reserved if kernel.is_moving else ()


def is_at_work(now: float, kernel: Kernel, settings: Settings) -> bool:
    """Return whether a kernel used the GPU so lately that it counts as computing; an open cell may only be loading
    data.
    """
    if kernel.calls_in_flight or kernel.captures:
        return True
    pause_s = settings.contended_idle_timeout_s if kernel.cell_open else LEAST_PAUSE_S
    return now - kernel.last_activity < pause_s


def is_computing(now: float, kernel: Kernel, settings: Settings) -> bool:
    """Return whether a resident kernel computes or was just resumed to do so; False while it waits for memory."""
    if kernel.rooms and not kernel.calls_in_flight:
        return False
    return is_at_work(now, kernel, settings) or now - kernel.resident_since < LEAST_PAUSE_S


def _gpus_with_memory(kernel: Kernel) -> set[str]:
    parts = (kernel.resident_bytes, kernel.unmovable_bytes)
    return {uuid for part in parts for uuid, size in part.items() if size}
