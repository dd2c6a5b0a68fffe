"""Programs that compute step after step: `python cycle_programs.py NAME SEED PAUSE_S MIB HOW`; see twins.py.

Prints "ready", then "STEP LOSS" for every step, LOSS exact (hexadecimal) and of all that the program holds, which is
about MIB (0: its own usual). Pauses at random moments, also inside a step with work under way. HOW "free": ends after
the first step from K on when it reads "until K", and with its input too. "cells": computes up to step K when it reads
"go K" or "until K", and ends at the latter. Prints "end STEPS" then.
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
COLUMNS = 1 << 18  # of 8 bytes: a row is a chunk of 2 MiB
A = 0x1E3779B97F4A7C15  # odd: words that are made with it differ


def pytorch(seed: int, mib: int) -> Step:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch

    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = (mib or 128) // 2
    ballast = torch.randint(-(2**62), 2**62, (rows, COLUMNS), device="cuda")
    weights = 2 * torch.arange(rows, device="cuda") + 1
    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed + 1)
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
        (ballast if number % 2 else ballast[number % rows]).add_(number + 1)
        return f"{loss.item().hex()} {total.item().hex()} {int((ballast.sum(1) * weights).sum())}"

    return step


def expandable(seed: int, mib: int) -> Step:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return pytorch(seed, mib)


def jax(seed: int, mib: int) -> Step:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true"
    from functools import partial

    import jax as j
    import jax.numpy as jnp

    key = j.random.PRNGKey(seed)
    model = {
        "a": j.random.normal(key, (512, 2048)) * 0.02,
        "b": j.random.normal(j.random.fold_in(key, 1), (2048, 512)) * 0.02,
    }
    rows = (mib or 128) // 2
    weights = 2 * jnp.arange(rows, dtype="uint32") + 1

    @j.jit
    def make():  # type: ignore[no-untyped-def]
        words = j.lax.iota("uint32", rows * COLUMNS * 2) * jnp.uint32(A & 0xFFFFFFFF) + jnp.uint32(seed)
        return words.reshape(rows, 2 * COLUMNS)

    def loss_of(w, batch):  # type: ignore[no-untyped-def]
        return jnp.mean((j.nn.gelu(batch @ w["a"]) @ w["b"] - batch[:, ::-1]) ** 2)

    @partial(j.jit, donate_argnums=(1,))
    def train(w, ballast, number):  # type: ignore[no-untyped-def]
        batch = j.random.normal(j.random.fold_in(key, number), (128, 512))
        value, gradient = j.value_and_grad(loss_of)(w, batch)
        return j.tree.map(lambda x, g: x - 0.1 * g, w, gradient), ballast + number.astype("uint32"), value

    @j.jit
    def total_of(ballast):  # type: ignore[no-untyped-def]
        return (ballast.sum(1, dtype="uint32") * weights).sum(dtype="uint32")

    ballast = make()

    def step(number: int, pause: Pause) -> str:
        nonlocal model, ballast
        model, ballast, value = train(model, ballast, jnp.int32(number + 1))
        pause()
        return f"{float(value).hex()} {int(total_of(ballast))}"

    return step


def preallocated(seed: int, mib: int) -> Step:
    """With JAX's own preallocation: a fixed share of the GPU, taken at the start."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.04")
    return jax(seed, mib)


def cupy(seed: int, mib: int) -> Step:
    import cupy as cp

    rng = cp.random.default_rng(seed)
    model = rng.standard_normal((1024, 1024), dtype=cp.float32)
    target = rng.standard_normal((1024, 1024), dtype=cp.float32)
    rows = (mib or 128) // 2
    ballast = cp.arange(rows * COLUMNS, dtype=cp.int64)
    ballast *= A
    ballast += seed
    ballast = ballast.reshape(rows, COLUMNS)
    weights = 2 * cp.arange(rows, dtype=cp.int64) + 1
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()  # what was made on the default stream is there for this one

    def step(number: int, pause: Pause) -> str:
        nonlocal model
        with stream:
            gradient = model @ model.T @ model / 1024 - target
            pause()
            model = model - 1e-3 * gradient
            part = ballast if number % 2 else ballast[number % rows]
            part += number + 1
            passing = cp.full(1 << (19 + number % 4), number, dtype=cp.int32)
            pause()
            total = int((ballast.sum(1) * weights).sum())
            return f"{float(cp.abs(model).max()).hex()} {int(passing.sum())} {total}"

    return step


