"""`jupyter affinode report`: GPU memory used, idle and freed by user, and waits."""

from __future__ import annotations

import argparse
import asyncio
import csv
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

from ... import environment
from ...client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from ...node.ledger.report import GROUPS, Question, ReportRefused, csv_rows, report
from ...units import duration_in_words, in_columns

DESCRIPTION = """Report GPU memory used, idle and freed, in GiB times hours, with moves, waits and refusals.
Days are UTC. ON GPU is memory on the GPU; USED the part of it while the kernel was at work; IDLE the rest;
FREED is what was safe in RAM while others could have the GPU. FREES counts how often GPU memory was freed, BACK
how often it came back. You see your own figures, administrators all."""
HEADINGS = {
    "held_gib_hours": "ON GPU",
    "used_gib_hours": "USED",
    "idle_gib_hours": "IDLE",
    "given_back_gib_hours": "FREED",
    "parks": "FREES",
    "resumes": "BACK",
    "refusals": "REFUSED",
    "waits": "WAITS",
    "waited_p50_s": "P50",
    "waited_p95_s": "P95",
    "waited_most_s": "LONGEST",
}


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report", help="show how much each user used the GPUs", description=DESCRIPTION
    )
    parser.add_argument(
        "--since", metavar="DAY", help="first day, 2026-01-31, or so many days, 7d (default: 30d)"
    )
    parser.add_argument("--until", metavar="DAY", help="last day (default: today)")
    parser.add_argument("--by", choices=GROUPS, default="user", help="one row for each (default: user)")
    parser.add_argument("--user", metavar="NAME", help="this user alone")
    parser.add_argument(
        "--ledger", metavar="FILE", type=Path, help="read this file instead of asking a controller"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV")
    parser.set_defaults(command=show)


def show(arguments: argparse.Namespace) -> int:
    """Print the report; return 1 if there is none."""
    try:
        answer = _answer(arguments)
    except (ReportRefused, ControllerRefused, environment.FolderRefused) as refused:
        print(f"jupyter affinode report: {refused}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(answer, indent=2))
    elif arguments.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_rows(answer))
    else:
        print(report_text(answer))
    return 0


def _answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """Ask the controller; if none runs, read the ledger that the last one wrote."""
    asked = {name: getattr(arguments, name) for name in ("since", "until", "by", "user")}
    question = Question.of(datetime.datetime.now(datetime.timezone.utc).date(), **asked)
    if arguments.ledger is not None:
        return report(arguments.ledger, question)
    try:
        return asyncio.run(ControllerClient().report(**asked))
    except ControllerUnavailable:
        return report(_left_ledger(), question)


def _left_ledger() -> Path:
    """Return the path of the last controller's ledger: the machine's, if the user may read it and named no other
    socket."""
    if not os.environ.get(environment.SOCKET) and os.access(environment.NODE_LEDGER, os.R_OK):
        return environment.NODE_LEDGER
    return environment.ledger_path(environment.socket_path())


def report_text(answer: dict[str, Any]) -> str:
    """Return the report as a table."""
    by = answer["by"]
    rows = [[by.upper(), *HEADINGS.values()]]
    rows += [[row[by] or "-", *_cells(row)] for row in answer["rows"]]
    if len(answer["rows"]) > 1:
        rows.append(["all", *_cells(answer["total"])])
    lines = in_columns(rows, figures=True)
    period = (
        answer["since"] if answer["since"] == answer["until"] else f"{answer['since']} to {answer['until']}"
    )
    lines.insert(0, f"GPU memory in GiB times hours, {period} (UTC)")
    lines.append(f"Measured for {answer['measured_hours']:.1f} h of that time.")
    if answer["refusals"]:
        told = ", ".join(f"{each['of']} {each['reason']} {each['count']}" for each in answer["refusals"])
        lines.append(f"Refused or failed: {told}")
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    cells = []
    for name in HEADINGS:
        value = row[name]
        if name.endswith("_gib_hours"):
            cells.append("<0.01" if 0 < value < 0.005 else f"{value:.2f}")
        elif name.endswith("_s"):
            cells.append("-" if value is None else duration_in_words(value))
        else:
            cells.append(str(value))
    return cells
