"""JAX idle and parked for a quarter of an hour: alive and right afterwards.

`python tests/gpu jax_idle start FOLDER [--minutes 15]` returns at once; the work goes on in a session of its own
and writes to FOLDER. `… status FOLDER` says how far it is; `… collect FOLDER` waits for the end and tells. `--program
driver` stands in for JAX on the simulated GPU. `--controller F` leaves the commands to the controllers that serve at
F/node.sock, one after another perhaps: it may idle beside what `many_kernels.py --folder F` measures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from controlled import AtController, again, finish, machine, options
from jax_work import JAX_WORK
from linked import LinkedProgram

from jupyter_affinode.bench.shim_peer import Move, ShimPeer
from jupyter_affinode.node.protocol.page import Depth

LOOK_EVERY_S = 5.0
DONE_WITHIN_S = 120.0
CONTEXT_WITHIN_S = 15.0

JAX = (
    """
import os, sys
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.05")
"""
    + JAX_WORK
)
DRIVER = """
import sys
from jupyter_affinode.bench.test_pattern import Content
from jupyter_affinode.bench.driver import Driver
content = Content(Driver(), 32 << 20, 16 << 20)
content.change_all(5)
def work():
    return str(content.differing_words())
"""
SERVE = """
for line in sys.stdin:
    print(work(), flush=True)
