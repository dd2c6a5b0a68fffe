"""How long one decision takes on a large machine: `python tests/node/bench_decide.py [--kernels N] [--gpus N]`.

No test: the figures are this machine's. `test_policy_work.py` counts steps instead.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from crowd import NOW, SETTINGS, crowded_node

from jupyter_affinode.node.policy import decide

LIMITS = "*=120GiB"
CASES = (
    ("quiet: nobody waits", 0, True, {}),
    ("quiet, park_when=idle", 0, True, {"park_when": "idle"}),
    ("300 wait, every GPU is full of busy kernels", 300, True, {}),
    ("600 wait, every GPU is full of busy kernels", 600, True, {}),
    ("600 wait, time slices", 600, True, {"when_full": "time_slice"}),
    ("600 wait, terminate_newest", 600, True, {"when_full": "terminate_newest"}),
    ("600 wait, backfill", 600, True, {"backfill": True}),
    (
        "600 wait, limits for 50 users and a group",
        600,
        True,
        {"user_limits": LIMITS, "group_limits": "*=4TiB"},
    ),
    ("300 wait, most of the others are idle", 300, False, {}),
    (
        "600 wait, idle, all settings",
        600,
        False,
        {"backfill": True, "when_full": "time_slice", "user_limits": LIMITS},
    ),
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
    for name, waiting, full, settings in CASES:
        node = crowded_node(arguments.kernels, arguments.gpus, min(waiting, arguments.kernels), full=full)
        chosen = SETTINGS.changed(**settings)
        times, actions = [], []
        for _ in range(arguments.rounds):
            begin = time.thread_time()
            actions = decide(NOW, node, chosen)
            times.append((time.thread_time() - begin) * 1000)
        times.sort()
        p95 = times[int(len(times) * 0.95)]
        print(f"{statistics.median(times):7.2f} ms median {p95:7.2f} ms p95  {name} ({len(actions)} actions)")


if __name__ == "__main__":
    main()
