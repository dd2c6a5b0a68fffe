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
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from .. import environment
from .._version import __version__
from ..client.errors import ControllerUnavailable
from ..node.system.host_memory import host_memory
from ..provisioning import preload as launch_environment
from ..units import number, whole
from . import exchange as exchanges
from . import measure
from . import resume_latency as wake
from .chart import picture
from .child_process import BenchProcess, ChildFailed
from .report import Report, ratios, table
from .shim_peer import Listener, MoveFailed
from .sizes import GIB, PARTS, DoesNotFit, Plan, Room, make_plan, whole_chunks

FORMAT = 1
REPEATS_MAX, LONGEST_S = 10_000, 7 * 86400.0
GIB_MAX = 1e6  # of a size
WAKE_BYTES = 1 * GIB
WITHOUT_SHIM = {"ceiling", "driver"}
EXPECTED = (
    ChildFailed,
    MoveFailed,
    ControllerUnavailable,
    wake.NotParked,
    OSError,
    launch_environment.Unmanaged,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--sizes", metavar="GIB,…", type=_sizes, default=(), help="how much to hold (1,8,32)")
    parser.add_argument("--zeros", metavar="GIB", type=_zeros, help="how much of zeros (64; 0 for none)")
    parser.add_argument(
        "--repeats",
        metavar="N",
        type=whole(1, REPEATS_MAX),
        help="of what is repeated; medians are shown (3)",
    )
    parser.add_argument("--quick", action="store_true", help="one size, once")
    parser.add_argument(
        "--parts", metavar="NAME,…", type=_parts, default=PARTS, help=f"only these of {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--exchange",
        action="store_true",
        help="only this: two processes change places, of the largest of --sizes",
    )
    parser.add_argument(
        "--depth", choices=["memory", "context"], default="memory", help="context: measure that depth as well"
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
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw it there")


def run(options: argparse.Namespace) -> int:
    """Measure; return 0 if all went well, 1 if something could not be measured or was wrong."""
    before = signal.signal(signal.SIGTERM, _ended)
    folder = Path(tempfile.mkdtemp(prefix="affinode-bench-", dir="/tmp"))
    try:
        return _Run(options, folder).go()
    except DoesNotFit as refused:
        print(f"jupyter affinode bench: {refused}.", file=sys.stderr)
    except (*EXPECTED, environment.SimulationRefused) as error:
        print(f"jupyter affinode bench: {error}", file=sys.stderr)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
    return 1


class _Run:
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
            "driver": {"cases": [], "skipped": None},
            "ours": [],
            "wake_bytes": 0,
            "wake": {},
            "exchange": None,
            "skipped": {},
            "wrong": [],
            "ratios": {},
        }

    def go(self) -> int:
        """Measure everything, in order of what matters most if time runs out; return the exit status."""
        report, options = self.report, self.options
        if environment.shim_path() is None and not set(options.parts) <= WITHOUT_SHIM:
            raise launch_environment.Unmanaged(
                "this installation has no libaffinode.so, so only the parts"
                f" {', '.join(sorted(WITHOUT_SHIM))} can be measured"
            )
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
            zeros=options.zeros,
            repeats=options.repeats,
        )
        report["wake_bytes"] = min(WAKE_BYTES, plan.largest)
        for name, part in self._parts(plan, room):
            self._attempt(name, part)
            self._write()
        report["complete"] = not report["skipped"]
        self._write()
        print(table(report))
        for wrong in report["wrong"]:
            print(f"WRONG: {wrong}", file=sys.stderr)
        return int(bool(report["wrong"] or report["skipped"]))

    def say(self, line: str) -> None:
        """Print a line of progress."""
        print(f"[{time.monotonic() - self.began:6.1f} s] {line}", file=sys.stderr, flush=True)

    def _parts(self, plan: Plan, room: Room) -> list[tuple[str, Callable[[], None]]]:
        """Return what is measured, what matters most first."""
        if self.options.exchange:
            return [("exchange", partial(self._exchange, plan))]
        parts: list[tuple[str, Callable[[], None]]] = [("ceiling", partial(self._ceiling, room))]
        for size in reversed(plan.sizes):
            block = min(plan.blocks[0], size)
            parts.append(("ours", partial(self._moves, size, block, plan.repeats, thorough=True)))
        parts.append(("wake", partial(self._wake, plan)))
        if plan.zeros:
            parts.append(("zeros", partial(self._zeros, plan)))
        for block in plan.blocks[1:]:
            parts.append(("blocks", partial(self._moves, plan.largest, block, plan.repeats, thorough=False)))
        parts += [("lot", partial(self._lot, plan)), ("driver", partial(self._driver, plan))]
        chosen = [part for part in parts if part[0] in self.options.parts]
        is_deep = self.options.depth == "context"
        return chosen + ([("context depth", partial(self._context, plan))] if is_deep else [])

    def _ceiling(self, room: Room) -> None:
        self.report["ceiling"] = measure.ceiling(self.report["simulated"], min(room.gpu, room.host), self.say)

    def _driver(self, plan: Plan) -> None:
        self.report["driver"] = measure.driver_checkpoint(plan.sizes, self.say)
        self._skip("driver", self.report["driver"]["skipped"])

    def _moves(self, size: int, block: int, repeats: int, *, thorough: bool) -> None:
        with self._listener() as listener:
            self.report["ours"] += measure.moves(listener, size, block, repeats, self.say, thorough=thorough)

    def _lot(self, plan: Plan) -> None:
        with self._listener() as listener:
            rows, why = measure.first_park_with_lot(listener, plan.largest, self.say)
        self.report["ours"] += rows
        self._skip("lot", why)

    def _zeros(self, plan: Plan) -> None:
        with self._listener() as listener:
            self.report["ours"] += measure.zeros(listener, plan.zeros, plan.repeats, self.say)

    def _context(self, plan: Plan) -> None:
        with self._listener() as listener:
            rows, why = measure.context_depth(listener, plan.largest, plan.repeats, self.say)
        self.report["ours"] += rows
        self._skip("context depth", why)

    def _exchange(self, plan: Plan) -> None:
        with self._listener() as listener:
            self.report["exchange"] = exchanges.exchange(
                listener, plan.largest, plan.repeats, self.say, simulated=self.report["simulated"]
            )

    def _wake(self, plan: Plan) -> None:
        size, times = self.report["wake_bytes"], self.report["wake"]
        with self._listener() as listener:
            times["commanded at once"] = measure.wake_by_peer(listener, size, 2 * plan.repeats, self.say)
        own = self.folder / "controller"
        own.mkdir(mode=0o700, exist_ok=True)
        times["through a controller"] = wake.wake_by_controller(own, size, 2 * plan.repeats, self.say)

    def _skip(self, part: str, why: str | None) -> None:
        if why is not None:
            self.report["skipped"][part] = why

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

    def _listener(self) -> closing[Listener]:
        return closing(Listener(Path(tempfile.mkdtemp(dir=self.folder))))

    def _write(self) -> None:
        self.report["ratios"] = ratios(self.report)
        if self.options.json is not None:
            self.options.json.write_text(json.dumps(self.report, indent=2) + "\n")
        if self.options.svg is not None:
            self.options.svg.write_text(picture(self.report))


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


def _zeros(text: str) -> int:
    return 0 if number(0, GIB_MAX)(text) == 0 else _size(text)


def _size(text: str) -> int:
    gib = number(0, GIB_MAX, above=True)(text)
    try:
        return whole_chunks(str(gib))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parts(text: str) -> Sequence[str]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no part {unknown[0]!r}, only {', '.join(PARTS)}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m jupyter_affinode.bench`; return its exit status."""
    parser = argparse.ArgumentParser(prog="jupyter affinode bench", description=__doc__)
    add_options(parser)
    try:
        return run(parser.parse_args(argv))
    except KeyboardInterrupt:
        return 130
