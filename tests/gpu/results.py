"""One RESULTS.md from what the bench and the scripts of this folder wrote.

`python tests/gpu results DIR > tests/gpu/RESULTS.md` takes every .json file in DIR, of `jupyter affinode bench
--json` and of the scripts' `--json`, and holds the figures against what this project promises. A simulated run is
refused: its figures are none. Of DIR/notes.md the page ends with a copy: what no script wrote down.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import moves
from controlled import table

from jupyter_affinode.bench.report import table as bench_table
from jupyter_affinode.settings.policy import GIB, MIB

RETAINED = "torch_memory_saver with a retained backup"
SIZE = 32 * GIB
TITLES = {
    "bench": "Speed",
    "moves": "Speed, beside the driver's checkpoint and in special cases",
    "story": "The story in a real kernel, framework by framework",
    "random_cycles": "Random parks and resumes against unparked twins",
    "exchanges at random": "Random exchanges against unparked twins",
    "side_by_side": "Libraries side by side in one process",
    "numba_suite": "Someone else's tests",
    "two_gpus": "Two GPUs",
    "elsewhere": "Resumed on another GPU",
    "context depth": "Off the GPU with the CUDA context, program by program",
    "against_memory_saver": "Beside torch_memory_saver",
    "allocations": "What the shim costs without a caching allocator",
    "parity": "Whether backed memory can be told from the driver's",
    "ipc": "CUDA tensors shared between processes",
    "many kernels": "Many kernels on few GPUs",
    "two users": "Two kernels that change places, of one user and of two",
    "first park": "A first park beside a later one, all settings default",
    "turns": "Programs that never pause take turns",
    "kept_kernels": "A kernel outlives its server",
    "hibernation": "A kernel hibernates to disk and is woken",
    "hibernation_cycles": "Programs that hibernate again and again",
    "nothing_to_move": "Kernels hibernate that have nothing to move",
    "weights_in_memory": "Parked kernels have the same weights once in host memory",
    "hibernation_carried": "A kernel that hibernates on one machine and is woken on another",
    "warm_kernels": "A new notebook takes a kernel that is ready",
    "weights_once": "Kernels with the same weights on disk",
    "idle": "What counts as use, who else is seen, what moves are learnt to take",
}
Found = dict[str, Any]


def read(folder: Path) -> list[tuple[str, Found]]:
    """(script, what it found), in the order of the titles; ends the program on a simulated one."""
    found = []
    for path in sorted(folder.glob("*.json")):
        one = json.loads(path.read_text())
        script = one.get("script", "bench" if "ours" in one else None)
        if script is None:
            continue
        if one.get("simulated") or one["machine"].get("simulated"):
            sys.exit(f"{path} is of a simulated GPU: no result")
        found.append((script, one))
    order = list(TITLES)
    return sorted(found, key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order))


def goals(script: str, one: Found) -> Iterator[tuple[str, float, float, bool, str]]:
    """(what, measured, promised, whether promised is the most, unit) of what one run measured."""
    if script in ("bench", "moves"):
        yield from _bench_goals(one)
    elif script == "against_memory_saver":
        for ratio, beside, promised in (
            ("later park: times faster", "torch_memory_saver", 10.0),
            ("later resume: times faster", "torch_memory_saver", 3.5),
            ("later park: against a retained backup", RETAINED, 1.0),
            ("later resume: against a retained backup", RETAINED, 0.97),
            ("unchanged park: against a retained backup", RETAINED, 8.0),
        ):
            if ratio in one["ratios"]:
                what = f"{one['gib']} GiB, {ratio.split(':')[0]} against {beside}"
                yield what, one["ratios"][ratio], promised, False, ""
    elif script == "allocations":
        for name, ratio in one["pairs"].items():
            yield f"cost of the shim, {name}", ratio, 1.1, True, ""
    elif script == "story" and one.get("launch_ratio"):
        yield "cost of the shim, launch-bound PyTorch loop", one["launch_ratio"], 1.01, True, ""


def _bench_goals(one: Found) -> Iterator[tuple[str, float, float, bool, str]]:
    ratios = one["ratios"]
    if max((row["bytes"] for row in one["ours"] if "zeros" not in row["name"]), default=0) == SIZE:
        for name, promised, is_most, unit in (
            ("resume / pinned ceiling", 0.9, False, ""),
            ("later park, all changed / pinned ceiling", 0.8, False, ""),
            ("first park: times faster than the driver", 4.0, False, ""),
            ("first park into a lot: times faster than the driver", 10.0, False, ""),
            ("first park into a lot / later park, all changed", 1.5, True, ""),
            ("resume in 2 MiB blocks / in the largest blocks", 2.0, True, ""),
            ("resume at context depth: seconds beyond memory depth", 0.35, True, "s"),
            ("resume at context depth: times faster than the driver", 3.5, False, ""),
        ):
            if name in ratios:
                yield f"32 GiB, {name}", ratios[name], promised, is_most, unit
        for name, promised in (("park, unchanged", 0.08), ("park, 1 % changed", 0.15)):
            row = _row(one, name, SIZE)
            if row is not None:
                yield f"32 GiB, later {name}", row["median_s"], promised, True, "s"
    zeros = _row(one, "park, zeros", 64 * GIB)
    if zeros is not None:
        yield "64 GiB of zeros, park", zeros["median_s"], 0.15, True, "s"
        yield "64 GiB of zeros, host memory", zeros["host_bytes"] / MIB, 100.0, True, "MiB"
    for name, times in one.get("wake", {}).items():
        if times and one["wake_bytes"] == GIB:
            yield (
                f"1 GiB, a call in a parked process, {name}",
                sorted(times)[len(times) // 2],
                0.06,
                True,
                "s",
            )


def _row(one: Found, name: str, size: int) -> Found | None:
    """The row of that name and size at memory depth with private host memory, in the largest blocks."""
    wanted = (name, size, "memory", "private")
    rows = [row for row in one["ours"] if (row["name"], row["bytes"], row["depth"], row["host"]) == wanted]
    return max(rows, key=lambda row: row["block_bytes"], default=None)


def goal_rows(found: list[tuple[str, Found]]) -> list[list[str]]:
    rows = []
    for script, one in found:
        for name, value, promised, is_most, unit in goals(script, one):
            met = value <= promised if is_most else value >= promised
            bound = f"{'at most' if is_most else 'at least'} {promised:g} {unit}".strip()
            measured = f"{value:.3g} {unit}".strip()
            rows.append([name, measured, bound, "yes" if met else "NO", one["machine"]["date"]])
    return rows


def document(found: list[tuple[str, Found]], notes: str) -> str:
    """The whole of RESULTS.md."""
    lines = ["# Seen on a real GPU", ""]
    lines += [
        "Written by `python tests/gpu results` from what the commands below it printed; every figure is measured,",
        "ratios are within one run. The contents of memory are checked after every resume in all of them.",
        "The newest run of each command is kept, with its date; git's history has the earlier ones.",
        "",
    ]
    rows = goal_rows(found)
    if rows:
        lines += ["## What is promised", "", table(["", "measured", "promised", "kept", "run of"], rows), ""]
    for script, one in found:
        lines += [f"## {TITLES.get(script, script)}", "", f"`{_command(one)}`", ""]
        if script in ("bench", "moves"):
            lines += ["```", bench_table(one) if script == "bench" else moves.table(one), "```", ""]
            continue
        lines += [_machine(one["machine"]), "", table(one["headings"], one["rows"]), ""]
        lines += [f"- {note}" for note in one["notes"]] + ([""] if one["notes"] else [])
        if not one["passed"]:
            lines += ["**This did not pass.**", ""]
    lines += ["## Notes", "", notes] if notes else []
    return "\n".join(lines).rstrip() + "\n"


def _command(one: Found) -> str:
    command = one["command"]
    return command if isinstance(command, str) else " ".join(command)


def _machine(where: Found) -> str:
    gpus = f"{where['gpus']} of " if where.get("gpus", 1) > 1 else ""
    return (
        f"{where['date']}, {gpus}{where['gpu']}, driver {where.get('driver', 'unknown')}, {where['cores']} cores,"
        f" {where['host_bytes'] / GIB:.0f} GiB of RAM, Linux {where['linux']}, Python {where['python']}"
        + (f"; {where['versions']}" if where.get("versions") else "")
    )


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    found = read(Path(sys.argv[1]))
    if not found:
        print(f"there is nothing of ours in {sys.argv[1]}", file=sys.stderr)
        return 1
    notes = Path(sys.argv[1]) / "notes.md"
    print(document(found, notes.read_text() if notes.exists() else ""), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
