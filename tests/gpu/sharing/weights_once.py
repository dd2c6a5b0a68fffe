"""Kernels with the same weights hibernate: they are on disk once. `python tests/gpu weights_once --dir /scratch`.

Needs what `hibernation` needs. Each of `--kernels` holds the same `--gib` of random words, and `--own` of its own. The
first hibernates and wakes while no other image is there; then all hibernate, one after the other, and `--woken` of
them are woken in turn. What the disk has then, all files of all images, must be the weights once, and of each kernel
what is its own and `--beside` GiB more. With `--gpu-alone` the processes' host memory, which each image has too,
compressed, does not count for that. It is told apart. Exits with 1 if that, or any word, is not as it must be.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from controlled import finish, machine, options, say
from hibernation import SETUP, command, on_disk, park, server_with_images, value, what_is_left
from live_machine import Machine
from live_server import JupyterKernel, JupyterServer

GIB = 1 << 30
BEGIN = {"torch": "import torch; torch.zeros(1, device='cuda').item()", "driver": "0"}
OWN = {
    "torch": """
generator.manual_seed({seed})
own = torch.randint(-2**62, 2**62, ({words},), dtype=torch.int64, device="cuda", generator=generator)
torch.cuda.synchronize()
def sums(): return int(block.sum()), int(own.sum())
""",
    "driver": """
own_words = {words}
own = driver.allocate(own_words * 8)
own_host = (ctypes.c_uint64 * own_words)()
for at in range(0, own_words, 257): own_host[at] = (at + {seed}) * 0x9E3779B97F4A7C15 % 2**64
driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(own), own_host, ctypes.c_size_t(own_words * 8))
def sums():
    driver.call("cuMemcpyDtoH_v2", own_host, ctypes.c_uint64(own), ctypes.c_size_t(own_words * 8))
    return checksum(), sum(own_host[at] for at in range(0, own_words, 257))
