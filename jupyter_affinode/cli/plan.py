"""`jupyter affinode plan`: how many users share a machine's GPUs."""

from __future__ import annotations

from typing import Any

from ..planner.command import add_options, run

DESCRIPTION = """Replay a trace, or a made notebook workload, through the controller's own policy with a virtual
clock: how long cells wait, how many GPU-hours are spared against reserving GPUs, killing idle kernels, and sharing
without yielding; with --search, how many users a machine serves. Needs no GPU. What is published, what is assumed
and what a trace looks like: the docstrings of jupyter_affinode.planner.workload and .trace."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "plan", help="simulate how many users share a machine's GPUs", description=DESCRIPTION
    )
    add_options(parser)
    parser.set_defaults(command=run)
