"""The whole story on a real GPU: `python tests/gpu run [--cycles 20] [--json FILE]`.

Needs jupyter-affinode installed, ipykernel, PyTorch, CuPy and JAX, and an NVIDIA GPU with 12 GiB free. A real ipykernel
is started by the provisioner, with a real controller. A cycle parks the kernel, runs a cell without CUDA (it must stay
parked), and lets the next cell bring it back; then CUDA graphs, pinned memory, a side stream and ten training steps are
used. "Left on GPU" is what NVML says the whole GPU holds then. The twin runs the same program without the shim; losses
are compared bit for bit, after every cycle. For the interrupt a foreign process fills the GPU, so that the cell waits.
Prints a table; exits with 1 if a row is not as it must be.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from statistics import median

import overhead
import story
from controlled import finish, machine, options, say
from workloads import PROGRAMS

from jupyter_affinode.environment import shim_path


def versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in ("torch", "cupy-cuda13x", "jax", "ipykernel", "jupyter_client", "jupyter-affinode"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def main() -> int:
    parser = options(__doc__, time_s=900)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5, help="processes each way for the shim's cost")
    parser.add_argument("--only", choices=list(PROGRAMS))
    given = parser.parse_args()
    where = {**machine(modules=["ipykernel", "torch", "cupy", "jax"]), "versions": versions()}
    folder = Path(tempfile.mkdtemp(prefix="affinode-gpu-"))
    os.environ["AFFINODE_SOCKET"] = str(folder / "node.sock")
    os.environ["JUPYTER_DEFAULT_PROVISIONER_NAME"] = "affinode-provisioner"
    deadline = time.monotonic() + given.time

    rows, notes, passed, launch_ratio = [], [], True, None
    for framework in [given.only] if given.only else list(PROGRAMS):
        if time.monotonic() > deadline:
            notes.append(f"{framework}: left out for time")
            continue
        try:
            outcome = story.tell(framework, given.cycles, say)
            rows.append(outcome.row())
            passed &= outcome.passed
            notes += [f"{framework}: {note}" for note in dict.fromkeys(outcome.notes)]
        except Exception as error:
            passed = False
            notes.append(f"{framework}: FAILED: {type(error).__name__}: {str(error)[:300]}")
            say(traceback.format_exc())
    if given.rounds and time.monotonic() < deadline:
        say("the shim's cost")
        without, with_ = overhead.compare(str(shim_path()), given.rounds)
        launch_ratio = median(with_) / median(without)
        notes.append(overhead.describe(without, with_))
    say(f"controller's log: {folder / 'node.log'}")
    return finish(
        "story",
        where,
        given.json,
        headings=story.HEADINGS,
        rows=rows,
        passed=passed and bool(rows),
        notes=notes,
        launch_ratio=launch_ratio,
    )


if __name__ == "__main__":
    sys.exit(main())
