"""`jupyter affinode doctor`: what works here and why not."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..doctor.checks import report

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def add(commands: Any) -> None:
    """Add the command."""
    words = "say what works on this machine and why not"
    parser = commands.add_parser("doctor", help=words, description=words[0].upper() + words[1:] + ".")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 if any of them keeps kernels from being managed."""
    found = report()
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        for check in found["checks"]:
            print(f"{MARKS[check['level']]}  {check['name']}: {check['text']}")
            if check["advice"]:
                print(f"      {check['advice']}")
    return 0 if found["ok"] else 1
