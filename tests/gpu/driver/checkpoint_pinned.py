"""What pinned host memory costs the driver's checkpoint and its way back: `python tests/gpu checkpoint_pinned`.

Context depth leaves the host copies registered while the driver takes the context off the GPU and brings it back.
This measures, in one fresh process a line and without the shim, Checkpoint and Restore beside `--gib` of registered
memory: none of it, in one registration, in pieces, and given up before Checkpoint and registered again after Restore.
Prints a table; there is nothing to fail but a call.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from controlled import again, finish, machine, options

from jupyter_affinode.bench.driver import HOST_REGISTER_DEFAULT, Driver
from jupyter_affinode.bench.host_memory import HugePages, touch
from jupyter_affinode.environment import controller_environment

MIB = 1 << 20
PIECES_MIB = (32, 256, 1024, 0)
"""Sizes of one registration; 0: all in one."""


class LockArguments(ctypes.Structure):
    """CUcheckpointLockArgs of cuda.h: how long to wait, in milliseconds."""

    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


def seconds(action: Any, *arguments: Any) -> float:
    begin = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - begin


class Pinned:
    """Huge pages, touched, that can be registered in pieces."""

    def __init__(self, driver: Driver, size: int, piece: int):
        self._driver = driver
        self._pages = HugePages(size)
        touch(self._pages.address, size)
        self._pieces = [(at, min(piece, size - at)) for at in range(0, size, piece)]

    def register(self, threads: int = 1) -> None:
        """Register every piece, on so many threads."""
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self._register, self._pieces))

    def unregister(self) -> None:
        """Give the pieces up; the pages stay."""
        for at, _ in self._pieces:
            self._driver.call("cuMemHostUnregister", ctypes.c_void_p(self._pages.address + at))

    def _register(self, piece: tuple[int, int]) -> None:
        at, size = piece
        self._driver.call("cuCtxSetCurrent", self._driver.context)
        self._driver.call(
            "cuMemHostRegister_v2",
            ctypes.c_void_p(self._pages.address + at),
            ctypes.c_size_t(size),
            HOST_REGISTER_DEFAULT,
        )


def run_one(gib: float, piece_mib: int, gives_up: bool, threads: int, cycles: int) -> dict[str, list[float]]:
    """Seconds of each step, one a cycle."""
    driver = Driver()
    size = int(gib * 1024) * MIB
    pinned = Pinned(driver, size, piece_mib * MIB or size) if size else None
    took: dict[str, list[float]] = {
        "register": [],
        "checkpoint": [],
        "restore": [],
        "unlock": [],
        "give up": [],
    }
    if pinned:
        took["register"].append(seconds(pinned.register, threads))
    pid = os.getpid()
    for _ in range(cycles):
        if pinned and gives_up:
            took["give up"].append(seconds(pinned.unregister))
        arguments = LockArguments(timeout_ms=10_000)
        driver.call("cuCheckpointProcessLock", pid, ctypes.byref(arguments))
        took["checkpoint"].append(seconds(driver.call, "cuCheckpointProcessCheckpoint", pid, None))
        took["restore"].append(seconds(driver.call, "cuCheckpointProcessRestore", pid, None))
        took["unlock"].append(seconds(driver.call, "cuCheckpointProcessUnlock", pid, None))
        if pinned and gives_up:
            took["register"].append(seconds(pinned.register, threads))
    return took


def in_a_process(*arguments: str) -> dict[str, list[float]]:
    command = again(__file__, "--one", *arguments)
    env = {name: value for name, value in controller_environment().items() if name != "LD_PRELOAD"}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    if ran.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {ran.stderr[-2000:]}")
    taken: dict[str, list[float]] = json.loads(ran.stdout.splitlines()[-1])
    return taken


def cases(gib: float) -> list[tuple[str, list[str]]]:
    """What is measured: its name, and the arguments."""
    all_ = [("nothing pinned", ["--gib", "0"])]
    for mib in PIECES_MIB:
        name = f"pieces of {mib} MiB" if mib else "one piece"
        all_.append((name, ["--gib", str(gib), "--piece-mib", str(mib)]))
    for mib, threads in ((32, 1), (256, 1), (256, 4), (0, 1)):
        pieces = f"pieces of {mib} MiB" if mib else "one piece"
        name = f"{pieces}, given up meanwhile, {threads} thread{'s'[: threads > 1]}"
        more = ["--piece-mib", str(mib), "--give-up", "--threads", str(threads)]
        all_.append((name, ["--gib", str(gib), *more]))
    return all_


def main() -> int:
    parser = options(__doc__, time_s=240)
    parser.add_argument("--gib", type=float, default=32, help="GiB of pinned memory (default: %(default)s)")
    parser.add_argument("--cycles", type=int, default=2, help="checkpoints a process (default: %(default)s)")
    parser.add_argument("--piece-mib", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--give-up", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        took = run_one(chosen.gib, chosen.piece_mib, chosen.give_up, chosen.threads, chosen.cycles)
        print(json.dumps(took))
        return 0
    where = machine()
    until = time.monotonic() + chosen.time
    rows, figures = [], {}
    for name, arguments in cases(chosen.gib):
        if time.monotonic() > until:
            rows.append([name, *[""] * 5])
            continue
        took = in_a_process(*arguments, "--cycles", str(chosen.cycles))
        figures[name] = took
        rows.append([name, *[f"{median(each) * 1000:.0f}" if each else "" for each in took.values()]])
    return finish(
        "checkpoint_pinned",
        where,
        chosen.json,
        headings=["pinned host memory", "register, ms", "checkpoint", "restore", "unlock", "give up"],
        rows=rows,
        passed=len(figures) == len(rows),
        notes=[f"{chosen.gib:g} GiB, medians of {chosen.cycles} cycles in a process of its own"],
    )


if __name__ == "__main__":
    sys.exit(main())