"""
PROGRAMS = {"jax": JAX + SERVE, "driver": DRIVER + SERVE}


def work(folder: Path, minutes: float, program: str, depth: str) -> None:
    """Do it all, and keep result.json up to date."""
    where = machine(modules=["jax"] if program == "jax" else [])
    found: dict[str, Any] = {"pid": os.getpid(), "machine": where, "program": program, "minutes": minutes}
    found["depth"] = depth
    found.update(done=False, problem="", parked_s=0.0, looks=0, wanting_looks=0)
    try:
        with (
            (folder / "stderr").open("w") as stderr,
            LinkedProgram(PROGRAMS[program], env={"AFFINODE_DEPTH": depth}, stderr=stderr) as linked,
        ):
            peer = linked.connect()
            before = linked.ask("work")
            move = park(peer, depth)
            found.update(
                park_s=move.seconds, parked_bytes=move.bytes, depth_reached=Depth(move.depth).name.lower()
            )
            found["refusal"] = move.text
            begin = time.monotonic()
            while time.monotonic() - begin < minutes * 60:
                peer.take(min(LOOK_EVERY_S, minutes * 60))
                look(peer, linked, found)
                found["parked_s"] = round(time.monotonic() - begin, 1)
                save(folder, found)
            begin = time.monotonic()
            after = linked.ask("work")
            found["first_answer_s"] = time.monotonic() - begin
            found["resume_s"] = linked.resumes[-1].seconds if linked.resumes else None
            found["mended"] = linked.resumes[-1].mended_chunks if linked.resumes else 0
            found["equal"] = after == before and linked.ask("work") == before
    except (RuntimeError, OSError) as error:
        found["problem"] = f"{type(error).__name__}: {error}; {(folder / 'stderr').read_text()[-300:]}"
    found["done"] = True
    save(folder, found)


def work_at_controller(folder: Path, minutes: float, program: str, controller: Path) -> None:
    """The same at memory depth, commanded by the controller there."""
    where = machine(modules=["jax"] if program == "jax" else [])
    found: dict[str, Any] = {"pid": os.getpid(), "machine": where, "program": program, "minutes": minutes}
    found.update(depth="memory", depth_reached="memory", done=False, problem="", refusal="")
    found.update(parked_s=0.0, looks=0, wanting_looks=0, mended=0)
    try:
        with (
            (folder / "stderr").open("w") as stderr,
            AtController(
                controller, [sys.executable, "-c", PROGRAMS[program]], "jax-idle", stderr
            ) as managed,
        ):
            before = managed.ask("work")
            found["parked_bytes"] = managed.park()["parked_bytes"]
            begin = time.monotonic()
            while time.monotonic() - begin < minutes * 60:
                time.sleep(min(LOOK_EVERY_S, minutes * 60))
                found["looks"] += 1
                found["parked_s"] = round(time.monotonic() - begin, 1)
                if managed.process.poll() is not None:
                    raise RuntimeError(f"the program died with status {managed.process.returncode}")
                kernel = managed.kernel()
                if kernel is not None and kernel["residency"] != "parked":
                    found["wanting_looks"] += 1
                    found["woken_at_s"] = found["parked_s"]
                save(folder, found)
            begin = time.monotonic()
            after = managed.ask("work")
            found["first_answer_s"] = time.monotonic() - begin
            found["equal"] = after == before and managed.ask("work") == before
    except (RuntimeError, OSError, TimeoutError) as error:
        found["problem"] = f"{type(error).__name__}: {error}; {(folder / 'stderr').read_text()[-300:]}"
    found["done"] = True
    save(folder, found)


def park(peer: ShimPeer, depth: str) -> Move:
    """Park it; where the context is to go too, as often as a young process needs before that is allowed."""
    deadline = time.monotonic() + CONTEXT_WITHIN_S
    while True:
        move = peer.park(context=depth == "context")
        if depth == "memory" or move.depth == Depth.CONTEXT or time.monotonic() > deadline:
            return move
        peer.resume()
        time.sleep(0.2)


def look(peer: ShimPeer, linked: LinkedProgram, found: dict[str, Any]) -> None:
    """It must live and stay parked: it was not asked for anything."""
    found["looks"] += 1
    if linked.process.poll() is not None:
        raise RuntimeError(f"the program died with status {linked.process.returncode} while it was parked")
    if peer.wants:
        found["wanting_looks"] += 1
        found["woken_at_s"] = found["parked_s"]


def save(folder: Path, found: dict[str, Any]) -> None:
    fresh = folder / "result.json.new"
    fresh.write_text(json.dumps(found))
    fresh.replace(folder / "result.json")


def read(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except FileNotFoundError:
        return None
    return found


def start(given: argparse.Namespace) -> int:
    machine(modules=["jax"] if given.program == "jax" else [])
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "result.json").unlink(missing_ok=True)
    with (given.folder / "log").open("w") as log:
        command = again(__file__, "work", str(given.folder))
        command += ["--minutes", str(given.minutes), "--program", given.program, "--depth", given.depth]
        command += ["--controller", str(given.controller)] if given.controller else []
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    print(f"process {child.pid} does it; results in {given.folder}")
    return 0


def status(given: argparse.Namespace) -> int:
    print(json.dumps(read(given.folder), indent=2))
    return 0


def collect(given: argparse.Namespace) -> int:
    deadline = time.monotonic() + given.time
    found = read(given.folder)
    while (found is None or not found["done"]) and time.monotonic() < deadline:
        time.sleep(0.5)
        found = read(given.folder)
    if found is None or not found["done"]:
        print(f"not done yet: {found}; {(given.folder / 'log').read_text()[-500:]}", file=sys.stderr)
        return 1
    stayed = found["looks"] > 0 and found["wanting_looks"] == 0
    passed = not found["problem"] and found.get("equal", False) and stayed and found["mended"] == 0
    rows = []
    if not found["problem"]:
        rows.append(
            [
                "JAX" if found["program"] == "jax" else "driver API",
                found["depth_reached"],
                f"{found['parked_s'] / 60:.1f} min",
                f"{found['parked_bytes'] / 2**30:.2f} GiB",
                f"all {found['looks']} looks"
                if stayed
                else f"NO: wanted the GPU at {found['woken_at_s']:.0f} s",
                f"{found['first_answer_s']:.2f} s",
                "equal" if found["equal"] else "DIFFERENT",
            ]
        )
    return finish(
        "jax_idle",
        found["machine"],
        given.json,
        headings=[
            "program",
            "depth",
            "idle and parked for",
            "parked",
            "stayed parked",
            "first answer",
            "results",
        ],
        rows=rows,
        passed=passed,
        notes=[note for note in (found["problem"], found.get("refusal", "")) if note],
        found=found,
    )


def main() -> int:
    parser = options(__doc__, time_s=DONE_WITHIN_S)
    parser.add_argument("action", choices=["start", "status", "collect", "work"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--program", choices=list(PROGRAMS), default="jax")
    parser.add_argument("--depth", choices=["memory", "context"], default="memory")
    parser.add_argument("--controller", type=Path, help="the folder where a controller serves")
    given = parser.parse_args()
    if given.action == "work" and given.controller:
        work_at_controller(given.folder, given.minutes, given.program, given.controller)
        return 0
    if given.action == "work":
        work(given.folder, given.minutes, given.program, given.depth)
        return 0
    actions = {"start": start, "status": status, "collect": collect}
    return actions[given.action](given)


if __name__ == "__main__":
    sys.exit(main())
