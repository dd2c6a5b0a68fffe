"""Programs that never pause take turns on one GPU: `python tests/gpu turns`, with `when_full="time_slice"`.

Needs nothing but jupyter-affinode and an NVIDIA GPU. Each of `--programs` holds `--gib`, too much for two of them,
and works on it without a pause: asynchronous fills and copies inside its memory, then a wait for them, and a look at
a word of every 2 MiB of it. All must go on, none may see an error or a wrong word, and each must
be preempted. Tells the work of the slowest beside that of the fastest, and how long preempting and resuming took. Exits
with 1 if anything is not as it must be.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

from controlled import Controlled, finish, machine, options, say

PROGRAM = """
import ctypes, sys, threading
from jupyter_affinode.bench.driver import Driver
size, number = int(sys.argv[1]), int(sys.argv[2])
driver = Driver()
half = size // 2 >> 21 << 21
block = driver.allocate(half * 2)
word = (ctypes.c_uint32 * 1)()
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
print("ready", flush=True)
rounds = 0
while not stop.is_set():
    value = (number * 1_000_003 + rounds) & 0xFFFFFFFF
    driver.call("cuMemsetD32Async", ctypes.c_uint64(block), value, ctypes.c_size_t(half // 4), None)
    for _ in range(8):
        to, what = ctypes.c_uint64(block + half), ctypes.c_uint64(block)
        driver.call("cuMemcpyDtoDAsync_v2", to, what, ctypes.c_size_t(half), None)
    driver.synchronize()
    for at in range(block, block + 2 * half, 1 << 21):
        driver.call("cuMemcpyDtoH_v2", word, ctypes.c_uint64(at + 4 * (rounds % 1000)), ctypes.c_size_t(4))
        assert word[0] == value, (hex(at), word[0], value)
    rounds += 1
print("rounds", rounds, flush=True)
"""
UNFAIR = 4.0  # the fastest may have done that many times what the slowest has


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    parser = options(__doc__, time_s=90.0)
    parser.add_argument("--gib", type=float, default=45.0, help="what each program holds (45)")
    parser.add_argument("--programs", type=int, default=3, help="how many (3)")
    parser.add_argument("--quantum", type=float, default=5.0, help="seconds of a turn (5)")
    arguments = parser.parse_args()
    where, size = machine(), int(arguments.gib * (1 << 30))
    with Controlled("--when-full=time_slice", f"--time-slice={arguments.quantum}") as controlled:
        programs = []
        for number in range(arguments.programs):
            command = [sys.executable, "-c", PROGRAM, str(size), str(number)]
            programs.append(controlled.start(command, f"turn-{number}", stderr=subprocess.PIPE))
            say(f"program {number} is started")
        time.sleep(arguments.time)
        kernels = [controlled.kernel(f"turn-{number}") or {} for number in range(arguments.programs)]
        answers = [_answer(program) for program in programs]
        log = controlled.log()
    rounds = [answer if isinstance(answer, int) else 0 for answer in answers]
    rows = [
        (
            f"{number}",
            f"{answer}",
            f"{kernel.get('parks', 0)}",
            f"{kernel.get('resumes', 0)}",
            _seconds(kernel.get("last_park")),
            _seconds(kernel.get("last_resume")),
        )
        for number, (answer, kernel) in enumerate(zip(answers, kernels, strict=True))
    ]
    fairness = max(rounds) / min(rounds) if min(rounds) else float("inf")
    refused = len(re.findall(r"stays on the GPU", log))
    passed = fairness <= UNFAIR and all(kernel.get("parks", 0) >= 1 for kernel in kernels)
    notes = [
        f"the fastest did {fairness:.2f} times the work of the slowest",
        f"{refused} preemptions found work that did not come to rest, and were tried again",
    ]
    return finish(
        "turns",
        where,
        arguments.json,
        headings=("program", "rounds", "preempted", "resumed", "last park", "last resume"),
        rows=rows,
        passed=passed,
        notes=notes,
    )


def _answer(program: subprocess.Popen[str]) -> int | str:
    """How many rounds it did, all right; or what it died of. It may have to wait for its turn once more."""
    try:
        output, errors = program.communicate("stop\n", timeout=120)
    except subprocess.TimeoutExpired:
        program.kill()
        return "did not end"
    found = re.search(r"rounds (\d+)", output)
    return int(found[1]) if found else (errors.strip().splitlines() or ["no output"])[-1]


def _seconds(move: dict[str, float] | None) -> str:
    return "-" if move is None else f"{move['duration_s']:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
