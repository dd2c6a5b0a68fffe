"""How long one decision takes on a large machine: `python tests/node/policy/bench_decide.py [--kernels N] [--gpus N]`.

No test: the figures are this machine's. `test_policy_work.py` counts steps instead.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "simulation"))

from crowd import NOW, SETTINGS, crowded_node, mixed_node

from jupyter_affinode.node.model.snapshot import Node
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.system.garbage_collector import spare_passes

LIMITS = {"quotas": "*=120GiB, @*=4TiB"}
EVERYTHING = {"backfill": True, "when_full": "time_slice", **LIMITS}


@dataclass(frozen=True)
class Case:
    """A machine and its settings."""

    name: str
    waiting: int
    full: bool = True  # of busy kernels
    settings: dict[str, Any] = field(default_factory=dict)
    make: Callable[..., Node] = crowded_node


MIXED, TIGHT = mixed_node, partial(mixed_node, tight=True)
CASES = (
    Case("quiet: no kernel waits", 0),
    Case("quiet, park_when=idle", 0, settings={"park_when": "idle"}),
    Case("300 wait, every GPU is full of busy kernels", 300),
    Case("600 wait, every GPU is full of busy kernels", 600),
    Case("600 wait, time slices", 600, settings={"when_full": "time_slice"}),
    Case("600 wait, terminate_newest", 600, settings={"when_full": "terminate_newest"}),
    Case("600 wait, backfill", 600, settings={"backfill": True}),
    Case("600 wait, limits for 50 users and a group", 600, settings=LIMITS),
    Case("300 wait, most of the others are idle", 300, full=False),
    Case("600 wait, idle, all settings", 600, full=False, settings=EVERYTHING),
    Case("quiet, a mixed machine", 0, make=MIXED),
    Case("300 wait, mixed, full", 300, make=MIXED),
    Case("300 wait, mixed, full, all settings", 300, settings=EVERYTHING, make=MIXED),
    Case("300 wait, mixed, idle, all settings", 300, full=False, settings=EVERYTHING, make=MIXED),
    Case("300 wait, mixed, full, host memory is short", 300, make=TIGHT),
    Case("300 wait, mixed, full, the same with all settings", 300, settings=EVERYTHING, make=TIGHT),
    Case("300 wait, mixed, idle, the same", 300, full=False, settings=EVERYTHING, make=TIGHT),
)


def main() -> None:
    """Print one line a case: the median and the 95th percentile of many decisions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    print(
        f"decide() for {arguments.kernels} kernels on {arguments.gpus} GPUs, {arguments.rounds} rounds each, CPU time"
    )
    spare_passes()  # as the controller does
    for case in CASES:
        waiting = min(case.waiting, arguments.kernels)
        node = case.make(arguments.kernels, arguments.gpus, waiting, full=case.full)
        settings = SETTINGS.changed(**case.settings)
        times, actions = [], []
        for _ in range(arguments.rounds):
            begin = time.thread_time()
            actions = decide(NOW, node, settings)
            times.append((time.thread_time() - begin) * 1000)
        times.sort()
        p95 = times[int(len(times) * 0.95)]
        median = statistics.median(times)
        print(f"{median:7.2f} ms median {p95:7.2f} ms p95  {case.name} ({len(actions)} actions)")


if __name__ == "__main__":
    main()
