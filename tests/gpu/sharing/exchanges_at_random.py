"""Random exchanges among programs of several frameworks that share a GPU, against twins that are never parked.

`python tests/gpu exchanges_at_random`. `--each` programs of each framework, as kernels of one controller, compute some
steps at a time and then pause, all at random. Another program takes so much of the GPU that it has room for a part of
them only (`--room`), so they change places all the time. In the end each step's loss, which sums up all that a program
holds, must be, bit for bit, that of a twin that runs afterwards by itself; no program may fail or hang, and no piece of
memory may have needed a second copy. Exchanges are counted by the controller's log: waiters that came in while others
left, all the way. A framework that is not installed is left out. On the simulated GPU: `--programs "driver API"`.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from controlled import NO_GPU_STATUS, Controlled, ballast, finish, machine, options, say
from twins import MODULES, Program, compare, end, start

from jupyter_affinode.settings.policy import GIB, MIB

USUAL = ("PyTorch", "PyTorch, expandable segments", "JAX, preallocated", "JAX", "CuPy", "numba")
STARTS_WITHIN_S = 90.0
CELL_WITHIN_S = 60.0
PAUSE_S = 0.02  # the longest inside a cell
STEPS = 3  # of a cell, at most
# Pauses shorter than a round trip are not taken for idleness: a slice of time ends what they would keep others from.
SETTINGS = ("--contended-idle-timeout=0.05", "--when-full=time_slice", "--time-slice=5")
SPARE = 16  # that part of what they hold is left beside them, or more if the largest would not fit while it computes
STEP_BYTES = 16 * MIB
LOOK_EVERY_S = 0.25


@dataclass
class Came:
    """What the controller's log tells of exchanges."""

    in_exchange: Counter[str]  # by kernel
    called_off: int

    @property
    def count(self) -> int:
        """All exchanges."""
        return sum(self.in_exchange.values())


def exchanges(log: str) -> Came:
    """Count waiters that came in while others left for them."""
    coming: set[str] = set()
    came = Came(Counter(), log.count(" does not change places: "))
    begins = re.compile(r"resume (\S+) \([^)]*\): others leave the GPU for it")
    ends = re.compile(r"resumed (\S+): ")
    stays = re.compile(r" (\S+) stays parked: ")
    for line in log.splitlines():
        if found := begins.search(line):
            coming.add(found[1])
        elif (found := ends.search(line)) and found[1] in coming:
            coming.remove(found[1])
            came.in_exchange[found[1]] += 1
        elif found := stays.search(line):
            coming.discard(found[1])
    return came


def kernel_of(program: Program) -> str:
    assert program.kernel_id is not None
    return program.kernel_id


def all_at_once(do: Callable[[Program], None], programs: list[Program]) -> None:
    """Do it with each, on a thread of its own."""
    with ThreadPoolExecutor(len(programs)) as threads:
        list(threads.map(do, programs))


def begin(program: Program) -> None:
    """Have it hold all that it will."""
    if not program.ready.wait(STARTS_WITHIN_S):
        program.problem = f"it did not start; {program.last_words()}"
    if not program.problem:
        program.go(STEPS, CELL_WITHIN_S)


