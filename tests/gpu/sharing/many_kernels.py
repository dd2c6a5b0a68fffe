"""Many kernels on few GPUs take turns, as notebooks do: `python tests/gpu many_kernels [--json FILE]`.

Needs jupyter-affinode installed, ipykernel, PyTorch (with `--program driver` none of it but NumPy), and an NVIDIA GPU.
`--kernels` real ipykernels of `--gib` each, more together than their GPU has, are started by our provisioner; a person
at each thinks for some seconds (`--think`), then runs a cell that changes every word of the kernel's memory and answers
with a checksum. That must be, to the bit, what is computed here without a GPU. One controller serves them, with its
ledger and its metrics on. Meanwhile NVML and the host's memory are looked at every 0.2 s.

With `--gpus 2 --depth context` most kernels begin on the first GPU (`--first`, a fraction); some must come back on the
other one. Tells each person's waits, from sending a cell to its first work on the GPU, and every resume's duration, by
the controller's ledger. Exits with 1 unless all kernels finish, everything is right, none is out of memory, and host
memory was never below the reserve. Says every 10 s how it goes and what the controller sees of host memory. Takes
`--time` and a minute and a half at most, and leaves no kernel behind.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controlled import ballast, finish, free_port, machine, options, say
from live_kernel import ask
from many_figures import HEADINGS, Sampler, Steal, Told, end_controller, percentile, person_row, read_ledger
from many_people import Day, Person
from many_programs import PROGRAMS
from many_watch import Watch, end_all, grow_memory, tell_log

from jupyter_affinode.client.starting import ensure_controller
from jupyter_affinode.node.model.reasons import Refusal
from jupyter_affinode.node.policy.resources.host_memory import MARGIN_PART
from jupyter_affinode.node.system.host_memory import host_memory
from jupyter_affinode.provisioning.provisioner import AffinodeProvisioner
from jupyter_affinode.settings.policy import GIB, Settings

STARTS_WITHIN_S = 60.0  # beside --time; what starting takes longer than START_S is taken off the turns
START_S = 30.0
END_S = 25.0
ENDS_WITHIN_S = 90.0  # beside --time, all of it; what hangs then is told and ended
CONTEXT, SIMULATED_CONTEXT = int(0.6 * GIB), 16 << 20  # of GPU memory, each kernel's
HOST_OF_KERNEL = int(1.5 * GIB)  # about what PyTorch and a driver take of host memory beside the kernel's own


def arguments() -> argparse.Namespace:
    parser = options(__doc__, time_s=300.0)
    parser.add_argument("--kernels", type=int, default=10, help="how many, on all GPUs together (10)")
    parser.add_argument("--gib", type=float, default=20.0, help="what each holds (20)")
    parser.add_argument("--gpus", type=int, default=1, choices=(1, 2), help="how many are used (1)")
    parser.add_argument(
        "--first", type=float, default=0.6, help="what part of them starts on the first of two (0.6)"
    )
    parser.add_argument("--think", default="2:10", help="seconds between cells, from:to (2:10)")
    parser.add_argument("--program", choices=sorted(PROGRAMS), default="torch", help="what they run (torch)")
    parser.add_argument(
        "--depth",
        choices=("auto", "memory", "context"),
        default="memory",
        help="how deep they park; auto: context with two GPUs (memory)",
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of all that is random")
    parser.add_argument(
        "--end",
        type=float,
        default=END_S,
        help=f"seconds for the last cells and for shutting down ({END_S:g})",
    )
    parser.add_argument(
        "--yields",
        type=float,
        default=1.0,
        help="seconds of thinking after which one makes room for others (1)",
    )
    parser.add_argument(
        "--controller",
        default=[],
        action="append",
        help="more settings of the controller, --name=value, with blanks or each by itself",
    )
    parser.add_argument(
        "--gpu-budget", type=float, help="GiB on the GPU for all of them; another program takes the rest"
    )
    parser.add_argument(
        "--host-budget",
        type=float,
        help="GiB of host memory for what is parked; that a park is refused for want of it is a fault then",
    )
    parser.add_argument("--folder", type=Path, help="where the controller serves (a new one)")
    given = parser.parse_args()
    if given.depth == "auto":
        given.depth = "context" if given.gpus > 1 else "memory"
    return given


@contextlib.contextmanager
def leave_gpu_budget(given: argparse.Namespace, *, is_simulated: bool) -> Iterator[None]:
    """Have a program take all of the GPU but `--gpu-budget` and the kernels' contexts, if there is one."""
    if given.gpu_budget is None:
        yield
        return
    contexts = given.kernels * (SIMULATED_CONTEXT if is_simulated else CONTEXT)
    with ballast(int(given.gpu_budget * GIB) + contexts) as size:
        say(f"another program takes {size / GIB:.1f} GiB of the GPU")
        yield


