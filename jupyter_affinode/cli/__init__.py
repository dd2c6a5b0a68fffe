"""`jupyter affinode`: see and move kernels' GPU state, find out what works, start things so that they are
managed.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from .._version import __version__

# By module, from this package. Only the module of the command is imported: all of them take longer than most commands.
COMMANDS = {
    ".kernels.status": ("status",),
    ".kernels.actions": ("park", "resume", "hold", "release"),
    ".kernels.kept": ("kept", "hibernate", "wake"),
    ".kernels.warm": ("warm",),
    ".kernels.clean": ("clean",),
    ".machine.room": ("room",),
    ".machine.report": ("report",),
    ".machine.monitoring": ("monitoring",),
    ".machine.doctor": ("doctor",),
    "..bench.command": ("bench",),
    "..planner.command": ("plan",),
    ".machine.systemd_unit": ("systemd-unit",),
    ".machine.grant": ("grant",),
    ".programs.run": ("run",),
    ".machine.slurm": ("slurm",),
    ".programs.kernelspec": ("kernelspec",),
    ".programs.simulate": ("simulate",),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `jupyter-affinode`; return the exit status: 0 done, 1 refused or failed, 2 used wrongly."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["node"]:  # a traitlets application, with options of its own
        from ..node.app import main as node

        return node(arguments[1:]) or 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not have a character of a name
    parsed = _parser(*arguments[:1]).parse_args(arguments)
    try:
        return int(parsed.command(parsed))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `… | head`: the reader has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class CommandParser(argparse.ArgumentParser):
    """A parser that reports an error in one line, without pages of usage; the commands' parsers are of this class,
    too."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}. Help: {self.prog} --help\n")


def _parser(command: str = "") -> argparse.ArgumentParser:
    """Return the parser of one command, or of all commands if none has that name: for help and errors."""
    parser = CommandParser(
        prog="jupyter affinode",
        description="Free the GPU of idle kernels, and get it back with every tensor where it was.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    asked = [module for module, names in COMMANDS.items() if command in names]
    for module in asked or COMMANDS:
        import_module(module, __package__).add(commands)
    if not asked:
        commands.add_parser("node", help="run the controller (the first managed kernel starts it, too)")
    return parser
