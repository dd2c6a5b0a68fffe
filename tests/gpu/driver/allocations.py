"""What the shim costs a program that allocates without a caching allocator: `python tests/gpu allocations`.

Compiles allocations.c and runs it in turn with the shim and without, in fresh processes; prints medians and their
ratio. Exits with 1 if a pair of 2 to 20 MiB costs more than `LIMIT` times the driver's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from controlled import compile_program, finish, machine, options

from jupyter_affinode.environment import shim_path

LIMIT = 1.1
Figures = dict[tuple[str, int], list[float]]
"""Microseconds, one a process, by what was measured and the block's size in MiB."""


def measure(program: Path, figures: Figures, shim: Path | None) -> None:
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if shim:
        env["LD_PRELOAD"] = str(shim)
    env["AFFINODE_SOCKET"] = str(program.parent / "absent.sock")
    ran = subprocess.run([str(program)], env=env, stdout=subprocess.PIPE, text=True, check=True)
    for line in ran.stdout.splitlines():
        name, mib, microseconds = line.split()
        figures.setdefault((name, int(mib)), []).append(float(microseconds))


def compare(program: Path, shim: Path, rounds: int) -> tuple[Figures, Figures]:
    """(without, with) the shim; which goes first alternates."""
    figures: tuple[Figures, Figures] = ({}, {})
    for i in range(rounds):
        for with_shim in (False, True) if i % 2 == 0 else (True, False):
            measure(program, figures[with_shim], shim if with_shim else None)
    return figures


def main() -> int:
    parser = options(__doc__, time_s=120)
    parser.add_argument("--rounds", type=int, default=8, help="processes each way")
    given = parser.parse_args()
    where, shim = machine(), shim_path()
    assert shim is not None
    too_slow, pairs = [], {}
    with tempfile.TemporaryDirectory(prefix="affinode-") as folder:
        program = compile_program(Path(__file__).with_suffix(".c"), Path(folder))
        without, with_ = compare(program, shim, given.rounds)
        rows = []
        for key, ours in with_.items():
            name, mib = key
            ratio = median(ours) / median(without[key])
            rows.append(
                [name, str(mib), f"{median(without[key]):.1f}", f"{median(ours):.1f}", f"{ratio:.3f}"]
            )
            if name.endswith("pair") and mib <= 20:
                pairs[f"{name} of {mib} MiB"] = ratio
            if name.endswith("pair") and mib <= 20 and ratio > LIMIT:
                too_slow.append(f"{name} of {mib} MiB: {ratio:.3f} times the driver's")
    return finish(
        "allocations",
        where,
        given.json,
        headings=["what", "MiB", "driver, µs", "shim, µs", "ratio"],
        rows=rows,
        passed=not too_slow,
        notes=too_slow,
        pairs=pairs,
    )


if __name__ == "__main__":
    sys.exit(main())
