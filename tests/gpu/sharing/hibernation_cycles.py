"""Programs of several frameworks hibernate again and again: `python tests/gpu hibernation_cycles --dir /scratch`.

Needs what `hibernation` needs, and the frameworks; one that is not installed is left out. Each program is a kernel that
computes `--steps` steps, hibernates, wakes, and goes on; `--cycles` times, all programs at once. Beside those of the
random cycles: PyTorch with a CUDA graph and a DataLoader that keeps its worker processes, and a small language model
of transformers that is trained. Each step's loss must be, bit for bit, that of a twin that is never hibernated and
computes as many steps. With `--elsewhere` another program fills GPU 0 while all are on disk, so they wake on another
GPU of the machine. Exits with 1 if anything is not as it must be.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from controlled import NO_GPU_STATUS, ballast, finish, machine, options, say
from hibernation import KEEP, command, park, server_with_images, what_is_left
from live_machine import Machine
from live_server import JupyterKernel, JupyterServer

FRAMEWORKS = Path(__file__).resolve().parents[1] / "frameworks"
ANSWERS_WITHIN_S = 100.0
LEAVES_BYTES = 256 << 20  # less than a CUDA context takes
OF_CYCLE_PROGRAMS = """
import sys
sys.path.insert(0, {folder!r})
import cycle_programs
compute = cycle_programs.PROGRAMS[{name!r}]({seed}, {mib})
number = 0
def steps(count):
    global number
    for _ in range(count):
        print(compute(number, lambda: None))
        number += 1
"""
WITH_WORKERS = """
import torch
torch.manual_seed({seed})
net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 16)).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(4096, 256), torch.randint(0, 16, (4096,)))
order = torch.Generator().manual_seed({seed})
loader = torch.utils.data.DataLoader(
    data, batch_size=64, shuffle=True, generator=order, num_workers=2, persistent_workers=True
)
ballast = torch.randint(-2**62, 2**62, ({mib} << 17,), device="cuda")
source = torch.ones(1 << 20, device="cuda"); result = torch.empty_like(source)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result.copy_(source * 2 + 1)
def batches():
    while True:
        yield from loader
stream = batches()
def steps(count):
    for _ in range(count):
        values, targets = (each.cuda() for each in next(stream))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(values), targets)
        loss.backward(); optimizer.step()
        source.add_(1); graph.replay()
        print(loss.item().hex(), result.double().sum().item().hex(), int(ballast.sum()))
"""
TRANSFORMERS = """
import torch, transformers
torch.manual_seed({seed})
torch.use_deterministic_algorithms(True, warn_only=True)
config = transformers.LlamaConfig(
    vocab_size=4096, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8
)
model = transformers.LlamaForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
def steps(count):
    for _ in range(count):
        tokens = torch.randint(0, 4096, (4, 128), device="cuda")
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward(); optimizer.step()
        print(loss.item().hex())
"""
MODULES = {"PyTorch": "torch", "JAX": "jax", "CuPy": "cupy", "numba": "numba", "driver API": "ctypes"}
MODULES |= {"PyTorch, graph and workers": "torch", "transformers": "transformers"}
HEADINGS = ("program", "cycles", "image", "away", "1+1", "steps after that", "steps", "on GPUs", "losses")
USUAL = ("PyTorch", "PyTorch, graph and workers", "transformers", "JAX", "CuPy", "numba")


@dataclass
class Pair:
    """A program and its twin, and what became of them; times in seconds."""

    name: str
    kernel: JupyterKernel
    twin: JupyterKernel
    steps: int = 0
    cycles: int = 0
    image_bytes: int = 0
    away_s: list[float] = field(default_factory=list)
    answer_s: list[float] = field(default_factory=list)
    result_s: list[float] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    problem: str = ""


def source_of(name: str, seed: int, mib: int) -> str:
    """The cell that prepares a program."""
    given = {"PyTorch, graph and workers": WITH_WORKERS, "transformers": TRANSFORMERS}
    code = given.get(name, OF_CYCLE_PROGRAMS)
    return code.format(folder=str(FRAMEWORKS), name=name, seed=seed, mib=mib)


def done(kernel: JupyterKernel, code: str) -> str:
    """What a cell printed; AssertionError with its traceback if it failed."""
    ran = kernel.run(code, timeout=ANSWERS_WITHIN_S)
    assert ran.status == "ok", "\n".join(ran.traceback)[-2000:]
    return ran.text


def each(pairs: list[Pair], do: Callable[[Pair], None]) -> None:
    """Do it for all at once; what fails is the pair's problem."""

    def one(pair: Pair) -> None:
        if not pair.problem:
            try:
                do(pair)
            except AssertionError as error:
                pair.problem = str(error)[-1500:] or "an assertion failed"
                log = pair.kernel.server.machine.socket.with_name("node.log")
                told = [line for line in log.read_text().splitlines() if pair.kernel.id in line]
                say("\n".join([f"{pair.name}: {pair.problem}; of it the controller says:", *told[-8:]]))

    with ThreadPoolExecutor(len(pairs)) as threads:
        list(threads.map(one, pairs))


def go_away(live: Machine, pair: Pair) -> None:
    """Park it, and have it hibernate."""
    park(live, pair.kernel)
    said, took_s = command(live, "hibernate", pair.kernel)
    pair.image_bytes = said.bytes
    pair.away_s.append(took_s)


