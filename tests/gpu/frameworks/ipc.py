"""torch.multiprocessing with CUDA tensors between two processes of one kernel, under the shim.

`python tests/gpu ipc`. A parent sends tensors small and large; the child sees the parent's contents, writes, and the
parent sees that. Then a park is asked for (whatever is shared may stay on the GPU, and must be named), and both look
again; at last the parent frees, and its own memory parks. `--program driver` does the same with cuIpc* on the simulated
GPU.
"""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path

from controlled import Controlled, answer, ask, finish, machine, options, say

PROGRAM = Path(__file__).with_name("ipc_programs.py")
STEPS = ("share", "child writes", "look", "end sharing", "look")


def park_words(controlled: Controlled, kernel_id: str) -> tuple[str, bool]:
    """Ask for a park; what came of it in words, and whether what stays is named."""
    kernel = controlled.park(kernel_id)
    if kernel is None:
        kernel = controlled.kernel(kernel_id)
        assert kernel is not None
        return f"refused: {kernel['refusal']}", bool(kernel["refusal"])
    fixed = {entry["reason"]: entry["bytes"] for entry in kernel["unmovable"]}
    words = f"{kernel['residency']}, {kernel['parked_bytes'] >> 20} MiB parked"
    shared = fixed.get("shared", 0)
    return f"{words}, {shared >> 20} MiB stay as shared" if shared else words, True


def main() -> int:
    parser = options(__doc__, time_s=120)
    parser.add_argument("--program", choices=["pytorch", "driver"], default="pytorch")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    where = machine(modules=["torch"] if given.program == "pytorch" else ["cuda"])
    deadline = time.monotonic() + given.time
    kernel_id = str(uuid.uuid4())
    rows, passed = [], True
    with Controlled() as controlled:
        program = controlled.start([sys.executable, str(PROGRAM), given.program], kernel_id)
        said = answer(program)
        rows.append(["start", said, ""])
        passed &= said == "ready"
        for number in range(given.rounds if said == "ready" else 0):
            for step in STEPS:
                if time.monotonic() > deadline:
                    break
                say(f"round {number}: {step}")
                said = ask(program, step)
                words, named = park_words(controlled, kernel_id) if said == "right" else ("", True)
                passed &= said == "right" and named
                rows.append([f"{number}: {step}", said, words])
                if said != "right":
                    break
            if said != "right":
                break
        program.kill()
        log = controlled.log()
    if not passed:
        print(log[-4000:], file=sys.stderr)
    return finish(
        "ipc", where, given.json, headings=["step", "contents", "a park then"], rows=rows, passed=passed
    )


if __name__ == "__main__":
    sys.exit(main())
