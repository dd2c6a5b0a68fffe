"""`jupyter affinode monitoring`: the package's dashboard, alert rules and example for an autoscaler."""

from __future__ import annotations

import argparse
from typing import Any

from ...monitoring import FILES, text


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "monitoring",
        help="print a Grafana dashboard, Prometheus alert rules or an autoscaler's example",
        description="Print what operators load into their own tools. "
        + "; ".join(f"{name}: {words}" for name, (_, words) in FILES.items())
        + ".",
    )
    parser.add_argument("name", choices=FILES, metavar="|".join(FILES))
    parser.set_defaults(command=show)


def show(arguments: argparse.Namespace) -> int:
    """Print it."""
    print(text(arguments.name), end="")
    return 0
