"""`jupyter affinode doctor`: what works here and why not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from ...doctor.checks import report
from ..output import folded

GROUPS = {"works": "Works", "needs-you": "Needs you", "details": "Details"}


def add(commands: Any) -> None:
    """Add the command."""
    words = "say what works on this machine, what needs you, and the details"
    parser = commands.add_parser("doctor", help=words, description=words[0].upper() + words[1:] + ".")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if any of them keeps kernels from being managed."""
    found = report()
    print(json.dumps(found, indent=2) if arguments.json else doctor_text(found["checks"]))
    return 0 if found["ok"] else 1


def doctor_text(checks: list[dict[str, Any]]) -> str:
    """Return the findings in three groups: what works, what needs the user, and the details."""
    width = max(len(check["name"]) for check in checks)
    blocks = []
    for group, title in GROUPS.items():
        lines = [
            folded(line, first=f"  {check['name']:<{width}}  " if number == 0 else " " * (width + 4))
            for check in checks
            for number, line in enumerate(_lines(check, group))
        ]
        blocks.append("\n".join([title, *(lines or ["  nothing"])]))
    return "\n\n".join(blocks)


def _lines(check: dict[str, Any], group: str) -> Iterator[str]:
    """Yield what a check says in a group."""
    if check["group"] == group:
        yield check["text"]
        if check["advice"]:
            yield check["advice"]
    if group == "details" and check["details"]:
        yield check["details"]
