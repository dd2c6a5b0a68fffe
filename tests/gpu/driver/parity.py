"""Whether backed memory can be told from the driver's: `python tests/gpu parity`.

Compiles parity.c, runs it with the shim and without, and prints every answer that differs. Exits with 1 if one does.
The simulator's answers are compared the same way by tests/shim/test_parity.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from controlled import compile_program, finish, machine, options

from jupyter_affinode.environment import shim_path

SOURCE = Path(__file__).with_suffix(".c")


def answers(program: Path, env: Mapping[str, str]) -> list[str]:
    ran = subprocess.run([str(program)], env=dict(env), stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout.splitlines()


def differences(program: Path, shim: Path, env: Mapping[str, str]) -> tuple[int, list[str]]:
    """(how many answers were compared, those that differ, each in two lines)."""
    plain = {name: value for name, value in env.items() if name != "LD_PRELOAD"}
    theirs = answers(program, plain)
    ours = answers(program, {**plain, "LD_PRELOAD": str(shim)})
    if len(ours) != len(theirs):
        raise RuntimeError(f"{len(ours)} answers with the shim, {len(theirs)} without")
    different = [f"  driver: {a}\n  shim:   {b}" for a, b in zip(theirs, ours, strict=True) if a != b]
    return len(ours), different


def main() -> int:
    given = options(__doc__, time_s=60).parse_args()
    where, shim = machine(), shim_path()
    assert shim is not None
    with tempfile.TemporaryDirectory(prefix="affinode-") as folder:
        env = {**os.environ, "AFFINODE_SOCKET": f"{folder}/absent.sock"}
        count, different = differences(compile_program(SOURCE, Path(folder)), shim, env)
    return finish(
        "parity",
        where,
        given.json,
        headings=["answers", "that differ"],
        rows=[[str(count), str(len(different))]],
        passed=not different,
        notes=[difference.strip().replace("\n", ";") for difference in different],
    )


if __name__ == "__main__":
    sys.exit(main())
