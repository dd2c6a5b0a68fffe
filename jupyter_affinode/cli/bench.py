"""`jupyter affinode bench`: how fast this machine parks and resumes."""

from __future__ import annotations

from typing import Any

from ..bench.command import add_options, run

DESCRIPTION = """Measure, in one run on this machine, what a pinned copy and jupyter-affinode take to move GPU
memory. Uses the first GPU, in processes of its own; other programs on the GPU
disturb the figures and are not disturbed. With the simulated GPU it runs too; no figure is GPU performance then."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench", help="measure how fast GPU memory is parked and resumed here", description=DESCRIPTION
    )
    add_options(parser)
    parser.set_defaults(command=run)
