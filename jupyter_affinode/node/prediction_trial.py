"""Is prediction better than a fixed time-out? Compared on traces that it has not seen.

    python -m jupyter_affinode.node.prediction_trial            # on synthetic traces
    python -m jupyter_affinode.node.prediction_trial LEDGER     # on a site's own history

**What is compared** is what a pause costs while somebody waits for the memory: a second for each second that the
idle kernel keeps it, and the price of a round trip if it is parked (victims.py). Rules: the shipped one
(max(15 s, price), before anybody has waited for long), the fixed time-out that was best on the training half, the
ski-rental rule (time-out = price), prediction, and who knows the future. All see the same pauses of the other half;
prediction goes on learning from each pause after it is over, as it does in a controller.

**Synthetic traces are synthetic.** No trace of real notebooks' pauses is at hand. Their families are published,
their parameters partly assumed:

- `hyperexponential`: times between a person's inputs to a time-sharing system are independent of each other and
  fit two or three exponential phases (Coffman and Wood, "Interarrival statistics for time sharing systems", CACM
  9(7), 1966). The phases' means here are assumed: 20 s, 3 min, 1 h.
- `power law`: times between commands in people's shell histories (Baek, Kim and Kim, "Testing a priority-based
  queue model with Linux command histories", Physica A 387, 2008). Index 1 is assumed, from 5 s to 8 h.
- `log-normal`: the median of 3 min follows from what was published of one company's GPU notebooks (5 min from
  one GPU cell to the next and 2 min for a cell, both medians: Carver et al., "NotebookOS", ASPLOS 2026); the
  family and its width (75th percentile 9 min) are assumed.

Whether people differ is assumed, too: "alike", or "unlike", each person's times scaled by a log-normal factor
(75th percentile 2.5).
"""

from __future__ import annotations

import argparse
import math
import random
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .ledger_store import open_for_reading
from .pauses import BUCKETS, SHORTEST_S, bucket_begins_s
from .prediction import Hazards, Prediction, patience_s

PEOPLE, KERNELS_EACH, PAUSES_EACH = 60, 4, 40
LONGEST_S = 8 * 3600.0
PRICES_S = (2.0, 10.0, 60.0, 300.0)  # 32 GiB on an H200: 1.4 s measured; 80 GiB over a slow link: a minute
FIXED_S = (5, 7.5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600)
QUEUE_IDLE_S = 15.0  # Settings.queue_idle_timeout_s
MARGIN = 0.02  # better by less is not better

Trace = list[float]


@dataclass(frozen=True)
class Person:
    """Somebody's kernels, each with its pauses in their order."""

    name: str
    kernels: list[Trace]


@dataclass(frozen=True)
class Result:
    """What a pause cost on average, in seconds, by rule."""

    traces: str
    price_s: float
    shipped: float
    fixed: float
    fixed_s: float
    ski_rental: float
    prediction: float
    future: float

    @property
    def wins(self) -> bool:
        """Whether prediction is better than every rule that needs no history."""
        return self.prediction < (1 - MARGIN) * min(self.shipped, self.fixed, self.ski_rental)

    @property
    def loses(self) -> bool:
        """Whether one of them is better than prediction."""
        return self.prediction > (1 + MARGIN) * min(self.shipped, self.fixed, self.ski_rental)


def hyperexponential(chance: random.Random) -> float:
    """One pause in seconds."""
    return chance.expovariate(1 / chance.choices((20.0, 180.0, 3600.0), (0.5, 0.4, 0.1))[0])


def power_law(chance: random.Random) -> float:
    """One pause in seconds."""
    return SHORTEST_S / (1 - chance.random())


def log_normal(chance: random.Random) -> float:
    """One pause in seconds."""
    return 180.0 * math.exp(math.log(540 / 180) / 0.6745 * chance.gauss(0.0, 1.0))


FAMILIES: dict[str, Callable[[random.Random], float]] = {
    "hyperexponential": hyperexponential,
    "power law": power_law,
    "log-normal": log_normal,
}


def synthetic(family: str, *, unlike: bool, seed: int) -> list[Person]:
    """People of one family."""
    chance = random.Random(f"{family} {unlike} {seed}")
    draw = FAMILIES[family]
    people = []
    for number in range(PEOPLE):
        scale = math.exp(math.log(2.5) / 0.6745 * chance.gauss(0.0, 1.0)) if unlike else 1.0
        kernels = [
            [min(max(draw(chance) * scale, SHORTEST_S), LONGEST_S) for _ in range(PAUSES_EACH)]
            for _ in range(KERNELS_EACH)
        ]
        people.append(Person(f"p{number}", kernels))
    return people


