"""How long a kernel's pauses last, and whether its next cell uses CUDA: learnt from counts, kept by the ledger.

**Pauses** are survival analysis in steps of half an octave (pauses.py): for each step, the chance that a pause
which has lasted so long ends in it. Such a chance is a count over a count, and a kernel alone has few of them; so
each is drawn towards its user's, the user's towards everybody's, and that one towards what is known of nobody:
a Pareto law of index 1, "as long again as it has been already" (victims.py). The weight of each is WEIGHT pauses,
as in the m-estimate of a probability (Cestnik, "Estimating probabilities: a crucial task in machine learning",
ECAI 1990).

**What it is for.** `needed_soon` weighs the choice of whom to park. `patience_s` is the time-out that is cheapest
on average while somebody waits: min over T of E[min(pause, T)] + price · P(pause > T), with the price of a round
trip (the same ski-rental problem as victims.py, with a known distribution).

It is off by default: `prediction_trial.py` compares it with fixed time-outs, and says when it is worth it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from .pauses import BUCKETS, BUCKETS_PER_OCTAVE, SHORTEST_S, bucket_begins_s, bucket_of

WEIGHT = 4.0
PARETO_HAZARD = 1 - 2 ** (-1 / BUCKETS_PER_OCTAVE)
LEAST_CHANCE, MOST_CHANCE = 0.02, 0.98  # history is never so sure
KERNELS_MAX, USERS_MAX = 4096, 1024  # remembered; who was heard of longest ago is forgotten
CELLS_WEIGHT = 2.0

Hazards = list[float]
NOTHING_KNOWN: Hazards = [PARETO_HAZARD] * BUCKETS


class Counts:
    """How many pauses fell into each bucket, and how many cells used CUDA or did not."""

    def __init__(self) -> None:
        self.pauses = [0] * BUCKETS
        self.with_cuda = 0
        self.without_cuda = 0

    def hazards(self, towards: Sequence[float]) -> Hazards:
        """The chance, bucket by bucket, that a pause which reached it ends in it; drawn towards others'."""
        found, at_risk = list(towards), 0
        for bucket in reversed(range(BUCKETS)):
            at_risk += self.pauses[bucket]
            found[bucket] = (self.pauses[bucket] + WEIGHT * towards[bucket]) / (at_risk + WEIGHT)
        return found


class Prediction:
    """What was learnt of everybody, of users and of kernels; a history.Learner."""

    def __init__(self) -> None:
        self._all = Counts()
        self._users: OrderedDict[str, Counts] = OrderedDict()
        self._kernels: OrderedDict[str, Counts] = OrderedDict()

    def load(
        self, pauses: Iterable[tuple[str, str, int, int]], cells: Iterable[tuple[str, str, int, int]]
    ) -> None:
        """Take what the ledger has: (kernel, user, bucket, count), (kernel, user, with, without CUDA)."""
        for kernel_id, user, bucket, count in pauses:
            if 0 <= bucket < BUCKETS and count > 0:
                for counts in self._counts(kernel_id, user):
                    counts.pauses[bucket] += count
        for kernel_id, user, with_cuda, without_cuda in cells:
            for counts in self._counts(kernel_id, user):
                counts.with_cuda += with_cuda
                counts.without_cuda += without_cuda

    def paused(self, kernel_id: str, user: str, length_s: float) -> None:
        """A kernel used the GPU again after a pause of SHORTEST_S or more."""
        for counts in self._counts(kernel_id, user):
            counts.pauses[bucket_of(length_s)] += 1

    def cell_ended(self, kernel_id: str, user: str, used_cuda: bool) -> None:
        """A cell ended."""
        for counts in self._counts(kernel_id, user):
            counts.with_cuda += used_cuda
            counts.without_cuda += not used_cuda

    def hazards(self, kernel_id: str, user: str) -> Hazards:
        """Of a kernel, bucket by bucket; of its user or of everybody as far as it is new."""
        towards = self._all.hazards(NOTHING_KNOWN)
        for known, name in ((self._users, user), (self._kernels, kernel_id)):
            counts = known.get(name)
            if counts is not None:
                towards = counts.hazards(towards)
        return towards

    def uses_cuda(self, kernel_id: str, user: str) -> float:
        """The chance that the kernel's next cell uses CUDA; 1/2 where nothing is known."""
        chance = 0.5
        for counts in (self._all, self._users.get(user), self._kernels.get(kernel_id)):
            if counts is not None:
                seen = counts.with_cuda + counts.without_cuda
                chance = (counts.with_cuda + CELLS_WEIGHT * chance) / (seen + CELLS_WEIGHT)
        return chance

    def _counts(self, kernel_id: str, user: str) -> Iterable[Counts]:
        yield self._all
        for known, name, most in ((self._users, user, USERS_MAX), (self._kernels, kernel_id, KERNELS_MAX)):
            if name not in known and len(known) >= most:
                known.popitem(last=False)
            counts = known.setdefault(name, Counts())
            known.move_to_end(name)
            yield counts


def survival(hazards: Sequence[float], length_s: float) -> float:
    """The chance that a pause of SHORTEST_S or more lasts longer than `length_s`; within a bucket it falls as a
    power of the length.
    """
    if length_s <= SHORTEST_S:
        return 1.0
    steps = BUCKETS_PER_OCTAVE * math.log2(length_s / SHORTEST_S)
    whole = min(int(steps), BUCKETS)
    lasts = 1.0
    for hazard in hazards[:whole]:
        lasts *= 1 - hazard
    left = hazards[whole] if whole < BUCKETS else PARETO_HAZARD
    return lasts * float((1 - left) ** (steps - whole))


def needed_soon(hazards: Sequence[float], idle_s: float) -> float:
    """The chance that who has been idle for `idle_s` uses the GPU before it has been idle twice as long."""
    idle_s = max(idle_s, SHORTEST_S)
    lasts = survival(hazards, idle_s)
    chance = 1 - survival(hazards, 2 * idle_s) / lasts if lasts > 0 else MOST_CHANCE
    return min(max(chance, LEAST_CHANCE), MOST_CHANCE)


def patience_s(hazards: Sequence[float], price_s: float) -> float:
    """After how long it is cheapest on average to park while somebody waits; `price_s` is a round trip's.

    One of the buckets' bounds, SHORTEST_S at least. Never longer than the ski-rental rule's worst case allows to
    be wrong cheaply is no condition here: who trusts history trusts it.
    """
    best_s, best_cost = SHORTEST_S, SHORTEST_S + price_s
    rent, lasts = SHORTEST_S, 1.0
    for bucket, hazard in enumerate(hazards):
        begins, ends = bucket_begins_s(bucket), bucket_begins_s(bucket + 1)
        # Who ends here ends in the geometric middle of it, who does not pays for all of it.
        rent += lasts * (hazard * (math.sqrt(begins * ends) - begins) + (1 - hazard) * (ends - begins))
        lasts *= 1 - hazard
        cost = rent + price_s * lasts
        if cost < best_cost:
            best_s, best_cost = ends, cost
    return best_s
