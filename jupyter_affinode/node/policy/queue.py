"""Which kernels wait for the GPU, and in which order; pure.

**Order.** Users take turns within a priority class, on each GPU: a waiter counts as waiting since it began to wait,
or since its user was last served there (`Turns`) if that is later. So each other user that waits is served before a
user's next kernel, however many kernels it has. Among one user's own waiters, and on a user's own controller, it is
first come, first served. Waiting ages: each `ageing_s` lifts a waiter by one class. With the same ageing for all, the
order needs no clock: it is that of `since - priority * ageing_s`. It changes only when a user is served.

**Bound.** The oldest waiter of a user and class on a GPU keeps its place until it is served. Classes reach from
PRIORITY_MIN to PRIORITY_MAX (rules.py), so whatever the classes, no waiter goes before it that came, or whose user was
served, more than `overtaking_s(settings)` after it came, or after its user was served if that is later. Of its own
class each other user goes before it once at most, counted for each set of GPUs that its kernels wait for: being
served on one GPU is no turn for a kernel that needs two. So a waiter with k older ones of its own user and class
before it sees each other user of the class served k + 1 times at most for each such set, and those of higher classes
as long as they may overtake.
Kernels that cannot be served as things are, or failed a moment ago, are passed by and may lose their user's turn.

How long a turn takes is for the GPU's users to say: with `when_full="wait"` until they are idle for their time-out, or
their hold has ended; with "time_slice" no more than a time slice and two moves each, where they can be preempted and
are not held.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Protocol

from ...settings.policy import Settings
from ...settings.rules import PRIORITY_MAX, PRIORITY_MIN
from ..model.snapshot import Kernel, Line, Node, Residency, Waiter


class HasSince(Protocol):
    """Waiters, or what is told to them."""

    @property
    def since(self) -> float:
        """From when on, on the monotonic clock."""


AWAY = (Residency.QUEUED, Residency.PARKED, Residency.RESUMING)


class Turns:
    """When each user was last served, by class and GPU. Kept by the controller's state; lost with it, the order is
    that of arrival again.
    """

    def __init__(self) -> None:
        self._served: dict[Line, float] = {}

    def take(self, payer: str, priority: int, gpus: Iterable[str], now: float) -> None:
        """A waiter of the user was given room; "" is no user's turn."""
        for uuid in gpus if payer else ():
            self._served[payer, priority, uuid] = now

    def seen(self) -> Mapping[Line, float]:
        """For the snapshot."""
        return self._served.copy() if self._served else {}

    def forget(self) -> None:
        """No kernel waits: what comes later is later than all turns."""
        self._served.clear()


def lines_of(kernel: Kernel, gpus: Iterable[str]) -> list[Line]:
    """Where serving the kernel counts as its user's turn."""
    return [(kernel.payer, kernel.priority, uuid) for uuid in gpus] if kernel.payer else []


def waiters(node: Node, settings: Settings) -> list[Waiter]:
    """Every kernel and allocation that waits for the GPU, the next first; a kernel on its way keeps its place."""
    places: list[
        tuple[float, float, float, str, int, Waiter]
    ] = []  # the last two: a kernel's rooms keep their order
    turns, head_starts = node.turns, _HeadStarts(settings)
    for kernel in node.kernels:
        since, rooms = kernel.wants_since, kernel.rooms
        if (since is None and not rooms) or kernel.is_dying:
            continue
        head_start_s = head_starts[kernel.priority]
        if kernel.residency in AWAY:
            needs = kernel.resume_bytes
            if rooms:
                since, needs = _with_rooms(kernel, needs)
            assert since is not None
            turn = _turn(turns, kernel, needs) if turns else 0.0
            order = max(since, turn) - head_start_s
            waiter = Waiter(kernel, since, needs, None, order)
            places.append((order, turn, since, kernel.id, 0, waiter))
            continue
        for number, room in enumerate(rooms if len(rooms) == 1 else sorted(rooms, key=attrgetter("key"))):
            needs = {room.gpu: room.bytes}
            turn = _turn(turns, kernel, needs) if turns else 0.0
            order = max(room.since, turn) - head_start_s
            waiter = Waiter(kernel, room.since, needs, room, order)
            places.append((order, turn, room.since, kernel.id, number, waiter))
    places.sort()
    return [place[-1] for place in places]