def take_room(controlled: Controlled, programs: list[Program], part: float, stack: ExitStack) -> list[str]:
    """Park as many as shall have no room, and have another program take what they leave. What was done."""
    held = {
        program.kernel_id: int((controlled.kernel(kernel_of(program)) or {}).get("resident_bytes", 0))
        for program in programs
    }
    parked = 0
    for program in programs:
        if sum(held.values()) - parked <= part * sum(held.values()):
            break
        parked += held[program.kernel_id]
        controlled.park_surely(kernel_of(program))
    room = sum(held.values()) - parked
    spare = max(sum(held.values()) // SPARE, max(held.values()) + STEP_BYTES - room)
    stack.enter_context(ballast(spare))
    whole = sum(held.values()) / GIB
    return [f"they held {whole:.1f} GiB; room for {room / GIB:.1f} GiB and {spare / GIB:.2f} GiB"]


def live(program: Program, think: tuple[float, float], seed: int, ends: threading.Event) -> None:
    """Pause and run cells until it is over; runs on a thread."""
    rng = random.Random(seed)
    while not ends.wait(rng.uniform(*think)) and not program.problem:
        program.go(len(program.losses) + rng.randint(1, STEPS), CELL_WITHIN_S)


def change_places(controlled: Controlled, programs: list[Program], given: argparse.Namespace) -> None:
    """Let them compute until there were enough exchanges, the time is over or one has failed."""
    ends, until = threading.Event(), time.monotonic() + given.time
    low, high = (float(part) for part in given.think.split(":"))
    threads = [
        threading.Thread(target=live, args=(program, (low, high), given.seed + i, ends), daemon=True)
        for i, program in enumerate(programs)
    ]
    for thread in threads:
        thread.start()
    told = time.monotonic()
    while time.monotonic() < until and not any(program.problem for program in programs):
        count = exchanges(controlled.log()).count
        if count >= given.exchanges:
            break
        if time.monotonic() - told > 5.0:
            told = time.monotonic()
            say(f"{count} exchanges, {sum(len(program.losses) for program in programs)} steps")
        time.sleep(LOOK_EVERY_S)
    ends.set()
    for thread in threads:
        thread.join(CELL_WITHIN_S)
    # One that is parked by now has its contents looked at, too.
    all_at_once(lambda program: program.go(len(program.losses) + 1, CELL_WITHIN_S), programs)


def installed(names: list[str]) -> tuple[list[str], list[str]]:
    """Those of the programs whose framework is there, and a note about each of the others."""
    there = [name for name in names if importlib.util.find_spec(MODULES[name]) is not None]
    return there, [f"left out: {name} (no module {MODULES[name]})" for name in names if name not in there]


def arguments() -> argparse.Namespace:
    parser = options(__doc__, time_s=150)
    parser.add_argument("--exchanges", type=int, default=500, help="how many there must be (500)")
    parser.add_argument("--programs", default=";".join(USUAL))
    parser.add_argument("--each", type=int, default=2, help="how many of each (2)")
    parser.add_argument("--mib", default="1024:2560", help="about what each holds, from:to (1024:2560)")
    parser.add_argument("--room", type=float, default=0.5, help="for what part of it there is room (0.5)")
    parser.add_argument("--think", default="0.2:2", help="seconds between cells, from:to (0.2:2)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    return parser.parse_args()


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    given = arguments()
    names, notes = installed(given.programs.split(";"))
    where = machine()
    if not names:
        print(f"this needs a framework: {'; '.join(notes)}", file=sys.stderr)
        return NO_GPU_STATUS
    low, high = (int(part) for part in given.mib.split(":"))
    rng = random.Random(given.seed)
    each = [(name, given.seed + i, rng.randint(low, high)) for i, name in enumerate(names * given.each)]
    say(f"seed {given.seed}; {', '.join(names)}, {given.each} of each")
    with ExitStack() as stack:
        controlled = stack.enter_context(Controlled(*SETTINGS))
        managed = [
            start(controlled, name, seed, PAUSE_S, managed=True, mib=mib, in_cells=True)
            for name, seed, mib in each
        ]
        all_at_once(begin, managed)
        shuffled = rng.sample(managed, len(managed))
        if not any(program.problem for program in managed):
            notes += take_room(controlled, shuffled, given.room, stack)
            say(notes[-1])
            change_places(controlled, managed, given)
        seen = [controlled.kernel(kernel_of(program)) or {} for program in managed]
        log = controlled.log()
        whole = [program for program in managed if not program.problem]
        if whole:
            all_at_once(lambda program: end(program, len(program.losses)), whole)
    say("the twins")
    with Controlled() as alone:  # its folder alone is used
        twins = [
            start(alone, name, seed, 0.0, managed=False, mib=mib, in_cells=True) for name, seed, mib in each
        ]
        steps = {id(twin): len(program.losses) for program, twin in zip(managed, twins, strict=True)}
        all_at_once(lambda twin: end(twin, steps[id(twin)]), twins)
    return verdict(given, where, managed, twins, seen, log, notes, [mib for _, _, mib in each])


def verdict(
    given: argparse.Namespace,
    where: dict[str, Any],
    managed: list[Program],
    twins: list[Program],
    seen: list[dict[str, Any]],
    log: str,
    notes: list[str],
    sizes: list[int],
) -> int:
    """Print the table; the exit status."""
    came, rows, passed = exchanges(log), [], True
    for program, twin, kernel, mib in zip(managed, twins, seen, sizes, strict=True):
        found = program.problem or compare(program, twin)
        if program.problem:
            found += f" ({kernel.get('residency')}: {kernel.get('wait_reason') or kernel.get('refusal')})"
        found += f"; its twin: {twin.problem}" if twin.problem else ""
        mended = max((process["mended_chunks"] for process in kernel.get("processes", ())), default=0)
        passed &= found == "equal" and mended == 0
        moves = [str(kernel.get(name, "-")) for name in ("parks", "resumes")]
        count = came.in_exchange[kernel_of(program)]
        rows.append(
            [program.name, f"{mib}", *moves, f"{count}", f"{len(program.losses)}", found, f"{mended}"]
        )
    equal = sum(row[6] == "equal" for row in rows)
    notes = [
        f"{came.count} exchanges; {len(rows)} programs, the losses of {equal} equal to their twins'",
        f"{came.called_off} more were called off before anything moved; {log.count(' stays parked: ')} resumes came to"
        f" nothing, and were tried again",
        *notes,
        f"seed {given.seed}",
    ]
    if came.count < given.exchanges:
        notes.append(f"NOT AS IT MUST BE: {given.exchanges} exchanges were to be made in {given.time:g} s")
        passed = False
    if not passed:
        print(log[-6000:], file=sys.stderr)
    headings = [
        "program",
        "MiB",
        "parks",
        "resumes",
        "came in an exchange",
        "steps",
        "losses against the twin",
    ]
    return finish(
        "exchanges at random",
        where,
        given.json,
        headings=[*headings, "pieces mended"],
        rows=rows,
        passed=passed,
        notes=notes,
        exchanges=came.count,
        seed=given.seed,
    )


if __name__ == "__main__":
    sys.exit(main())
