"""Which kernel to park: what it costs, what it brings, and when it has paid off; pure.

**When: renting or buying.** Leaving an idle kernel on the GPU while a kernel waits for its memory costs one
second of waiting a second (the rent). Parking it costs its round trip once: the waiter waits for the park, and
its owner for the resume (the price). When the owner comes back is not known. This is the ski-rental problem: a skier
that rents until the rent paid equals the price, and then buys, never pays more than twice the least that was
possible knowing the future, and no deterministic rule guarantees less (Karlin, Manasse, Rudolph and Sleator,
"Competitive snoopy caching", Algorithmica 3, 1988, 79-119; the same reasoning with money for seconds gave the
five-minute rule of Gray and Putzolu, SIGMOD 1987, 395-398). `break_even_s` is that moment, from what this machine's
own moves took.

**Which: bytes given back for each second of waiting caused.** Of several that have been idle long enough, the
best is the one that frees the most bytes for the longest time for the least waiting, as web caches weigh cost
against size (GreedyDual-Size: Cao and Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997). How long it
will stay idle is not known either; users' pauses are so uneven that the best simple guess is "as long as it
has been already": for a Pareto law of index 1 it is the median of what is left, and the chance to be needed before
that is 1/2.

A kernel whose memory has not changed since its last park, or is zeros, is cheap: the host has that already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from ...model.snapshot import Kernel, Node, Residency, Speed

Speeds = Mapping[str, Speed]  # by GPU

NEEDED_SOON = 0.5  # the chance that a kernel is used before it has been idle twice as long
LEAST_COST_S = 0.001  # nothing is moved for nothing, whatever the estimate says
LATE_TIMES, LATE_S = 3.0, 5.0  # times its expected duration, and for its processes to begin and agree
LEAST_IDLE_S = 0.001  # a clock's step; keeps the order by size among those that have just become idle


def in_order(
    now: float, kernels: Iterable[Kernel], node: Node, gpus: Collection[str] | None = None
) -> list[Kernel]:
    """The kernels, the best to park first, and last those of users whose parks came to nothing (failed_parks.py).
    `gpus`: where memory is wanted (None: anywhere).
    """
    return sorted(
        kernels,
        key=lambda kernel: (kernel.behind_until > now, -worth(now, kernel, node, gpus), kernel.id),
    )


def worth(now: float, kernel: Kernel, node: Node, gpus: Collection[str] | None = None) -> float:
    """How good a choice a kernel is: byte seconds probably given back for each second of waiting caused."""
    frees = 0
    for uuid, size in kernel.believed_bytes.items():
        if gpus is None or uuid in gpus:
            frees += size
    return frees / trouble(now, kernel, node)


def trouble(now: float, kernel: Kernel, node: Node) -> float:
    """Seconds of waiting that parking it probably causes for each second for which its memory is given back."""
    idle_s = max(now - kernel.last_activity, LEAST_IDLE_S)
    lasts_s = idle_s * (1.0 - NEEDED_SOON / 2.0)  # a user who returns within that time does so half-way
    costs_s = park_s(kernel, node.speeds) + NEEDED_SOON * resume_s(kernel, node.speeds)
    return max(costs_s, LEAST_COST_S) / lasts_s


def break_even_s(kernel: Kernel, speeds: Speeds) -> float:
    """For how long a kernel must have been idle for a round trip to pay off while another waits."""
    return park_s(kernel, speeds) + resume_s(kernel, speeds)


def park_s(kernel: Kernel, speeds: Speeds) -> float:
    """How long parking it will probably take. GPUs copy side by side: the slowest counts."""
    sizes = kernel.believed_bytes
    takes_s = _slowest(sizes, kernel.park_copies_bytes, speeds, Speed.park_s)
    touch_s = 0.0
    for uuid in sizes if speeds else ():
        touch_s = max(touch_s, speeds.get(uuid, UNMEASURED).first_touch_s_per_byte)
    return takes_s + touch_s * _fresh_bytes(kernel) if touch_s else takes_s


def is_late(now: float, kernel: Kernel, speeds: Speeds) -> bool:
    """Whether a move lasts so long that others should not wait for it any more: one that never ends would keep all
    others on the GPU. A park takes a few times as long as usual where the machine is busy. A resume has as long as
    NVML shows that it goes on (reservations.py).
    """
    since = kernel.moves_since
    if since is None or kernel.residency is Residency.RESUMING:
        return since == -math.inf
    return now - since > LATE_TIMES * park_s(kernel, speeds) + LATE_S


def _fresh_bytes(kernel: Kernel) -> int:
    """Host memory that parking it takes and that its processes do not have yet."""
    size = sum(kernel.believed_bytes.values())
    copied = size if kernel.park_copies_bytes is None else min(max(kernel.park_copies_bytes, 0), size)
    return max(copied - max(kernel.host.kept_bytes, kernel.host.lot_bytes), 0)


def resume_s(kernel: Kernel, speeds: Speeds) -> float:
    """How long bringing it back will probably take, from where it is now or once it is parked."""
    sizes = kernel.believed_bytes
    if any(kernel.parked_bytes.values()):
        sizes = {
            uuid: sizes.get(uuid, 0) + kernel.parked_bytes.get(uuid, 0)
            for uuid in sizes.keys() | kernel.parked_bytes.keys()
        }
    return _slowest(sizes, kernel.resume_copies_bytes, speeds, Speed.resume_s) + kernel.disk_return_s


def _slowest(
    sizes: Mapping[str, int], copied: int | None, speeds: Speeds, takes_s: Callable[[Speed, float], float]
) -> float:
    """How long the slowest GPU takes; `copied`: of all sizes together (None: all of it has to be copied)."""
    if len(sizes) == 1:  # nearly all, and this is reckoned for every kernel while anyone waits
        ((uuid, size),) = sizes.items()
        return takes_s(speeds.get(uuid, UNMEASURED), size if copied is None else min(max(copied, 0), size))
    part = _part(copied, sum(sizes.values()))
    slowest = takes_s(UNMEASURED, 0) if not sizes else 0.0
    for uuid, size in sizes.items():
        slowest = max(slowest, takes_s(speeds.get(uuid, UNMEASURED), size * part))
    return slowest


def _part(copied: int | None, size: int) -> float:
    """What part of the memory has to be copied; all of it where that is not known."""
    return 1.0 if copied is None or size <= 0 else min(max(copied / size, 0.0), 1.0)


UNMEASURED = Speed()
