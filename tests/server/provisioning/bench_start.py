"""What management adds to the start of a program's kernel, with and without it, in turn.

`python tests/server/provisioning/bench_start.py --rounds 15`, on an idle machine. Each kernel is the first of a
program of its own, as those of nbconvert are, and a controller runs. Printed are medians and their differences:
seconds until the kernel is launched and until its first reply, and the program's processor time until the launch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from jupyter_client.manager import AsyncKernelManager
from live_machine import new_machine

WAYS = ("local-provisioner", "affinode-provisioner")


async def start(provisioner: str) -> dict[str, float]:
    """Start a kernel, measure, and end it."""
    began, worked = time.perf_counter(), time.process_time()
    manager = AsyncKernelManager(kernel_name="python3")
    manager.kernel_spec.metadata["kernel_provisioner"] = {"provisioner_name": provisioner}
    await manager.start_kernel()
    launched, cpu = time.perf_counter() - began, time.process_time() - worked
    client = manager.client()
    client.start_channels()
    try:
        client.execute("1")
        await client.get_shell_msg(timeout=60)
        return {"launched": launched, "replied": time.perf_counter() - began, "cpu": cpu}
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


def main() -> None:
    """Measure on a machine of its own, with a controller."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--start", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        print(json.dumps(asyncio.run(start(options.start))))
        return
    took: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with new_machine() as machine:
        machine.start_controller()
        for number in range(options.rounds):
            for way in WAYS if number % 2 else reversed(WAYS):
                words = [sys.executable, __file__, "--start", way]
                done = subprocess.run(words, env=machine.environment, stdout=subprocess.PIPE, check=True)
                took[way].append(json.loads(done.stdout))
    for what in ("launched", "replied", "cpu"):
        local, ours = (statistics.median(each[what] for each in took[way]) for way in WAYS)
        print(
            f"{what}: {local:.3f} s without, {ours:.3f} s with, {ours / local:.2f} times: {ours - local:+.3f} s"
        )


if __name__ == "__main__":
    main()
