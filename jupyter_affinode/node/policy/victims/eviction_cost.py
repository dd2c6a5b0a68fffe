"""Eviction cost: which kernel to park, and when parking it pays off; pure.

**When: rent or buy.** While a kernel waits for an idle kernel's memory, leaving that on the GPU costs one second of
waiting a second (the rent). Parking it costs one round trip (the price): the waiter waits for the park, and the owner
later waits for the resume. When the owner returns is unknown. This is the ski-rental problem: a skier who rents
until the rent paid equals the price, and then buys, never pays more than twice the optimum, and no deterministic rule
guarantees less (Karlin, Manasse, Rudolph and Sleator, "Competitive snoopy caching", Algorithmica 3, 1988, 79-119; the
same reasoning with money for seconds gave the five-minute rule of Gray and Putzolu, SIGMOD 1987, 395-398).
`break_even_s` is that moment, computed from this machine's measured moves.

**Which: bytes freed for each second of delay.** Of several eligible kernels, the best victim frees the most bytes for
the longest time at the least expected delay, as web caches weigh cost against size (GreedyDual-Size: Cao and Irani,
"Cost-aware WWW proxy caching algorithms", USITS 1997). How long a kernel will stay idle is unknown too. It is guessed
from the pauses that kernels of this machine have made: the median of what was left of those that lasted so long. Where
too few lasted so long, the guess is "as long as it has been already": for a Pareto law of index 1 that is the median of
the remaining time. In both cases the chance of an earlier use is 1/2. So where pauses are very uneven, as they mostly
are, the kernel that has been idle longest leaves; where all return soon, the one that has just begun to pause.
(docs/development/policy.md has the planner's figures.)

A kernel whose memory is zeros, or has not changed since its last park, is cheap: the host has its copy already.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ...model.snapshot import Kernel, Node, Residency, Speed

Speeds = Mapping[str, Speed]  # by GPU

NEEDED_SOON = 0.5  # the chance that a kernel is used before its idle time has doubled
LEAST_PAUSES = 6  # fewer that lasted as long do not tell
LEAST_COST_S = 0.001  # no move is free, whatever the estimate says
LATE_TIMES, LATE_S = 3.0, 5.0  # times the expected duration, plus time for its processes to begin and agree
LEAST_IDLE_S = 0.001  # a clock's step; keeps the order by size among those that have just become idle


def in_order(
    now: float, kernels: Iterable[Kernel], node: Node, gpus: Collection[str] | None = None
) -> list[Kernel]:
    """Return the kernels in victim order, the best first; kernels of users whose parks came to nothing are last
    (failed_moves.py). `gpus`: where memory is wanted (None: anywhere).
    """
    return sorted(
        kernels,
        key=lambda kernel: (kernel.demoted_until > now, -freed_per_cost(now, kernel, node, gpus), kernel.id),
    )


def freed_per_cost(now: float, kernel: Kernel, node: Node, gpus: Collection[str] | None = None) -> float:
    """Return the byte-seconds of GPU memory freed for each second of expected delay."""
    frees = 0
    for uuid, size in kernel.resident_bytes.items():
        if gpus is None or uuid in gpus:
            frees += size
    return frees / eviction_cost(now, kernel, node)


def eviction_cost(now: float, kernel: Kernel, node: Node) -> float:
    """Return the expected delay caused per second of memory freed."""
    left_s = remaining_s(max(now - kernel.last_activity, LEAST_IDLE_S), node.pauses_s)
    # A user who returns within that time does so half-way, on average.
    lasts_s = max(left_s, LEAST_IDLE_S) * (1.0 - NEEDED_SOON / 2.0)
    costs_s = park_s(kernel, node.speeds) + NEEDED_SOON * resume_s(kernel, node.speeds)
    return max(costs_s, LEAST_COST_S) / lasts_s


def remaining_s(idle_s: float, pauses_s: Sequence[float]) -> float:
    """Return the median of how much longer a pause that has lasted `idle_s` goes on. `pauses_s`: the shortest first."""
    shorter = bisect_right(pauses_s, idle_s)
    longer = len(pauses_s) - shorter
    return pauses_s[shorter + longer // 2] - idle_s if longer >= LEAST_PAUSES else idle_s


def break_even_s(kernel: Kernel, speeds: Speeds) -> float:
    """Return the idle time after which parking and resuming the kernel pays off while another waits."""
    return park_s(kernel, speeds) + resume_s(kernel, speeds)


def park_s(kernel: Kernel, speeds: Speeds) -> float:
    """Return how long parking the kernel will probably take. GPUs copy side by side: the slowest counts."""
    sizes = kernel.resident_bytes
    takes_s = _slowest(sizes, kernel.park_copies_bytes, speeds, Speed.park_s)
    touch_s = 0.0
    for uuid in sizes if speeds else ():
        touch_s = max(touch_s, speeds.get(uuid, UNMEASURED).first_touch_s_per_byte)
    return takes_s + touch_s * kernel.takes_bytes if touch_s else takes_s


def is_late(now: float, kernel: Kernel, speeds: Speeds) -> bool:
    """Return whether a move has lasted so long that others no longer wait for it.

    A move that never ends would keep all others on the GPU. A park may take a few times as long as usual on a busy
    machine. A resume is late once NVML has shown no progress for so long that its reservation expired
    (reservations.py).
    """
    since = kernel.moves_since
    if since is None or kernel.residency is Residency.RESUMING:
        return since == -math.inf
    return now - since > LATE_TIMES * park_s(kernel, speeds) + LATE_S


def resume_s(kernel: Kernel, speeds: Speeds) -> float:
    """Return how long resuming the kernel will probably take, from where it is now or once it is parked."""
    sizes = kernel.resident_bytes
    if any(kernel.parked_bytes.values()):
        sizes = {
            uuid: sizes.get(uuid, 0) + kernel.parked_bytes.get(uuid, 0)
            for uuid in sizes.keys() | kernel.parked_bytes.keys()
        }
    return _slowest(sizes, kernel.resume_copies_bytes, speeds, Speed.resume_s) + kernel.disk_return_s


def _slowest(
    sizes: Mapping[str, int], copied: int | None, speeds: Speeds, takes_s: Callable[[Speed, float], float]
) -> float:
    """Return how long the slowest GPU takes. `copied`: bytes to copy on all GPUs together (None: all bytes)."""
    if len(sizes) == 1:  # nearly all, and this is reckoned for every kernel while anyone waits
        ((uuid, size),) = sizes.items()
        return takes_s(speeds.get(uuid, UNMEASURED), size if copied is None else min(max(copied, 0), size))
    part = _part(copied, sum(sizes.values()))
    slowest = takes_s(UNMEASURED, 0) if not sizes else 0.0
    for uuid, size in sizes.items():
        slowest = max(slowest, takes_s(speeds.get(uuid, UNMEASURED), size * part))
    return slowest


def _part(copied: int | None, size: int) -> float:
    """Return the part of the memory that has to be copied; 1 where that is not known."""
    return 1.0 if copied is None or size <= 0 else min(max(copied / size, 0.0), 1.0)


UNMEASURED = Speed()
