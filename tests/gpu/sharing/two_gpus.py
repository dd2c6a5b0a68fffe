"""Two GPUs: a process with peer copies, and two ranks with NCCL, parked and resumed as one kernel.

`python tests/gpu two_gpus` on a machine with two GPUs. In every second round one of the two is given a second of GPU
work just before the park is asked for: the park must then wait or be refused, and never leave one of the two parked
alone. Right after each resume both use the peer (a copy, an all-reduce) and look at their contents. Variables that the
machine sets for NCCL are left as they are. On the simulated GPU (`--cases peer_driver,rank_driver`) without NCCL.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from controlled import Controlled, answer, ask, finish, free_port, machine, options, say, tell
from waiting import NotInTime

PROGRAM = Path(__file__).with_name("two_gpu_programs.py")
RANKS = {"peer_pytorch": 1, "peer_driver": 1, "nccl": 2, "rank_driver": 2}
NAMES = {
    "peer_pytorch": "PyTorch, one process, tensors copied between two GPUs",
    "peer_driver": "driver API, cuMemcpyPeer and peer access",
    "nccl": "two ranks with NCCL, all-reduce",
    "rank_driver": "two processes, driver API",
}
DELAY_S = 1.0


@dataclass
class Case:
    """What came of one kind of program."""

    name: str
    rounds: int = 0
    right: int = 0
    delayed: int = 0
    park_s: list[float] = field(default_factory=list)
    resume_s: list[float] = field(default_factory=list)
    parked_bytes: int = 0
    problem: str = ""


def all_work(programs: list[subprocess.Popen[str]]) -> list[str]:
    """Have all work at once, since they may wait for one another; their answers."""
    for program in programs:
        tell(program, "work")
    return list(map(answer, programs))


def one_round(
    controlled: Controlled, case: Case, kernel_id: str, programs: list[subprocess.Popen[str]]
) -> None:
    delayed = case.rounds % 2 == 1
    if delayed:
        ask(programs[-1], f"delay {DELAY_S}")
    kernel = controlled.park(kernel_id)
    if kernel is None:  # the delay was longer than the controller's patience: neither may be parked alone
        here = controlled.kernel(kernel_id)
        states = {process["residency"] for process in here["processes"]} if here else set()
        if states - {"resident", "parking", "resuming"}:
            case.problem = f"refused, and yet {states}"
        kernel = controlled.park_surely(kernel_id)
    controlled.until(kernel_id, "parked")
    case.delayed += delayed
    case.parked_bytes = kernel["parked_bytes"]
    case.park_s.append(kernel["last_park"]["duration_s"])
    answers = all_work(programs)
    case.rounds += 1
    case.right += answers == ["right"] * len(programs)
    if answers != ["right"] * len(programs):
        case.problem = "; ".join(answers)
    case.resume_s.append(controlled.until(kernel_id, "resident")["last_resume"]["duration_s"])


def run(controlled: Controlled, which: str, rounds: int, deadline: float) -> Case:
    case = Case(NAMES[which])
    kernel_id, port = str(uuid.uuid4()), free_port()
    programs = [
        controlled.start([sys.executable, str(PROGRAM), which, str(rank), str(port)], kernel_id)
        for rank in range(RANKS[which])
    ]
    try:
        answers = list(map(answer, programs))
        answers += all_work(programs) if set(answers) == {"ready"} else []
        if set(answers) != {"ready", "right"}:
            case.problem = f"before any park: {'; '.join(answers)}"
        while case.rounds < rounds and not case.problem and time.monotonic() < deadline:
            one_round(controlled, case, kernel_id, programs)
    except (NotInTime, BrokenPipeError) as error:
        case.problem = str(error)
    finally:
        for program in programs:
            program.kill()
            program.wait()
    return case


def main() -> int:
    parser = options(__doc__, time_s=180)
    parser.add_argument("--rounds", type=int, default=20, help="parks and resumes of each (20)")
    parser.add_argument("--cases", default="peer_pytorch,peer_driver,nccl")
    given = parser.parse_args()
    cases = given.cases.split(",")
    where = machine(2, modules=["torch"] if {"peer_pytorch", "nccl"} & set(cases) else [])
    deadline = time.monotonic() + given.time
    found = []
    with Controlled() as controlled:
        for which in cases:
            say(NAMES[which])
            found.append(run(controlled, which, given.rounds, deadline))
        log = controlled.log()
    passed = all(case.right == case.rounds > 0 and not case.problem for case in found)
    if not passed:
        print(log[-6000:], file=sys.stderr)
    return finish(
        "two_gpus",
        where,
        given.json,
        headings=["program", "right", "with one delayed", "parked", "park (median)", "resume (median)"],
        rows=[
            [
                case.name,
                f"{case.right}/{case.rounds}",
                str(case.delayed),
                f"{case.parked_bytes / 2**30:.2f} GiB",
                f"{median(case.park_s) * 1e3:.0f} ms" if case.park_s else "-",
                f"{median(case.resume_s) * 1e3:.0f} ms" if case.resume_s else "-",
            ]
            for case in found
        ],
        passed=passed,
        notes=[f"{case.name}: {case.problem}" for case in found if case.problem],
    )


if __name__ == "__main__":
    sys.exit(main())
