"""A compact table of kernels for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..kernel.magics import size_text
from .kernel_argument import short_id

PARTS = ("resident", "parked", "fixed")
SMALL_BYTES = 64 << 20  # host memory is taken in slabs: less is not worth a word


def kernel_table(kernels: Sequence[dict[str, Any]]) -> str:
    """One line a kernel: id, what it is, state, memory, idle time; what stays on the GPU on a line below
    it.
    """
    header = ("KERNEL", "NOTEBOOK", "STATE", "GPU", "ON GPU", "IN RAM", "IDLE")
    rows = [(_row(kernel), _notes(kernel)) for kernel in sorted(kernels, key=lambda one: str(one["id"]))]
    widths = [
        max(len(line[column]) for line in [header, *(row for row, _ in rows)])
        for column in range(len(header))
    ]
    lines = [_line(header, widths)]
    for row, notes in rows:
        lines.append(_line(row, widths))
        lines.extend(f"  {note}" for note in notes)
    return "\n".join(lines)


def duration_text(seconds: float) -> str:
    """Seconds as people say them: "40 s", "6 min", "2 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def outlook_text(kernel: dict[str, Any]) -> str:
    """Why a kernel waits, and for how much longer where that can be said."""
    estimate_s = kernel.get("estimate_s")
    return kernel["wait_reason"] + (
        "" if estimate_s is None else f"; probably {duration_text(estimate_s)} more"
    )


def host_memory_text(kernel: dict[str, Any]) -> str:
    """What a kernel has in host memory, where its size on the GPU does not say it already; else ""."""
    copies, kept, parked = kernel["copy_bytes"], kernel["kept_bytes"], kernel["parked_bytes"]
    if parked and copies < parked - SMALL_BYTES:
        return f"takes {size_text(copies)} of RAM: the rest is zeros"
    if kept > SMALL_BYTES:
        return f"{size_text(kept)} of RAM kept for the next time"
    return ""


def _row(kernel: dict[str, Any]) -> tuple[str, ...]:
    fixed = sum(entry["bytes"] for entry in kernel.get("fixed") or [])
    resident = kernel["resident_bytes"] + fixed
    idle_s = kernel.get("idle_s")
    return (
        short_id(kernel["id"]),
        kernel.get("path") or kernel.get("name") or "-",
        kernel["text"],
        _gpus_text(kernel),
        size_text(resident) if resident else "-",
        size_text(kernel["parked_bytes"]) if kernel["parked_bytes"] else "-",
        "cell runs" if kernel.get("cell_open") else "-" if idle_s is None else duration_text(idle_s),
    )


def _gpus_text(kernel: dict[str, Any]) -> str:
    """The numbers of the GPUs on which it has memory, or had it."""
    used = [gpu for gpu in kernel.get("gpus") or [] if any(gpu[f"{part}_bytes"] for part in PARTS)]
    return ",".join("?" if gpu.get("index") is None else str(gpu["index"]) for gpu in used) or "-"


def _notes(kernel: dict[str, Any]) -> list[str]:
    notes = [
        f"{size_text(entry['bytes'])} stays on the GPU: {entry['text']}"
        for entry in kernel.get("fixed") or []
    ]
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
        notes.append(f"waits: {outlook_text(kernel)}")
    if kernel.get("end_asked"):
        notes.append(f"is being shut down: {kernel['end_asked']}")
    if kernel.get("refusal"):
        notes.append(f"not parked: {kernel['refusal']}")
    return notes


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
