"""`jupyter affinode clean`: processes that can make no progress any more, and ending them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from ...client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from ...units import whole
from ..kernel_argument import NoSuchKernel, find_kernel, short_id

PROCESS_MAX = 1 << 53  # the controller numbers them from 1


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "clean",
        help="list processes that are stuck, and end them",
        description="List the managed processes that can make no progress any more and have GPU or host memory, "
        "each with the reason. With KERNEL, end those of that kernel: the process is asked to end, and killed if it "
        "does not. A process that is not stuck is never ended.",
    )
    parser.add_argument(
        "kernel",
        metavar="KERNEL",
        nargs="?",
        help="a kernel's id or its beginning, or its notebook's path or name: end its stuck processes",
    )
    parser.add_argument(
        "--process", type=whole(1, PROCESS_MAX), metavar="NUMBER", help="of these, only this one, as listed"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=clean, parser=parser)


def clean(arguments: argparse.Namespace) -> int:
    """List stuck processes, or end them; return 1, with the reason on standard error, if that was refused."""
    if arguments.process is not None and not arguments.kernel:
        arguments.parser.error("--process needs a KERNEL whose process it is")
    try:
        found = asyncio.run(_end(arguments) if arguments.kernel else _list())
    except (NoSuchKernel, ControllerRefused, ControllerUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif not found:
        print("No process is stuck.")
    else:
        for entry in found:
            print(_line(entry))
    return 0


def stuck_in(kernel: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a kernel's stuck processes, each with the kernel's id and name."""
    return [
        {"kernel": kernel["id"], "notebook": kernel.get("path") or kernel.get("name"), **process}
        for process in kernel["processes"]
        if process.get("stuck")
    ]


async def _list() -> list[dict[str, Any]]:
    return [entry for kernel in await ControllerClient().kernels() for entry in stuck_in(kernel)]


async def _end(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    client = ControllerClient()
    kernel = find_kernel(await client.kernels(), arguments.kernel)
    numbers = [entry["number"] for entry in stuck_in(kernel)]
    chosen = numbers if arguments.process is None else [arguments.process]
    for number in chosen:
        await client.end(kernel["id"], number)
    return [
        {**entry, "ended": True}
        for entry in stuck_in(kernel)
        if arguments.process is None or entry["number"] == arguments.process
    ]


def _line(entry: dict[str, Any]) -> str:
    what = f"{short_id(entry['kernel'])} ({entry['notebook'] or 'no notebook'}), process {entry['number']}"
    done = "ended: " if entry.get("ended") else ""
    return f"{what} (pid {entry['pid']}, {entry['command']}): {done}{entry['stuck']['text']}"