def start_controller(folder: Path, ledger: Path, given: argparse.Namespace, metrics_port: int) -> None:
    """One of this run's own, with its ledger and its metrics on."""
    os.environ["AFFINODE_SOCKET"] = str(folder / "node.sock")
    os.environ["JUPYTER_DEFAULT_PROVISIONER_NAME"] = "affinode-provisioner"
    AffinodeProvisioner.depth = given.depth
    settings = [
        f"--contended-idle-timeout={given.yields}",
        f"--depth={given.depth}",
        f"--metrics-port={metrics_port}",
        f"--ledger={ledger}",
        *" ".join(given.controller).split(),
    ]
    ensure_controller(extra_args=settings, timeout_s=20)
    say(f"controller with {' '.join(settings)}; its log: {folder / 'node.log'}")


def people(given: argparse.Namespace) -> list[Person]:
    low, high = (float(part) for part in given.think.split(":"))
    day = Day(
        given.program,
        int(given.gib * GIB),
        (low, high),
        {gpu: threading.Lock() for gpu in range(given.gpus)},
        *(threading.Event() for _ in range(3)),
    )
    crowd = round(given.kernels * given.first) if given.gpus > 1 else given.kernels
    return [
        Person(
            number,
            gpu := int(number >= crowd),
            given.seed * 1000 + number,
            day,
            {"CUDA_VISIBLE_DEVICES": ",".join(map(str, [gpu, *(i for i in range(given.gpus) if i != gpu)]))},
        )
        for number in range(given.kernels)
    ]


