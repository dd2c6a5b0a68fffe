"""A kernel hibernates to disk with its GPU memory, and is woken: `python tests/gpu hibernation --dir /scratch`.

Needs jupyter-affinode, ipykernel, jupyter_server and PyTorch (with `--program driver` no PyTorch), CRIU (AFFINODE_CRIU
says how it is called), root, and an NVIDIA GPU. A real server starts a kernel that holds `--gib` of random words,
trains a small network with AdamW and has a CUDA graph; its losses are compared with those of a twin that computes
straight on. The server ends; the kernel hibernates, is woken, answers `1+1`, and computes; `--cycles` times, the last
ones with 1 % of its words changed. The last time another program fills the GPU with `--full` while it comes back, and
with `--killed` it is killed on its way back to the GPU, and woken again. Beside each image a plain file of that size
is written and read, past the cache. An image's size is what the disk has of it, its processes' part apart: that is
compressed. The seconds of each step are the keeper's own.
Exits with 1 if anything is not as it must be.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from controlled import ballast, finish, machine, options, say
from live_kernel import gpu_used_bytes
from live_machine import Machine, new_machine
from live_server import JupyterKernel, JupyterServer, exists
from spill import plain_copies
from waiting import wait_until

from jupyter_affinode.keeping.client import Kept, connected

KEEP = "--AffinodeExtension.keep_kernels=all"
MIB = 1 << 20
LEAVES_BYTES = 256 << 20  # less than a CUDA context takes
SEEN_TO_WAIT_S = 4.0
KILLED_AFTER_S = 0.2
SAMPLE_BYTES = 8 << 30  # of the plain file; its times are for as much as the image has
SETUP = {
    "torch": """
import torch
torch.manual_seed(7)
generator = torch.Generator("cuda").manual_seed(7)
block = torch.randint(-2**62, 2**62, ({words},), dtype=torch.int64, device="cuda", generator=generator)
net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
generator.manual_seed(8)
data = torch.randn(256, 512, device="cuda", generator=generator)
target = torch.randint(0, 10, (256,), device="cuda", generator=generator)
source = torch.ones(1 << 20, device="cuda"); result = torch.empty_like(source)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result.copy_(source * 2 + 1)
def train():
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(data), target)
        loss.backward(); optimizer.step()
        losses.append(loss.item())
    source.add_(1); graph.replay()
    return losses, result.double().sum().item()
def zeros(gib):
    global nothing
    nothing = torch.zeros(int(gib * (1 << 27)), dtype=torch.int64, device="cuda")
def checksum(): return int(block.sum())
def change(part): block[: int(len(block) * part)] += 1
""",
    "driver": """
import ctypes
from jupyter_affinode.bench.driver import Driver
driver, words = Driver(), {words}
held = driver.allocate(words * 8)
host = (ctypes.c_uint64 * words)()
for at in range(0, words, 257): host[at] = at * 0x9E3779B97F4A7C15 % 2**64
driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(held), host, ctypes.c_size_t(words * 8))
def checksum():
    driver.call("cuMemcpyDtoH_v2", host, ctypes.c_uint64(held), ctypes.c_size_t(words * 8))
    return sum(host[at] for at in range(0, words, 257))
def change(part):
    n = int(words * part)
    host[0] = (host[0] + 1) % 2**64
    driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(held), host, ctypes.c_size_t(n * 8))
def zeros(gib):
    size = int(gib * (1 << 30))
    driver.call("cuMemsetD8_v2", ctypes.c_uint64(driver.allocate(size)), ctypes.c_ubyte(0), ctypes.c_size_t(size))
steps = 0
def train():
    global steps
    steps += 1
    return steps
