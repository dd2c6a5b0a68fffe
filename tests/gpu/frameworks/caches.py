"""Frameworks drop what they only cache before an idle kernel is parked: `python tests/gpu caches [--json FILE]`.

Needs jupyter-affinode installed, ipykernel, PyTorch, CuPy, and an NVIDIA GPU with 6 GiB free. A real ipykernel holds
1 GiB of random numbers and 4 GiB that its framework has freed and caches. It falls idle and is parked by the policy,
once without `drop_caches_before_park` and once with it. It must then hold at least 3.5 GiB less in host memory, have
been parked within 1.5 s of being asked (dropping is CUDA calls: they must not count as use of the GPU), and be right
afterwards. Prints a table; exits with 1 if a row is not as it must be.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from controlled import finish, machine, options, say
from live_kernel import LiveKernel, ask

from jupyter_affinode.client.starting import ensure_controller
from jupyter_affinode.settings.policy import GIB

LIVE_BYTES, CACHED_BYTES = GIB, 4 * GIB
IDLE_S, DROPS_WITHIN_S = 4.0, 1.5
PROGRAMS = {
    "PyTorch": """
import torch
live = torch.randint(-2**62, 2**62, (2**27,), device="cuda")
cached = [torch.randint(-2**62, 2**62, (2**26,), device="cuda") for _ in range(8)]
del cached
torch.cuda.synchronize()
def digest(): return int(live.sum()) ^ int(live[::7].sum())
def held(): return torch.cuda.memory_reserved()
""",
    "PyTorch, expandable segments": """
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch
live = torch.randint(-2**62, 2**62, (2**27,), device="cuda")
cached = [torch.randint(-2**62, 2**62, (2**26,), device="cuda") for _ in range(8)]
del cached
torch.cuda.synchronize()
def digest(): return int(live.sum()) ^ int(live[::7].sum())
def held(): return torch.cuda.memory_reserved()
""",
    "CuPy": """
import cupy
numbers = cupy.random.default_rng(1)
live = numbers.integers(0, 1 << 62, 2**27, dtype=cupy.int64)
cached = [numbers.integers(0, 1 << 62, 2**26, dtype=cupy.int64) for _ in range(8)]
del cached
cupy.cuda.Device().synchronize()
def digest(): return int(live.sum()) ^ int(live[::7].sum())
def held(): return cupy.get_default_memory_pool().total_bytes()
""",
}
HEADINGS = [
    "framework",
    "caches dropped",
    "held before",
    "parked",
    "in host memory",
    "park",
    "asked to parked",
    "right after",
]


def moment(log: str, kernel_id: str, what: str) -> float | None:
    """When the controller's log says that of the kernel last."""
    lines = [line for line in log.splitlines() if kernel_id in line and re.search(what, line)]
    return datetime.fromisoformat(lines[-1][:23]).timestamp() if lines else None


def told(framework: str, program: str, drops: bool, log: Path) -> tuple[list[str], bool, int]:
    """Park one kernel: its row, whether it is as it must be, its bytes in host memory."""
    ask("set_policy", park_when="idle", idle_timeout_s=IDLE_S, drop_caches_before_park=drops)
    kernel = LiveKernel()
    try:
        kernel.value(f"{program}\nheld()")
        held, before = int(kernel.value("held()")), kernel.value("digest()")
        described: dict[str, Any] = kernel.wait_for("parked", timeout_s=60)
        text = log.read_text(errors="replace")
        asked, parked = moment(text, kernel.id, "asked to drop"), moment(text, kernel.id, r" park \S+ \(")
        waited = None if asked is None or parked is None else parked - asked
        after = kernel.value("digest()")
    finally:
        kernel.stop()
    right = after == before and held >= LIVE_BYTES + CACHED_BYTES - GIB // 4
    in_time = waited is not None and 0 <= waited <= DROPS_WITHIN_S if drops else asked is None
    row = [
        framework,
        "yes" if drops else "no",
        f"{held / GIB:.2f} GiB",
        f"{described['parked_bytes'] / GIB:.2f} GiB",
        f"{described['copy_bytes'] / GIB:.2f} GiB",
        f"{described['last_park']['duration_s']:.2f} s",
        "" if waited is None else f"{waited:.2f} s",
        "right" if right else "WRONG",
    ]
    return row, right and in_time, int(described["copy_bytes"])


def main() -> int:
    given = options(__doc__, time_s=300).parse_args()
    where = machine(modules=["ipykernel", "torch", "cupy"])
    folder = Path(tempfile.mkdtemp(prefix="affinode-gpu-"))
    os.environ["AFFINODE_SOCKET"] = str(folder / "node.sock")
    os.environ["JUPYTER_DEFAULT_PROVISIONER_NAME"] = "affinode-provisioner"
    ensure_controller(extra_args=["--low-watermark=0"])
    deadline = time.monotonic() + given.time
    rows, notes, passed = [], [], True
    for framework, program in PROGRAMS.items():
        if time.monotonic() > deadline:
            notes.append(f"{framework}: left out for time")
            passed = False
            continue
        copies = []
        for drops in (False, True):
            say(f"{framework}, {'with' if drops else 'without'} dropping")
            row, good, copied = told(framework, program, drops, folder / "node.log")
            rows.append(row)
            copies.append(copied)
            passed &= good
        if copies[0] - copies[1] < CACHED_BYTES - GIB // 2:
            passed = False
            notes.append(
                f"{framework}: dropping saved {(copies[0] - copies[1]) / GIB:.2f} GiB of host memory only"
            )
    say(f"controller's log: {folder / 'node.log'}")
    return finish(
        "caches", where, given.json, headings=HEADINGS, rows=rows, passed=passed and bool(rows), notes=notes
    )


if __name__ == "__main__":
    sys.exit(main())
