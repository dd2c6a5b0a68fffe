"""`jupyter affinode`: see and move kernels' GPU state, find out what works, start things so that they are
managed.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from .._version import __version__
from . import (
    actions,
    bench,
    clean,
    doctor,
    grant,
    kernelspec,
    monitoring,
    plan,
    report,
    room,
    run,
    simulate,
    status,
    systemd_unit,
)


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of `jupyter-affinode`; the exit status: 0 done, 1 refused or failed, 2 used wrongly."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["node"]:  # a traitlets application, with options of its own
        from ..node.app import main as node

        return node(arguments[1:]) or 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not have a character of a name
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.command(parsed))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `… | head`: the reader has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line, without pages of usage; commands get parsers of this class, too."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}. Help: {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="jupyter affinode",
        description="Free the GPU of idle kernels, and get it back with every tensor where it was.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    status.add(commands)
    actions.add(commands)
    clean.add(commands)
    room.add(commands)
    report.add(commands)
    monitoring.add(commands)
    doctor.add(commands)
    bench.add(commands)
    plan.add(commands)
    commands.add_parser("node", help="run the controller (the first managed kernel starts it, too)")
    systemd_unit.add(commands)
    grant.add(commands)
    run.add(commands)
    kernelspec.add(commands)
    simulate.add(commands)
    return parser
