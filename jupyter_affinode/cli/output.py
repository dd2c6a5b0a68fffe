"""What commands print: a compact table of kernels, and refusals."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from ..client.errors import ControllerRefused, ControllerUnavailable
from ..time_of_day import clock_in_words
from ..units import bound_in_words, bytes_in_words, duration_in_words, ordinal
from .kernel_argument import own_id, short_id

PARTS = ("resident", "parked", "unmovable")
STATES = {
    "none": "No GPU used",
    "resident": "On the GPU",
    "parking": "Freeing",
    "parked": "GPU freed",
    "queued": "Waiting",
    "resuming": "Getting it back",
    "lost": "GPU state lost",
    "hibernated": "Hibernated",
}
NOTEBOOK_LEAST = 16  # columns for a notebook's path, however narrow the terminal is
WIDEST = 110  # columns of a line that is read
UNLIMITED = 10_000  # columns where the output is no terminal
SMALL_BYTES = 64 << 20  # host memory is taken in slabs: smaller differences are not shown


def refusal_in_words(error: ControllerUnavailable | ControllerRefused) -> tuple[str, str]:
    """Return why a command failed: a code for programs, and words for users."""
    if isinstance(error, ControllerRefused):
        return error.slug, error.message
    return "no-controller", f"No GPU controller is running, so nothing is managed ({error})."


def failed(arguments: argparse.Namespace, slug: str, message: str, *, status: int = 1) -> int:
    """Print why a command failed, on one line, as JSON where that was asked for; return the exit status."""
    if arguments.json:
        print(json.dumps({"error": slug, "message": message}))
    else:
        print(message, file=sys.stderr)
    return status


def kernel_table(kernels: Sequence[dict[str, Any]]) -> str:
    """Return a line for each kernel, and notes below it: what waits, why, and what stays on the GPU.

    Administrators, who see other users' kernels, have a column of users. Paths are cut to the terminal's width.
    """
    many = are_many_users(kernels)
    ordered = sorted(kernels, key=lambda one: (str(one.get("user")), str(one["id"])))
    header = _columns(many, "KERNEL", "USER", "NOTEBOOK", "STATE", "GPU", "ON GPU", "IN RAM", "IDLE")
    rows = [(_row(kernel, many), _notes(kernel)) for kernel in ordered]
    widths = [
        max(len(line[column]) for line in [header, *(row for row, _ in rows)])
        for column in range(len(header))
    ]
    paths = header.index("NOTEBOOK")
    surplus = sum(widths) + 2 * (len(widths) - 1) - shutil.get_terminal_size((UNLIMITED, 0)).columns
    widths[paths] = min(widths[paths], max(widths[paths] - surplus, NOTEBOOK_LEAST))
    lines = [_line(header, widths)]
    for row, notes in rows:
        path = row[paths]
        if len(path) > widths[paths]:  # its end is the notebook's name
            path = "…" + path[-(widths[paths] - 1) :]
        lines.append(_line((*row[:paths], path, *row[paths + 1 :]), widths))
        lines.extend(folded(note, first="  ", rest="    ") for note in notes)
    return "\n".join(lines)


def folded(text: str, *, first: str = "", rest: str | None = None) -> str:
    """Return a text in lines as wide as the terminal, the first after `first`, the others after `rest` or as far in."""
    rest = " " * len(first) if rest is None else rest
    width = min(shutil.get_terminal_size((WIDEST, 0)).columns, WIDEST)
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def wait_text(kernel: dict[str, Any]) -> str:
    """Return why a kernel waits, and for how much longer at most."""
    return f"{kernel['wait_reason']}; {bound_in_words(kernel.get('estimate_s'))}"


def host_memory_text(kernel: dict[str, Any]) -> str:
    """Return what a kernel has in host memory; "" where its size on the GPU says that already."""
    copies, kept = kernel["copy_bytes"], kernel["retained_bytes"]
    parked = kernel["parked_bytes"] - kernel.get("disk_bytes", 0)
    shared = kernel.get("shared_bytes", 0) if parked else 0
    zeros = parked - copies - shared > SMALL_BYTES
    if shared > SMALL_BYTES:
        alone = f"takes {bytes_in_words(copies)} of RAM alone, and {bytes_in_words(shared)} together with other kernels"
        return f"{alone}: the rest is zeros" if zeros else alone
    if parked and zeros:
        return f"takes {bytes_in_words(copies)} of RAM: the rest is zeros"
    if kept > SMALL_BYTES:
        return f"{bytes_in_words(kept)} of RAM hold a copy for the next time"
    set_aside = kernel.get("set_aside_bytes", 0)
    if set_aside > SMALL_BYTES:
        return f"{bytes_in_words(set_aside)} of RAM set aside in advance"
    return ""


def are_many_users(kernels: Sequence[dict[str, Any]]) -> bool:
    """Return whether other users' kernels are among them, as administrators see them."""
    return any("/" in kernel["id"] for kernel in kernels)


