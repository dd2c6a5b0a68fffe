"""The bench from start to end: looks at the machine, measures part after part, and reports."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from .. import environment
from .._version import __version__
from ..node.system.host_memory import host_memory
from ..provisioning import preload as launch_environment
from ..units import number, whole
from . import exchange as exchanges
from . import measure
from .child_process import BenchProcess, ChildFailed
from .report import Report, ratios, table
from .shim_peer import Listener, MoveFailed
from .sizes import GIB, DoesNotFit, Plan, Room, make_plan, whole_chunks

FORMAT = 1
REPEATS_MAX, LONGEST_S = 10_000, 7 * 86400.0
GIB_MAX = 1e6  # of a size
EXPECTED = (ChildFailed, MoveFailed, OSError, launch_environment.Unmanaged)
DESCRIPTION = """Measure, in one run on this machine, what a pinned copy and jupyter-affinode take to move GPU
memory. Uses the first GPU, in processes of its own; other programs on the GPU
disturb the figures and are not disturbed. With the simulated GPU it runs too; no figure is GPU performance then."""


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "bench", help="measure how fast GPU memory is parked and resumed here", description=DESCRIPTION
    )
    add_options(parser)
    parser.set_defaults(command=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--sizes", metavar="GIB,…", type=_sizes, default=(), help="how much to hold (1,8,32)")
    parser.add_argument(
        "--repeats",
        metavar="N",
        type=whole(1, REPEATS_MAX),
        help="of what is repeated; medians are shown (3)",
    )
    parser.add_argument("--quick", action="store_true", help="one size, once")
    parser.add_argument(
        "--exchange",
        action="store_true",
        help="only this: two processes change places, of the largest of --sizes",
    )
    parser.add_argument(
        "--warm-host",
        metavar="GIB",
        type=_sizes,
        help="touch this much host memory first: a virtual machine's may come only at its first use",
    )
    parser.add_argument(
        "--time", metavar="S", type=number(0, LONGEST_S), help="begin no further part after so many seconds"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything there")


def run(options: argparse.Namespace, kind: type[Bench] | None = None) -> int:
    """Measure; return 0 if all went well, 1 if something could not be measured or was wrong."""
    before = signal.signal(signal.SIGTERM, _ended)
    folder = Path(tempfile.mkdtemp(prefix="affinode-bench-", dir="/tmp"))
    try:
        return (kind or Bench)(options, folder).go()
    except DoesNotFit as refused:
        print(f"jupyter affinode bench: {refused}.", file=sys.stderr)
    except (*EXPECTED, environment.SimulationRefused) as error:
        print(f"jupyter affinode bench: {error}", file=sys.stderr)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
    return 1


class Bench:
    """One run and what it has found so far."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options, self.folder = options, folder
        self.began = time.monotonic()
        self.report: Report = {
            "format": FORMAT,
            "complete": False,
            "simulated": False,
            "command": ["jupyter", "affinode", "bench", *sys.argv[2 if sys.argv[1:2] == ["bench"] else 1 :]],
            "warmed_host": None,
            "ceiling": None,
            "ours": [],
            "exchange": None,
            "skipped": {},
            "wrong": [],
            "ratios": {},
        }

    def go(self) -> int:
        """Measure everything, in order of what matters most if time runs out; return the exit status."""
        report, options = self.report, self.options
        with BenchProcess() as child:
            gpu = child.description
            report["simulated"] = gpu["simulated"]
            if options.warm_host:
                _check_warm(sum(options.warm_host))
                self.say(f"host memory: touching {sum(options.warm_host) / GIB:g} GiB")
                report["warmed_host"] = child.ask("warm_host", size=sum(options.warm_host))
        report["machine"] = _machine(gpu)
        room = Room.of(gpu["gpu_free_bytes"], host_memory().available_bytes, simulated=gpu["simulated"])
        plan = make_plan(
            room,
            simulated=gpu["simulated"],
            quick=options.quick,
            sizes=options.sizes,
            repeats=options.repeats,
        )
        for name, part in self.parts(plan, room):
            self._attempt(name, part)
            self.write()
        report["complete"] = not report["skipped"]
        self.write()
        print(self.text())
        for wrong in report["wrong"]:
            print(f"WRONG: {wrong}", file=sys.stderr)
        return int(bool(report["wrong"] or report["skipped"]))

    def say(self, line: str) -> None:
        """Print a line of progress."""
        print(f"[{time.monotonic() - self.began:6.1f} s] {line}", file=sys.stderr, flush=True)

    def text(self) -> str:
        """Return the report as text."""
        return table(self.report)

    def ratios(self) -> dict[str, float]:
        """Return the ratios that matter, by name."""
        return ratios(self.report)

    def parts(self, plan: Plan, room: Room) -> list[tuple[str, Callable[[], None]]]:
        """Return what is measured, what matters most first."""
        if self.options.exchange:
            return [("exchange", partial(self._exchange, plan))]
        ours = [("ours", partial(self._moves, size, plan.repeats)) for size in reversed(plan.sizes)]
        return [("ceiling", partial(self._ceiling, room)), *ours]

    def _ceiling(self, room: Room) -> None:
        self.report["ceiling"] = measure.ceiling(self.report["simulated"], min(room.gpu, room.host), self.say)

    def _moves(self, size: int, repeats: int) -> None:
        with self.listener() as listener:
            self.report["ours"] += measure.moves(listener, size, min(size, GIB), repeats, self.say)

    def _exchange(self, plan: Plan) -> None:
        with self.listener() as listener:
            self.report["exchange"] = exchanges.exchange(
                listener, plan.largest, plan.repeats, self.say, simulated=self.report["simulated"]
            )

    def _attempt(self, name: str, part: Callable[[], None]) -> None:
        """Measure a part; a failure is recorded, and the rest is measured all the same."""
        limit = self.options.time
        if limit is not None and time.monotonic() - self.began > limit:
            self.report["skipped"][name] = f"the time of {limit:g} s was over"
            return
        try:
            part()
        except measure.WrongContent as wrong:
            self.report["wrong"].append(f"{name}: {wrong}")
        except EXPECTED as error:
            self.say(f"{name}: {error}")
            self.report["skipped"][name] = str(error)

    def listener(self) -> closing[Listener]:
        """Return a socket of the bench's own for shims, for as long as the context lasts."""
        return closing(Listener(Path(tempfile.mkdtemp(dir=self.folder))))

    def write(self) -> None:
        """Write what was found so far."""
        self.report["ratios"] = self.ratios()
        if self.options.json is not None:
            self.options.json.write_text(json.dumps(self.report, indent=2) + "\n")


def _machine(gpu: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": gpu["gpu"],
        "gpu_bytes": gpu["gpu_bytes"],
        "cuda_version": gpu["cuda_version"],
        "driver_version": _driver_version(),
        "cores": os.cpu_count(),
        "host_bytes": host_memory().total_bytes,
        "linux": platform.release(),
        "python": platform.python_version(),
        "version": __version__,
    }


def _check_warm(size: int) -> None:
    """Raise DoesNotFit if `size` is more than the machine has: touching that would end a process."""
    total = host_memory().total_bytes
    if size > total:
        raise DoesNotFit(f"--warm-host {size / GIB:g} is more than the machine has, {total / GIB:.4g} GiB")


def _driver_version() -> str | None:
    """Return the version of the real driver's kernel module."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None


def _ended(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(_size, text.split(",")))


def _size(text: str) -> int:
    gib = number(0, GIB_MAX, above=True)(text)
    try:
        return whole_chunks(str(gib))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