def numba(seed: int, mib: int) -> Step:
    import numpy as np
    from numba import cuda

    @cuda.jit
    def fill(values, seed):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < values.size:
            values[i] = (i * 2654435761 + seed) % 1000003 / 1000003

    @cuda.jit
    def relax(old, new):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if 0 < i < old.size - 1:
            new[i] = 0.25 * old[i - 1] + 0.5 * old[i] + 0.25 * old[i + 1]

    @cuda.jit
    def add_up(bits, total):  # type: ignore[no-untyped-def]
        begin = cuda.grid(1) * 256
        found = 0
        for i in range(begin, min(begin + 256, bits.size)):
            found += bits[i] * (2 * (i // 524288) + 1)
        cuda.atomic.add(total, 0, found)

    size = ((mib or 128) << 20) // 8
    blocks = size // 256
    old, new = (cuda.device_array(size, np.float32) for _ in range(2))
    for array in (old, new):
        fill[blocks, 256](array, seed)

    def step(number: int, pause: Pause) -> str:
        nonlocal old, new
        for _ in range(4):
            relax[blocks, 256](old, new)
            old, new = new, old
        pause()
        total = cuda.to_device(np.zeros(1, np.int64))
        for array in (old, new):
            add_up[max(blocks // 256, 1), 256](array.view(np.int32), total)
        return f"{int(total.copy_to_host()[0])}"

    return step


def driver(seed: int, mib: int) -> Step:
    """The driver API alone, for the simulated GPU, which knows few kernels."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from gpu_cells import SETUP

    cells: dict[str, object] = {}
    exec(SETUP, cells)
    mib = mib or 20
    block, other = cells["Block"](mib - mib // 5, seed), cells["Block"](mib // 5, seed + 1)  # type: ignore[operator]

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


PROGRAMS: dict[str, Callable[[int, int], Step]] = {
    "PyTorch": pytorch,
    "PyTorch, expandable segments": expandable,
    "JAX, preallocated": preallocated,
    "JAX": jax,
    "CuPy": cupy,
    "numba": numba,
    "driver API": driver,
}


def steps_while_told(step: Callable[[int], None]) -> int:
    """Compute on and on; how many steps when it was told to end."""
    until: list[int] = []

    def listen() -> None:
        for line in sys.stdin:
            if line.startswith("until "):
                until.append(int(line.split()[1]))
        until.append(-1)

    threading.Thread(target=listen, daemon=True).start()
    number = 0
    while not until or number < until[0]:
        step(number)
        number += 1
    return number


def steps_in_cells(step: Callable[[int], None]) -> int:
    """Compute as far as each order says; how many steps when it was told to end."""
    number = 0
    for line in sys.stdin:
        order, last = line.split()
        while number < int(last):
            step(number)
            number += 1
        if order == "until":
            break
    return number


def main() -> int:
    name, seed, longest, mib, how = sys.argv[1:]
    rng = random.Random(int(seed))

    def pause() -> None:
        if rng.random() < 0.4:
            time.sleep(rng.uniform(0.0, float(longest)))

    compute = PROGRAMS[name](int(seed), int(mib))

    def step(number: int) -> None:
        print(number, compute(number, pause), flush=True)
        pause()

    print("ready", flush=True)
    steps = steps_in_cells(step) if how == "cells" else steps_while_told(step)
    print("end", steps, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
