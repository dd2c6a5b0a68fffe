"""Kernels that could be parked, indexed by GPU and quota; pure.

A machine may have a thousand kernels and hundreds of waiters, so each kernel is looked at once a pass at most. Each
list is made and sorted when it is first needed. Kernels that the pass has decided about are dropped from the front of a
list, so that they are not looked at again.
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

Blocked = tuple[int, int, Kernel]  # its last and its first place in the queue


class Candidates:
    """The machine's kernels by resource: GPUs, by UUID, and quotas (resources/quotas.py)."""

    def __init__(
        self,
        now: float,
        node: Node,
        settings: Settings,
        queue: Sequence[Waiter],
        limits: Limits,
        is_free: Callable[[Kernel], bool],
    ):
        """Prepare for one pass; `is_free` returns whether nothing is decided for a kernel yet."""
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
        self._parkable_bytes: dict[str, int] = {}  # by GPU

    def eligible(self) -> list[Kernel]:
        """Return the kernels that may be parked now, in victim order (victims/eviction_cost.py)."""
        kernels = filter(self._is_free, self._eligible_of(self._node.kernels))
        return victims.in_order(self._now, kernels, self._node)

    def eligible_on(self, resources: Collection[str]) -> Iterator[Kernel]:
        """Return the same for the kernels whose memory counts in one of the resources."""
        where = frozenset(resources)
        ordered = self._eligible_on.get(where)
        if ordered is None:
            ordered = self._eligible_on[where] = self._find_eligible(where)
        while ordered and not self._is_free(ordered[-1]):
            ordered.pop()
        return filter(self._is_free, reversed(ordered))

    def blocked_behind(self, place: int, resources: Collection[str]) -> Iterator[Kernel]:
        """Yield the waiters behind that place in the queue that have memory in one of the resources, the last in the
        queue first.

        Waiters that are held, computing or opted out are left out.
        """
        ordered = self._blocked_on(resources)
        while ordered and not self._is_free(ordered[-1][2]):
            ordered.pop()
        for last, first, kernel in reversed(ordered):
            if last <= place:
                return
            if first > place and self._is_free(kernel):
                yield kernel

    def resident_on(self, resources: Collection[str]) -> Sequence[Kernel]:
        """Return the kernels with movable memory in one of the resources, each once, whatever is decided for them."""
        if len(resources) == 1:
            (resource,) = resources
            return self._resident_on_one(resource)
        found = {kernel.id: kernel for each in resources for kernel in self._resident_on_one(each)}
        return list(found.values())

    def parkable_bytes(self, uuid: str) -> int:
        """Return the bytes that would become free on a GPU if all kernels were parked that can be, reservations
        included: kernels have them, or are about to, and may free them again.
        """
        size = self._parkable_bytes.get(uuid)
        if size is None:
            size = sum(reserved.bytes for reserved in self._node.reservations if reserved.gpu == uuid)
            for kernel in self._by_gpu.get(uuid, ()):
                if kernel.is_parkable and not kernel.is_opted_out:
                    size += kernel.frees_bytes[uuid]
            for kernel in self.parked_in_part:
                size += kernel.left_bytes.get(uuid, 0)
            self._parkable_bytes[uuid] = size
        return size

    def _find_eligible(self, where: frozenset[str]) -> list[Kernel]:
        """Return the eligible kernels in the resources, the best victim last."""
        found = self._eligible_of(self.resident_on(where))
        if len(found) > 1:
            gpus = where if where.isdisjoint(self._limits.caps) else None
            found = victims.in_order(self._now, found, self._node, gpus)[::-1]
        return found

    def _eligible_of(self, kernels: Iterable[Kernel]) -> list[Kernel]:
        """Return those of the kernels that may be parked; cheap tests leave out most of them first."""
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
        """Return whether the kernel itself allows that it is parked now."""
        is_eligible = self._eligible.get(kernel.id)
        if is_eligible is None:
            moment = eligible_at(
                kernel,
                self._settings,
                waits_since=self._waits_since,
                speeds=self._node.speeds,
                pauses_s=self._node.pauses_s,
            )
            is_eligible = self._eligible[kernel.id] = moment is not None and moment <= self._now
        return is_eligible

    def _blocked_on(self, resources: Collection[str]) -> list[Blocked]:
        """Return the blocked waiters in the resources, the last in the queue last."""
        if len(resources) == 1:
            (resource,) = resources
            return self._blocked[resource]
        found = {blocked[2].id: blocked for each in resources for blocked in self._blocked[each]}
        return sorted(found.values(), key=itemgetter(0))

    def _resident_on_one(self, resource: str) -> Sequence[Kernel]:
        index = self._by_limit if resource in self._limits.caps else self._by_gpu
        return index.get(resource, ())

    @cached_property
    def _by_gpu(self) -> Mapping[str, Sequence[Kernel]]:
        """Return the kernels with movable memory on each GPU."""
        index: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in self._node.kernels:
            for uuid, size in kernel.resident_bytes.items():
                if size:
                    index[uuid].append(kernel)
        return index

    @cached_property
    def parked_in_part(self) -> Sequence[Kernel]:
        """Return the kernels of which a part is parked: their rest can be parked in an exchange (decide.py,
        hand_over.py).
        """
        return [kernel for kernel in self._node.kernels if kernel.left_bytes]

    @cached_property
    def _by_limit(self) -> Mapping[str, Sequence[Kernel]]:
        """Return the kernels whose movable memory counts in each quota."""
        index: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in self._node.kernels:
            if kernel.movable_bytes:
                for limit in self._limits.of(kernel.id):
                    index[limit].append(kernel)
        return index

    @cached_property
    def _blocked(self) -> Mapping[str, list[Blocked]]:
        """Return the blocked waiters by resource, the last in the queue last."""
        places: dict[str, Blocked] = {}  # by kernel
        for place, waiter in enumerate(self._queue):
            kernel = waiter.kernel
            if not kernel.movable_bytes:
                continue  # most of them are parked as a whole
            if self._may_be_blocked(kernel) and can_be_parked(kernel, self._now):
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
        """Return whether a waiter can make no progress with what it has on the GPU.

        A waiter that is to be resumed may have another process there, begun since. That process makes progress unless
        it is idle.
        """
        if kernel.residency is not Residency.QUEUED:
            return kernel.residency is Residency.RESIDENT
        return self._now - kernel.last_activity >= self._settings.contended_idle_timeout_s


def can_be_parked(kernel: Kernel, now: float) -> bool:
    """Return whether a waiter may be parked while it waits: it is neither held nor computing nor opted out."""
    is_busy = kernel.calls_in_flight or kernel.captures or kernel.retry_at > now
    return not (kernel.is_held(now) or is_busy or kernel.is_opted_out) and kernel.is_parkable
