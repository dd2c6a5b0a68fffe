"""How fast parked memory goes to a local disk and comes back, beside plain O_DIRECT copies of the same size there.

    python tests/gpu spill --dir /scratch --gib 8

One run: a program fills GPU memory with random words, is parked, spilled and resumed, and every word is checked. Then
it is parked again, which leaves all of it on disk, is read back into host memory (twice, to compare), resumed, and
checked. Before each spill a file of the same size is written and read by as many threads. The ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jupyter_affinode.bench.child_process import BenchProcess
from jupyter_affinode.bench.shim_peer import Listener, ShimPeer
from jupyter_affinode.node.protocol import wire
from jupyter_affinode.settings.policy import GIB, MIB

THREADS = 8  # as the shim has: SPILL_THREADS


def plain(folder: Path, size: int, *, writes: bool, descriptor: int, piece: int) -> float:
    """Seconds to write or read so much past the system's cache."""
    source = os.urandom(piece)

    def part(offsets: range) -> None:
        buffer = mmap.mmap(-1, piece)
        buffer.write(source)
        for offset in offsets:
            done = (
                os.pwritev(descriptor, [buffer], offset)
                if writes
                else os.preadv(descriptor, [buffer], offset)
            )
            assert done == piece, f"{done} bytes of {piece} in {folder}"

    begin = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(part, [range(start * piece, size, THREADS * piece) for start in range(THREADS)]))
    return time.perf_counter() - begin


def plain_copies(folder: Path, size: int) -> tuple[float, float]:
    """Write and read a file of that size; seconds of each."""
    descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
    try:
        wrote = plain(folder, size, writes=True, descriptor=descriptor, piece=2 * MIB)
        return wrote, plain(folder, size, writes=False, descriptor=descriptor, piece=4 * MIB)
    finally:
        os.close(descriptor)


def spilled(peer: ShimPeer, folder: Path, size: int) -> float:
    """Seconds to write all that is parked to disk, as the shim measured it."""
    reply, _ = peer._command(wire.CommandKind.SPILL, 1 << 62, 3600.0, str(folder))
    assert reply.status is wire.Status.OK and reply.bytes == size, reply
    return reply.duration_s


def read_back(peer: ShimPeer, size: int) -> float:
    """Seconds to read all that is on disk into host memory, as the shim measured it."""
    reply, _ = peer._command(wire.CommandKind.READ_BACK, 1 << 62, 3600.0, "")
    assert reply.status is wire.Status.OK and reply.bytes == size, reply
    return reply.duration_s


def is_right(child: BenchProcess, after: str) -> bool:
    """Whether every word is what it was; else say so."""
    wrong = child.ask("verify")["differing_words"]
    if wrong:
        print(f"WRONG: {wrong} words differ after {after}", file=sys.stderr)
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="a folder on the disk")
    parser.add_argument("--gib", type=float, default=4.0, help="how much")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--time", type=float, default=1e9, help="begin no further round after so many seconds"
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    size = int(options.gib * GIB) // (32 * MIB) * 32 * MIB
    began = time.monotonic()
    steps = ("plain_write_s", "plain_read_s", "spill_s", "return_s", "read_back_s")
    found: dict[str, list[float]] = {step: [] for step in steps}
    with (
        tempfile.TemporaryDirectory(prefix="affinode-spill-", dir=options.dir) as folder,
        tempfile.TemporaryDirectory(prefix="affinode-bench-", dir="/tmp") as run,
    ):
        listener = Listener(Path(run))
        with BenchProcess(socket=listener.socket_path) as child:
            peer = listener.accept()
            child.ask("hold", size=size, block=min(size, GIB))
            for round_ in range(options.repeats):
                if time.monotonic() - began > options.time:
                    break
                child.ask("change", seed=0xC0FFEE + round_)
                wrote, read = plain_copies(Path(folder), size)
                peer.park()
                found["plain_write_s"].append(wrote)
                found["plain_read_s"].append(read)
                found["spill_s"].append(spilled(peer, Path(folder), size))
                found["return_s"].append(peer.resume().seconds)
                if not is_right(child, "the way back from disk"):
                    return 1
                peer.park()
                found["read_back_s"].append(read_back(peer, size))
                peer.resume()
                if not is_right(child, "the way back through host memory"):
                    return 1
            simulated = child.description["simulated"]
            peer.close()
        listener.close()
    took = {name: statistics.median(times) for name, times in found.items()}
    ratios = {
        "spill": took["plain_write_s"] / took["spill_s"],
        "return": took["plain_read_s"] / took["return_s"],
        "read back": took["plain_read_s"] / took["read_back_s"],
    }
    print(
        f"{size / GIB:g} GiB in {options.dir}" + (", simulated GPU: says nothing of a real one" * simulated)
    )
    print("|  | plain O_DIRECT | ours | ratio |\n|---|---|---|---|")
    for name, beside, ours in (
        ("spill", "plain_write_s", "spill_s"),
        ("return", "plain_read_s", "return_s"),
        ("read back", "plain_read_s", "read_back_s"),
    ):
        rates = [f"{size / GIB / took[each]:.2f} GiB/s" for each in (beside, ours)]
        print(f"| {name} | {rates[0]} | {rates[1]} | {ratios[name]:.2f} |")
    if options.json:
        figures = {"bytes": size, "simulated": simulated, "times": found, "ratios": ratios}
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
