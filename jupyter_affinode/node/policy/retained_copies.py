"""Who keeps host memory for a next park and can give it back; pure. By place, as in policy/host_memory.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from ..model.actions import Trim
from ..model.snapshot import Kernel
from .host_memory import LEAST_BYTES, HostRoom, Shortage


class Keepers:
    """Those that keep most for longest first; sorted once for a pass: a thousand kernels may look in one.

    And only when somebody is to give: mostly there is enough.
    """

    def __init__(
        self, kernels: Iterable[Kernel], now: float, room: HostRoom, is_free: Callable[[Kernel], bool]
    ):
        """`is_free` says who may be asked."""
        self._room = room
        self.coming: dict[str, int] = {}  # by place, what was asked back and is not there yet
        self._gives: dict[str, int] = {}  # … and what could be asked back
        self._now = now
        self._ready: dict[str, Kernel] = {}
        self._is_sorted = False
        for each in kernels:
            use = each.host
            if use.trimming_bytes:
                self._count(self.coming, each, use.trimming_bytes)
            if use.trimmable_bytes and is_free(each):
                self._ready[each.id] = each
                self._count(self._gives, each, use.trimmable_bytes)

    def drop(self, kernel_id: str) -> None:
        """Nothing more can be had of that kernel: something was decided for it."""
        kernel = self._ready.pop(kernel_id, None)
        if kernel is not None:
            self._count(self._gives, kernel, -kernel.host.trimmable_bytes)

    def left(self, short: Shortage, kernels: Collection[Kernel]) -> Shortage:
        """What is still short when all others but `kernels` have given back what they keep."""
        left = {place: size - self._gives.get(place, 0) for place, size in short.items()}
        for kernel in kernels:
            if kernel.id in self._ready:
                for place in self._room.places(kernel):
                    if place in left:
                        left[place] += kernel.host.trimmable_bytes
        return {place: size for place, size in left.items() if size > 0}

    def trims(self, short: Shortage, reason: str) -> list[Trim]:
        """Who gives back how much, for what is short, as far as it can be had.

        Whoever gives is out of it for the rest of the pass, and what comes of it is in `coming`.
        """
        if short and not self._is_sorted:
            self._sort()
        left, gives = dict(short), dict[str, int]()
        for place in sorted(short, key=lambda each: (self._gives.get(each, 0), each)):  # the narrowest first
            for each in self._ready.values():
                if left[place] <= 0:
                    break
                places = self._room.places(each)
                if place not in places:
                    continue
                before = gives.get(each.id, 0)
                after = min(max(before + left[place], LEAST_BYTES), each.host.trimmable_bytes)
                if after > before:
                    gives[each.id] = after
                    for inside in places:
                        if inside in left:
                            left[inside] -= after - before
        chosen = []
        for kernel_id, size in gives.items():
            each = self._ready[kernel_id]
            keeps = max(each.host.kept_bytes - each.host.trimming_bytes - size, 0)
            chosen.append(Trim(kernel_id, keeps, reason))
            self.drop(kernel_id)
            self._count(self.coming, each, size)
        return chosen

    def _sort(self) -> None:
        ready = sorted(
            self._ready.values(),
            key=lambda each: (-each.host.trimmable_bytes * _age(each, self._now), each.id),
        )
        self._ready, self._is_sorted = {each.id: each for each in ready}, True

    def _count(self, sums: dict[str, int], kernel: Kernel, size: int) -> None:
        for place in self._room.places(kernel):
            sums[place] = sums.get(place, 0) + size


def _age(kernel: Kernel, now: float) -> float:
    return max(now - kernel.host.kept_since, 1.0)
