"""A kernel hibernates on one machine and is woken on another: `python tests/gpu hibernation_carried out --pack FOLDER`
there, and `python tests/gpu hibernation_carried in --pack FOLDER` here.

Needs jupyter-affinode and ipykernel at the same paths on both, GPUs of one model with one driver, CRIU (AFFINODE_CRIU
says how it is called) and root. The kernel uses the driver API alone, so that its image is small. `out` leaves the
image, and all else that the kernel's user has of it, packed in files of at most `--part` MiB; `in` unpacks them, wakes
the kernel with a keeper and a controller of its own, compares each word and variable, and has it hibernate once more.
Exits with 1 if anything is not as it must be.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "hibernation"))

from controlled import finish, machine, options, say  # noqa: E402
from hibernation import MIB, SETUP  # noqa: E402
from live_machine import Machine  # noqa: E402
from lone_kernel import LoneKernel  # noqa: E402

FOLDER = Path("/tmp/aff-carried")  # of the machine that the kernel lives on: the same there and here
FIRST_PID = 20_000  # no process of another machine has it by then
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
LEFT_BEHIND = ("gpu", "run", "xdg", "carried/own/keep*")  # sockets, a simulated GPU
CELLS = """
import os
class block: checksum = staticmethod(checksum)
kept, count = {"a": [1, 2]}, 0
print(os.getpid(), id(kept), block.checksum())
"""
UUID = """
import uuid
raw = (ctypes.c_ubyte * 16)()
driver.call("cuDeviceGetUuid_v2", raw, ctypes.c_int(0))
print("GPU-" + str(uuid.UUID(bytes=bytes(raw))))
"""


@contextlib.contextmanager
def kernel_of(simulated: bool, mib: int) -> Iterator[LoneKernel]:
    """The kernel, with a controller; at the end no process is left."""
    live = Machine(FOLDER)
    live.environment["AFFINODE_CRIU"] = os.environ.get("AFFINODE_CRIU", "criu")
    if simulated:
        live.simulate("4GiB")
    cells = SETUP["driver"].format(words=mib * MIB // 8) + CELLS
    kernel = LoneKernel(live, "carried", cells=cells)
    try:
        live.start_controller("--settle=0")
        yield kernel
    except BaseException:
        print(kernel.log(), live.controller_log(), file=sys.stderr)
        raise
    finally:
        kernel.kill_keeper()
        live.kill_everything()


def go_out(pack: Path, part_mib: int, mib: int, simulated: bool) -> dict[str, object]:
    """Start a kernel, put it into an image, and pack that."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(mode=0o700)
    with contextlib.suppress(OSError):
        LAST_PID.write_text(str(FIRST_PID))
    with kernel_of(simulated, mib) as kernel:
        kernel.start()
        uuid = kernel.run(UUID).strip()
        time.sleep(4)  # a process that has just begun keeps its context
        kernel.check()
        kernel.hibernate()
        kernel.save()
        size = sum(path.stat().st_blocks * 512 for path in kernel.image.rglob("*"))
    (FOLDER / "carried.json").write_text(json.dumps({"uuid": uuid, "host": os.uname().nodename, "mib": mib}))
    pack.mkdir(parents=True, exist_ok=True)
    for old in pack.glob("part-*"):
        old.unlink()
    leave = [f"--exclude={FOLDER.name}/{each}" for each in LEFT_BEHIND]
    tar = ["tar", "--create", "--sparse", "--xz", *leave, "-C", str(FOLDER.parent), FOLDER.name]
    packed = subprocess.Popen(tar, stdout=subprocess.PIPE, env={**os.environ, "XZ_OPT": "-T0 -1"})
    split = ["split", f"--bytes={part_mib}M", "-d", "-", str(pack / "part-")]
    subprocess.run(split, stdin=packed.stdout, check=True)
    assert packed.wait() == 0
    shutil.rmtree(FOLDER)
    parts = [path.stat().st_size for path in sorted(pack.glob("part-*"))]
    say(f"{uuid}: an image of {size >> 20} MiB in {len(parts)} files, {sum(parts) >> 20} MiB in all")
    return {"image": f"{size >> 20} MiB", "packed": f"{sum(parts) >> 20} MiB", "there": uuid}


def come_in(pack: Path, simulated: bool) -> dict[str, object]:
    """Unpack a kernel, wake it, and use it; then once more, from an image that is made here."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    untar = ["tar", "--extract", "--sparse", "--xz", "-C", str(FOLDER.parent)]
    with subprocess.Popen(untar, stdin=subprocess.PIPE) as unpacked:
        assert unpacked.stdin is not None
        for part in sorted(pack.glob("part-*")):
            unpacked.stdin.write(part.read_bytes())
    assert unpacked.returncode == 0
    told = json.loads((FOLDER / "carried.json").read_text())
    with kernel_of(simulated, told["mib"]) as kernel:
        kernel.load()
        kernel.start_keeper()
        began = time.monotonic()
        kernel.wake()
        said = kernel.run("print(1 + 1)")  # IPython may add that its history is another file here
        assert said.startswith("2"), said
        answered_s = time.monotonic() - began
        kernel.check()
        result_s = time.monotonic() - began
        uuid = kernel.run(UUID).strip()
        say(f"{told['uuid']} on {told['host']} > {uuid} on {os.uname().nodename}: right")
        kernel.hibernate()
        kernel.wake()
        kernel.check()
    shutil.rmtree(FOLDER)
    times = {"1+1": f"{answered_s:.2f} s", "first CUDA result": f"{result_s:.2f} s"}
    return {"there": told["uuid"], "here": uuid, **times, "all": "equal"}


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    parser = options(__doc__, time_s=500.0)
    parser.add_argument("verb", choices=("out", "in"), help="on the first machine: out; on the second: in")
    parser.add_argument("--pack", type=Path, required=True, help="the folder that is carried")
    parser.add_argument("--part", type=int, default=15, help="MiB of each file at most (15)")
    parser.add_argument("--mib", type=int, default=32, help="what the kernel holds on the GPU (32)")
    given = parser.parse_args()
    where = machine(modules=["ipykernel"])
    if given.verb == "out":
        row = go_out(given.pack, given.part, given.mib, bool(where["simulated"]))
    else:
        row = come_in(given.pack, bool(where["simulated"]))
    return finish(
        "hibernation_carried",
        where,
        given.json,
        headings=list(row),
        rows=[[str(each) for each in row.values()]],
        passed=True,
        notes=[
            "a kernel that uses the driver API alone, with a keeper and a controller of its own on each machine"
        ],
    )


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.exit(main())
