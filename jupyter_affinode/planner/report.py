"""A plan's answer as a table for a terminal."""

from __future__ import annotations

from typing import Any

from ..units import bytes_in_words, duration_in_words, in_columns

Answer = dict[str, Any]
SLOWER_NOTICED = 1.1  # from this on, cells beside others are said to slow each other down
HEADER = (
    "WAY",
    "WAIT P50",
    "P95",
    "P99",
    "MAX",
    "WAITED",
    "SLOWER",
    "GPUS",
    "GPU-HOURS",
    "SAVED",
    "RECLAIMABLE",
    "LOST STATE",
)


def wait_text(seconds: float) -> str:
    """Return a wait in words: "0", "26 ms", "1.2 s", "6 min"."""
    if seconds < 0.0005:
        return "0"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.9995 else duration_in_words(seconds)


def plan_text(report: Answer) -> str:
    """Return everything: what was assumed, then the answer."""
    lines = [*_about(report), ""]
    if report["answer"] is not None:
        lines += _answer(report["answer"])
    if report["search"] is not None:
        lines += _search(report["search"])
    return "\n".join(lines)


def _about(report: Answer) -> list[str]:
    machine, speeds = report["machine"], report["speeds"]
    disk = f", {bytes_in_words(machine['disk_bytes'])} of a disk" if machine["disk_bytes"] else ""
    lines = [
        f"{machine['gpus']} GPU{'s' if machine['gpus'] > 1 else ''} of {bytes_in_words(machine['gpu_bytes'])},"
        f" {bytes_in_words(machine['host_bytes'])} of host memory{disk}; parks and resumes: {speeds['source']}"
    ]
    if report["trace"] is not None:
        lines.append(f"sessions of {report['trace']}")
    else:
        workload = report["workload"]
        lines.append(
            f"made workload, {workload['days']} days, seed {workload['seed']}: cells of"
            f" {_spread(workload['run_s'])} (published), think times of {_spread(workload['think_s'])}"
            " (median published)"
        )
        footprint = workload["footprint"]
        lines.append(
            "assumed, set them for your site: footprints of"
            f" {bytes_in_words(int(footprint['median']))} (p75 {bytes_in_words(int(footprint['p75']))}),"
            f" sessions of {_spread(workload['session_s'])}, breaks of {_spread(workload['break_s'])},"
            f" a running cell could use {machine['compute_share']:.0%} of a GPU"
        )
    changed = report["settings_changed"]
    if changed:
        lines.append("settings: " + ", ".join(f"{name}={value}" for name, value in changed.items()))
    return lines


def _spread(spread: Answer) -> str:
    return f"{duration_in_words(spread['median'])} (p75 {duration_in_words(spread['p75'])})"


def _answer(answer: Answer) -> list[str]:
    lines = [
        f"{answer['users']} users ({answer['users_per_gpu']:.3g} a GPU), {answer['sessions']} sessions,"
        f" {answer['cells']} cells; they use a GPU {answer['active_share']:.0%} of their sessions' time",
        "",
    ]
    rows: list[tuple[str, ...]] = [HEADER]
    for way, outcome in answer["ways"].items():
        waits, free = outcome["wait_s"], answer["without_waits"][way]
        spared = free.get("gpu_hours_saved")
        rows.append(
            (
                f"{way}: {outcome['title']}" if way != "affinode" else outcome["title"],
                *(wait_text(waits[name]) for name in ("p50", "p95", "p99", "max")),
                f"{outcome['hours_waited']:.1f} h",
                f"{outcome['slowdown']:.2f}x",
                str(free["gpus"]),
                f"{free['gpu_hours']:.0f}",
                "" if spared is None else f"{spared:.0f}",
                f"{outcome['reclaimable_share']:.0%}",
                _losses(outcome),
            )
        )
    lines += in_columns(rows)
    ours = answer["ways"].get("affinode")
    if ours is not None:
        lines += ["", _moves(ours), *_compute_limit(ours)]
    lines += [
        "",
        "WAIT: a cell's, from its first CUDA call until its memory is there; WAITED: all cells together. SLOWER:"
        " computing beside others.",
        "GPUS: of the others as many as it takes for no waits; GPU-HOURS: all of these while a session is"
        " there; SAVED: by ours.",
        "RECLAIMABLE: of the time in which a session holds a GPU, or memory of it, and no other can have it, the"
        " part without computing.",
    ]
    return lines


