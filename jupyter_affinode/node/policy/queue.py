"""The queue: which kernels wait for the GPU, and in which order; pure.

**Order.** On each GPU, the users of a priority class are served round-robin. A waiter counts as waiting since it began
to wait, or since its user was last served there (`LastServed`) if that is later. So each other waiting user is served
before a user's next kernel, however many kernels it has. Among one user's waiters for the same GPUs, and on a user's
own controller, the order is first come, first served. Waiting ages: each `ageing_s` lifts a waiter by one class. Ageing
is the same for all, so the order needs no clock: it is that of `since - priority * ageing_s`. It changes only when a
user is served.

**Bound.** The oldest waiter of a user and class on a GPU keeps its place until it is served. Classes reach from
PRIORITY_MIN to PRIORITY_MAX (rules.py). So whatever the classes, only waiters that came, or whose user was served, less
than `overtaking_s(settings)` after a waiter came, or after its user was served if that is later, go before it. Of its
own class each other user goes before it once at most, counted for each set of GPUs that its kernels wait for: being
served on one GPU does not count for a kernel that needs two. So a waiter with k older ones of its own user and class
before it sees each other user of the class served k + 1 times at most for each such set, and those of higher classes as
long as they may overtake. Kernels that cannot be served as things are, or failed a moment ago, are passed by and may
lose their user's place.

How long a served user keeps the GPU depends on `when_full`: with "wait" until its kernels have been idle for their
time-out, or a hold has ended; with "time_slice" at most a time slice and two moves, where the kernel can be preempted
and is not held.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from ...settings.policy import Settings
from ...settings.rules import PRIORITY_MAX, PRIORITY_MIN
from ..model.snapshot import Kernel, Node, Residency, ServedKey, Waiter

AWAY = (Residency.QUEUED, Residency.PARKED, Residency.RESUMING)


class LastServed:
    """When each user was last served, by class and GPU. The controller's state keeps it; a new controller starts with
    the order of arrival.
    """

    def __init__(self) -> None:
        self._served: dict[ServedKey, float] = {}

    def take(self, charged_user: str, priority: int, gpus: Iterable[str], now: float) -> None:
        """Note that a waiter of the user was given room on the GPUs; a user of "" is not counted."""
        for uuid in gpus if charged_user else ():
            self._served[charged_user, priority, uuid] = now

    def seen(self) -> Mapping[ServedKey, float]:
        """Return a copy for the snapshot."""
        return self._served.copy() if self._served else {}

    def forget(self) -> None:
        """Forget all users, when no kernel waits: later waiters come after every earlier service."""
        self._served.clear()


def served_keys(kernel: Kernel, gpus: Iterable[str]) -> list[ServedKey]:
    """Return the entries of `LastServed` in which serving the kernel counts."""
    return [(kernel.charged_user, kernel.priority, uuid) for uuid in gpus] if kernel.charged_user else []


def waiters(node: Node, settings: Settings) -> list[Waiter]:
    """Return every kernel and allocation that waits for the GPU, the next first; a kernel on the move keeps its
    place.
    """
    # the last two: a kernel's allocations keep their order
    places: list[tuple[float, float, float, str, int, Waiter]] = []
    last_served = node.last_served
    for kernel in node.kernels:
        since, rooms = kernel.wants_since, kernel.rooms
        if (since is None and not rooms) or kernel.is_dying:
            continue
        head_start_s = kernel.priority * settings.ageing_s
        if kernel.residency in AWAY:
            needs = kernel.resume_bytes
            if rooms:
                since, needs = _with_rooms(kernel, needs)
            assert since is not None
            served_at = _on_all(last_served, kernel, needs) if last_served else 0.0
            order = max(since, served_at) - head_start_s
            waiter = Waiter(kernel, since, needs, None, order)
            places.append((order, served_at, since, kernel.id, 0, waiter))
            continue
        for number, room in enumerate(rooms if len(rooms) == 1 else sorted(rooms, key=attrgetter("key"))):
            needs = {room.gpu: room.bytes}
            served_at = _on_all(last_served, kernel, needs) if last_served else 0.0
            order = max(room.since, served_at) - head_start_s
            waiter = Waiter(kernel, room.since, needs, room, order)
            places.append((order, served_at, room.since, kernel.id, number, waiter))
    places.sort()
    return [place[-1] for place in places]


def in_service_order(
    queue: Sequence[Waiter], had: Counter[ServedKey], now: float, settings: Settings
) -> Iterator[tuple[int, Waiter]]:
    """Yield the queue with each waiter's place, while the caller serves users (`had`: how often); a served user's next
    waiter goes behind those of its class that came before now.
    """
    later: list[tuple[float, float, int, Waiter]] = []
    for place, waiter in enumerate(queue):
        while later and later[0][0] < waiter.order:
            yield from _next(later, had)
        if had and (served := _on_all(had, waiter.kernel, waiter.needs)):  # mostly no waiter has been served
            order = now - waiter.kernel.priority * settings.ageing_s
            heapq.heappush(later, (order, served, place, waiter))
        else:
            yield place, waiter
    while later:
        yield from _next(later, had)


def waits_since(queue: Iterable[Waiter]) -> float | None:
    """Return when the longest wait began; None: no kernel waits."""
    return min([waiter.since for waiter in queue], default=None)


def overtaking_s(settings: Settings) -> float:
    """Return how much later a waiter may come, or its user be served, and still go before another."""
    return (PRIORITY_MAX - PRIORITY_MIN) * settings.ageing_s


def _on_all(figures: Mapping[ServedKey, float], kernel: Kernel, needs: Mapping[str, int]) -> float:
    """Return the least of the figures of a kernel's user on the GPUs that it waits for: when it was last served on all
    of them, or how often in this pass; 0 if never.
    """
    charged_user, priority = kernel.charged_user, kernel.priority
    if not charged_user:
        return 0.0
    if len(needs) == 1:  # nearly all
        (uuid,) = needs
        return figures.get((charged_user, priority, uuid), 0.0)
    return min([figures.get((charged_user, priority, uuid), 0.0) for uuid in needs], default=0.0)


def _next(
    later: list[tuple[float, float, int, Waiter]], had: Counter[ServedKey]
) -> Iterator[tuple[int, Waiter]]:
    """Yield the first waiter that was put off, unless its user was served again since."""
    order, served, place, waiter = heapq.heappop(later)
    served_now = _on_all(had, waiter.kernel, waiter.needs)
    if served_now > served:
        heapq.heappush(later, (order, served_now, place, waiter))
    else:
        yield place, waiter


def _with_rooms(kernel: Kernel, parked: Mapping[str, int]) -> tuple[float, Mapping[str, int]]:
    """Return since when a parked kernel with open allocations waits, and for what: it waits once, for all that it had
    and for its largest open allocation.
    """
    needs = dict(parked)
    for gpu in dict.fromkeys(room.gpu for room in kernel.rooms):
        needs[gpu] = needs.get(gpu, 0) + max(room.bytes for room in kernel.rooms if room.gpu == gpu)
    earliest = min(room.since for room in kernel.rooms)
    return earliest if kernel.wants_since is None else min(kernel.wants_since, earliest), needs
