"""Triton, PyTorch, PyCUDA and CuPy in one process, parked again and again: `python tests/gpu side_by_side`.

Modules linked to the driver, the CUDA runtime and lookups by name, all loaded with RTLD_LOCAL, as Python does. Parks
come in turn while nothing runs, and at a random moment of a step, which may revoke them; after each the program brings
itself back and looks at every word. `--libraries "Triton;PyCUDA"` runs on the simulated GPU, which has no CUDA runtime.
"""

from __future__ import annotations

import random
import sys
import time
import uuid
from pathlib import Path
from statistics import median

from controlled import Controlled, answer, ask, finish, machine, options, say, tell

PROGRAM = Path(__file__).with_name("side_by_side_programs.py")
MODULES = {
    "Triton": ["triton"],
    "PyTorch and Triton": ["torch", "triton"],
    "PyCUDA": ["pycuda"],
    "CuPy": ["cupy"],
}
LIBRARY_BYTES = 16 << 20


def main() -> int:
    parser = options(__doc__, time_s=300)
    parser.add_argument("--libraries", default=";".join(MODULES))
    parser.add_argument(
        "--cycles", type=int, default=20, help="parks while nothing runs, and as many others (20)"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    given = parser.parse_args()
    names = given.libraries.split(";")
    where = machine(modules=["numpy", *sorted({module for name in names for module in MODULES[name]})])
    deadline, chance = time.monotonic() + given.time, random.Random(given.seed)
    say(f"seed {given.seed}; {', '.join(names)}")
    kernel_id = str(uuid.uuid4())
    parked, met, park_s, parked_bytes = 0, 0, [], []
    with Controlled() as controlled:
        stderr = controlled.folder / "stderr"
        with stderr.open("w") as file:
            program = controlled.start([sys.executable, str(PROGRAM), *names], kernel_id, stderr=file)
        said = answer(program)
        verdict = "" if said == "ready" else said
        while not verdict and parked < given.cycles and time.monotonic() < deadline:
            kernel = controlled.park_surely(kernel_id)
            parked += 1
            parked_bytes.append(kernel["parked_bytes"])
            park_s.append(kernel["last_park"]["duration_s"])
            said = ask(program, "step")
            if said == "right":
                tell(program, "step")
                time.sleep(chance.uniform(0.0, 0.1))
                met += controlled.park(kernel_id) is not None
                said = answer(program)
            verdict = "" if said == "right" else said
            say(f"{parked}: {said}")
        words, log = stderr.read_text(errors="replace"), controlled.log()
    moved = min(parked_bytes, default=0)
    if not verdict and moved < LIBRARY_BYTES * len(names):
        verdict = "some memory stayed on the GPU"
    if verdict:
        print(words[-6000:], log[-4000:], sep="\n", file=sys.stderr)
    notes = [f"seed {given.seed}"]
    if parked < given.cycles:
        notes.append(f"{parked} of {given.cycles} cycles when the time was over")
    return finish(
        "side_by_side",
        where,
        given.json,
        headings=["libraries", "parked", "parked beside a step", "least parked", "park (median)", "contents"],
        rows=[
            [
                ", ".join(names),
                str(parked),
                str(met),
                f"{moved >> 20} MiB",
                f"{median(park_s) * 1e3:.0f} ms" if park_s else "-",
                verdict or "right",
            ]
        ],
        passed=not verdict and parked > 0,
        notes=notes,
        seed=given.seed,
    )


if __name__ == "__main__":
    sys.exit(main())
