"""Frameworks whose CUDA context leaves the GPU too: `python tests/gpu context_depth [--json FILE]`.

`--programs torch,jax` chooses. Needs jupyter-affinode installed, and an NVIDIA GPU that no other program uses,
with a driver of CUDA 12.8; PyTorch, CuPy or JAX for their programs. Each program computes, and is parked at
memory depth and at context depth in turn. At context depth NVML must not list it; questions that only keep
books must be answered while it stays away (or wake it: the table says which); its next computation must be
what it was. Then the GPU is filled by another program: it must stay parked, and be right once there is room.
It must end in time while parked so, with room and without. How long the driver alone takes is measured
beside ours by `jupyter affinode bench --depth context`. Exits with 1 if anything is not as it must be.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from controlled import ballast, finish, machine, options, say
from linked import LinkedProgram, park

from jupyter_affinode import environment
from jupyter_affinode.bench.shim_peer import Move, MoveFailed
from jupyter_affinode.node.protocol.page import Depth
from jupyter_affinode.node.protocol.wire import CommandKind

CYCLES = 3
ENDS_WITHIN_S = 12.0
LEAVES_FREE_BYTES = 256 << 20
SERVE = """
import sys
for line in sys.stdin:
    word = line.strip()
    if word == "exit":
        print("ending", flush=True)
        sys.exit(3)
    print(books() if word == "books" else work(), flush=True)
"""
TORCH = """
import torch
big = [torch.randint(-2**62, 2**62, (1 << 27,), device="cuda") for _ in range(2)]
weights = torch.randn(2048, 2048, device="cuda")
side, event = torch.cuda.Stream(), torch.cuda.Event()
pinned = torch.ones(1 << 20).pin_memory()
graph, still = torch.cuda.CUDAGraph(), torch.ones(1024, device="cuda")
with torch.cuda.graph(graph):
    doubled = still * 2
def work():
    graph.replay()
    with torch.cuda.stream(side):
        there = pinned.to("cuda", non_blocking=True)
        event.record(side)
    event.synchronize()
    sums = [int(block.sum()) ^ int(block[::7].sum()) for block in big]
    return str(sums) + float((weights @ weights.T).abs().sum()).hex() + str(float(doubled.sum() + there.sum()))
def books():
    torch.cuda.is_available(), torch.cuda.current_device(), torch.cuda.mem_get_info()
    torch.cuda.get_device_properties(0), torch.cuda.memory_allocated(), side.query(), event.query()
    return str((big[0].shape, big[0].device, big[0].is_cuda, weights.data_ptr(), torch.cuda.device_count()))
"""
CUPY = """
import cupy
big = [cupy.random.default_rng(i).integers(0, 1 << 62, 1 << 27, dtype=cupy.int64) for i in range(2)]
def work():
    return str([int(block.sum()) ^ int(block[::7].sum()) for block in big])
def books():
    cupy.cuda.Device().id, cupy.cuda.runtime.memGetInfo(), cupy.cuda.runtime.getDeviceCount()
    return str((big[0].shape, big[0].data.ptr))
"""
JAX = """
import os
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax, jax.numpy as jnp
big = [jax.random.bits(jax.random.PRNGKey(i), (1 << 27,), "uint32") for i in range(2)]
summed = jax.jit(lambda v: (v.sum(), v[::7].sum()))
weights = jax.random.normal(jax.random.PRNGKey(9), (1024, 1024))
step = jax.jit(lambda w: jnp.tanh(w @ w.T / 64))
def work():
    return str([tuple(map(int, summed(v))) for v in big]) + float(jnp.abs(step(weights)).sum()).hex()
def books():
    return str((jax.devices(), big[0].shape, big[0].dtype, jax.device_count()))
"""
DRIVER = """
from jupyter_affinode.bench.test_pattern import Content
from jupyter_affinode.bench.driver import Driver
content = Content(Driver(), 64 << 20, 16 << 20)
content.change_all(5)
def work():
    return str(content.differing_words())
def books():
    return "none"
"""
PROGRAMS = {"torch": TORCH, "cupy": CUPY, "jax": JAX, "driver": DRIVER}
LIST = """
import json, pynvml as n
n.nvmlInit()
every = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps([[n.nvmlDeviceGetUUID(g), n.nvmlDeviceGetName(g), n.nvmlDeviceGetPciInfo(g).busId,
                   n.nvmlDeviceGetMemoryInfo(g).used, [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(g)]]
                  for g in every]))
"""


@dataclass(frozen=True)
class Gpu:
    """One of the machine's GPUs, as NVML sees it now."""

    uuid: str
    name: str
    pci: str
    used_bytes: int
    pids: tuple[int, ...]


def gpus() -> list[Gpu]:
    """All that NVML knows, the simulated one where that is asked for, asked in a process of its own."""
    env = environment.controller_environment()
    done = subprocess.run([sys.executable, "-c", LIST], env=env, capture_output=True, text=True, check=True)
    return [Gpu(*row[:4], tuple(row[4])) for row in json.loads(done.stdout)]


