"""`jupyter affinode plan` from its options to its answer."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from .._version import __version__
from ..settings.declaration import SettingsRefused
from ..settings.policy import Settings
from ..units import number, whole
from .model.baselines import Culling
from .model.machine import GIB, BenchUnusable, Machine, Speeds, speeds_from_bench
from .model.sessions import ImpossiblePlan
from .model.simulation import ModelBroken
from .notebookos import read_notebookos
from .report import plan_text
from .search import most_users
from .strategies import WAYS, Plan, answer
from .trace import TraceError, read_trace
from .workload import HOUR_S, Spread, Workload

FORMAT = 1
SHOWN_EVERY_S, LOGGED_EVERY_S = 0.5, 10.0  # between two lines of progress
HOST_BYTES_PER_GPU = 256 * GIB  # servers with eight large GPUs often have 2 TiB; an assumption
# Bounds of options: far more than a site has, and few enough that a plan comes to its end.
GPUS_MAX, GIB_MAX = 1024, 1e6
USERS_MAX, DAYS_MAX, SEED_MAX = 100_000, 366, 1 << 63
SHARE_MIN = 0.001  # of their time that users use the GPU
TIME_MAX_S = 7 * 86400.0
SPREAD_MAX = 10.0  # the 75th percentile over the median
_WORKLOAD = Workload()
DESCRIPTION = """Replay a trace, or a made notebook workload, through the controller's own policy with a virtual
clock: how long cells wait, how many GPU-hours are spared against reserving GPUs, killing idle kernels, and sharing
^without parking; with --search, how many users a machine serves. Needs no GPU. What is published, what is assumed
and what a trace looks like: the docstrings of workload.py and trace.py."""


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "plan", help="simulate how many users share a machine's GPUs", description=DESCRIPTION
    )
    add_options(parser)
    parser.set_defaults(command=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    _add_machine(parser)
    _add_users(parser)
    _add_ways(parser)
    _add_answer(parser)


def _add_rows(group: argparse._ArgumentGroup, *rows: tuple[str, str, Callable[[str], Any], Any, str]) -> None:
    """Add options: name, unit, type, default and help of each."""
    for option, metavar, kind, default, help_text in rows:
        group.add_argument(option, metavar=metavar, type=kind, default=default, help=help_text)


def _add_machine(parser: argparse.ArgumentParser) -> None:
    size, rate, part = number(0, GIB_MAX), number(0, GIB_MAX, above=True), number(0, 1, above=True)
    hibernate_help = (
        "kernels can hibernate, when parked for so long; 0: only where host memory is short (none can)"
    )
    share_help = "of a GPU's compute that one running cell could use; 1, the worst case, is an assumption"
    _add_rows(
        parser.add_argument_group("the machine"),
        ("--gpus", "N", whole(1, GPUS_MAX), 1, "how many GPUs (1)"),
        ("--gpu-memory", "GIB", size, 140, "of each (140, an H200)"),
        ("--host-memory", "GIB", size, None, "of the machine (256 a GPU)"),
        ("--disk", "GIB", size, 0, "how much parked memory may be on a local disk (0: no spill_dir)"),
        ("--disk-rate", "GIB", rate, 2, "of it a second, written or read (2, an assumption)"),
        ("--hibernate-after", "S", number(0, TIME_MAX_S), None, hibernate_help),
        ("--context", "MIB", size, 620, "a CUDA context's size on the GPU (620)"),
        ("--compute-share", "PART", part, 1.0, share_help),
        ("--bench", "FILE", Path, None, "speeds from `jupyter affinode bench --json`"),
    )


def _add_users(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what users do")
    what.add_argument("--trace", metavar="FILE", type=Path, help="replay this (CSV or JSON Lines)")
    what.add_argument(
        "--trace-format",
        choices=("cells", "notebookos"),
        default="cells",
        help="a line for each cell (cells), or the JSON workload templates of NotebookOS",
    )
    many, seed, usual = whole(1, USERS_MAX), whole(-SEED_MAX, SEED_MAX), _WORKLOAD
    _add_rows(
        what,
        ("--users", "N", many, None, "how many; of a trace: its first, or again and again"),
        ("--days", "N", whole(1, DAYS_MAX), usual.days, "working days (5)"),
        ("--seed", "N", seed, usual.seed, "of everything random (1)"),
    )
    _add_spreads(what)
    what.add_argument(
        "--starts",
        dest="starts_h",
        metavar="H,H",
        type=_hours,
        default=usual.starts_h,
        help="users come evenly between these hours of the day (8,11)",
    )
    share = number(SHARE_MIN, 1)
    _add_rows(
        what,
        ("--busy-users", "PART", number(0, 1), usual.busy_users, "(0.25)"),
        ("--busy-share", "PART", share, usual.busy_share, "of their time on the GPU (0.61)"),
        ("--quiet-share", "PART", share, usual.quiet_share, "the others' (0.05)"),
    )


def _add_spreads(what: argparse._ArgumentGroup) -> None:
    spreads = {
        "--run": ("run_s", "S", 1.0, number(0.001, TIME_MAX_S), "a cell on the GPU"),
        "--think": ("think_s", "S", 1.0, number(0.001, TIME_MAX_S), "from a cell to the next"),
        "--break": ("break_s", "S", 1.0, number(1, TIME_MAX_S), "a break, instead"),
        "--session": ("session_s", "H", HOUR_S, number(0.01, TIME_MAX_S / HOUR_S), "a session"),
        "--footprint": ("footprint", "GIB", GIB, number(0.001, GIB_MAX), "GPU memory of a session"),
    }
    for option, (name, unit, scale, one, help_text) in spreads.items():
        usual: Spread = getattr(_WORKLOAD, name)
        what.add_argument(
            option,
            dest=name,
            metavar=f"{unit}[,{unit}]",
            type=_spread(scale, usual, one),
            default=usual,
            help=f"{help_text}: median and 75th percentile ({usual.median / scale:g},{usual.p75 / scale:g})",
        )


def _add_ways(parser: argparse.ArgumentParser) -> None:
    ways = parser.add_argument_group("ways of sharing")
    ways.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting of the controller (c.NodeController.NAME), for example idle_timeout_s=60",
    )
    seconds, usual = number(0, TIME_MAX_S), Culling()
    _add_rows(
        ways,
        ("--ways", "NAME,…", _ways, WAYS, f"only these of {', '.join(WAYS)}"),
        ("--cull-after", "S", seconds, usual.timeout_s, "(3600)"),
        ("--rebuild", "S", seconds, usual.rebuild_s, "to build lost state again (120, assumed)"),
    )


def _add_answer(parser: argparse.ArgumentParser) -> None:
    out = parser.add_argument_group("the answer")
    out.add_argument(
        "--search",
        metavar="S",
        type=number(0, TIME_MAX_S),
        help="find how many users a machine serves with a p95 wait of at most S",
    )
    out.add_argument("--json", metavar="FILE", type=Path, help="write everything there")
    out.add_argument("--quiet", action="store_true", help="no progress")


def run(options: argparse.Namespace) -> int:
    """Plan and print the answer; return 0, or 1 with one line on stderr."""
    progress = Progress(quiet=options.quiet)
    try:
        plan = make_plan(options)
        report = make_report(options, plan, progress)
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=2) + "\n")
    except (ImpossiblePlan, SettingsRefused, TraceError, BenchUnusable, ModelBroken, OSError) as error:
        progress.clear()
        print(f"jupyter affinode plan: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        progress.clear()
        print("jupyter affinode plan: cancelled", file=sys.stderr)
        return 130
    progress.clear()
    print(plan_text(report))
    return 0


def make_plan(options: argparse.Namespace) -> Plan:
    """Return the plan that the options ask for. Raises ImpossiblePlan, SettingsRefused, TraceError, BenchUnusable,
    OSError.
    """
    host = (
        options.gpus * HOST_BYTES_PER_GPU if options.host_memory is None else int(options.host_memory * GIB)
    )
    machine = Machine(
        gpus=options.gpus,
        gpu_bytes=int(options.gpu_memory * GIB),
        host_bytes=host,
        disk_bytes=int(options.disk * GIB),
        context_bytes=int(options.context * (1 << 20)),
        compute_share=options.compute_share,
        hibernate_after_s=options.hibernate_after,
    )
    speeds = Speeds() if options.bench is None else speeds_from_bench(options.bench)
    plan = Plan(
        machine=machine,
        speeds=replace(speeds, disk_bytes_per_s=options.disk_rate * GIB),
        settings=Settings().changed(**dict(map(_setting, options.set))),
        culling=Culling(options.cull_after, options.rebuild),
        ways=options.ways,
    )
    if options.trace is not None:
        read = read_notebookos if options.trace_format == "notebookos" else read_trace
        plan = replace(plan, trace=tuple(read(options.trace)))
        return plan if options.users is None else plan.with_users(options.users)
    names = {field.name for field in fields(Workload)} & vars(options).keys() - {"users"}
    workload = Workload(**{name: getattr(options, name) for name in names})
    return replace(plan, workload=workload if options.users is None else workload.with_users(options.users))


def make_report(options: argparse.Namespace, plan: Plan, progress: Progress) -> dict[str, Any]:
    """Replay or search; return everything, ready for JSON. Raises as `answer`."""
    defaults = Settings().as_dict()
    report: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "machine": asdict(plan.machine),
        "speeds": asdict(plan.speeds),
        "settings": plan.settings.as_dict(),
        "settings_changed": {
            name: value for name, value in plan.settings.as_dict().items() if value != defaults[name]
        },
        "workload": None if plan.workload is None else asdict(plan.workload),
        "trace": None if options.trace is None else str(options.trace),
        "culling": asdict(plan.culling),
        "answer": None,
        "search": None,
    }
    if options.search is not None:
        report["search"] = most_users(plan, options.search, progress.say)
    else:
        report["answer"] = answer(plan, progress.say)
    return report


class Progress:
    """The last line of progress on stderr, where that is a terminal; elsewhere a line now and then."""

    def __init__(self, *, quiet: bool):
        self._is_quiet = quiet
        self._is_terminal = sys.stderr.isatty()
        self._said_at = -math.inf

    def say(self, text: str) -> None:
        """Show how far it is."""
        now = time.monotonic()
        if self._is_quiet or now - self._said_at < (SHOWN_EVERY_S if self._is_terminal else LOGGED_EVERY_S):
            return
        self._said_at = now
        sys.stderr.write(f"\r\x1b[K{text}" if self._is_terminal else f"{text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._is_terminal and not self._is_quiet:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise SettingsRefused(f"--set takes NAME=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, {"True": True, "False": False, "None": None}.get(value, value)


def _spread(scale: float, usual: Spread, one: Callable[[str], float]) -> Callable[[str], Spread]:
    def parse(text: str) -> Spread:
        parts = [one(part) * scale for part in text.split(",", 2)]
        if len(parts) > 2:
            raise ValueError(text)
        spread = Spread(parts[0], parts[-1] if len(parts) == 2 else parts[0] * usual.p75 / usual.median)
        if not spread.median <= spread.p75 <= SPREAD_MAX * spread.median:
            raise argparse.ArgumentTypeError(
                f"the 75th percentile must be from 1 to {SPREAD_MAX:g} times the median, not {text!r}"
            )
        return spread

    parse.__name__ = "median and 75th percentile"  # argparse names it in its error
    return parse


def _hours(text: str) -> tuple[float, float]:
    first, last = map(number(0, 24), text.split(","))
    return first, last


_hours.__name__ = "two hours of the day"


def _ways(text: str) -> Sequence[str]:
    names = tuple(text.split(","))
    if not set(names) <= set(WAYS):
        raise argparse.ArgumentTypeError(f"there are {', '.join(WAYS)}")
    return names
