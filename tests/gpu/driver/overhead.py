"""What the shim costs a launch-bound PyTorch loop: processes with and without it, in turn, in one run.

Run by run.py; as a program it is one measurement: `python overhead.py` prints microseconds an operation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median


def measure() -> float:
    import torch

    a = torch.zeros(16, device="cuda")
    best = []
    for _ in range(15):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(20000):
            a.add_(1)
        torch.cuda.synchronize()
        best.append((time.perf_counter() - begin) / 20000 * 1e6)
    return min(best)


def compare(shim: str, rounds: int) -> tuple[list[float], list[float]]:
    """(without, with), µs an operation, each the best of 15 loops in a fresh process."""
    results: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds):
        for with_shim in (False, True) if i % 2 == 0 else (True, False):
            env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
            if with_shim:
                env["LD_PRELOAD"] = shim
            done = subprocess.run(
                [sys.executable, __file__], env=env, capture_output=True, text=True, check=True
            )
            results[with_shim].append(float(done.stdout))
    return results


def describe(without: list[float], with_: list[float]) -> str:
    ratio = median(with_) / median(without)
    best = min(with_) / min(without)
    return (
        f"launch-bound PyTorch loop, {len(without)} processes each, µs an operation: without the shim median"
        f" {median(without):.3f} (min {min(without):.3f}), with it median {median(with_):.3f} (min {min(with_):.3f});"
        f" ratio of medians {ratio:.4f}, of minima {best:.4f}"
    )


if __name__ == "__main__":
    print(measure())
