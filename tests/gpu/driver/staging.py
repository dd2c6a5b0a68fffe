"""Parking and resuming where the driver refuses to register host memory: `python tests/gpu staging [--gib 8]`.

Not even RLIMIT_MEMLOCK of 64 KiB makes a driver refuse (seen on an H200), so the shim is compiled here in three ways,
with calls that answer with an error in the place of the driver's: as it is; without cuMemHostRegister, so that copies
go by the ring of pinned pieces; and without cuMemHostAlloc too, so that they go straight, as the driver does it for
pageable memory. Every word of the GPU's memory is looked at after each resume. Needs make, a C compiler and the
sources. Exits with 1 where a word is wrong, or copies by the ring are slower than straight ones on a GPU that is not
simulated.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from controlled import finish, machine, options, say

from jupyter_affinode.bench.child_process import BenchProcess
from jupyter_affinode.bench.shim_peer import Listener

GIB = 1 << 30
SHIM = Path(__file__).resolve().parents[3] / "shim"
BLOCK_BYTES = 256 << 20
# The parameter lists keep the declarations in driver.h as they are; what is called instead refuses NULL.
WITHOUT_REGISTER = "-DcuMemHostRegister(base,size,flags)=cuDeviceGetCount(NULL)"
WITHOUT_ALLOC = "-DcuMemHostAlloc(base,size,flags)=cuDeviceGetCount(NULL)"
WAYS: dict[str, tuple[str, ...]] = {
    "registered": (),
    "by the ring": (WITHOUT_REGISTER,),
    "straight": (WITHOUT_REGISTER, WITHOUT_ALLOC),
}
Times = dict[str, list[float]]


def compile_shim(folder: Path, defines: tuple[str, ...] = ()) -> Path:
    """The shim; what is in the folder already and is newer than its source is not compiled again."""
    flags = " ".join(f"'{define}'" for define in defines)
    subprocess.run(
        ["make", "-s", "-C", str(SHIM), "-j", "shim", f"BUILD={folder}", f"CPPFLAGS={flags}"], check=True
    )
    return folder / "libaffinode.so"


def compile_other(usual: Path, folder: Path, defines: tuple[str, ...]) -> Path:
    """The same with those calls replaced in the two files that make them."""
    shutil.copytree(usual, folder)
    replaced = [folder / "shim" / f"{name}.c.o" for name in ("slabs", "staging")]
    for path in [*replaced, folder / "libaffinode.so"]:
        path.unlink()
    shim = compile_shim(folder, defines)
    assert all(path.is_file() for path in replaced), "make did not compile them again"
    return shim


def measure(shim: Path, size: int, rounds: int, folder: Path) -> tuple[Times, int]:
    """Seconds of parks and resumes with all contents changed, and how many words were wrong."""
    listener = Listener(folder)
    times: Times = {"first park": [], "park": [], "resume": []}
    wrong = 0
    with BenchProcess(socket=listener.socket_path, variables={"LD_PRELOAD": str(shim)}) as process:
        process.ask("hold", size=size, block=min(size, BLOCK_BYTES))
        process.peer = listener.accept()
        for seed in range(1, rounds + 2):
            process.ask("change", seed=seed)
            times["park" if seed > 1 else "first park"].append(process.peer.park().seconds)
            times["resume"].append(process.peer.resume().seconds)
            wrong += process.ask("verify")["differing_words"]
        process.peer.close()
    listener.close()
    return times, wrong


def main() -> int:
    """Measure the ways in turn and print a table."""
    parser = options(__doc__, time_s=300)
    parser.add_argument("--gib", type=float, default=8, help="GPU memory to move")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    where = machine()
    size = int(given.gib * GIB) // BLOCK_BYTES * BLOCK_BYTES or BLOCK_BYTES
    deadline = time.monotonic() + given.time
    rates: dict[str, dict[str, float]] = {}
    rows, notes, wrong_words = [], [], 0
    with tempfile.TemporaryDirectory(prefix="affinode-staging-") as name:
        usual = Path(name) / "usual"
        say("compiling")
        compile_shim(usual)
        for number, (way, defines) in enumerate(WAYS.items()):
            if time.monotonic() > deadline:
                notes.append(f"{way}: left out for time")
                continue
            say(way)
            folder = Path(name) / str(number)
            shim = compile_other(usual, folder, defines)
            times, wrong = measure(shim, size, given.rounds, folder)
            wrong_words += wrong
            rates[way] = {what: size / GIB / median(seconds) for what, seconds in times.items()}
            rows.append([way, *(f"{rates[way][what]:.1f}" for what in times), str(wrong)])
    slower = [
        what
        for what in ("park", "resume")
        if not where["simulated"]
        and {"by the ring", "straight"} <= rates.keys()
        and rates["by the ring"][what] < rates["straight"][what]
    ]
    notes += [f"{what}: the ring is slower than straight copies" for what in slower]
    return finish(
        "staging",
        where,
        given.json,
        headings=["host memory", "first park, GiB/s", "park, GiB/s", "resume, GiB/s", "wrong words"],
        rows=rows,
        passed=not wrong_words and not slower,
        notes=notes,
        gib=size / GIB,
        rates=rates,
    )


if __name__ == "__main__":
    sys.exit(main())