""",
}


def value(kernel: JupyterKernel, code: str, timeout: float = 300) -> tuple[str, float]:
    """What an expression is, and the seconds until it was told."""
    began = time.monotonic()
    done = kernel.run(code, timeout=timeout)
    assert done.status == "ok", "\n".join(done.traceback)
    return done.text, time.monotonic() - began


def command(live: Machine, action: str, kernel: JupyterKernel) -> tuple[Kept, float]:
    """Ask the keeper to `hibernate` or `wake` it, as the command line does: its answer, and the seconds it took."""

    async def asked() -> Kept:
        keeper = await connected()
        try:
            return await getattr(keeper, action)(kernel.id)
        finally:
            await keeper.close()

    assert os.environ["AFFINODE_FOLDER"] == live.environment["AFFINODE_FOLDER"]
    began = time.monotonic()
    return asyncio.run(asked()), time.monotonic() - began


def park(live: Machine, kernel: JupyterKernel) -> None:
    """Park it, and wait until it is."""
    name = next(known for known in live.kernels() if known.endswith(kernel.id)).replace("/", "%2F")
    status, answer = live.ask("POST", f"/kernels/{name}/park", {"wait": True})
    assert status == 200, answer


def on_disk(images: Path) -> tuple[int, int]:
    """What the disk has of images: of GPU memory, and of all else."""
    found = {path: path.lstat() for path in images.rglob("*") if path.is_file() and not path.is_symlink()}
    of_gpu, of_processes = {}, {}
    for path, status in found.items():
        (of_gpu if path.name.startswith("gpu-") else of_processes)[status.st_ino] = status.st_blocks * 512
    return sum(of_gpu.values()), sum(of_processes.values())


def say_steps(live: Machine) -> None:
    """What the keeper says of the steps of the last hibernation and wake."""
    lines = Path(live.environment["AFFINODE_FOLDER"], "keeper.log").read_text(errors="replace").splitlines()
    for way in ("into its image", "out of its image"):
        for line in [each for each in lines if f"{way}: " in each][-1:]:
            say(line.partition(" ")[2].partition(" ")[2])


def waits_for_room(kernel: JupyterKernel, live: Machine, images: Path) -> bool:
    """Use the GPU while another program fills it; whether that waits, and the image is kept meanwhile."""
    with patch.dict(os.environ, live.environment), ballast(LEAVES_BYTES):
        waiting = kernel.submit("checksum()")
        time.sleep(SEEN_TO_WAIT_S)
        waits = bool(
            live.kernel(next(each for each in live.kernels() if each.endswith(kernel.id))).get("place")
        )
        kept = bool(list(images.glob("*")))
    kernel.wait(waiting, timeout=300)
    say(f"beside a full GPU: waits {waits}, its image is kept {kept}")
    return waits and kept


def killed_on_its_way(kernel: JupyterKernel, live: Machine) -> bool:
    """Kill it while its GPU memory comes back, and wake it again; whether its image was kept for that."""
    kernel.submit("checksum()")
    time.sleep(KILLED_AFTER_S)
    os.kill(int(kernel.pid), signal.SIGKILL)
    kept: list[dict[str, Any]] = []

    def is_in_image() -> bool:
        done = live.affinode("kept", "--json", timeout=60)
        kept[:] = [each for each in json.loads(done.stdout) if each["id"] == kernel.id]
        return bool(kept) and kept[0]["place"] == "image"

    wait_until(is_in_image, 60, lambda: f"its image is kept: {kept}")
    done = live.affinode("wake", kernel.id, "--json", timeout=600)
    say(f"killed on its way back: {'woken again' if done.returncode == 0 else done.stdout + done.stderr}")
    kernel.listen_again()
    return done.returncode == 0


def one_cycle(
    server: JupyterServer,
    kernel: JupyterKernel,
    twin: JupyterKernel,
    name: str,
    folder: Path,
    images: Path,
    changed: float,
    *,
    full: bool,
    killed: bool,
) -> tuple[str, ...]:
    """Hibernate and wake once, beside a full GPU or not, killed on its way back or not; a row."""
    live, used_before = server.machine, gpu_used_bytes()
    for each in (kernel, twin):
        value(each, f"change({changed})") if changed else None
    before, _ = value(kernel, "checksum()")
    pid = kernel.pid
    park(live, kernel)
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(timeout=60)
    said, slept_s = command(live, "hibernate", kernel)
    size, (of_gpu, of_processes) = said.bytes, on_disk(images)
    say(f"of the GPU {of_gpu / 2**30:.3f} GiB, of its processes {of_processes / 2**30:.3f} GiB (compressed)")
    gone, left = not exists(int(pid)), gpu_used_bytes()
    sample = min(max(size // (64 * MIB), 1) * 64 * MIB, SAMPLE_BYTES)
    wrote_s, read_s = (each * size / sample for each in plain_copies(folder, sample))
    _, woken_s = command(live, "wake", kernel)
    began = time.monotonic()
    kernel.listen_again()
    value(kernel, "1+1")
    awake_s = woken_s + time.monotonic() - began
    waited = (not killed or killed_on_its_way(kernel, live)) and (
        not full or waits_for_room(kernel, live, images)
    )
    after, took_s = value(kernel, "checksum()")
    server.start(KEEP, port=server.port)
    known = server.request("GET", f"/api/kernels/{kernel.id}")[0] == 200
    trained = value(kernel, "train()")[0] == value(twin, "train()")[0]
    right = waited and gone and known and after == before and kernel.pid == pid and trained
    say(
        f"{name}: {size / 2**30:.2f} GiB, away {slept_s:.2f} s (plain write {wrote_s:.2f}), woken {woken_s:.2f} s,"
        f" 1+1 {awake_s:.2f} s,"
        f" first CUDA result {took_s:.2f} s (plain read {read_s:.2f}), GPU {used_before >> 20} -> {left >> 20} MiB:"
        f" {'right' if right else f'WRONG {gone, known, after == before, trained}'}"
    )
    say_steps(live)
    return (
        name,
        f"{size / 2**30:.2f} GiB",
        f"{of_processes / 2**30:.2f} GiB",
        f"{slept_s:.2f} s",
        f"{wrote_s:.2f} s",
        f"{slept_s / wrote_s:.2f}",
        f"{awake_s:.2f} s",
        f"{took_s:.2f} s",
        f"{read_s:.2f} s",
        "equal" if right else "WRONG",
    )


@contextlib.contextmanager
def server_with_images(
    images: Path, simulated: bool, *, gpus: int = 1, controller: Sequence[str] = (), **variables: str
) -> Iterator[JupyterServer]:
    """A server on a machine of its own whose kernels are kept, and hibernate in that folder.

    `controller` are more options of the controller, `variables` more of the environment.
    """
    with new_machine() as live, patch.dict(os.environ, AFFINODE_FOLDER=str(live.folder / "own")):
        live.environment.update(
            AFFINODE_FOLDER=os.environ["AFFINODE_FOLDER"],
            AFFINODE_HIBERNATE_DIR=str(images),
            XDG_STATE_HOME=str(live.folder / "state"),
            AFFINODE_CRIU=os.environ.get("AFFINODE_CRIU", "criu"),
            **variables,
        )
        if simulated:
            live.simulate("4GiB", gpus=gpus)
        live.start_controller("--settle=0", *controller)
        server = JupyterServer(live)
        server.enable_extension()
        server.transport = "tcp"
        yield server.start(KEEP)


def what_is_left(server: JupyterServer, kernels: Sequence[JupyterKernel], images: Path) -> list[str]:
    """Shut the kernels down, and end their server; what is in the folder of images after half a minute."""
    for kernel in kernels:
        kernel.shutdown()
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not list(images.glob("*")), 30)
    server.stop()
    return [str(path) for path in images.glob("*")]


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    parser = options(__doc__, time_s=500.0)
    parser.add_argument("--dir", required=True, help="a folder on a local disk")
    parser.add_argument("--gib", type=float, default=8.0, help="what the kernel holds (8)")
    parser.add_argument("--cycles", type=int, default=3, help="how often (3)")
    parser.add_argument("--zeros", type=float, default=0.0, help="GiB of zeros beside that (0)")
    parser.add_argument("--full", action="store_true", help="fill the GPU while it wakes the last time")
    parser.add_argument(
        "--killed", action="store_true", help="kill it on its way back to the GPU the last time"
    )
    parser.add_argument("--program", choices=sorted(SETUP), default="torch", help="what it runs (torch)")
    arguments = parser.parse_args()
    modules = ["ipykernel", "jupyter_server", *(["torch"] if arguments.program == "torch" else [])]
    where, rows = machine(modules=modules), []
    images = Path(arguments.dir, f"images-{os.getpid()}")
    with server_with_images(images, bool(where["simulated"])) as server:
        kernel, twin = server.start_kernel(), server.start_kernel()
        for each, gib in ((kernel, arguments.gib), (twin, 0.25 if where["simulated"] else 1.0)):
            words = int(gib * (1 << 30)) // 8
            value(each, SETUP[arguments.program].format(words=words))
            value(each, "train()")
        if arguments.zeros:
            value(kernel, f"zeros({arguments.zeros})")
        time.sleep(4)  # a process that has just begun keeps its context
        deadline = time.monotonic() + arguments.time
        for cycle in range(arguments.cycles):
            if time.monotonic() > deadline:
                break
            changed = 0.01 if cycle else 0.0
            name = f"{cycle + 1}" + (", 1 % changed since" if changed else "")
            is_last = cycle == arguments.cycles - 1
            full, killed = arguments.full and is_last, arguments.killed and is_last
            where_to = (Path(arguments.dir), images)
            rows.append(one_cycle(server, kernel, twin, name, *where_to, changed, full=full, killed=killed))
        left = what_is_left(server, [kernel, twin], images)
    return finish(
        "hibernation",
        where,
        arguments.json,
        headings=(
            "cycle",
            "image",
            "of it its processes",
            "away",
            "plain write",
            "ratio",
            "1+1",
            "first CUDA result",
            "plain read",
            "all",
        ),
        rows=rows,
        passed=bool(rows) and all(row[-1] == "equal" for row in rows) and not left,
        notes=[
            f"a kernel with {arguments.gib:g} GiB of random words and {arguments.zeros:g} of zeros, the same process"
            f" throughout; all deleted: {not left}"
        ],
    )


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.exit(main())