""",
}


@dataclass
class Sleeper:
    """A kernel, and what was seen of it."""

    kernel: JupyterKernel
    sums: str = ""
    away_s: float = 0.0
    answer_s: float = 0.0  # from the wish to wake it to the reply of 1+1
    result_s: float = 0.0
    gpu_bytes: int = 0  # what the disk has more of GPU memory since it hibernated first
    is_right: bool = True


def go_away(live: Machine, sleeper: Sleeper, images: Path) -> None:
    """Park it, and have it hibernate."""
    before = on_disk(images)[0]
    park(live, sleeper.kernel)
    _, sleeper.away_s = command(live, "hibernate", sleeper.kernel)
    sleeper.gpu_bytes = sleeper.gpu_bytes or on_disk(images)[0] - before


def come_back(live: Machine, sleeper: Sleeper) -> None:
    """Wake it, and see to what it has on the GPU."""
    began = time.monotonic()
    command(live, "wake", sleeper.kernel)
    sleeper.kernel.listen_again()
    value(sleeper.kernel, "1+1")
    sleeper.answer_s = time.monotonic() - began
    sums, sleeper.result_s = value(sleeper.kernel, "sums()")
    sleeper.is_right = sleeper.is_right and sums == sleeper.sums


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = options(__doc__, time_s=500.0)
    parser.add_argument("--dir", required=True, help="a folder on a local disk")
    parser.add_argument("--kernels", type=int, default=10, help="how many (10)")
    parser.add_argument("--gib", type=float, default=8.0, help="what all have (8)")
    parser.add_argument("--own", type=float, default=0.5, help="GiB of each alone (0.5)")
    parser.add_argument("--beside", type=float, default=0.1, help="GiB of each that are allowed beside (0.1)")
    parser.add_argument("--woken", type=int, default=10, help="how many are woken at the end (10)")
    parser.add_argument("--gpu-alone", action="store_true", help="count no processes' memory for that")
    parser.add_argument("--program", choices=sorted(SETUP), default="torch", help="what it runs (torch)")
    return parser.parse_args()


def begun(server: JupyterServer, program: str, count: int) -> list[JupyterKernel]:
    """Start kernels, and have all begin with CUDA at a time: an import takes many seconds."""
    kernels = [server.start_kernel() for _ in range(count)]
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(lambda kernel: value(kernel, BEGIN[program]), kernels))
    return kernels


def filled(kernel: JupyterKernel, given: argparse.Namespace, number: int) -> Sleeper:
    """Give a kernel the weights of all, and words of its own."""
    sleeper = Sleeper(kernel)
    value(sleeper.kernel, SETUP[given.program].format(words=int(given.gib * GIB) // 8))
    own = OWN[given.program].format(words=int(given.own * GIB) // 8, seed=1000 + number)
    value(sleeper.kernel, own)
    sleeper.sums, _ = value(sleeper.kernel, "sums()")
    return sleeper


def row_of(number: int, sleeper: Sleeper) -> tuple[str, ...]:
    """What became of a kernel."""
    return (
        str(number),
        f"{sleeper.gpu_bytes / GIB:.3f} GiB",
        f"{sleeper.away_s:.2f} s",
        f"{sleeper.answer_s:.2f} s" if sleeper.answer_s else "",
        f"{sleeper.result_s:.2f} s" if sleeper.answer_s else "",
        ("equal" if sleeper.is_right else "WRONG") if sleeper.answer_s else "not woken",
    )


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    given = arguments()
    where = machine(modules=["ipykernel", "jupyter_server", *(["torch"] if given.program == "torch" else [])])
    images = Path(given.dir, f"images-{os.getpid()}")
    sleepers: list[Sleeper] = []
    deadline = time.monotonic() + given.time
    with server_with_images(images, bool(where["simulated"])) as server:
        live = server.machine
        kernels = begun(server, given.program, given.kernels)
        time.sleep(4)  # a process that has just begun keeps its context
        for number, kernel in enumerate(kernels):
            if time.monotonic() > deadline:
                break
            sleeper = filled(kernel, given, number)
            go_away(live, sleeper, images)
            if not sleepers:
                come_back(live, sleeper)
                alone_s = sleeper.result_s
                go_away(live, sleeper, images)
            sleepers.append(sleeper)
            more = f"{sleeper.gpu_bytes / GIB:.3f} GiB more on disk"
            say(f"kernel {len(sleepers)}: away {sleeper.away_s:.2f} s, {more}")
        disk, rest = on_disk(images)
        woken = sleepers[: given.woken]
        for sleeper in woken:
            come_back(live, sleeper)
            became = "right" if sleeper.is_right else "WRONG"
            say(
                f"back, 1+1 after {sleeper.answer_s:.2f} s, first result after {sleeper.result_s:.2f} s: {became}"
            )
            go_away(live, sleeper, images)
        left = what_is_left(server, [sleeper.kernel for sleeper in sleepers], images)
    allowed = int((given.gib + len(sleepers) * (given.own + given.beside)) * GIB)
    middle = statistics.median(sleeper.result_s for sleeper in woken)
    are_right = all(sleeper.is_right for sleeper in woken) and len(sleepers) == given.kernels
    return finish(
        "weights_once",
        where,
        given.json,
        headings=("kernel", "GPU memory more on disk", "away", "1+1", "first CUDA result", "all"),
        rows=[row_of(number, sleeper) for number, sleeper in enumerate(sleepers, 1)],
        passed=are_right and disk + (0 if given.gpu_alone else rest) <= allowed and not left,
        notes=[
            f"{len(sleepers)} hibernated kernels with the same {given.gib:g} GiB and {given.own:g} of their own:"
            f" {(disk + rest) / GIB:.3f} GiB on disk, {allowed / GIB:.3f} allowed: GPU memory {disk / GIB:.3f}, their"
            f" processes {rest / GIB:.3f}, compressed",
            f"first CUDA result of the first kernel, alone in the store: {alone_s:.2f} s; median of all with what they"
            f" share: {middle:.2f} s ({alone_s / middle:.2f}); all deleted: {not left}",
        ],
    )


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.exit(main())
