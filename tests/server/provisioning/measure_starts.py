"""What management adds to a kernel's start, with and without it in turn: `python …/measure_starts.py --rounds 15`.

Each round is a program of its own, which starts a kernel (`first`, as nbconvert does) and then another one (`again`,
as a server does). A controller runs. Printed are medians and quartiles in milliseconds, and the difference of the
medians: by the clock until the kernel is launched and until its first reply, and the processor time of the program
until each, of the processes that it ran and waited for, and of the kernel until that reply. On a machine that does
something else only the processor times can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import quantiles

sys.path.insert(0, str(Path(__file__).parents[2]))

from jupyter_client.manager import AsyncKernelManager
from live_machine import new_machine

WAYS = ("local-provisioner", "affinode-provisioner")


def processor_ms(pid: int) -> float:
    """What all threads of a process have used (proc(5), schedstat)."""
    used = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            used += int((thread / "schedstat").read_text().split()[0])
    return used / 1e6


def waited_for_ms() -> float:
    """The processor time of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000


async def start(provisioner: str) -> dict[str, float]:
    """Start a kernel, measure, and end it."""
    began, worked, waited_for = time.perf_counter(), time.process_time(), waited_for_ms()
    manager = AsyncKernelManager(kernel_name="python3")
    manager.kernel_spec.metadata["kernel_provisioner"] = {"provisioner_name": provisioner}
    await manager.start_kernel()
    launched, until_launch = time.perf_counter() - began, time.process_time() - worked
    client = manager.client()
    client.start_channels()
    try:
        client.execute("1")
        await client.get_shell_msg(timeout=60)
        return {
            "launched": launched * 1000,
            "replied": (time.perf_counter() - began) * 1000,
            "until launch": until_launch * 1000,
            "program's": (time.process_time() - worked) * 1000,
            "helpers'": waited_for_ms() - waited_for,
            "kernel's": processor_ms(manager.provisioner.pid),
        }
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


async def start_two(provisioner: str) -> dict[str, dict[str, float]]:
    """Start two kernels, one after the other."""
    return {"first": await start(provisioner), "again": await start(provisioner)}


def main() -> None:
    """Measure on a machine of its own, with a controller."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--start", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        print(json.dumps(asyncio.run(start_two(options.start))))
        return
    took: dict[str, list[dict[str, dict[str, float]]]] = {way: [] for way in WAYS}
    with new_machine() as machine:
        machine.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation is compiled
        machine.start_controller()
        for number in range(-1, options.rounds):  # the first compiles, and does not count
            for way in WAYS if number % 2 else reversed(WAYS):
                words = [sys.executable, __file__, "--start", way]
                done = subprocess.run(words, env=machine.environment, stdout=subprocess.PIPE, check=True)
                if number >= 0:
                    took[way].append(json.loads(done.stdout))
    print(f"{'':18}{'without':>24}{'with':>24}{'more':>8} ms")
    for which in ("first", "again"):
        for what in took[WAYS[0]][0][which]:
            cuts = [quantiles([each[which][what] for each in took[way]], n=4) for way in WAYS]
            shown = "".join(f"{low:9.1f}{middle:8.1f}{high:7.1f}" for low, middle, high in cuts)
            print(f"{which} {what:12}{shown}{cuts[1][1] - cuts[0][1]:+8.1f}")


if __name__ == "__main__":
    main()
