"""What counts as use on this GPU, which others are seen on it, and what its moves cost: `python tests/gpu idle`.

Needs nothing but jupyter-affinode and an NVIDIA GPU. A program of the driver API holds memory (`--gib`) and in
turn does nothing, polls as a progress bar does, and leaves a long kernel running without any call; the controller's
idle time must grow through the first two. Through the third it is reset where NVML's pids can be joined with ours,
and the table says whether they can (in containers they cannot: a park is then answered "busy"). A program without a
shim takes memory: it must appear as what is not managed. Parks and resumes teach the controller what they cost: its
line must tell the last ones within a factor of two. Exits with 1 if anything is not as it must be.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from controlled import Controlled, answer, ask, finish, machine, options, say
from waiting import wait_until

PTX = Path(__file__).resolve().parents[3] / "shim" / "sim" / "kernels.ptx"
QUIET_S = 4.0
SPIN_S = 6.0
SETTLE_S = 3.0  # NVML tells of the work at the start a second late
MOVES = 6
PROGRAM = """
import ctypes, sys, time
from jupyter_affinode.bench.driver import Driver
driver = Driver()
block = driver.allocate(int(sys.argv[1]))
module, spin = ctypes.c_void_p(), ctypes.c_void_p()
if len(sys.argv) > 2:
    driver.call("cuModuleLoadData", ctypes.byref(module), open(sys.argv[2], "rb").read() + b"\\0")
    driver.call("cuModuleGetFunction", ctypes.byref(spin), module, b"affinode_spin_ns")
driver.call("cuMemsetD32_v2", ctypes.c_uint64(block), 7, ctypes.c_size_t(int(sys.argv[1]) // 4))
driver.synchronize()
print("ready", flush=True)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
for line in sys.stdin:
    word, seconds = line.split()
    if word == "poll":
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            driver.synchronize()
            driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
            time.sleep(0.01)
    elif word == "spin":
        ns = ctypes.c_uint64(int(float(seconds) * 1e9))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
        shape = [ctypes.c_uint(number) for number in (1, 1, 1, 1, 1, 1, 0)]
        driver.call("cuLaunchKernel", spin, *shape, None, parameters, None)
    print("done", flush=True)
"""


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    parser = options(__doc__, time_s=120.0)
    parser.add_argument("--gib", type=float, default=4.0, help="what the program holds (4)")
    arguments = parser.parse_args()
    where = machine()
    size = int(arguments.gib * (1 << 30))
    rows: list[tuple[str, str, str]] = []
    with Controlled("--idle-timeout=3600", "--contended-idle-timeout=3600") as controlled:
        program = controlled.start([sys.executable, "-c", PROGRAM, str(size), str(PTX)], "idle")
        assert answer(program) == "ready"
        wait_until(lambda: (controlled.kernel("idle") or {}).get("resident_bytes", 0) >= size)
        time.sleep(SETTLE_S)
        rows.append(_grows("nothing", controlled, program, "poll 0"))
        rows.append(_grows("polls and synchronises", controlled, program, f"poll {QUIET_S}"))
        rows.append(_spins(controlled, program))
        rows.append(_stranger(controlled, size))
        rows += _moves(controlled)
    passed = all(verdict == "yes" for _, _, verdict in rows)
    return finish(
        "idle",
        where,
        arguments.json,
        headings=("what", "seen", "as it must be"),
        rows=rows,
        passed=passed,
    )


def _grows(
    what: str, controlled: Controlled, program: subprocess.Popen[str], order: str
) -> tuple[str, str, str]:
    """Idle time goes on through something that is no use."""
    say(what)
    before = _idle(controlled)
    began = time.monotonic()
    assert ask(program, order) == "done"
    time.sleep(max(QUIET_S - (time.monotonic() - began), 0.0))
    after, passed_s = _idle(controlled), time.monotonic() - began
    grown = after - before
    return what, f"idle time grew {grown:.1f} s in {passed_s:.1f} s", _yes(grown > 0.7 * passed_s)


def _spins(controlled: Controlled, program: subprocess.Popen[str]) -> tuple[str, str, str]:
    """A kernel runs on without calls: NVML sees it, or the park is refused."""
    say("a long kernel without calls")
    assert ask(program, f"spin {SPIN_S}") == "done"
    began = time.monotonic()
    time.sleep(SPIN_S / 2)
    idle, since = _idle(controlled), time.monotonic() - began
    is_joined = _gpu(controlled)["context_bytes"] is not None
    refused = controlled.park("idle") is None
    time.sleep(max(SPIN_S - (time.monotonic() - began), 0.0) + 1.0)
    seen = f"pids {'can' if is_joined else 'cannot'} be joined; idle {idle:.1f} s of {since:.1f} s; park "
    seen += "refused" if refused else "done"
    return "a long kernel without calls", seen, _yes(refused and (not is_joined or idle < since - 0.5))


def _stranger(controlled: Controlled, size: int) -> tuple[str, str, str]:
    """A program without a shim is seen as what it is."""
    say("a program without a shim")
    before = _gpu(controlled)["unmanaged_bytes"]
    program = controlled.start([sys.executable, "-c", PROGRAM, str(size)], None)
    assert answer(program) == "ready"
    wait_until(lambda: _gpu(controlled)["unmanaged_bytes"] - before > 0.9 * size)
    gpu = _gpu(controlled)
    pids = None if gpu["unmanaged"] is None else [process["pid"] for process in gpu["unmanaged"]]
    program.kill()
    program.wait()
    wait_until(lambda: _gpu(controlled)["unmanaged_bytes"] - before < 0.5 * size)
    named = "not told apart" if pids is None else f"pids {pids}"
    return "a program without a shim", named, _yes(pids is None or program.pid in pids)


def _moves(controlled: Controlled) -> list[tuple[str, str, str]]:
    """What the controller has learnt of this machine is what the moves took."""
    say("parks and resumes")
    for _ in range(MOVES):
        controlled.park_surely("idle")
        controlled.resume("idle")
        kernel = controlled.until("idle", "resident")
    speed = wait_until(lambda: _gpu(controlled)["speed"])
    rows = []
    for way in ("park", "resume"):
        moved = kernel[f"last_{way}"]
        copied = 0 if way == "park" else moved["bytes"]  # unchanged since the last park
        learnt = speed[f"{way}_fixed_s"] + copied / speed[f"{way}_bytes_per_s"]
        told = f"learnt {learnt:.3f} s, the last took {moved['duration_s']:.3f} s"
        is_near = 0.5 < (learnt + 0.02) / (moved["duration_s"] + 0.02) < 2
        rows.append((f"what a {way} takes", told, _yes(is_near)))
    return rows


def _idle(controlled: Controlled) -> float:
    return float((controlled.kernel("idle") or {})["idle_s"])


def _gpu(controlled: Controlled) -> dict[str, Any]:
    gpu: dict[str, Any] = controlled.node()["gpus"][0]
    return gpu


def _yes(is_right: bool) -> str:
    return "yes" if is_right else "NO"


if __name__ == "__main__":
    sys.exit(main())
