"""`jupyter affinode systemd-unit`: the unit of the machine's controller, for this installation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ... import node

UNIT = Path(node.__file__).with_name("affinode.service")
DESCRIPTION = """Print the systemd unit of the one controller for all users of this machine. To install it, as
root: jupyter affinode systemd-unit > /etc/systemd/system/affinode.service && systemctl enable --now affinode.
Users' own controllers give way to it within a second or two; nothing of their kernels is lost."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "systemd-unit", help="print the unit of a controller for all users", description=DESCRIPTION
    )
    parser.set_defaults(command=print_unit)


def print_unit(arguments: argparse.Namespace) -> int:
    """Print it."""
    print(unit_text(sys.executable), end="")
    return 0


def unit_text(python: str) -> str:
    """Return the unit, with the path of its Python quoted for systemd."""
    escaped = python.replace("\\", "\\\\").replace("%", "%%")
    return UNIT.read_text(encoding="utf-8").replace("@PYTHON@", f'"{escaped}"' if " " in escaped else escaped)
