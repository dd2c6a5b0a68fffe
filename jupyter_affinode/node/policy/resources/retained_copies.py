"""Retained copies: host memory that kernels can release for a park in one pass of the policy; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ...model.actions import Hibernate, Spill, Trim
from ...model.snapshot import Kernel
from .host_memory import LEAST_BYTES, SLACK_BYTES, HostRoom, Shortage


class RetainedCopies:
    """The host memory that kernels can release: retained copies first, the largest and oldest first, then what can be
    spilled, then what kernels have that can hibernate. Sorted once a pass, and only when a kernel is to release: a
    thousand kernels may look, and mostly there is enough.
    """

    def __init__(
        self,
        kernels: Iterable[Kernel],
        now: float,
        room: HostRoom,
        is_free: Callable[[Kernel], bool],
        to_disk: Mapping[str, int] | None = None,
        hibernates: Collection[str] = (),
    ):
        """Prepare for one pass; `is_free` returns whether a kernel may be asked; `to_disk`: the bytes that parked
        kernels can spill, in order; `hibernates`: which of them hibernate instead, whole.
        """
        self._room = room
        self.coming: dict[str, int] = {}  # by place, what was asked back and is not there yet
        self._gives: dict[str, int] = {}  # … and what could be asked back
        self._now = now
        self._ready: dict[str, Kernel] = {}
        self._to_disk, self._hibernates = dict(to_disk or {}), hibernates
        self._is_sorted = False
        for each in kernels:
            use = each.host
            if use.trimming_bytes or use.spilling_bytes:
                self._count(self.coming, each, use.trimming_bytes + use.spilling_bytes)
            if (use.trimmable_bytes and is_free(each)) or each.id in self._to_disk:
                self._ready[each.id] = each
                self._count(self._gives, each, self._most(each))
            elif use.trimmable_bytes:  # it can be asked in a later pass
                room.count_passing(each, use.trimmable_bytes)

    def _most(self, kernel: Kernel) -> int:
        """Return the bytes that a kernel can release now. A parked kernel releases what it used to move once it spills
        nothing.
        """
        return self._to_disk.get(kernel.id) or kernel.host.trimmable_bytes

    def drop(self, kernel_id: str, asked_bytes: int = 0) -> None:
        """Note that something was decided for the kernel: it releases nothing more in this pass. `asked_bytes`: what it
        was asked to release.
        """
        kernel = self._ready.pop(kernel_id, None)
        if kernel is not None:
            self._count(self._gives, kernel, -self._most(kernel))
            self._room.count_passing(kernel, self._most(kernel) - asked_bytes)

    def left(self, short: Shortage, kernels: Collection[Kernel], *, to_disk: bool = True) -> Shortage:
        """Return what is still short when all others but `kernels` have released what they can."""
        left = {place: size - self._gives.get(place, 0) for place, size in short.items()}
        others = () if to_disk else [self._ready[each] for each in self._to_disk if each in self._ready]
        for kernel in (*kernels, *others):
            if kernel.id in self._ready:
                for place in self._room.places(kernel):
                    if place in left:
                        left[place] += self._most(kernel)
        return {place: size for place, size in left.items() if size > 0}

    def trims(
        self, short: Shortage, reason: str, margins: Mapping[str, int] | None = None
    ) -> list[Trim | Spill | Hibernate]:
        """Return which kernels release how much for what is short, as far as that can be had. `margins`: how much more
        than that, if it is retained; nothing is spilled for them.

        A kernel that was asked is left out for the rest of the pass, and what it releases is in `coming`.
        """
        if short and not self._is_sorted:
            self._sort()
        margins = margins or {}
        left, gives = {place: size + margins.get(place, 0) for place, size in short.items()}, dict[str, int]()
        for place in sorted(short, key=lambda each: (self._gives.get(each, 0), each)):  # the narrowest first
            for each in self._ready.values():
                wanted = left[place]
                if each.id in self._to_disk:  # the last of them
                    wanted -= margins.get(place, 0)
                    # Memory comes free by slabs, or by lots.
                    wanted += (LEAST_BYTES if each.host.lot_bytes else SLACK_BYTES) if wanted > 0 else 0
                if wanted <= 0:
                    break
                places = self._room.places(each)
                if place not in places:
                    continue
                before = gives.get(each.id, 0)
                after = min(max(before + wanted, LEAST_BYTES), self._most(each))
                if each.id in self._hibernates or (each.host.lot_bytes and each.id not in self._to_disk):
                    after = self._most(each)  # a lot is given back whole, when nothing is left in it
                if after > before:
                    gives[each.id] = after
                    for inside in places:
                        if inside in left:
                            left[inside] -= after - before
        chosen: list[Trim | Spill | Hibernate] = []
        for kernel_id, size in gives.items():
            each = self._ready[kernel_id]
            keeps = max(each.host.retained_bytes - each.host.trimming_bytes - size, 0)
            if kernel_id not in self._to_disk:
                chosen.append(Trim(kernel_id, keeps, reason))
            else:
                whole = sum(each.parked_bytes.values())
                hibernates = kernel_id in self._hibernates
                chosen.append(
                    (Hibernate if hibernates else Spill)(kernel_id, whole if hibernates else size, reason)
                )
            self.drop(kernel_id, size)  # the rest of it can follow
            self._count(self.coming, each, size)
        return chosen

    def _sort(self) -> None:
        ready = sorted(
            (each for each in self._ready.values() if each.id not in self._to_disk),
            key=lambda each: (-each.host.trimmable_bytes * _age(each, self._now), each.id),
        )
        ready += [self._ready[kernel_id] for kernel_id in self._to_disk if kernel_id in self._ready]
        self._ready, self._is_sorted = {each.id: each for each in ready}, True

    def _count(self, sums: dict[str, int], kernel: Kernel, size: int) -> None:
        for place in self._room.places(kernel):
            sums[place] = sums.get(place, 0) + size


def _age(kernel: Kernel, now: float) -> float:
    return max(now - kernel.host.retained_since, 1.0)
