"""A notebook's kernel that is ready: `python tests/gpu warm_kernels`.

Needs jupyter-affinode, ipykernel, jupyter_server and PyTorch (with `--program driver` no PyTorch), and an NVIDIA GPU. A
real server has kernels of a kernelspec made whose prelude puts `--gib` of random bf16 weights on the GPU, shaped as a
model's layers. From `POST /api/kernels` to the reply of `1+1`, and to the first token, it takes the median of `--times`
plain starts and of as many warm kernels, with their GPU memory in RAM; with `--disk`, which needs CRIU, also of kernels
that hibernate. Exits with 1 if a kernel was not ready, or is not what it must be; with a real GPU also if a bound is
missed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

from controlled import finish, machine, options, say
from live_machine import Machine, new_machine
from live_server import JupyterServer
from waiting import wait_until

WAS_READY = "was ready: it is a warm one"
MADE_WITHIN_S = 900.0
# A decoder's layers of width 4096, as those of a model of 8 billion words, as many as there is room for.
PRELUDES = {
    "torch": """
import torch
WIDTH, INNER, WORDS = 4096, 14336, 32000
head = torch.randn(WORDS, WIDTH, dtype=torch.bfloat16, device="cuda")
layers = []
while torch.cuda.memory_allocated() < {bytes}:
    sizes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, INNER), (INNER, WIDTH))
    layers.append([torch.randn(*size, dtype=torch.bfloat16, device="cuda") / 64 for size in sizes])
def first_token():
    with torch.inference_mode():
        state = head[:16].clone()
        for qkv, out, up, down in layers:
            q, k, v = (state @ qkv).chunk(3, dim=-1)
            attended = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
            state = torch.nn.functional.layer_norm(state + attended @ out, (WIDTH,))
            state = torch.nn.functional.layer_norm(state + torch.relu(state @ up) @ down, (WIDTH,))
        return int((state[-1] @ head.T).argmax()) >= 0
first_token()
""",
    "driver": """
import ctypes
from jupyter_affinode.bench.driver import Driver
driver, words = Driver(), {bytes} // 8
block = driver.allocate(words * 8)
driver.call("cuMemsetD32_v2", ctypes.c_uint64(block), 0x5EED5EED, ctypes.c_size_t(words * 2))
host = (ctypes.c_uint64 * 1024)()
def first_token():
    driver.call("cuMemcpyDtoH_v2", host, ctypes.c_uint64(block), ctypes.c_size_t(8192))
    return all(word == 0x5EED5EED5EED5EED for word in host)
