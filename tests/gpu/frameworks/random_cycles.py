"""Random parks and resumes of five programs that compute all at once on one GPU, against twins that are never parked.

`python tests/gpu random_cycles --cycles 500`. Every program pauses at random moments, every park comes at a random
moment; one that meets a call is revoked and does not count. In the end each step's loss must be, bit for bit, the
twin's, and no piece of memory may have needed a second copy. `--programs "driver API"` runs on the simulated GPU too.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from statistics import median
from typing import Any

from controlled import Controlled, finish, machine, options, say
from twins import MODULES, Program, compare, end, start

USUAL = ("PyTorch", "PyTorch, expandable segments", "JAX, preallocated", "CuPy", "numba")
SILENT_FOR_S = 60.0  # a program that has not ended a step for so long hangs


def cycle(controlled: Controlled, program: Program, wanted: int, deadline: float, seed: int) -> None:
    """Park it at random moments, and let its own calls or the controller bring it back; runs on a thread."""
    rng = random.Random(seed)
    kernel_id = program.kernel_id
    assert kernel_id is not None
    program.ready.wait()
    while program.cycles < wanted and time.monotonic() < deadline and not program.problem:
        time.sleep(rng.uniform(0.0, 0.05))
        kernel = controlled.park(kernel_id)
        if kernel is None:
            program.refused += 1
        else:
            program.parked_bytes = max(program.parked_bytes, kernel["parked_bytes"])
            if kernel["last_park"]:
                program.park_s.append(kernel["last_park"]["duration_s"])
            time.sleep(rng.uniform(0.0, 0.1))
            if rng.random() < 0.3:
                controlled.resume(kernel_id)
        take_stock(controlled, program)
        if program.process.poll() is not None:
            status = program.process.returncode
            program.problem = f"it ended by itself with status {status}: {program.last_words()}"
        elif time.monotonic() - program.heard > SILENT_FOR_S:
            program.problem = f"it hangs since step {len(program.losses)}: {controlled.kernel(kernel_id)}"


def take_stock(controlled: Controlled, program: Program) -> None:
    assert program.kernel_id is not None
    kernel = controlled.kernel(program.kernel_id)
    if kernel is None:
        return
    program.cycles = min(kernel["parks"], kernel["resumes"])
    program.mended = max([program.mended, *(process["mended_chunks"] for process in kernel["processes"])])
    if kernel["last_resume"]:
        program.resume_s.append(kernel["last_resume"]["duration_s"])
    if kernel["residency"] == "lost":
        program.problem = "LOST"


def main() -> int:
    parser = options(__doc__, time_s=300)
    parser.add_argument("--cycles", type=int, default=500, help="parks and resumes of each program (500)")
    parser.add_argument("--programs", default=";".join(USUAL))
    parser.add_argument("--pause", type=float, default=0.2, help="longest pause of the programs, in s (0.2)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    given = parser.parse_args()
    names = given.programs.split(";")
    where = machine(modules=sorted({MODULES[name] for name in names}))
    deadline = time.monotonic() + given.time
    say(f"seed {given.seed}; {', '.join(names)}")
    with Controlled() as controlled:
        managed = [
            start(controlled, name, given.seed + i, given.pause, managed=True) for i, name in enumerate(names)
        ]
        twins = [
            start(controlled, name, given.seed + i, given.pause, managed=False)
            for i, name in enumerate(names)
        ]
        threads = [
            threading.Thread(
                target=cycle, args=(controlled, program, given.cycles, deadline, given.seed + 100 + i)
            )
            for i, program in enumerate(managed)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            say(
                "; ".join(
                    f"{program.name}: {program.cycles}, step {len(program.losses)}" for program in managed
                )
            )
            threads[[thread.is_alive() for thread in threads].index(True)].join(5.0)
        for program, twin in zip(managed, twins, strict=True):
            end(program, 0)
            end(twin, len(program.losses))
        log = controlled.log()
    time.sleep(0.2)  # the readers' last lines
    rows, notes, passed = [], [], True
    raw: list[dict[str, Any]] = []
    for program, twin in zip(managed, twins, strict=True):
        verdict = program.problem or compare(program, twin)
        if twin.problem:
            verdict += f"; its twin: {twin.problem}"
        passed &= verdict == "equal" and program.cycles > 0 and program.mended == 0
        if program.cycles < given.cycles:
            notes.append(f"{program.name}: {program.cycles} of {given.cycles} cycles when the time was over")
        figures = [
            median(times) * 1e3 if times else float("nan") for times in (program.park_s, program.resume_s)
        ]
        rows.append(
            [
                program.name,
                str(program.cycles),
                str(program.refused),
                f"{program.parked_bytes / 2**30:.2f} GiB",
                f"{figures[0]:.0f} ms",
                f"{figures[1]:.0f} ms",
                str(len(program.losses)),
                verdict,
                str(program.mended),
            ]
        )
        raw.append(
            {"name": program.name, "cycles": program.cycles, "steps": len(program.losses), "verdict": verdict}
        )
    if not passed:
        print(log[-6000:], file=sys.stderr)
    return finish(
        "random_cycles",
        where,
        given.json,
        headings=[
            "program",
            "cycles",
            "refused (busy)",
            "parked",
            "park (median)",
            "resume (median)",
            "steps",
            "losses against the twin",
            "pieces mended",
        ],
        rows=rows,
        passed=passed,
        notes=[*notes, f"seed {given.seed}"],
        programs=raw,
        seed=given.seed,
    )


if __name__ == "__main__":
    sys.exit(main())