def cycles(linked: LinkedProgram, before: str, found: dict[str, Any]) -> None:
    """Memory depth and context depth in turn; the results must be as before."""
    peer = linked.connect()
    for depth in ("memory", "context") * CYCLES:
        parked = park(peer, depth)
        if depth == "context":
            if parked.depth != Depth.CONTEXT:
                raise RuntimeError(f"it stayed at memory depth: {parked.text}")
            if linked.process.pid in gpus()[0].pids:
                raise RuntimeError("NVML still lists it")
            resumes = len(linked.resumes)
            linked.ask("books")
            found["woken by books"] = found["woken by books"] or len(linked.resumes) > resumes
        if linked.ask("work") != before:
            raise RuntimeError(f"another result after {depth} depth")
        note(found, depth, parked, linked.resumes[-1])


def note(found: dict[str, Any], depth: str, parked: Move, resumed: Move) -> None:
    found[f"park, {depth}"].append(parked.seconds)
    found[f"resume, {depth}"].append(resumed.seconds)
    found["bytes"], found["mended"] = parked.bytes, found["mended"] + resumed.mended_chunks


def survives_a_full_gpu(linked: LinkedProgram, before: str) -> None:
    peer = linked.connect()
    park(peer, "context")
    with ballast(LEAVES_FREE_BYTES):
        for _ in range(3):
            try:
                peer.resume()
            except MoveFailed as refused:
                say(f"  refused, as it must be: {refused}")
            else:
                raise RuntimeError("it was resumed on a full GPU")
    if linked.ask("work") != before:
        raise RuntimeError("another result after a full GPU")


def ends_in_time(linked: LinkedProgram) -> float:
    """Seconds from being told, at context depth, to its end."""
    peer = linked.connect()
    park(peer, "context")
    return end_within(linked, peer.resume, "")


def end_within(linked: LinkedProgram, answer: Callable[[], object], where: str) -> float:
    """Tell it to end; if a call wants the GPU on its way out (PyTorch makes events for what it frees), do as a
    controller would. Seconds until it has ended. Raises RuntimeError."""
    peer, begin = linked.connect(), time.monotonic()
    linked.ask("exit")
    while linked.process.poll() is None:
        if time.monotonic() - begin > ENDS_WITHIN_S:
            raise RuntimeError(f"{where}it has not ended after {ENDS_WITHIN_S:.0f} s")
        try:
            peer.take(0.1)
            if peer.wants:
                peer.wants = False
                answer()
        except (MoveFailed, OSError):
            time.sleep(0.02)  # the link is gone, and the process soon
    if linked.process.returncode != 3:
        raise RuntimeError(f"{where}it ended with status {linked.process.returncode}")
    return time.monotonic() - begin


def one(program: str, log: Path) -> dict[str, Any]:
    """All of it for one program."""
    found: dict[str, Any] = {
        "program": program,
        "problem": "",
        "woken by books": False,
        "bytes": 0,
        "mended": 0,
    }
    for depth in ("memory", "context"):
        found[f"park, {depth}"], found[f"resume, {depth}"] = [], []
    code, env = PROGRAMS[program] + SERVE, {"AFFINODE_DEPTH": "context", "AFFINODE_LOG": str(log)}
    try:
        with LinkedProgram(code, env=env) as linked:
            before = linked.ask("work")
            cycles(linked, before, found)
            survives_a_full_gpu(linked, before)
            found["exit_s"] = ends_in_time(linked)
        with LinkedProgram(code, env=env) as linked:
            linked.ask("work")
            park(linked.connect(), "context")
            with ballast(LEAVES_FREE_BYTES):
                found["exit_full_s"] = ends_in_time_on_a_full_gpu(linked)
    except (RuntimeError, OSError, MoveFailed, subprocess.TimeoutExpired) as error:
        found["problem"] = f"{type(error).__name__}: {error}"
        say(f"  {program}: {found['problem']}; the shim's log: {log}")
    return found


def ends_in_time_on_a_full_gpu(linked: LinkedProgram) -> float:
    """It cannot come back for its end."""
    return end_within(linked, partial(linked.connect().begin, CommandKind.DYING, 0), "on a full GPU ")


def seconds(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s" if values else "-"


def main() -> int:
    parser = options(__doc__, time_s=500)
    parser.add_argument("--programs", default="torch,cupy,jax,driver", help="which, with commas between")
    given = parser.parse_args()
    programs = given.programs.split(",")
    where = machine(modules=[name for name in programs if name != "driver"])
    folder = Path(tempfile.mkdtemp(prefix="affinode-context-", dir="/tmp"))
    begin, results = time.monotonic(), []
    for program in programs:
        if time.monotonic() - begin < given.time:
            say(program)
            results.append(one(program, folder / f"{program}.log"))
    rows = [
        [
            found["program"],
            f"{found['bytes'] / 2**30:.2f} GiB",
            *(
                seconds(found[f"{move}, {depth}"])
                for depth in ("memory", "context")
                for move in ("park", "resume")
            ),
            "yes" if found["woken by books"] else "no",
            f"{found.get('exit_s', 0):.1f}, {found.get('exit_full_s', 0):.1f} s",
            found["problem"] or "right",
        ]
        for found in results
    ]
    headings = ["program", "parked", "park, memory", "resume", "park, context", "resume", "woken by questions",
                "exit with room, without", "result"]  # fmt: skip
    passed = bool(results) and not any(found["problem"] for found in results)
    return finish(
        "context depth", where, given.json, headings=headings, rows=rows, passed=passed, results=results
    )


if __name__ == "__main__":
    sys.exit(main())