def in_turn(
    queue: Sequence[Waiter], had: Counter[Line], now: float, settings: Settings
) -> Iterator[tuple[int, Waiter]]:
    """The queue with each waiter's place in it, while users are served (`had`: how often, by the caller): a user's next
    waiter goes behind those of its class that came before now.
    """
    head_starts = _HeadStarts(settings)
    later: list[tuple[float, int, int, Waiter]] = []
    for place, waiter in enumerate(queue):
        while later and later[0][0] < waiter.order:
            yield from _next(later, had)
        if had and (turns := _had(waiter, had)):  # mostly there is no room for any
            order = now - head_starts[waiter.kernel.priority]
            heapq.heappush(later, (order, turns, place, waiter))
        else:
            yield place, waiter
    while later:
        yield from _next(later, had)


def waits_since(queue: Iterable[HasSince]) -> float | None:
    """Return when the longest wait began; None: no kernel waits."""
    return min([waiter.since for waiter in queue], default=None)


def overtaking_s(settings: Settings) -> float:
    """A kernel that comes that much later, and whose user is served that much later, never goes before a waiter."""
    return (PRIORITY_MAX - PRIORITY_MIN) * settings.ageing_s


class _HeadStarts(dict[int, float]):
    """Seconds by which each class seems to have waited longer."""

    def __init__(self, settings: Settings):
        super().__init__()
        self._ageing_s = settings.ageing_s

    def __missing__(self, priority: int) -> float:
        self[priority] = min(max(priority, PRIORITY_MIN), PRIORITY_MAX) * self._ageing_s
        return self[priority]


def _turn(turns: Mapping[Line, float], kernel: Kernel, needs: Mapping[str, int]) -> float:
    """When a kernel's user was last served on all the GPUs that it waits for; 0: never."""
    payer, priority = kernel.payer, kernel.priority
    if not payer:
        return 0.0
    if len(needs) == 1:  # nearly all
        (uuid,) = needs
        return turns.get((payer, priority, uuid), 0.0)
    return min([turns.get((payer, priority, uuid), 0.0) for uuid in needs], default=0.0)


def _had(waiter: Waiter, had: Counter[Line]) -> int:
    """How often the waiter's user was served meanwhile on all the GPUs that it waits for."""
    payer, priority = waiter.kernel.payer, waiter.kernel.priority
    if not payer:
        return 0
    if len(waiter.needs) == 1:  # nearly all
        (uuid,) = waiter.needs
        return had.get((payer, priority, uuid), 0)
    return min([had.get((payer, priority, uuid), 0) for uuid in waiter.needs], default=0)


def _next(later: list[tuple[float, int, int, Waiter]], had: Counter[Line]) -> Iterator[tuple[int, Waiter]]:
    """The first of those put off, unless its user was served again since."""
    order, turns, place, waiter = heapq.heappop(later)
    turns_now = _had(waiter, had)
    if turns_now > turns:
        heapq.heappush(later, (order, turns_now, place, waiter))
    else:
        yield place, waiter


def _with_rooms(kernel: Kernel, parked: Mapping[str, int]) -> tuple[float, Mapping[str, int]]:
    """Since when a parked kernel with open allocations waits, and for what: it waits once, for all it had and for the
    largest allocation that it was parked in.
    """
    needs = dict(parked)
    for gpu in dict.fromkeys(room.gpu for room in kernel.rooms):
        needs[gpu] = needs.get(gpu, 0) + max(room.bytes for room in kernel.rooms if room.gpu == gpu)
    earliest = min(room.since for room in kernel.rooms)
    return earliest if kernel.wants_since is None else min(kernel.wants_since, earliest), needs