def from_ledger(path: Path) -> list[Person]:
    """A site's people. The ledger keeps counts by bucket, not single pauses: each stands in its bucket's middle,
    and their order is drawn. Raises sqlite3.Error and OSError.
    """
    connection = open_for_reading(path)
    try:
        rows = connection.execute("SELECT user, kernel_id, bucket, count FROM pauses").fetchall()
    finally:
        connection.close()
    chance = random.Random("the order of a ledger's pauses")
    by_user: dict[str, dict[str, Trace]] = {}
    for user, kernel_id, bucket, count in sorted(rows):
        if 0 <= bucket < BUCKETS and count > 0:
            middle = math.sqrt(bucket_begins_s(bucket) * bucket_begins_s(bucket + 1))
            by_user.setdefault(user, {}).setdefault(kernel_id, []).extend([middle] * min(count, 10_000))
    for kernels in by_user.values():
        for trace in kernels.values():
            chance.shuffle(trace)
    return [Person(user, list(kernels.values())) for user, kernels in by_user.items()]


def compare(traces: str, people: Sequence[Person], price_s: float) -> Result:
    """Train on every second person, compare on the others."""
    training, held_out = people[::2], people[1::2]
    known = [length for person in training for trace in person.kernels for length in trace]
    fixed_s = min(FIXED_S, key=lambda timeout: mean_cost(known, timeout, price_s))
    unseen = [length for person in held_out for trace in person.kernels for length in trace]
    predicted = list(_predicted(training, held_out, price_s))
    return Result(
        traces,
        price_s,
        mean_cost(unseen, max(QUEUE_IDLE_S, price_s), price_s),
        mean_cost(unseen, fixed_s, price_s),
        fixed_s,
        mean_cost(unseen, max(price_s, SHORTEST_S), price_s),
        sum(predicted) / len(predicted),
        sum(min(length, SHORTEST_S + price_s) for length in unseen) / len(unseen),
    )


def cost(length_s: float, timeout_s: float, price_s: float) -> float:
    """What one pause costs with a time-out."""
    return length_s if length_s <= timeout_s else timeout_s + price_s


def mean_cost(pauses: Sequence[float], timeout_s: float, price_s: float) -> float:
    """The average of several; 0 of none."""
    return sum(cost(length, timeout_s, price_s) for length in pauses) / len(pauses) if pauses else 0.0


def _predicted(training: Sequence[Person], held_out: Sequence[Person], price_s: float) -> Iterator[float]:
    """What each held-out pause costs with prediction, which learns from it afterwards."""
    prediction = Prediction()
    for person in training:
        for number, trace in enumerate(person.kernels):
            for length in trace:
                prediction.paused(f"{person.name}/{number}", person.name, length)
    for person in held_out:
        for number, trace in enumerate(person.kernels):
            kernel = f"{person.name}/{number}"
            for length in trace:
                hazards: Hazards = prediction.hazards(kernel, person.name)
                yield cost(length, patience_s(hazards, price_s), price_s)
                prediction.paused(kernel, person.name, length)


def all_synthetic(seed: int) -> Iterator[Result]:
    """Every family, people alike and unlike, every price."""
    for family in FAMILIES:
        for unlike in (False, True):
            people = synthetic(family, unlike=unlike, seed=seed)
            for price_s in PRICES_S:
                yield compare(f"{family}, {'unlike' if unlike else 'alike'}", people, price_s)


def table(results: Sequence[Result]) -> str:
    """The figures, and what follows from them."""
    lines = [
        f"{'traces':28}{'price':>8}{'shipped':>10}{'best fixed':>18}{'ski rental':>12}{'prediction':>12}{'future':>9}"
    ]
    for each in results:
        mark = "better" if each.wins else "WORSE" if each.loses else "same"
        fixed = f"{each.fixed:.1f} ({each.fixed_s:g} s)"
        lines.append(
            f"{each.traces:28}{each.price_s:>6g} s{each.shipped:>10.1f}{fixed:>18}{each.ski_rental:>12.1f}"
            f"{each.prediction:>12.1f}{each.future:>9.1f}  {mark}"
        )
    better, worse = sum(each.wins for each in results), sum(each.loses for each in results)
    lines.append(
        f"Seconds a pause costs on average. Prediction is better in {better} of {len(results)}, worse in {worse}."
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(
        prog="python -m jupyter_affinode.node.prediction_trial",
        description="Compare prediction with fixed time-outs on held-out traces.",
    )
    parser.add_argument("ledger", nargs="?", type=Path, help="a site's ledger; default: synthetic traces")
    parser.add_argument("--seed", type=int, default=1, help="of the synthetic traces")
    parsed = parser.parse_args(arguments)
    if parsed.ledger is None:
        print(f"SYNTHETIC traces of published families (see the module), seed {parsed.seed}")
        print(table(list(all_synthetic(parsed.seed))))
        return 0
    try:
        people = from_ledger(parsed.ledger)
    except (sqlite3.Error, OSError) as error:
        print(f"{parsed.ledger} cannot be read: {error}", file=sys.stderr)
        return 1
    if len(people) < 2:
        print("There are pauses of fewer than two people: nothing to hold out.", file=sys.stderr)
        return 1
    print(f"Pauses of {len(people)} people, of which every second was held out")
    print(table([compare("this site", people, price_s) for price_s in PRICES_S]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
