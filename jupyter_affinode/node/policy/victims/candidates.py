"""Kernels that could be parked, by what they have memory in; pure.

A machine may have a thousand kernels and hundreds that wait, so all are looked at once a pass at the most: each list
is made and sorted when it is first asked for. A kernel chosen from it is dropped from its front, so that the next
look does not begin with those that are taken already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter

from ....settings.policy import Settings
from ...model.snapshot import Kernel, Node, Residency, Waiter
from ..queue import waits_since
from ..resources.quotas import Limits
from . import eviction_cost as victims
from .eligibility import eligible_at, least_idle_s

Blocked = tuple[int, int, Kernel]  # the last and the first of its places in the queue


class Candidates:
    """The node's kernels by resource: GPUs, by UUID, and limits (resources/quotas.py)."""

    def __init__(
        self,
        now: float,
        node: Node,
        settings: Settings,
        queue: Sequence[Waiter],
        limits: Limits,
        is_free: Callable[[Kernel], bool],
    ):
        """`is_free` says whether nothing is decided for a kernel; what was decided stays so."""
        self._now = now
        self._node = node
        self._settings = settings
        self._queue = queue
        self._limits = limits
        self._is_free = is_free
        self._waits_since = waits_since(queue)
        self._used_by = now - least_idle_s(settings, waits_since=self._waits_since, now=now)
        self._eligible: dict[str, bool] = {}  # by kernel, of those that were looked at
        self._eligible_on: dict[frozenset[str], list[Kernel]] = {}  # the best last
        self._yieldable: dict[str, int] = {}  # by GPU

    def eligible(self) -> list[Kernel]:
        """Return the kernels that may be parked now, the best first (victims/eviction_cost.py)."""
        kernels = filter(self._is_free, self._eligible_of(self._node.kernels))
        return victims.in_order(self._now, kernels, self._node)

    def eligible_on(self, resources: Collection[str]) -> Iterator[Kernel]:
        """The same, of those whose memory counts in one of the resources."""
        where = frozenset(resources)
        ordered = self._eligible_on.get(where)
        if ordered is None:
            ordered = self._eligible_on[where] = self._find_eligible(where)
        while ordered and not self._is_free(ordered[-1]):
            ordered.pop()
        return filter(self._is_free, reversed(ordered))

    def blocked_behind(self, place: int, resources: Collection[str]) -> Iterator[Kernel]:
        """Yield the waiters behind that place in the queue that have memory in one of the resources, the latest first.

        Only those that could be parked: neither held nor computing.
        """
        ordered = self._blocked_on(resources)
        while ordered and not self._is_free(ordered[-1][2]):
            ordered.pop()
        for last, first, kernel in reversed(ordered):
            if last <= place:
                return
            if first > place and self._is_free(kernel):
                yield kernel

    def resident_on(self, gpus: Collection[str]) -> Sequence[Kernel]:
        """Kernels that are on one of the GPUs, whatever is decided for them."""
        return self._holding(gpus)

    def yieldable(self, uuid: str) -> int:
        """Return what would become free on a GPU if all were parked that can be, with all that is reserved there."""
        size = self._yieldable.get(uuid)
        if size is None:
            size = self._reserved.get(uuid, 0)
            for kernel in self._by_gpu.get(uuid, ()):
                if kernel.is_parkable and not kernel.is_opted_out:
                    size += kernel.frees_bytes[uuid]
            for kernel in self.parked_in_part:
                size += kernel.left_bytes.get(uuid, 0)
            self._yieldable[uuid] = size
        return size

    def _find_eligible(self, where: frozenset[str]) -> list[Kernel]:
        """Those in the resources, the best last."""
        found = self._eligible_of(self._holding(where))
        if len(found) > 1:
            gpus = where if where.isdisjoint(self._limits.caps) else None
            found = victims.in_order(self._now, found, self._node, gpus)[::-1]
        return found

    def _eligible_of(self, kernels: Iterable[Kernel]) -> list[Kernel]:
        """Those that may be parked; most are left out without reckoning."""
        used_by = self._used_by
        return [
            kernel
            for kernel in kernels
            if kernel.last_activity <= used_by
            and not kernel.calls_in_flight
            and not kernel.rooms
            and self._is_eligible(kernel)
        ]

    def _is_eligible(self, kernel: Kernel) -> bool:
        """Whether it may be parked now for all that it does itself."""
        is_eligible = self._eligible.get(kernel.id)
        if is_eligible is None:
            moment = eligible_at(
                kernel, self._settings, waits_since=self._waits_since, speeds=self._node.speeds
            )
            is_eligible = self._eligible[kernel.id] = moment is not None and moment <= self._now
        return is_eligible

    def _blocked_on(self, resources: Collection[str]) -> list[Blocked]:
        """Those in the resources, the latest last."""
        if len(resources) == 1:
            (resource,) = resources
            return self._blocked[resource]
        found = {blocked[2].id: blocked for each in resources for blocked in self._blocked[each]}
        return sorted(found.values(), key=itemgetter(0))

    def _holding(self, resources: Collection[str]) -> Sequence[Kernel]:
        """Kernels with movable memory in one of the resources, each once."""
        if len(resources) == 1:
            (resource,) = resources
            return self._holding_one(resource)
        found = {kernel.id: kernel for each in resources for kernel in self._holding_one(each)}
        return list(found.values())

    def _holding_one(self, resource: str) -> Sequence[Kernel]:
        index = self._by_limit if resource in self._limits.caps else self._by_gpu
        return index.get(resource, ())

    @cached_property
    def _by_gpu(self) -> Mapping[str, Sequence[Kernel]]:
        """Those with movable memory on each GPU."""
        index: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in self._node.kernels:
            for uuid, size in kernel.resident_bytes.items():
                if size:
                    index[uuid].append(kernel)
        return index

    @cached_property
    def parked_in_part(self) -> Sequence[Kernel]:
        """Those whose rest can be parked when they are whole again, or in an exchange (decide.py, hand_over.py)."""
        return [kernel for kernel in self._node.kernels if kernel.left_bytes]

    @cached_property
    def _by_limit(self) -> Mapping[str, Sequence[Kernel]]:
        """Those whose movable memory counts in each limit."""
        index: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in self._node.kernels:
            if _has_memory(kernel):
                for limit in self._limits.of(kernel.id):
                    index[limit].append(kernel)
        return index

    @cached_property
    def _blocked(self) -> Mapping[str, list[Blocked]]:
        """By resource, the latest last."""
        places: dict[str, Blocked] = {}  # by kernel
        for place, waiter in enumerate(self._queue):
            kernel = waiter.kernel
            if not _has_memory(kernel):
                continue  # most of them are parked as a whole
            if self._may_be_blocked(kernel) and may_yield(kernel, self._now):
                first = places[kernel.id][1] if kernel.id in places else place
                places[kernel.id] = place, first, kernel
        index: dict[str, list[Blocked]] = defaultdict(list)
        for blocked in sorted(places.values(), key=itemgetter(0)):
            kernel = blocked[2]
            for uuid, size in kernel.resident_bytes.items():
                if size:
                    index[uuid].append(blocked)
            for limit in self._limits.of(kernel.id):
                index[limit].append(blocked)
        return index

    def _may_be_blocked(self, kernel: Kernel) -> bool:
        """Whether the waiter can go no further with what it has on the GPU.

        One that waits to come back may have another process there, begun since; that one goes on unless it is idle.
        """
        if kernel.residency is not Residency.QUEUED:
            return kernel.residency is Residency.RESIDENT
        return self._now - kernel.last_activity >= self._settings.contended_idle_timeout_s

    @cached_property
    def _reserved(self) -> Mapping[str, int]:
        """By GPU: what kernels have, or are about to have, and may give up again."""
        total: dict[str, int] = {}
        for reserved in self._node.reservations:
            total[reserved.gpu] = total.get(reserved.gpu, 0) + reserved.bytes
        return total


def _has_memory(kernel: Kernel) -> bool:
    """Whether it has anything on a GPU that could yield."""
    return any(kernel.resident_bytes.values())


def may_yield(kernel: Kernel, now: float) -> bool:
    """Whether a waiter for room could be parked meanwhile: neither held nor at work nor opted out."""
    is_held = kernel.held_until is not None and kernel.held_until > now
    is_busy = kernel.calls_in_flight or kernel.captures or kernel.retry_at > now
    return not (is_held or is_busy or kernel.is_opted_out) and kernel.is_parkable