def _losses(outcome: Answer) -> str:
    parts = (
        [f"{outcome['losses']} times, {outcome['rebuild_hours']:.1f} h to rebuild"]
        if outcome["losses"]
        else []
    )
    parts += [
        f"{count} {name}"
        for name, count in outcome["counts"].items()
        if name.startswith("cells ") and name != "cells preempted"
    ]
    return ", ".join(parts) or "never"


def _moves(ours: Answer) -> str:
    counts = ours["counts"]
    refused = {
        name.split(": ")[1]: count for name, count in counts.items() if name.startswith("parks refused")
    }
    text = (
        f"{counts.get('parks', 0)} parks, {counts.get('resumes', 0)} resumes,"
        f" {bytes_in_words(ours['moved_bytes'])} moved; at most {bytes_in_words(ours['host_most_bytes'])} of host"
        f" memory; GPUs compute {ours['gpu_busy']:.0%} of the time while a session is open"
    )
    if counts.get("hibernations"):
        text += f"; kernels hibernated {counts['hibernations']} times"
    if refused:
        text += "\nparks refused: " + ", ".join(f"{why} {count} times" for why, count in refused.items())
    if refused.get("no-host-memory"):
        text += ": host memory is too small for what users hold together"
    return text


def _compute_limit(ours: Answer) -> list[str]:
    """Return a line where cells lose more time by computing beside others than by waiting for memory."""
    slower_hours = ours["computed_hours"] - ours["alone_hours"]
    if ours["slowdown"] < SLOWER_NOTICED or slower_hours <= ours["hours_waited"]:
        return []
    return [
        f"memory is not your limit: these cells slow each other down. They compute {slower_hours:.1f} h longer than"
        f" alone, and wait {ours['hours_waited']:.1f} h for memory. The setting max_computing_per_gpu bounds how many"
        " compute on a GPU at once."
    ]


def _search(search: Answer) -> list[str]:
    bound = f"95 % of their cells wait at most {wait_text(search['p95_wait_s'])}"
    rows: list[tuple[str, ...]] = [
        ("WAY", "USERS", "A GPU", "WAIT P95", "P99", "WAITED", "SLOWER", "LOST STATE")
    ]
    for way, found in search["ways"].items():
        outcome = found["outcome"]
        row = (way, str(found["users"]), f"{found['users_per_gpu']:.3g}")
        if outcome is None:
            rows.append((*row, "not even for one", "", "", "", ""))
        else:
            slower = f"{outcome['slowdown']:.2f}x"
            waits = [wait_text(outcome["wait_s"][name]) for name in ("p95", "p99")]
            waited = f"{outcome['hours_waited']:.1f} h"
            rows.append((*row, *waits, waited, slower, _losses(outcome)))
    return [f"The most users served while {bound}:", "", *in_columns(rows), "", *_caution(search)]


def _caution(search: Answer) -> list[str]:
    """Warn that a bound on 95 % of the cells tells nothing of the others; without parking these wait for hours."""
    for way, found in search["ways"].items():
        outcome = found["outcome"]
        if outcome is not None and outcome["wait_s"]["p99"] > max(100 * search["p95_wait_s"], 600.0):
            return [
                f"Look at P99 and WAITED too: within this bound one cell in a hundred of {way} waits"
                f" {wait_text(outcome['wait_s']['p99'])} or longer."
            ]
    return []