def come_back(live: Machine, pair: Pair) -> None:
    """Wake it; it answers without its GPU first."""
    began = time.monotonic()
    command(live, "wake", pair.kernel)
    pair.kernel.listen_again()
    done(pair.kernel, "print(1 + 1)")
    pair.answer_s.append(time.monotonic() - began)


def compute(live: Machine, pair: Pair, steps: int) -> None:
    """Let both compute so many steps, and compare."""
    began = time.monotonic()
    losses = done(pair.kernel, f"steps({steps})")
    pair.result_s.append(time.monotonic() - began)
    assert losses.strip(), "no loss was printed"
    expected = done(pair.twin, f"steps({steps})")
    assert losses == expected, f"DIFFERENT after step {pair.steps}: {losses} / {expected}"
    pair.steps += steps
    for known in live.kernels().values():
        if known["id"].endswith(pair.kernel.id):
            pair.gpus += [gpu["uuid"] for gpu in known["gpus"] if gpu["resident_bytes"]]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = options(__doc__, time_s=500.0)
    parser.add_argument("--dir", required=True, help="a folder on a local disk")
    parser.add_argument("--cycles", type=int, default=20, help="how often (20)")
    parser.add_argument("--steps", type=int, default=3, help="steps between two of them (3)")
    parser.add_argument("--mib", type=int, default=256, help="about what each holds on the GPU (256)")
    parser.add_argument("--programs", default=";".join(USUAL))
    parser.add_argument(
        "--elsewhere", action="store_true", help="fill GPU 0 while they are on disk; needs two GPUs"
    )
    return parser.parse_args()


def begun(server: JupyterServer, names: list[str], given: argparse.Namespace) -> list[Pair]:
    """Start each program and its twin; the first steps are computed, and the server has ended."""
    pairs = [Pair(name, server.start_kernel(), server.start_kernel()) for name in names]
    for seed, pair in enumerate(pairs):
        if given.elsewhere:
            done(pair.twin, "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '1'; print()")
        for kernel in (pair.kernel, pair.twin):
            done(kernel, source_of(pair.name, seed, given.mib))
    each(pairs, lambda pair: compute(server.machine, pair, given.steps))
    server.process.terminate()  # its kernels are kept
    server.process.wait(timeout=60)
    return pairs


def one_cycle(live: Machine, pairs: list[Pair], given: argparse.Namespace) -> None:
    """Have all go away and come back, and compute."""
    each(pairs, lambda pair: go_away(live, pair))
    with ExitStack() as stack:
        if given.elsewhere:
            with patch.dict(os.environ, live.environment):  # on the same machine, if it is simulated
                stack.enter_context(ballast(LEAVES_BYTES))
        each(pairs, lambda pair: come_back(live, pair))
        each(pairs, lambda pair: compute(live, pair, given.steps))
    for pair in pairs:
        pair.cycles += not pair.problem


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    given = arguments()
    asked = given.programs.split(";")
    names = [name for name in asked if importlib.util.find_spec(MODULES[name]) is not None]
    where = machine(1 + given.elsewhere, modules=["ipykernel", "jupyter_server"])
    if not names:
        print("this needs a framework", file=sys.stderr)
        return NO_GPU_STATUS
    images = Path(given.dir, f"images-{os.getpid()}")
    notes = [f"left out, not installed: {name}" for name in asked if name not in names]
    migrates = ["--depth=context", "--allow-migration=True"] if given.elsewhere else []
    variables = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with server_with_images(
        images, bool(where["simulated"]), gpus=1 + given.elsewhere, controller=migrates, **variables
    ) as server:
        pairs = begun(server, names, given)
        deadline = time.monotonic() + given.time
        for cycle in range(given.cycles):
            if time.monotonic() > deadline:
                notes.append(f"{cycle} of {given.cycles} cycles: the time was over")
                break
            one_cycle(server.machine, pairs, given)
            became = (f"{pair.name} {'WRONG' if pair.problem else 'equal'}" for pair in pairs)
            say(f"cycle {cycle + 1}: {', '.join(became)}")
            if all(pair.problem for pair in pairs):
                break
        server.start(KEEP, port=server.port)
        kernels = [kernel for pair in pairs for kernel in (pair.kernel, pair.twin)]
        left = what_is_left(server, kernels, images)
    return finish(
        "hibernation_cycles",
        where,
        given.json,
        headings=HEADINGS,
        rows=[row_of(pair) for pair in pairs],
        passed=all(not pair.problem and pair.cycles for pair in pairs)
        and not left
        and all(len(set(pair.gpus)) == 1 + given.elsewhere for pair in pairs),
        notes=[*notes, f"times are medians, of all programs at once; all images deleted: {not left}"],
    )


def row_of(pair: Pair) -> tuple[str, ...]:
    """What became of a program."""

    def middle(times: list[float]) -> str:
        return f"{sorted(times)[len(times) // 2]:.2f} s" if times else "-"

    on = " > ".join(dict.fromkeys(uuid[:8] + "…" + uuid[-6:] for uuid in pair.gpus)) or "-"
    return (
        pair.name,
        str(pair.cycles),
        f"{pair.image_bytes / 2**30:.2f} GiB",
        middle(pair.away_s),
        middle(pair.answer_s),
        middle(pair.result_s[1:]),
        str(pair.steps),
        on,
        pair.problem.splitlines()[-1][:120] if pair.problem else "equal",
    )


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.exit(main())
