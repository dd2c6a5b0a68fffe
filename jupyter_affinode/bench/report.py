"""The bench's results, as a table for a terminal and as the few ratios that matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..units import bytes_in_words, in_columns
from . import exchange
from .sizes import GIB

Report = dict[str, Any]
Cells = tuple[str, str, str, str, str, str, str, str]
SIMULATED = "SIMULATED: nothing here is GPU performance"


def largest_moves(report: Report) -> tuple[int, dict[int, dict[str, Any]]]:
    """Return the largest size that our moves of random content were measured with, and these by block size and name."""
    rows = [
        row
        for row in report["ours"]
        if (row["depth"], row["host"]) == ("memory", "private") and "zeros" not in row["name"]
    ]
    size = max((row["bytes"] for row in rows), default=0)
    moves: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["bytes"] == size:
            moves.setdefault(row["block_bytes"], {})[row["name"]] = row
    return size, moves


def ratios(report: Report) -> dict[str, float]:
    """Return ratios within this run, by name; what was not measured is left out."""
    found: dict[str, float] = {}
    size, largest = largest_moves(report)
    if not largest:
        return found
    ours = largest[max(largest)]
    resume, later = ours["resume"]["median_s"], ours["park, all changed"]["median_s"]
    top = report["ceiling"]
    if top is not None:
        found["resume / pinned ceiling"] = size / resume / top["to_device_bytes_per_s"]
        found["later park, all changed / pinned ceiling"] = size / later / top["to_host_bytes_per_s"]
    return found


def table(report: Report, more: Sequence[Cells] = ()) -> str:
    """Return the whole report as plain text, with `more` rows."""
    lines = [SIMULATED, ""] if report["simulated"] else []
    lines += [_machine(report["machine"]), ""]
    warmed = report["warmed_host"]
    if warmed is not None:
        lines += [
            f"host memory touched beforehand: {warmed['bytes'] / GIB:.1f} of {warmed['asked_bytes'] / GIB:.1f} GiB in"
            f" {warmed['seconds']:.1f} s; the machine had {warmed['total_before_bytes'] / GIB:.0f} GiB before and"
            f" {warmed['total_after_bytes'] / GIB:.0f} GiB after",
            "",
        ]
    rows = [("WHAT", "SIZE", "BLOCKS", "TIME", "RATE", "COPIED", "HOST MEMORY", "RANGE")]
    top = report["ceiling"]
    if top is not None:
        for way, text in (
            ("to_host", "pinned copy, device to host"),
            ("to_device", "pinned copy, host to device"),
        ):
            best = top[f"{way}_bytes_per_s"]
            rows.append((text, "", "", "", in_rate(best), "", "", ""))
        for method in top["methods"]:
            rows += _pinning(method)
    for row in report["ours"]:
        rows.append(_move(row))
    rows += more
    if report.get("exchange"):
        lines += [*exchange.lines(report["exchange"]), ""]
    if len(rows) == 1:
        return "\n".join(lines)
    lines += in_columns(rows)
    if report["ratios"]:
        lines += ["", *(f"{name}: {value:.3f}" for name, value in report["ratios"].items())]
    skipped = [f"not measured: {name}: {reason}" for name, reason in report["skipped"].items()]
    return "\n".join([*lines, *([""] if skipped else []), *skipped])


def _pinning(method: dict[str, Any]) -> list[Cells]:
    """Return what it took to have host memory that can be copied to at full rate."""
    size, name = (
        method["bytes"],
        {"register": "cuMemHostRegister", "alloc": "cuMemHostAlloc"}[method["pinned_by"]],
    )
    steps = {"touch_s": "host memory, first touch", "pin_s": f"host memory, {name}"}
    return [
        (text, bytes_in_words(size), "", in_time(method[key]), in_rate(size / method[key]), "", "", "")
        for key, text in steps.items()
        if method.get(key)
    ]


def _machine(machine: dict[str, Any]) -> str:
    return (
        f"{machine['date']}, {machine['gpu']}, driver {machine['driver_version'] or 'unknown'}, CUDA"
        f" {machine['cuda_version']}, {machine['cores']} cores, {machine['host_bytes'] / GIB:.0f} GiB of RAM, Linux"
        f" {machine['linux']}, Python {machine['python']}, jupyter-affinode {machine['version']}"
    )


def _move(row: dict[str, Any]) -> Cells:
    how = "" if row["depth"] == "memory" else f", {row['depth']} depth"
    how += "" if row["host"] == "private" else ", lot"
    parks = row["name"].startswith("park") or row["name"] == "first park"
    return (
        f"ours: {row['name']}{how}",
        bytes_in_words(row["bytes"]),
        bytes_in_words(row["block_bytes"]),
        in_time(row["median_s"]),
        in_rate(row["bytes"] / row["median_s"]) if row["median_s"] > 0 else "",
        f"{row['copied_bytes'] / GIB:.2f} GiB" if parks else "",
        f"{row['host_bytes'] / GIB:.2f} GiB" if parks else "",
        f"{in_time(min(row['seconds']))} to {in_time(max(row['seconds']))}"
        if len(row["seconds"]) > 1
        else "",
    )


def in_time(seconds: float) -> str:
    """Return seconds as text."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def in_rate(bytes_per_s: float) -> str:
    """Return a rate as text."""
    return f"{bytes_per_s / GIB:.1f} GiB/s"