def set_up(persons: list[Person], given: argparse.Namespace, *, is_simulated: bool) -> None:
    """Start the kernels, up to their CUDA contexts; leave `--host-budget` of host memory then, by the reserve."""
    until = time.monotonic() + STARTS_WITHIN_S
    for person in persons:
        person.start()
    for person in persons:
        person.is_set_up.wait(max(until - time.monotonic(), 0))
    if given.host_budget is not None:
        on_gpu = (given.gpu_budget or 0) * is_simulated  # a simulated GPU's memory is the host's, too
        size = given.host_budget + on_gpu
        left = host_memory().available_bytes - int(size * GIB)
        ask("set_policy", host_reserve_bytes=max(left, 0) * MARGIN_PART // (MARGIN_PART + 1))
        say(f"beside the reserve {size:g} GiB of host memory are left")


def take_turns(persons: list[Person], given: argparse.Namespace) -> float:
    """Until the time is over; how long they took turns."""
    started, day = time.monotonic(), persons[0].day
    day.fills.set()
    for person in persons:
        if not person.is_ready.wait(max(started + STARTS_WITHIN_S + given.time - time.monotonic(), 0)):
            person.error = "had no memory in time"
    begins = time.monotonic()
    say(f"{sum(not person.error for person in persons)} kernels have their memory")
    day.begins.set()
    late = max(begins - started - START_S, 0.0)
    until = begins + max(given.time - late, 0.0)
    while time.monotonic() < until and any(not person.error for person in persons):
        day.ends.wait(min(1.0, max(until - time.monotonic(), 0.0)))
    took = time.monotonic() - begins
    day.ends.set()
    say("their time is over: the last cell of each")
    for person in persons:
        person.join(until + given.end)
    return took


def metrics_say(port: int) -> dict[str, float]:
    """The controller's own counters of moves that went well."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    counts = {"park": 0.0, "resume": 0.0}
    for line in lines:
        if line.startswith("affinode_moves_total{") and 'outcome="ok"' in line:
            counts["park" if 'move="park"' in line else "resume"] += float(line.rsplit(" ", 1)[1])
    return counts


def faults(
    given: argparse.Namespace,
    persons: list[Person],
    sampler: Sampler,
    told: Told,
    counted: dict[str, float],
) -> list[str]:
    """What is not as it must be."""
    found = [f"kernel {person.number}: {person.error}" for person in persons if person.error]
    found += [f"kernel {person.number} did not finish" for person in persons if not person.has_finished]
    wrong = sum(not cell.is_right for person in persons for cell in person.cells)
    if wrong:
        found.append(f"{wrong} cells answered wrongly")
    if any(not person.cells for person in persons):
        found.append("not every kernel was served")
    if sampler.least_beyond_reserve is None or sampler.least_beyond_reserve < 0:
        found.append(
            f"host memory was below its reserve in {sampler.samples_below} of {sampler.samples} looks"
        )
    resumes, room = sum(not move.parks for move in told.moves), sum(sampler.totals)
    if given.kernels * given.gib * GIB > min(room, (given.gpu_budget or room) * GIB) and not resumes:
        found.append("no kernel was parked and resumed, though they do not fit together")
    if not 0 < counted.get("resume", 0.0) <= resumes:
        found.append(f"the metrics counted {counted.get('resume', 0):.0f} resumes, the ledger {resumes}")
    if given.host_budget is not None:
        found += [
            f"{count} of {why}" for why, count in told.failures.items() if Refusal.NO_HOST_MEMORY.value in why
        ]
    if given.gpus > 1 and given.depth == "context" and not told.elsewhere():
        found.append("no kernel resumed on another GPU")
    return found


def verdict(
    given: argparse.Namespace,
    where: dict[str, Any],
    persons: list[Person],
    sampler: Sampler,
    told: Told,
    counted: dict[str, float],
    notes: list[str],
) -> int:
    """Print the table; the exit status."""
    wrong = faults(given, persons, sampler, told, counted)
    waits = [cell.wait_s for person in persons for cell in person.cells]
    work = [cell.work_s for person in persons for cell in person.cells]
    durations = [move.duration_s for move in told.moves if not move.parks]
    least = sampler.least_beyond_reserve or 0
    figures = {
        "cells": len(waits),
        "wait_p50_s": percentile(waits, 0.5),
        "wait_p95_s": percentile(waits, 0.95),
        "wait_max_s": max(waits, default=None),
        "work_p50_s": percentile(work, 0.5),
        "resumes": len(durations),
        "resume_p50_s": percentile(durations, 0.5),
        "resume_p95_s": percentile(durations, 0.95),
        "resumes_elsewhere": len(told.elsewhere()),
        "host_least_beyond_reserve_bytes": least,
        "gpu_most_used_bytes": sampler.most_used,
    }
    if told.spills:
        notes.append(f"{len(told.spills)} times to disk, {sum(told.spills) / GIB:.1f} GiB")
    notes = [
        f"{len(waits)} cells; wait p50 {figures['wait_p50_s']:.2f} s, p95 {figures['wait_p95_s']:.2f} s,"
        f" longest {max(waits, default=0):.2f} s; work p50 {figures['work_p50_s']:.3f} s",
        f"{len(durations)} resumes, {len(told.elsewhere())} of them on the other GPU; median"
        f" {figures['resume_p50_s']:.2f} s, p95 {figures['resume_p95_s']:.2f} s,"
        f" longest {max(durations, default=0):.2f} s",
        f"host memory: least {sampler.least_available / GIB:.1f} GiB available, {least / GIB:+.1f} GiB beyond the"
        f" reserve, after {sampler.least_after_s:.0f} s, in {sampler.samples} looks",
        *(
            f"GPU {index}: at most {used / GIB:.1f} of {total / GIB:.1f} GiB used"
            for index, (used, total) in enumerate(zip(sampler.most_used, sampler.totals, strict=True))
        ),
        f"moves that came to nothing, and were tried again: {told.failures or 'none'}",
        *notes,
        *(f"NOT AS IT MUST BE: {fault}" for fault in wrong),
    ]
    rows = [person_row(person, told, sampler.gpus) for person in persons]
    passed = not wrong
    return finish(
        "many kernels", where, given.json, headings=HEADINGS, rows=rows, passed=passed, notes=notes, **figures
    )


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    given = arguments()
    where = machine(given.gpus, modules=["ipykernel", "torch" if given.program == "torch" else "numpy"])
    folder, port = given.folder or Path(tempfile.mkdtemp(prefix="affinode-many-", dir="/tmp")), free_port()
    folder.mkdir(mode=0o700, exist_ok=True)
    ledger = folder / f"ledger-{os.getpid()}" / "l.sqlite"
    say(f"seed {given.seed}")
    if not where["simulated"]:
        grow_memory(given.kernels * (int(given.gib * GIB) + HOST_OF_KERNEL))
    start_controller(folder, ledger, given, port)
    persons = people(given)
    log = folder / "node.log"
    try:
        with leave_gpu_budget(given, is_simulated=where["simulated"]):
            set_up(persons, given, is_simulated=where["simulated"])
            settings = Settings().changed(**ask("policy"))
            ends_after_s = given.time + ENDS_WITHIN_S + max(given.end - END_S, 0.0)
            with Watch(persons, ends_after_s, log) as watch, Sampler(given.gpus, settings) as sampler:
                steal = Steal()
                took = take_turns(persons, given)
                watch.tell()
                counted, notes = metrics_say(port), [f"took turns for {took:.0f} s, seed {given.seed}"]
                notes.append(f"other machines on its host had {steal.share():.2%} of its processors' time")
                notes += [f"stayed at memory depth: {why}" for why in sorted(watch.shallow)]
        if any(person.error for person in persons):
            tell_log(log)
    finally:
        end_all(persons)
        end_controller(folder / "node.sock")
    told = read_ledger(ledger)
    names = {person.kernel.id: person.number for person in persons if person.kernel is not None}
    print("\n".join(told.resume_lines(sampler.gpus, names)) + "\n")
    command = [sys.executable, "-m", "jupyter_affinode.cli", "report", "--ledger", str(ledger)]
    report = subprocess.run(command, capture_output=True, text=True)
    print(report.stdout + report.stderr)
    if report.returncode != 0:
        persons[0].error = persons[0].error or "the report failed"
    return verdict(given, where, persons, sampler, told, counted, notes)


if __name__ == "__main__":
    sys.exit(main())
