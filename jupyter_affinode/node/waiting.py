"""Who waits for the GPU, and in which order; pure.

**Order.** First come, first served within a priority class. Waiting ages: each `ageing_s` lifts a waiter by one
class. With the same ageing for all, the order of two waiters never changes while they wait, so it needs no clock:
it is that of `since - priority * ageing_s`.

**Bound.** Classes reach from PRIORITY_MIN to PRIORITY_MAX (rules.py), so whoever comes more than
`overtaking_s(settings)` after a waiter goes after it, whatever the classes. From then on only those that are
before it in the queue are served before it, each once at most for each place it has. How long these take is for
the GPU's users to say: with `when_full="wait"` until they are idle for their time-out, or their hold has ended; with
"time_slice" no more than a quantum and two moves each, where they can be preempted and are not held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Protocol

from .rules import PRIORITY_MAX, PRIORITY_MIN
from .settings import Settings
from .snapshot import Kernel, Node, Residency, Waiter


class HasSince(Protocol):
    """Who waits, or what is told to them."""

    @property
    def since(self) -> float:
        """From when on, on the monotonic clock."""


AWAY = (Residency.QUEUED, Residency.PARKED, Residency.RESUMING)


def waiters(node: Node, settings: Settings) -> list[Waiter]:
    """Everyone who waits for the GPU, whose turn it is first; a kernel on its way keeps its place."""
    places: list[
        tuple[float, float, str, int, Waiter]
    ] = []  # the last two: a kernel's rooms keep their order
    head_starts: dict[int, float] = {}  # by priority
    for kernel in node.kernels:
        since, rooms = kernel.wants_since, kernel.rooms
        if (since is None and not rooms) or kernel.is_dying:
            continue
        head_start_s = head_starts.get(kernel.priority)
        if head_start_s is None:
            head_start_s = min(max(kernel.priority, PRIORITY_MIN), PRIORITY_MAX) * settings.ageing_s
            head_starts[kernel.priority] = head_start_s
        if kernel.residency in AWAY:
            needs = kernel.resume_bytes
            if rooms:
                since, needs = _with_rooms(kernel, needs)
            assert since is not None
            waiter = Waiter(kernel, since, needs)
            places.append((since - head_start_s, since, kernel.id, 0, waiter))
            continue
        for number, room in enumerate(rooms if len(rooms) == 1 else sorted(rooms, key=attrgetter("key"))):
            waiter = Waiter(kernel, room.since, {room.gpu: room.bytes}, room)
            places.append((room.since - head_start_s, room.since, kernel.id, number, waiter))
    places.sort()
    return [place[-1] for place in places]


def waits_since(queue: Iterable[HasSince]) -> float | None:
    """From when on, who waits longest; None: nobody waits."""
    return min([waiter.since for waiter in queue], default=None)


def overtaking_s(settings: Settings) -> float:
    """Who comes that much later is never served before a waiter in the same line."""
    return (PRIORITY_MAX - PRIORITY_MIN) * settings.ageing_s


def _with_rooms(kernel: Kernel, parked: Mapping[str, int]) -> tuple[float, Mapping[str, int]]:
    """Since when a parked kernel with open allocations waits, and for what: it waits once, for all it had and for the
    largest allocation that it was parked in.
    """
    needs = dict(parked)
    for gpu in dict.fromkeys(room.gpu for room in kernel.rooms):
        needs[gpu] = needs.get(gpu, 0) + max(room.bytes for room in kernel.rooms if room.gpu == gpu)
    earliest = min(room.since for room in kernel.rooms)
    return earliest if kernel.wants_since is None else min(kernel.wants_since, earliest), needs
