"""`jupyter affinode park | resume | hold | release`: move one kernel's GPU state, or keep it where it is."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from typing import Any

from ...client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from ...kernel.magics import parse_duration
from ...units import duration_in_words
from ..kernel_argument import NoSuchKernel, add_kernel_argument, find_kernel, short_id
from ..output import failed, refusal_in_words

HELP = {
    "park": "free a kernel's GPU now; the next use of CUDA gets it back",
    "resume": "get a kernel's GPU back now",
    "hold": "keep a kernel on the GPU for a while although idle",
    "release": "stop keeping a kernel on the GPU",
}


def add(commands: Any) -> None:
    """Add the commands."""
    for action, words in HELP.items():
        parser = commands.add_parser(action, help=words, description=words[0].upper() + words[1:] + ".")
        add_kernel_argument(parser)
        if action == "hold":
            parser.add_argument(
                "duration",
                metavar="DURATION",
                nargs="?",
                default="",
                help="90s, 30m, 1h, 1h30m (default: the site's)",
            )
        parser.add_argument("--json", action="store_true", help="print the kernel, or the error, as JSON")
        parser.set_defaults(command=act, action=action)


def act(arguments: argparse.Namespace) -> int:
    """Carry out the action and print the kernel's state afterwards; return 1, with the reason on standard error, if
    it was refused.
    """
    try:
        kernel = asyncio.run(_act(arguments))
    except ValueError:
        words = f"{arguments.duration} is no time; say 90s, 30m, 1h or 1h30m."
        return failed(arguments, "bad-request", words)
    except NoSuchKernel as error:
        return failed(arguments, "unknown-kernel", str(error))
    except (ControllerUnavailable, ControllerRefused) as error:
        return failed(arguments, *refusal_in_words(error))
    print(json.dumps(kernel, indent=2) if arguments.json else _done_text(arguments, kernel))
    return 0


def _done_text(arguments: argparse.Namespace, kernel: dict[str, Any]) -> str:
    """Return the kernel's state in words, that nothing was moved, and how much of the asked time was not granted."""
    text = f"{short_id(kernel['id'])}: {kernel['text']}"
    if "nothing_moved" in kernel:
        text += f"\nNothing was moved: {kernel['nothing_moved']['text']}."
    asked_s = parse_duration(arguments.duration) if arguments.action == "hold" else None
    held_s = kernel["held_for_s"]
    if asked_s is None or held_s is None or math.ceil(held_s) >= asked_s:
        return text
    asked, held = duration_in_words(asked_s), duration_in_words(math.ceil(held_s))
    return f"{text}\n{asked} is more than this machine allows: the kernel is kept for {held}."


async def _act(arguments: argparse.Namespace) -> dict[str, Any]:
    options = {}
    if arguments.action == "hold":
        duration_s = parse_duration(arguments.duration)
        if duration_s == 0:
            raise ValueError(arguments.duration)
        options = {"duration_s": duration_s}
    client = ControllerClient()
    kernel = find_kernel(await client.kernels(), arguments.kernel)
    moved: dict[str, Any] = await getattr(client, arguments.action)(kernel["id"], **options)
    return moved
