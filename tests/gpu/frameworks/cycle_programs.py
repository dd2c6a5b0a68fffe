"""Programs that compute step after step for random_cycles.py: `python cycle_programs.py NAME SEED PAUSE_S`.

Prints "ready", then "STEP LOSS" for every step, LOSS exact (hexadecimal). Pauses at random moments, also inside a step
with work under way. Ends after the first step from K on when it reads "until K", prints "end STEPS", and ends with its
input too.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

Pause = Callable[[], None]
Step = Callable[[int, Pause], str]


def pytorch() -> Step:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ballast = torch.randint(-(2**62), 2**62, (1 << 24,), device="cuda")  # 128 MiB
    generator = torch.Generator(device="cuda")
    generator.manual_seed(1)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()

    def step(number: int, pause: Pause) -> str:
        batch = torch.randn(128, 512, device="cuda", generator=generator)
        optimizer.zero_grad()
        loss = (model(batch) - batch.flip(1)).square().mean()
        pause()
        loss.backward()
        optimizer.step()
        with torch.cuda.stream(side):
            passing = torch.full((1 << (19 + number % 4),), float(number), device="cuda")  # 2 to 16 MiB
            total = passing.sum()
        pause()
        side.synchronize()
        ballast[number % len(ballast)] += number
        return f"{loss.item().hex()} {total.item().hex()} {int(ballast.sum())}"

    return step


def expandable() -> Step:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return pytorch()


def jax() -> Step:
    """With its own allocator's preallocation: a fixed share of the GPU, taken at the start."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.04")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true"
    import jax as j
    import jax.numpy as jnp

    key = j.random.PRNGKey(0)
    weights = {
        "a": j.random.normal(key, (512, 2048)) * 0.02,
        "b": j.random.normal(j.random.fold_in(key, 1), (2048, 512)) * 0.02,
    }
    ballast = j.random.bits(key, (1 << 25,), "uint32")

    def loss_of(w, batch):  # type: ignore[no-untyped-def]
        return jnp.mean((j.nn.gelu(batch @ w["a"]) @ w["b"] - batch[:, ::-1]) ** 2)

    @j.jit
    def train(w, ballast, number):  # type: ignore[no-untyped-def]
        batch = j.random.normal(j.random.fold_in(key, number), (128, 512))
        value, gradient = j.value_and_grad(loss_of)(w, batch)
        moved = ballast.at[number % ballast.shape[0]].add(number.astype("uint32"))
        return j.tree.map(lambda x, g: x - 0.1 * g, w, gradient), moved, value, moved.sum()

    def step(number: int, pause: Pause) -> str:
        nonlocal weights, ballast
        weights, ballast, value, total = train(weights, ballast, jnp.int32(number))
        pause()
        return f"{float(value).hex()} {int(total)}"

    return step


def cupy() -> Step:
    import cupy as cp

    rng = cp.random.default_rng(1)
    weights = rng.standard_normal((1024, 1024), dtype=cp.float32)
    target = rng.standard_normal((1024, 1024), dtype=cp.float32)
    ballast = rng.integers(0, 1 << 62, 1 << 24, dtype=cp.int64)
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()  # what was made on the default stream is there for this one

    def step(number: int, pause: Pause) -> str:
        nonlocal weights
        with stream:
            gradient = weights @ weights.T @ weights / 1024 - target
            pause()
            weights = weights - 1e-3 * gradient
            ballast[number % len(ballast)] += number
            passing = cp.full(1 << (19 + number % 4), number, dtype=cp.int32)
            pause()
            largest = float(cp.abs(weights).max())
            return f"{largest.hex()} {int(passing.sum())} {int(ballast.sum())}"

    return step


def numba() -> Step:
    import numpy as np
    from numba import cuda

    @cuda.jit
    def relax(old, new):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if 0 < i < old.size - 1:
            new[i] = 0.25 * old[i - 1] + 0.5 * old[i] + 0.25 * old[i + 1]

    size = 1 << 24  # 64 MiB each
    start = np.random.default_rng(2).standard_normal(size).astype(np.float32)
    old, new = cuda.to_device(start), cuda.to_device(start)

    def step(number: int, pause: Pause) -> str:
        nonlocal old, new
        for _ in range(4):
            relax[size // 256, 256](old, new)
            old, new = new, old
        pause()
        part = old[(number * 4096) % (size - 4096) :][:4096].copy_to_host()
        return f"{float(part.sum()).hex()} {float(np.abs(part).max()).hex()}"

    return step


def driver() -> Step:
    """The driver API alone, for the simulated GPU, which knows few kernels."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from gpu_cells import SETUP

    cells: dict[str, object] = {}
    exec(SETUP, cells)
    block, other = cells["Block"](16, 1), cells["Block"](4, 2)  # type: ignore[operator]

    def step(number: int, pause: Pause) -> str:
        block.launch("affinode_add_u32", number)
        pause()
        passing = cells["Block"](2 + number % 8, number)  # type: ignore[operator]
        total = passing.checksum()
        pause()
        passing.free()
        other.launch("affinode_add_u32", block.checksum() % 1000)
        return f"{block.checksum():x} {other.checksum():x} {total:x}"

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    "PyTorch": pytorch,
    "PyTorch, expandable segments": expandable,
    "JAX, preallocated": jax,
    "CuPy": cupy,
    "numba": numba,
    "driver API": driver,
}


def main() -> int:
    name, seed, longest = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    rng = random.Random(seed)
    until: list[float] = []

    def listen() -> None:
        for line in sys.stdin:
            if line.startswith("until "):
                until.append(int(line.split()[1]))
        until.append(-1)

    def pause() -> None:
        if rng.random() < 0.4:
            time.sleep(rng.uniform(0.0, longest))

    step = PROGRAMS[name]()
    threading.Thread(target=listen, daemon=True).start()
    print("ready", flush=True)
    number = 0
    while not until or number < until[0]:
        print(number, step(number, pause), flush=True)
        number += 1
        pause()
    print("end", number, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
