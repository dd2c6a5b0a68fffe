"""A notebook's kernel that is ready: `python tests/gpu warm_kernels`.

Needs jupyter-affinode, ipykernel, jupyter_server and PyTorch (with `--program driver` no PyTorch), and an NVIDIA GPU. A
real server has kernels of a kernelspec made whose prelude puts `--gib` of random bf16 weights on the GPU, shaped as a
model's layers. From `POST /api/kernels` to the reply of `1+1`, and to the first token, it takes the median of `--times`
plain starts and of as many warm kernels, with their GPU memory in RAM; with `--disk`, which needs CRIU, also of kernels
that hibernate. Random numbers of the kernels that were taken must differ, on the CPU and on the GPU. Says each step as
it ends; one that lasts longer than `--patience` ends the script, which then says what the pools, the controller and the
logs say, and writes what it has found until then. Exits with 1 if a kernel was not ready, or is not what it must be;
with a real GPU also if a bound is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any, NoReturn, TypeVar

from controlled import finish, machine, options, say
from jupyter_client.blocking.client import BlockingKernelClient
from live_machine import Machine, new_machine
from live_server import JupyterServer
from waiting import NotInTime, wait_until

T = TypeVar("T")
WAS_READY = "was ready: it is a warm one"
SERVER_S = 60.0
LOG_LINES = 30
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
RANDOM = {
    "torch": "random.random(), torch.rand(1).item(), torch.rand(1, device='cuda').item()",
    "driver": "(random.random(),)",
}
IN_HOST_MEMORY = ("parked", "none")


class Wrong(Exception):
    """A kernel is not what it must be, or not in time."""


class Run:
    """One server, its warm kernelspec, and what was measured until now."""

    def __init__(self, live: Machine, arguments: argparse.Namespace):
        """Write two kernelspecs with the same prelude: `warm`, and `cold`, of which none is kept ready."""
        self.live, self.arguments = live, arguments
        self.server = JupyterServer(live)
        self.server.enable_extension()
        self.samples: dict[str, list[float]] = defaultdict(list)
        self.drawn: list[tuple[float, ...]] = []
        self._ends_at = time.monotonic() + arguments.time
        prelude = PRELUDES[arguments.program].format(bytes=int(arguments.gib * (1 << 30)))
        self._write_spec("warm", prelude, count=1)
        self._write_spec("cold", prelude, count=0)

    def _write_spec(self, name: str, prelude: str, **warm: object) -> None:
        folder = Path(self.live.environment["JUPYTER_DATA_DIR"]) / "kernels" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prelude.py").write_text(prelude)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        metadata = {"affinode": {"warm": {"prelude": "prelude.py", **warm}}}
        model = {"argv": argv, "display_name": name, "language": "python", "metadata": metadata}
        (folder / "kernel.json").write_text(json.dumps(model))

    # ---- steps

    def measure(self) -> None:
        """Take all samples, the first of each comparison as early as can be. Raises Wrong."""
        self.made()
        self.parked()
        for _ in range(self.arguments.times):
            self.started("python3", ONE)
        for _ in range(self.arguments.times):
            self.ready_in("RAM")
            self.taken("RAM")
            if self.arguments.disk:
                self.ready_in("disk")
                self.taken("disk")
            if not self.samples["cold first token"]:
                self.ready_in("RAM")
                self.started("cold", TOKEN)

    def step(self, what: str, condition: Callable[[], T]) -> T:
        """Wait for a step's end, and say how long it took. Raises Wrong."""
        began = time.monotonic()
        patience_s = min(self.arguments.patience, self._ends_at - began)
        try:
            found = wait_until(condition, max(patience_s, 0.0))
        except NotInTime:
            raise Wrong(f"not {what} within {patience_s:.0f} s") from None
        say(f"{what} after {time.monotonic() - began:.2f} s")
        return found

    def pools(self) -> list[dict[str, Any]]:
        """What `warm list` says."""
        return json.loads(self.live.affinode("warm", "list", "--json", timeout=60).stdout or "[]")

    def ready(self) -> dict[str, Any] | None:
        """The kernel that is ready. Raises Wrong if the prelude failed."""
        for pool in self.pools():
            if pool["failed"]:
                raise Wrong(pool["failed"])
            if pool["kernels"]:
                return pool["kernels"][0]
        return None

    def made(self) -> None:
        """Wait until a warm kernel has run its prelude."""
        kernel = self.step("made", self.ready)
        say(f"its prelude took {kernel['took_s']:.2f} s")

    def parked(self) -> None:
        """Wait until the warm kernel is in host memory."""

        def is_parked() -> bool:
            kernel = self.ready()  # which may be another: one that is stale is made anew
            known = self.live.kernels().get(kernel["id"]) if kernel is not None else None
            return known is not None and known["residency"] in IN_HOST_MEMORY

        self.step("parked", is_parked)

    def ready_in(self, place: str) -> None:
        """Have a warm kernel ready in host memory, or in its image."""
        self.made()
        self.parked()
        if place == "disk":
            kernel = self.ready()
            assert kernel is not None
            entry = Path(self.live.environment["AFFINODE_FOLDER"], "warm", kernel["id"])
            pid = json.loads((entry / "started.json").read_text())["pid"]
            began, limit_s = time.monotonic(), self.arguments.patience
            try:
                done = self.live.affinode("hibernate", kernel["id"], timeout=limit_s)
            except subprocess.TimeoutExpired:
                raise Wrong(f"not hibernated within {limit_s:.0f} s") from None
            if done.returncode:
                raise Wrong(f"not hibernated: {done.stdout}{done.stderr}")
            say(f"hibernated after {time.monotonic() - began:.2f} s")
            # Where its parent notes late that it has ended, a kernel cannot be woken at once: none is taken so soon.
            self.step("its process gone", lambda: not Path(f"/proc/{pid}").exists())

    def started(self, name: str, cell: str) -> None:
        """Start a plain kernel, and run one cell in it."""
        client, began = self._new(name, is_warm=False)
        took_s = self._value(client, cell, began)
        self._end(client)
        self.samples[f"{name} {'first token' if cell == TOKEN else '1+1'}"].append(took_s)

    def taken(self, place: str) -> None:
        """Take a warm kernel, and run `1+1` and the first token in it."""
        client, began = self._new("warm", is_warm=True)
        for cell, what in ((ONE, "1+1"), (TOKEN, "first token")):
            self.samples[f"{place} {what}"].append(self._value(client, cell, began))
        drawn = self._reply(client, RANDOM[self.arguments.program])
        self.drawn.append(tuple(json.loads(drawn.replace("(", "[").replace(",)", "]").replace(")", "]"))))
        self._end(client)
        if any(len(set(numbers)) < len(self.drawn) for numbers in zip(*self.drawn, strict=True)):
            raise Wrong(f"kernels that were taken have the same random numbers: {self.drawn}")

    # ---- one kernel

    def _new(self, name: str, *, is_warm: bool) -> tuple[BlockingKernelClient, float]:
        """Start a kernel, and connect to it; return when that began, too."""
        before, began = self.server.log().count(WAS_READY), time.monotonic()
        status, model = self.server.request(
            "POST", "/api/kernels", {"name": name}, timeout=self.arguments.patience
        )
        answered_s = time.monotonic() - began
        if status != 201:
            raise Wrong(f"{name} was not started: {status} {model}")
        runtime = Path(self.live.environment["JUPYTER_RUNTIME_DIR"])
        client = BlockingKernelClient(connection_file=str(runtime / f"kernel-{model['id']}.json"))
        client.load_connection_file()
        client.start_channels()
        client.kernel_id = model["id"]
        say(f"{name}: the server answered after {answered_s:.2f} s")
        if (self.server.log().count(WAS_READY) > before) != is_warm:
            why = [line for line in self.server.log().splitlines() if "warm kernel" in line][-1:]
            raise Wrong(f"{name}: {'not taken' if is_warm else 'taken'} {why}")
        return client, began

    def _value(self, client: BlockingKernelClient, cell: str, began: float) -> float:
        """Run a cell whose value is known; return the seconds until its reply. Raises Wrong."""
        value = self._reply(client, cell)
        took_s = time.monotonic() - began
        say(f"{cell} after {took_s:.2f} s")
        if value != RIGHT[cell]:
            raise Wrong(f"{cell} is {value}")
        return took_s

    def _reply(self, client: BlockingKernelClient, cell: str) -> str:
        """Run a cell, and return what its value is, by the reply alone: that needs no subscription to output."""
        sent = client.execute(f"import random; value = {cell}", user_expressions={"value": "value"})
        with contextlib.suppress(Empty):
            while True:
                reply = client.get_shell_msg(timeout=self.arguments.patience)
                if reply["parent_header"]["msg_id"] == sent:
                    break
            if reply["content"]["status"] != "ok":
                raise Wrong(f"{cell}: {reply['content']}")
            return str(reply["content"]["user_expressions"]["value"]["data"]["text/plain"])
        raise Wrong(f"no answer to {cell} within {self.arguments.patience:.0f} s")

    def _end(self, client: BlockingKernelClient) -> None:
        began = time.monotonic()
        client.stop_channels()
        self.server.request("DELETE", f"/api/kernels/{client.kernel_id}")
        say(f"shut down after {time.monotonic() - began:.2f} s")

    # ---- what came of it

    def rows(self, *, judges: bool) -> list[tuple[str, ...]]:
        """A row for each comparison that has been made."""
        limits: dict[str, tuple[str, str, Callable[[float, float], bool]]] = {
            "RAM 1+1": ("python3 1+1", "0.3 of it", lambda plain_s, took_s: took_s <= 0.3 * plain_s),
            "RAM first token": (
                "cold first token",
                "0.1 of it",
                lambda plain_s, took_s: took_s <= 0.1 * plain_s,
            ),
            "disk 1+1": ("python3 1+1", "2 s", lambda _, took_s: took_s <= 2),
            "disk first token": ("cold first token", "", lambda *_: True),
        }
        found = []
        for name, (against, limit, is_met) in limits.items():
            if not self.samples[name] or not self.samples[against]:
                continue
            plain_s, took_s = (statistics.median(self.samples[each]) for each in (against, name))
            place, what = name.split(maxsplit=1)
            found.append(
                (
                    f"{what}, warm {'in RAM' if place == 'RAM' else 'on disk'}",
                    f"{plain_s:.2f} s",
                    f"{took_s:.2f} s",
                    f"{took_s / plain_s:.2f}",
                    limit,
                    "yes" if is_met(plain_s, took_s) or not judges else "NO",
                )
            )
        return found

    def show_state(self) -> None:
        """Say what the pools, the controller and the logs say."""
        for command in (("warm", "list", "--json"), ("status",)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                shown = self.live.affinode(*command, timeout=20)
                say(f"{' '.join(command)}:\n{shown.stdout}{shown.stderr}")
        own = Path(self.live.environment["AFFINODE_FOLDER"])
        for name, text in {
            "controller": self.live.controller_log(),
            "keeper": _text(own / "keeper.log"),
            "making": _text(own / "warm" / "making.log"),
            "server": self.server.log(),
        }.items():
            say("\n".join([f"{name}:", *text.splitlines()[-LOG_LINES:]]))


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    parser = options(__doc__, time_s=500.0)
    parser.add_argument("--gib", type=float, default=16.0, help="the model's weights (16)")
    parser.add_argument("--times", type=int, default=3, help="how often each is tried (3)")
    parser.add_argument(
        "--patience", metavar="S", type=float, default=90.0, help="how long one step may take (90 s)"
    )
    parser.add_argument(
        "--program", choices=sorted(PRELUDES), default="torch", help="what kernels run (torch)"
    )
    parser.add_argument("--disk", action="store_true", help="also kernels that hibernate; needs CRIU")
    arguments = parser.parse_args()
    modules = ["ipykernel", "jupyter_server", *(["torch"] if arguments.program == "torch" else [])]
    where = machine(modules=modules)
    signal.signal(signal.SIGTERM, _stopped)
    with new_machine() as live:
        live.environment["AFFINODE_FOLDER"] = str(live.folder / "own")
        if where["simulated"]:
            live.simulate(memory=f"{max(4, int(arguments.gib * 4))}GiB")
        run, images, problem = Run(live, arguments), [], None
        if arguments.disk:
            run.server.transport = "tcp"
            images = [f"--AffinodeExtension.hibernate_dir={live.folder / 'images'}"]
            live.environment.update(XDG_STATE_HOME=str(live.folder / "state"), **criu())
        try:
            run.server.start(*images, timeout=SERVER_S)
            say("the server is up")
            run.measure()
        except (Wrong, AssertionError) as wrong:
            problem = str(wrong) or repr(wrong)
            say(f"WRONG: {problem}")
            run.show_state()
            say(f"WRONG: {problem}")
        rows = run.rows(judges=not where["simulated"])
        status = finish(
            "warm_kernels",
            where,
            arguments.json,
            headings=("from a new kernel to", "plain", "warm", "ratio", "at most", "met"),
            rows=rows,
            passed=problem is None and all(row[-1] == "yes" for row in rows),
            notes=[
                f"{arguments.gib:g} GiB of weights, {arguments.program}; medians of up to {arguments.times}",
                f"random numbers of {len(run.drawn)} taken kernels, which must differ: {run.drawn}",
                *([f"WRONG: {problem}"] if problem else []),
            ],
            samples=run.samples,
        )
        run.server.stop()
    return status


def _stopped(*_: object) -> NoReturn:
    raise Wrong("it was stopped: its time was up")


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def criu() -> dict[str, str]:
    """How CRIU is called here, as the environment has it."""
    return {name: os.environ[name] for name in ("AFFINODE_CRIU",) if name in os.environ}


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.exit(main())
