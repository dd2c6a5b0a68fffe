"""torch_memory_saver with CPU backup and jupyter-affinode, the same PyTorch tensors, in one run.

`python tests/gpu against_memory_saver --gib 32`. Both hold random data in tensors of 1 GiB and check a sum over all
of it after each resume. torch_memory_saver retains its backup between pauses, which is its best; with `--default` it is
measured as it comes, too. Each round parks what has all changed, and then once more what has not.
Between each park and its resume both rest as long as in our bench.
Needs the package torch_memory_saver (0.0.10 was tried) and PyTorch.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from controlled import finish, machine, options, say
from linked import LinkedProgram

from jupyter_affinode.bench.measure import REST_S
from jupyter_affinode.bench.shim_peer import MoveFailed

ROUNDS, DEFAULT_ROUNDS = 5, 2  # of what is quick, and of what takes 13 s a round
RETAINED = "torch_memory_saver, backup retained"
MAKE = """
import json, sys, time, torch
gib = int(sys.argv[1])
def fill():
    return [torch.randint(-2**62, 2**62, (1 << 27,), device="cuda") for _ in range(gib)]
def total(tensors):
    return [int(t.sum()) ^ int(t[::5].sum()) for t in tensors]
"""
SAVER = (
    MAKE
    + """
from torch_memory_saver import torch_memory_saver as saver
saver.hook_mode = "preload"
if sys.argv[2] == "retain":
    saver.retain_cpu_backup = True
with saver.region(enable_cpu_backup=True):
    tensors = fill()
times = {"park": [], "unchanged": [], "resume": [], "right": True}
def pause_and_resume(park):
    before = total(tensors)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    saver.pause()
    times[park].append(time.perf_counter() - begin)
    time.sleep(float(sys.argv[4]))
    begin = time.perf_counter()
    saver.resume()
    torch.cuda.synchronize()
    times["resume"].append(time.perf_counter() - begin)
    times["right"] &= total(tensors) == before
for _ in range(int(sys.argv[3])):
    for t in tensors:
        t.add_(1)
    pause_and_resume("park")
    if sys.argv[2] == "retain":
        pause_and_resume("unchanged")
print(json.dumps(times), flush=True)
import os
os._exit(0)
"""
)
OURS = (
    MAKE
    + """
tensors = fill()
for line in sys.stdin:
    if line.strip() == "change":
        for t in tensors:
            t.add_(1)
    answer = total(tensors)
    torch.cuda.synchronize()
    print(json.dumps(answer), flush=True)
"""
)


def saver_library() -> tuple[Path, str]:
    """The library to preload, and the folder of the CUDA runtime that it is linked to."""
    code = (
        "from torch_memory_saver.utils import get_binary_path_from_package as p;"
        "print(p('torch_memory_saver_hook_mode_preload'))"
    )
    library = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    runtimes = [path.parent for root in roots for path in root.rglob("libcudart.so.1[0-9]")]
    return Path(library.strip()), str(runtimes[0]) if runtimes else "/usr/local/cuda/lib64"


def run_saver(gib: int, how: str, rounds: int) -> dict[str, Any]:
    library, runtime = saver_library()
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    env["LD_PRELOAD"] = str(library)
    env["LD_LIBRARY_PATH"] = f"{runtime}:{env.get('LD_LIBRARY_PATH', '')}"
    done = subprocess.run(
        [sys.executable, "-c", SAVER, str(gib), how, str(rounds), str(REST_S)],
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"torch_memory_saver ({how}): {done.stderr[-800:]}")
    times: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return times


def run_ours(gib: int) -> dict[str, Any]:
    times: dict[str, Any] = {"park": [], "unchanged": [], "resume": [], "right": True}
    with LinkedProgram(OURS, str(gib)) as linked:
        for _ in range(ROUNDS):
            before = linked.ask("change")
            for park in ("park", "unchanged"):
                times[park].append(linked.connect().park().seconds)
                time.sleep(REST_S)
                times["resume"].append(linked.connect().resume().seconds)
                times["right"] &= linked.ask("sum") == before
    return times


def later(times: dict[str, Any], what: str) -> float:
    """The median of all but the first, which makes host memory ready."""
    return median(times[what][1:])


def ratios_of(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """How many times faster than torch_memory_saver jupyter-affinode is, as it comes and retaining its backup."""
    ratios: dict[str, float] = {}
    ours = found.get("jupyter-affinode")
    for theirs, beside in (("torch_memory_saver", "times faster"), (RETAINED, "against a retained backup")):
        if ours is None or theirs not in found:
            continue
        for name, what in (
            ("later park", "park"),
            ("later resume", "resume"),
            ("unchanged park", "unchanged"),
        ):
            if len(found[theirs][what]) > 1:
                ratios[f"{name}: {beside}"] = later(found[theirs], what) / later(ours, what)
    return ratios


def row(name: str, gib: int, times: dict[str, Any]) -> list[str]:
    """A row of the table."""
    unchanged = f"{later(times, 'unchanged'):.3f} s" if times["unchanged"] else "-"
    return [
        name,
        f"{times['park'][0]:.2f} s",
        f"{later(times, 'park'):.3f} s",
        unchanged,
        f"{later(times, 'resume'):.3f} s",
        f"{gib / later(times, 'resume'):.1f} GiB/s",
        "right" if times["right"] else "WRONG",
    ]


def main() -> int:
    parser = options(__doc__, time_s=300)
    parser.add_argument("--gib", type=int, default=32)
    parser.add_argument("--default", action="store_true", help="torch_memory_saver as it comes, too")
    given = parser.parse_args()
    where = machine(modules=["torch", "torch_memory_saver"])
    deadline = time.monotonic() + given.time
    found: dict[str, dict[str, Any]] = {}
    notes = []
    measures = [
        ("jupyter-affinode", lambda: run_ours(given.gib)),
        (RETAINED, lambda: run_saver(given.gib, "retain", ROUNDS)),
        ("torch_memory_saver", lambda: run_saver(given.gib, "default", DEFAULT_ROUNDS)),
    ]
    for name, measure in measures if given.default else measures[:2]:
        if time.monotonic() > deadline:
            notes.append(f"{name}: left out for time")
            continue
        say(f"{name}: {given.gib} GiB")
        try:
            found[name] = measure()
        except (RuntimeError, MoveFailed, OSError, subprocess.CalledProcessError) as error:
            notes.append(f"{name}: {error}")
    ratios = ratios_of(found)
    notes += [f"{name}: {ratio:.2f} times as fast" for name, ratio in ratios.items()]
    return finish(
        "against_memory_saver",
        where,
        given.json,
        headings=[
            "",
            "first park",
            "later park, all changed",
            "park, unchanged",
            "resume",
            "resume rate",
            "contents",
        ],
        rows=[row(name, given.gib, times) for name, times in found.items()],
        passed=len(found) >= 2 + given.default and all(times["right"] for times in found.values()),
        notes=notes,
        gib=given.gib,
        found=found,
        ratios=ratios,
    )


if __name__ == "__main__":
    sys.exit(main())
