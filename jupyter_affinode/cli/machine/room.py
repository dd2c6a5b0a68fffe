"""`jupyter affinode room SIZE`: make room on a GPU for a program that is about to start."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from typing import Any

from ...client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from ...units import bound_in_words, number, ordinal, sentence, size_in_bytes, whole
from ..output import failed, refusal_in_words

DESCRIPTION = """Free the GPU memory of idle kernels until a GPU has room for SIZE, as for a kernel's first allocation,
and say how that stands. Nothing is reserved: the first kernel that allocates has the room. Ctrl-C withdraws the
request."""
REFUSED, NO_CONTROLLER = 1, 3


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "room", help="make room on a GPU for what is about to start", description=DESCRIPTION
    )
    parser.add_argument("size", metavar="SIZE", type=_size, help="20GiB, 512MiB, or a number of bytes")
    parser.add_argument(
        "--timeout",
        type=number(0, 600),
        default=10.0,
        metavar="SECONDS",
        help="wait so long at most (default: 10)",
    )
    parser.add_argument(
        "--user", help="for that user of this machine, or hub:NAME of a grant; administrators alone"
    )
    parser.add_argument("--priority", type=whole(-5, 5), help="lowers the class; administrators may raise it")
    parser.add_argument("--json", action="store_true", help="print each line as the controller sends it")
    parser.set_defaults(command=room)


def room(arguments: argparse.Namespace) -> int:
    """Print how the request stands. Return 0 if there is room, 1 if it was refused or timed out, 3 if no controller
    runs."""
    try:
        return asyncio.run(_room(arguments))
    except ControllerUnavailable as error:
        return failed(arguments, *refusal_in_words(error), status=NO_CONTROLLER)
    except ControllerRefused as error:
        return failed(arguments, *refusal_in_words(error), status=REFUSED)


async def _room(arguments: argparse.Namespace) -> int:
    lines = ControllerClient().room(
        arguments.size, user=arguments.user, priority=arguments.priority, timeout_s=arguments.timeout
    )
    said, line = "", None
    async with contextlib.aclosing(lines):
        async for line in lines:
            text = json.dumps(line) if arguments.json else _text(line)
            if text and text != said:
                is_refusal = line["state"] == "refused" and not arguments.json
                print(text, file=sys.stderr if is_refusal else sys.stdout, flush=True)
            said = text
    if line is None or line["state"] == "waiting":
        raise ControllerUnavailable("the controller ended")
    return 0 if line["state"] == "done" else REFUSED


def _text(line: dict[str, Any]) -> str:
    """Return a line for users; "" where there is nothing to say yet."""
    text = str(line["text"])
    if line["state"] == "waiting" and text:
        if line["waiting"] > 1 and line["place"]:
            text = f"{ordinal(line['place'])} of {line['waiting']} in line: {text}"
        text += f"; {bound_in_words(line['estimate_s'])}"
    return sentence(text)


def _size(text: str) -> int:
    try:
        size = size_in_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not size:
        raise argparse.ArgumentTypeError("must be more than 0 bytes")
    return size
