"""`jupyter affinode status`: the machine's GPUs and every kernel."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from typing import Any

from ... import environment
from ...client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from ...client.errors import refusal_advice
from ...keeping.records import WARM_SINCE
from ...units import bytes_in_words
from ..output import are_many_users, folded, kernel_table

NO_GPU = "No GPU on this machine."


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "status",
        help="show GPUs and kernels",
        description="Show GPUs and kernels. Starts nothing; where no controller runs it says so and exits "
        "with 0, since then nothing is managed and nothing is wrong.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=status)


def status(arguments: argparse.Namespace) -> int:
    """Print the status; return 1 if a controller refuses to answer, else 0, also if none runs."""
    node: dict[str, Any] | None = None
    kernels: list[dict[str, Any]] = []
    message, is_refused = None, False
    try:
        node, kernels = asyncio.run(_ask())
    except ControllerUnavailable as error:
        message = str(error)
    except ControllerRefused as error:
        message, is_refused = f"{error}. {refusal_advice(error.slug)}".rstrip(), True
    if arguments.json:
        answer = {"available": node is not None, "message": message, "node": node, "kernels": kernels}
        print(json.dumps(answer, indent=2))
    elif is_refused:
        print(f"The GPU controller does not answer you: {message}", file=sys.stderr)
    elif node is None:
        from ...doctor.checks import is_driver_absent  # takes longer to import than all the rest

        if is_driver_absent():
            print(NO_GPU)
        print(f"No GPU controller is running, so nothing is managed ({message}).")
    else:
        print(_node_text(node))
        if not are_many_users(kernels) and (others := _others_text(node.get("others"))):
            print(others)
        untaken = [kernel for kernel in kernels if (kernel.get("server") or "").startswith(WARM_SINCE)]
        kernels = [kernel for kernel in kernels if kernel not in untaken]
        print(kernel_table(kernels) if kernels else "No kernels.")
        if untaken:
            print(f"Warm kernels, which no notebook has had yet:\n{kernel_table(untaken)}")
    return int(is_refused)


async def _ask() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    client = ControllerClient()
    node, kernels = await client.node(), await client.kernels()
    if any(kernel.get("image_bytes") is not None for kernel in kernels):
        notes = await _image_notes()
        kernels = [
            {**kernel, "image_notes": notes[kernel["id"]]} if notes.get(kernel["id"]) else kernel
            for kernel in kernels
        ]
    return node, kernels


async def _image_notes() -> dict[str, list[str]]:
    """Return what the user's keeper says of each image, which the controller does not know."""
    from ...keeping.client import KeeperRefused, KeeperUnavailable, connected, is_there
    from .kept import image_notes

    with contextlib.suppress(KeeperUnavailable, KeeperRefused):
        if is_there():
            async with await connected() as keeper:
                kept = await keeper.list_kept(os.environ.get(environment.HIBERNATE_DIR, ""), all=True)
                return {each.record.kernel_id: image_notes(each) for each in kept}
    return {}


def _gpu_text(gpu: dict[str, Any], *, simulated: bool) -> str:
    name = f"GPU {gpu['index']}, {gpu['name']}{' (simulated)' if simulated else ''}"
    managed = f"kernels {bytes_in_words(gpu['managed_bytes'])}"
    if gpu["total_bytes"] is None:
        return f"{name}: {managed}; what is free is not known without NVML"
    return (
        f"{name}: {bytes_in_words(gpu['free_bytes'])} of {bytes_in_words(gpu['total_bytes'])} free, "
        f"{managed}, others {bytes_in_words(gpu['unmanaged_bytes'])}"
    )


def _other_program_text(other: dict[str, Any]) -> str:
    """Describe a process on a GPU that is not managed; of another user's process only its size is known."""
    holder = (
        "another user" if other["pid"] is None else f"{other['command'] or 'process'} (pid {other['pid']})"
    )
    return holder if other["bytes"] is None else f"{holder}, {bytes_in_words(other['bytes'])}"


def _spill_lines(spill: dict[str, Any] | None) -> list[str]:
    """Describe the disk that parked memory goes to."""
    if spill is None:
        return []
    if spill["problem"]:
        return [f"Disk: freed GPU memory cannot go to {spill['dir']}: {spill['problem']}"]
    return [
        f"Disk: {bytes_in_words(spill['used_bytes'])} of {bytes_in_words(spill['limit_bytes'])} in use in"
        f" {spill['dir']}, {bytes_in_words(spill['written_bytes'])} of {bytes_in_words(spill['daily_bytes'])}"
        " written in 24 hours"
    ]


def _node_text(node: dict[str, Any]) -> str:
    """Return a line for each GPU, and one for the host's memory."""
    lines = [] if node["gpus"] else [NO_GPU]
    for gpu in node["gpus"]:
        lines.append(_gpu_text(gpu, simulated=node["simulated"]))
        lines.extend(f"  not managed: {_other_program_text(other)}" for other in gpu["unmanaged"] or [])
    host = node["host"]
    memory = f"Host memory: {bytes_in_words(host['available_bytes'])} available"
    if host["copy_bytes"]:
        memory += f", {bytes_in_words(host['copy_bytes'])} hold freed GPU memory"
    if host.get("shared_bytes"):
        memory += f", {bytes_in_words(host['shared_bytes'])} more that several kernels share"
    if host["retained_bytes"]:
        memory += f", {bytes_in_words(host['retained_bytes'])} hold copies for the next time"
    in_advance = host.get("set_aside_bytes", 0) + host.get("lots", {}).get("ready_bytes", 0)
    if in_advance:
        memory += f", {bytes_in_words(in_advance)} set aside in advance"
    lines.append(memory)
    if host.get("share_problem"):
        lines.append(f"Kernels share no host memory: {host['share_problem']}")
    lines.extend(_spill_lines(node.get("spill")))
    if node["history"]["problem"]:
        lines.append(f"No history is written: {node['history']['problem']}")
    return "\n".join(folded(line, rest="    ") for line in lines)


def _others_text(others: dict[str, Any] | None) -> str:
    """Return what other users' kernels have, as sums; "" while there are none."""
    if not others or not others["kernels"]:
        return ""
    count = others["kernels"]
    parts = [f"Other users: {count} kernel{'' if count == 1 else 's'}"]
    parts.append(f"{bytes_in_words(others['resident_bytes'])} on the GPU")
    if others["parked_bytes"]:
        parts.append(f"{bytes_in_words(others['parked_bytes'])} freed")
    if others["waiting"]:
        parts.append(f"{others['waiting']} waiting")
    return folded(", ".join(parts), rest="    ")
