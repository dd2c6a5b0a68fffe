"""Kernels with a CUDA context and nothing that parking moves hibernate: `python tests/gpu nothing_to_move`.

Needs jupyter-affinode, ipykernel, jupyter_server and PyTorch, CRIU (AFFINODE_CRIU says how it is called), root, and an
NVIDIA GPU. A real server has kernels with a context alone, with small blocks alone, and with all freed again. Each
hibernates and wakes `--cycles` times; what it computes then must be right, in the same process. Exits with 1 if
anything is not as it must be.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from controlled import finish, machine, options, say
from live_machine import Machine, new_machine
from live_server import JupyterServer

KINDS = {
    "a context alone": "import torch; torch.cuda.init(); torch.cuda.current_stream()",
    "small blocks alone": "import torch; small = torch.arange(1000, device='cuda')",
    "all freed again": "import torch; x = torch.ones(1 << 28, device='cuda'); del x; torch.cuda.empty_cache()",
}
LOOK = "int(torch.arange(1000, device='cuda').sum()) + (int(small.sum()) if 'small' in globals() else 499500)"


def rows_of(live: Machine, cycles: int) -> list[tuple[str, ...]]:
    """One row for each kind of kernel."""
    rows = []
    server = JupyterServer(live)
    server.transport = "tcp"
    server.enable_extension()
    server.start("--AffinodeExtension.keep_kernels=all")
    for kind, code in KINDS.items():
        kernel = server.start_kernel(path=f"{kind}.ipynb")
        done = kernel.run(code, timeout=120)
        assert done.status == "ok", done
        pid, times, said = kernel.pid, [], "equal"
        for _ in range(cycles):
            began = time.monotonic()
            status, answer = server.affinode(f"kernels/{kernel.id}/hibernate", "POST", {})
            away_s = time.monotonic() - began
            if status != 200:
                said = answer["message"]
                break
            began = time.monotonic()
            woken = server.affinode(f"kernels/{kernel.id}/wake", "POST", {})[0]
            found = kernel.run(LOOK, timeout=120).text
            times.append((away_s, time.monotonic() - began))
            if (woken, found, kernel.pid) != (200, "999000", pid):
                said = f"WRONG: {woken}, {found}, process {kernel.pid} for {pid}"
                break
        say(f"{kind}: {said}")
        rows.append(
            (
                kind,
                str(len(times)),
                f"{max((away for away, _ in times), default=0):.2f} s",
                f"{max((back for _, back in times), default=0):.2f} s",
                said,
            )
        )
        kernel.shutdown()
    server.stop()
    return rows


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    parser = options(__doc__, time_s=200.0)
    parser.add_argument("--cycles", type=int, default=3, help="how often each hibernates (3)")
    arguments = parser.parse_args()
    where, rows = machine(modules=["ipykernel", "jupyter_server", "torch"]), []
    with new_machine() as live:
        live.environment |= {
            "AFFINODE_FOLDER": str(live.folder / "own"),
            "AFFINODE_HIBERNATE_DIR": str(live.folder / "images"),
            "XDG_STATE_HOME": str(live.folder / "state"),
            **{name: os.environ[name] for name in ("AFFINODE_CRIU",) if name in os.environ},
        }
        live.start_controller("--settle=0")
        rows += rows_of(live, arguments.cycles)
    return finish(
        "nothing_to_move",
        where,
        arguments.json,
        headings=("kernel", "cycles", "away after", "computes after", "results"),
        rows=rows,
        passed=all(row[-1] == "equal" for row in rows),
        notes=["times are the longest of the cycles"],
    )


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.exit(main())
