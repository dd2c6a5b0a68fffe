"""Host memory in one pass of the policy: what a park may take, and who gives back what it keeps; pure.

What a park takes is not known before it is tried: chunks of zeros take nothing, and what a kernel keeps from
its last park is there already. So a frugal shim gets a budget, stops at it, and says what it would have
taken; only a shim that knows no budget must fit with all it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .actions import Trim
from .settings import MIB, Settings
from .snapshot import Host, Kernel
from .words import bytes_in_words

LEAST_BYTES = 256 * MIB  # with less than this a park of unknown need is not tried, and less is not trimmed
SLACK_BYTES = 64 * MIB  # shims take memory by slabs, so a park may take somewhat more than it moves
CGROUP_RESERVE = 10  # a cgroup keeps that part of its limit free, or the reserve if that is less


@dataclass(frozen=True)
class Shortage:
    """What is missing of the machine's memory and of one cgroup's."""

    host_bytes: int
    cgroup_bytes: int = 0
    cgroup: str = ""


class Needs(NamedTuple):
    """What a park takes of host memory beside what its kernel keeps there already."""

    lot_bytes: int  # of the lots; the rest anew
    least_bytes: int  # with less it cannot end well, or is not worth a try
    probable_bytes: int  # by all that is known: by its last one, or all that the kernel has


class HostRoom:
    """What the decisions of this pass leave of host memory."""

    def __init__(self, host: Host, settings: Settings):
        self._host = host
        self.reserve_bytes = settings.host_reserve(host.total_bytes)
        self._left = host.available_bytes - self.reserve_bytes
        self._lots = host.lot_bytes
        self._headroom = {
            cgroup: headroom - self._cgroup_reserve(cgroup)
            for cgroup, headroom in host.headroom_bytes.items()
        }

    def expect(self, kernel: Kernel, budget_bytes: int | None, lot_bytes: int = 0) -> None:
        """The kernel is being parked, or will be, with that budget: it may take it all."""
        self.take_lots(lot_bytes)
        takes = max(kernel.movable_bytes - kernel.host.kept_bytes - lot_bytes, 0)
        if budget_bytes is not None:
            takes = min(takes, budget_bytes)
        self._left -= takes
        if kernel.cgroup in self._headroom:
            self._headroom[kernel.cgroup] -= takes

    def budget(self, kernel: Kernel) -> int:
        """What a park of the kernel may take anew."""
        return max(min(self._left, self._headroom.get(kernel.cgroup, self._left)), 0)

    def take_lots(self, size: int) -> None:
        """They are handed to somebody."""
        self._lots -= size

    def needs(self, kernel: Kernel) -> Needs:
        """What a park of the kernel takes anew, and of the lots."""
        use, movable = kernel.host, kernel.movable_bytes
        short = min(use.park_short_bytes, movable + SLACK_BYTES)  # less by now if it has freed memory since
        probable = least = movable
        if use.is_frugal:
            if use.park_takes_bytes is not None:
                probable = min(movable, use.park_takes_bytes)
            least = max(short, min(max(probable, short), LEAST_BYTES))
        probable = max(probable, short)
        lots = 0
        if self._lots and use.is_frugal:
            has = max(use.kept_bytes, use.lot_bytes)  # what came a moment ago is not kept yet
            lots = min(max(probable - has, 0), self._lots)
        has = use.kept_bytes + lots
        return Needs(lots, least - has, probable - has)

    def refusal(self, kernel: Kernel, needs: Needs) -> str | None:
        """Why a park of the kernel is not even tried; None if it may be."""
        anew = needs.least_bytes
        if anew <= self.budget(kernel):
            return None
        headroom = self._headroom.get(kernel.cgroup)
        if anew > self._left:
            return (
                f"parking needs {bytes_in_words(anew)} of host memory and"
                f" {bytes_in_words(max(self._left, 0))} are free beyond the reserve of"
                f" {bytes_in_words(self.reserve_bytes)}"
            )
        return (
            f"parking needs {bytes_in_words(anew)} of host memory and the kernel's own limit (cgroup)"
            f" leaves {bytes_in_words(max(headroom or 0, 0))}"
        )

    def shortage(self, kernel: Kernel, needs: Needs) -> Shortage | None:
        """What a park of the kernel probably lacks; None if it will fit."""
        anew = needs.probable_bytes
        host = anew - max(self._left, 0)
        cgroup = anew - max(self._headroom[kernel.cgroup], 0) if kernel.cgroup in self._headroom else 0
        if host <= 0 and cgroup <= 0:
            return None
        return Shortage(max(host, 0), max(cgroup, 0), kernel.cgroup)

    def pressure(self) -> list[Shortage]:
        """What the machine and each cgroup lack for their reserves, whatever is decided."""
        short = [Shortage(self.reserve_bytes - self._host.available_bytes)]
        for cgroup, headroom in self._host.headroom_bytes.items():
            short.append(Shortage(0, self._cgroup_reserve(cgroup) - headroom, cgroup))
        return [each for each in short if each.host_bytes > 0 or each.cgroup_bytes > 0]

    def _cgroup_reserve(self, cgroup: str) -> int:
        return min(self._host.limit_bytes.get(cgroup, 0) // CGROUP_RESERVE, self.reserve_bytes)


class Keepers:
    """Who keeps host memory and can give it back, those that keep most for longest first.

    Sorted once for a pass: a thousand kernels may look for host memory in one.
    """

    def __init__(self, kernels: Iterable[Kernel], now: float, is_free: Callable[[Kernel], bool]):
        """`is_free` says who may be asked."""
        keeping = [each for each in kernels if each.host.trimmable_bytes or each.host.trimming_bytes]
        self._trimming = sum(each.host.trimming_bytes for each in keeping)
        self._trimming_in: dict[str, int] = {}
        for each in keeping:
            inside = self._trimming_in.get(each.cgroup, 0)
            self._trimming_in[each.cgroup] = inside + each.host.trimming_bytes
        ready = [each for each in keeping if each.host.trimmable_bytes and is_free(each)]
        ready.sort(key=lambda each: (-each.host.trimmable_bytes * _age(each, now), each.id))
        self._ready = {each.id: each for each in ready}
        self._inside: dict[str, dict[str, Kernel]] = {}
        for each in ready:
            self._inside.setdefault(each.cgroup, {})[each.id] = each
        self._gives = sum(each.host.trimmable_bytes for each in ready)
        self._gives_in = {
            cgroup: sum(each.host.trimmable_bytes for each in inside.values())
            for cgroup, inside in self._inside.items()
        }

    def drop(self, kernel_id: str) -> None:
        """Something else was decided for that kernel."""
        kernel = self._ready.pop(kernel_id, None)
        if kernel is not None:
            del self._inside[kernel.cgroup][kernel_id]
            self._gives -= kernel.host.trimmable_bytes
            self._gives_in[kernel.cgroup] -= kernel.host.trimmable_bytes

    def left(self, short: Shortage, kernel: Kernel | None) -> Shortage:
        """What is still short when those but `kernel` that were asked a moment ago have given it back."""
        own = kernel.host.trimming_bytes if kernel is not None else 0
        own_inside = own if kernel is not None and kernel.cgroup == short.cgroup else 0
        host = self._trimming - own
        inside = self._trimming_in.get(short.cgroup, 0) - own_inside
        return Shortage(max(short.host_bytes - host, 0), max(short.cgroup_bytes - inside, 0), short.cgroup)

    def trims(self, short: Shortage, reason: str, kernel: Kernel | None) -> list[Trim]:
        """Who but `kernel` gives back how much, and no more than is short; for a kernel all of it, or nothing."""
        host, cgroup = short.host_bytes, short.cgroup_bytes
        if kernel is not None and not self.suffice(short, kernel):
            return []
        chosen: dict[str, Trim] = {}
        inside = self._inside.get(short.cgroup, {}) if cgroup > 0 else {}
        for each in itertools.chain(inside.values(), self._ready.values()):
            if host <= 0 and cgroup <= 0:
                break
            if each is kernel or each.id in chosen:
                continue
            is_inside = each.cgroup == short.cgroup
            missing = max(host, cgroup) if is_inside else host
            if missing > 0:
                gives = min(max(missing, LEAST_BYTES), each.host.trimmable_bytes)
                host -= gives
                cgroup -= gives if is_inside else 0
                keeps = each.host.kept_bytes - each.host.trimming_bytes - gives
                chosen[each.id] = Trim(each.id, max(keeps, 0), reason)
        return list(chosen.values())

    def suffice(self, short: Shortage, kernel: Kernel) -> bool:
        """Whether the others but `kernel` keep as much as is short."""
        own = kernel.host.trimmable_bytes if kernel.id in self._ready else 0
        own_inside = own if kernel.cgroup == short.cgroup else 0
        inside = self._gives_in.get(short.cgroup, 0) - own_inside
        return self._gives - own >= short.host_bytes and inside >= short.cgroup_bytes


def _age(kernel: Kernel, now: float) -> float:
    return max(now - kernel.host.kept_since, 1.0)