""",
}
ONE, TOKEN = "1 + 1", "first_token()"
RIGHT = {ONE: "2", TOKEN: "True"}


class Wrong(Exception):
    """A kernel is not what it must be."""


def write_spec(live: Machine, name: str, prelude: str, **warm: object) -> None:
    """Write a kernelspec; without `warm` it is none that is warm."""
    folder = Path(live.environment["JUPYTER_DATA_DIR"]) / "kernels" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prelude.py").write_text(prelude)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    metadata = {"affinode": {"warm": {"prelude": "prelude.py", **warm}}} if warm else {}
    model = {"argv": argv, "display_name": name, "language": "python", "metadata": metadata}
    (folder / "kernel.json").write_text(json.dumps(model))


def until_ready(live: Machine, place: str) -> None:
    """Wait until a warm kernel is ready, parked or in its image; hibernate it if that is asked for."""

    def pools() -> list[dict]:
        return json.loads(live.affinode("warm", "list", "--json").stdout or "[]")

    def ready() -> dict | None:
        for pool in pools():
            if pool["failed"]:
                raise Wrong(pool["failed"])
            if pool["kernels"]:
                return pool["kernels"][0]
        return None

    kernel = wait_until(ready, MADE_WITHIN_S, lambda: str(pools()))
    wait_until(
        lambda: live.kernels().get(kernel["id"], {}).get("residency") in ("parked", "hibernated", "none"),
        MADE_WITHIN_S,
        lambda: str(live.kernels()),
    )
    if place == "disk":
        done = live.affinode("hibernate", kernel["id"], timeout=MADE_WITHIN_S)
        if done.returncode:
            raise Wrong(done.stderr)


def seconds_to(server: JupyterServer, name: str, cell: str, *, is_warm: bool) -> float:
    """How long it takes from the request for a kernel to the reply of its first cell."""
    before = server.log().count(WAS_READY)
    began = time.monotonic()
    kernel = server.start_kernel(name)
    reply = kernel.run(cell, timeout=MADE_WITHIN_S)
    took_s = time.monotonic() - began
    was_ready = server.log().count(WAS_READY) > before
    kernel.shutdown()
    server.kernels.remove(kernel)
    if reply.text.strip() != RIGHT[cell] or was_ready != is_warm:
        why = [line for line in server.log().splitlines() if "warm kernel" in line][-1:]
        raise Wrong(f"{name}, {cell}: {reply}, taken {was_ready} {why}")
    return took_s


def rows_of(
    live: Machine, server: JupyterServer, arguments: object, *, judges: bool
) -> list[tuple[str, ...]]:
    """A row for each comparison."""

    def plain(name: str, cell: str) -> float:
        return statistics.median(
            seconds_to(server, name, cell, is_warm=False) for _ in range(arguments.times)
        )

    def warm(cell: str, place: str) -> float:
        took = []
        for _ in range(arguments.times):
            until_ready(live, place)
            took.append(seconds_to(server, "warm", cell, is_warm=True))
        return statistics.median(took)

    rows = []
    plain_s = plain("python3", ONE)
    for place in ("RAM", *(["disk"] if arguments.disk else [])):
        took_s = warm(ONE, place)
        limit, is_met = ("2 s", took_s <= 2) if place == "disk" else ("0.3 of it", took_s <= 0.3 * plain_s)
        rows.append(
            row_of(
                f"1+1, warm {'in RAM' if place == 'RAM' else 'on disk'}",
                plain_s,
                took_s,
                limit,
                is_met or not judges,
            )
        )
        say(" ".join(rows[-1]))
    with_prelude_s = plain("cold", TOKEN)
    took_s = warm(TOKEN, "RAM")
    is_met = took_s <= 0.1 * with_prelude_s or not judges
    rows.append(row_of("first token, warm in RAM", with_prelude_s, took_s, "0.1 of it", is_met))
    say(" ".join(rows[-1]))
    return rows


def row_of(what: str, plain_s: float, warm_s: float, limit: str, is_met: bool) -> tuple[str, ...]:
    """What the table says of one comparison."""
    ratio = f"{warm_s / plain_s:.2f}"
    return (what, f"{plain_s:.2f} s", f"{warm_s:.2f} s", ratio, limit, "yes" if is_met else "NO")


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    parser = options(__doc__, time_s=1800.0)
    parser.add_argument("--gib", type=float, default=16.0, help="the model's weights (16)")
    parser.add_argument("--times", type=int, default=3, help="how often each is tried (3)")
    parser.add_argument(
        "--program", choices=sorted(PRELUDES), default="torch", help="what kernels run (torch)"
    )
    parser.add_argument("--disk", action="store_true", help="also kernels that hibernate; needs CRIU")
    arguments = parser.parse_args()
    modules = ["ipykernel", "jupyter_server", *(["torch"] if arguments.program == "torch" else [])]
    where = machine(modules=modules)
    prelude = PRELUDES[arguments.program].format(bytes=int(arguments.gib * (1 << 30)))
    with new_machine() as live:
        live.environment["AFFINODE_FOLDER"] = str(live.folder / "own")
        if where["simulated"]:
            live.simulate(memory=f"{max(4, int(arguments.gib * 4))}GiB")
        write_spec(live, "warm", prelude, count=1)
        write_spec(live, "cold", prelude, count=0)
        server = JupyterServer(live)
        images = []
        if arguments.disk:
            server.transport = "tcp"
            images = [f"--AffinodeExtension.hibernate_dir={live.folder / 'images'}"]
            live.environment.update(XDG_STATE_HOME=str(live.folder / "state"), **criu())
        rows, problem = [], None
        try:
            server.start(*images)
            rows = rows_of(live, server, arguments, judges=not where["simulated"])
        except Wrong as wrong:
            problem = str(wrong)
            say(f"WRONG: {problem}")
        finally:
            server.stop()
    return finish(
        "warm_kernels",
        where,
        arguments.json,
        headings=("from a new kernel to", "plain", "warm", "ratio", "at most", "met"),
        rows=rows,
        passed=problem is None and all(row[-1] == "yes" for row in rows),
        notes=[f"{arguments.gib:g} GiB of weights, {arguments.program}; medians of {arguments.times}"],
    )


def criu() -> dict[str, str]:
    """How CRIU is called here, as the environment has it."""
    return {name: os.environ[name] for name in ("AFFINODE_CRIU",) if name in os.environ}


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.exit(main())