def _columns(many: bool, kernel: str, user: str, *others: str) -> tuple[str, ...]:
    return (kernel, user, *others) if many else (kernel, *others)


def _row(kernel: dict[str, Any], many: bool) -> tuple[str, ...]:
    unmovable = sum(entry["bytes"] for entry in kernel.get("unmovable") or [])
    resident = kernel["resident_bytes"] + unmovable
    idle_s = kernel.get("idle_s")
    state = STATES.get(kernel["residency"], kernel["residency"])
    in_ram = kernel["parked_bytes"] - kernel.get("disk_bytes", 0)
    return _columns(
        many,
        short_id(own_id(kernel["id"]) if many else kernel["id"]),
        kernel.get("user") or "-",
        kernel.get("path") or kernel.get("name") or "-",
        f"{state}: {ordinal(kernel['place'])}" if kernel.get("place") else state,
        _gpus_text(kernel),
        bytes_in_words(resident) if resident else "-",
        bytes_in_words(in_ram) if in_ram > 0 else "-",
        "Active" if kernel.get("cell_open") else "-" if idle_s is None else duration_in_words(idle_s),
    )


def _gpus_text(kernel: dict[str, Any]) -> str:
    """Return the numbers of the GPUs on which the kernel has memory, or had it before it was freed."""
    used = [gpu for gpu in kernel.get("gpus") or [] if any(gpu[f"{part}_bytes"] for part in PARTS)]
    return ",".join("?" if gpu.get("index") is None else str(gpu["index"]) for gpu in used) or "-"


def _notes(kernel: dict[str, Any]) -> list[str]:
    notes = []
    if kernel["residency"] == "lost":
        notes.append(f"restart the kernel: {kernel.get('reason') or 'the shim gave no reason'}")
    if kernel.get("held_for_s") is not None:
        until = kernel.get("held_until") or clock_in_words(kernel["held_for_s"])
        notes.append(f"kept on the GPU until {until}")
    notes += [
        f"{bytes_in_words(entry['bytes'])} stays on the GPU: {entry['text']}"
        for entry in kernel.get("unmovable") or []
    ]
    if kernel.get("disk_bytes") and kernel["residency"] != "hibernated":
        return_s = kernel.get("resume_estimate_s") if kernel["residency"] == "parked" else None
        returns = "" if return_s is None else f", about {duration_in_words(return_s)} to return"
        notes.append(f"{bytes_in_words(kernel['disk_bytes'])} of it on disk{returns}")
    if host_text := host_memory_text(kernel):
        notes.append(host_text)
    if kernel.get("depth_refusal") and kernel["depth"] == "memory":
        notes.append(f"its CUDA context stays on the GPU: {kernel['depth_refusal']}")
    notes += [
        f"process {process['number']} (pid {process['pid']}) is stuck: {process['stuck']['text']}; "
        f"`jupyter affinode clean {short_id(kernel['id'])}` ends it"
        for process in kernel.get("processes") or []
        if process.get("stuck")
    ]
    if kernel.get("wait_reason"):
        notes.append(f"waits: {wait_text(kernel)}")
    if kernel.get("image_bytes") is not None:
        notes.append(f"its image is {bytes_in_words(kernel['image_bytes'])} on disk")
    notes += kernel.get("image_notes") or []
    if kernel.get("hibernate_asked"):
        notes.append(f"is to be hibernated: {kernel['hibernate_asked']}")
    if kernel.get("end_asked"):
        notes.append(f"is being shut down: {kernel['end_asked']}")
    if kernel.get("refusal"):
        notes.append(f"not freed: {kernel['refusal']}")
    return notes


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
