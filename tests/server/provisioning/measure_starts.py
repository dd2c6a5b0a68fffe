"""What management adds to a kernel's start, with and without it in turn: `python …/measure_starts.py --rounds 15`.

With `--hibernate` the second has hibernation, too, and the first management alone. Then a call of the simulated driver
is timed in each kernel as well, and the kernel's host memory is looked at: what is off must cost nothing.

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
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import quantiles

sys.path.insert(0, str(Path(__file__).parents[2]))

from jupyter_client.manager import AsyncKernelManager
from live_machine import new_machine

from jupyter_affinode import environment
from jupyter_affinode.provisioning.provisioner import AffinodeProvisioner

WAYS = ("local-provisioner", "affinode-provisioner")
HIBERNATING = ("affinode-provisioner", "affinode-provisioner, hibernates")
CALLS = """
import ctypes, time
from jupyter_affinode.bench.driver import Driver
driver = Driver()
block = ctypes.c_uint64(driver.allocate(4 << 20))
call = ctypes.CDLL("libcuda.so.1").cuMemsetD8Async
def timed():
    began = time.process_time()
    for _ in range(20000):
        call(block, 0, ctypes.c_size_t(1), None)
    return (time.process_time() - began) / 20000 * 1e9
calls_ns = min(timed() for _ in range(5))
"""


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


def memory_mib(pid: int) -> float:
    """What a process has of host memory by itself."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1]) / 1024


async def start(way: str, *, calls: bool = False) -> dict[str, float]:
    """Start a kernel, measure, and end it; `calls`: time a call of the driver, too."""
    provisioner = way.partition(",")[0]
    if way != provisioner:  # as a server has it with hibernate_dir
        AffinodeProvisioner.keeps, AffinodeProvisioner.depth = True, "context"
        AffinodeProvisioner.images = str(environment.socket_path().parent / "images")
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
        found = {
            "launched": launched * 1000,
            "replied": (time.perf_counter() - began) * 1000,
            "until launch": until_launch * 1000,
            "program's": (time.process_time() - worked) * 1000,
            "helpers'": waited_for_ms() - waited_for,
            "kernel's": processor_ms(manager.provisioner.pid),
        }
        if calls:
            found["memory, MiB"] = memory_mib(manager.provisioner.pid)
            client.execute(CALLS, user_expressions={"ns": "calls_ns"})
            told = (await client.get_shell_msg(timeout=60))["content"]
            found["a call, ns"] = float(told["user_expressions"]["ns"]["data"]["text/plain"])
        return found
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


async def start_two(way: str) -> dict[str, dict[str, float]]:
    """Start two kernels, one after the other."""
    calls = "AFFINODE_SIM" in os.environ
    return {"first": await start(way, calls=calls), "again": await start(way, calls=calls)}


def main() -> None:
    """Measure on a machine of its own, with a controller."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--hibernate", action="store_true", help="with and without hibernation, in place of management"
    )
    parser.add_argument("--start", choices={*WAYS, *HIBERNATING}, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        print(json.dumps(asyncio.run(start_two(options.start))))
        return
    ways = HIBERNATING if options.hibernate else WAYS
    took: dict[str, list[dict[str, dict[str, float]]]] = {way: [] for way in ways}
    with new_machine() as machine:
        machine.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation is compiled
        if options.hibernate:
            machine.simulate()
        machine.start_controller()
        for number in range(-1, options.rounds):  # the first compiles, and does not count
            for way in ways if number % 2 else reversed(ways):
                words = [sys.executable, __file__, "--start", way]
                done = subprocess.run(words, env=machine.environment, stdout=subprocess.PIPE, check=True)
                if number >= 0:
                    took[way].append(json.loads(done.stdout))
    print(f"{'':18}{'without':>24}{'with':>24}{'more':>8} ms")
    for which in ("first", "again"):
        for what in took[ways[0]][0][which]:
            cuts = [quantiles([each[which][what] for each in took[way]], n=4) for way in ways]
            shown = "".join(f"{low:9.1f}{middle:8.1f}{high:7.1f}" for low, middle, high in cuts)
            ratio = cuts[1][1] / max(cuts[0][1], 0.01)
            print(f"{which} {what:12}{shown}{cuts[1][1] - cuts[0][1]:+8.1f}{ratio:8.3f} times")


if __name__ == "__main__":
    main()
