"""How much longer a kernel's first park takes than a later one, under a controller whose settings are all default.

`python tests/gpu first_park --gib 32`. Each round starts a kernel beside a small one, fills its memory, waits until the
controller has prepared what it will of host memory (`lot_bytes`), and parks it: once, and after its contents have all
changed once more. Times are from the request to the controller's answer, and every word is looked at after each resume.
With `--at-once` one more round parks without waiting, as for a kernel that is parked as soon as it has its memory.
"""

from __future__ import annotations

import itertools
import sys
import time
import uuid
from statistics import median
from typing import Any

from controlled import Controlled, finish, machine, options, say

from jupyter_affinode.bench.child_process import BenchProcess
from jupyter_affinode.settings.policy import GIB, MIB

WANTED = 1.5  # a first park may take so many times a later one
SETTLED_S = 2.0  # as long as nothing must have changed
PREPARED_WITHIN_S = 30.0
_seeds = itertools.count(1)


def prepared(controlled: Controlled, kernel_id: str) -> int:
    """Wait until no more host memory is made ready for the kernel; how much it has."""
    seen, since, until = (-1, -1), time.monotonic(), time.monotonic() + PREPARED_WITHIN_S
    while time.monotonic() < min(since + SETTLED_S, until):
        kernel = controlled.kernel(kernel_id)
        kept = 0 if kernel is None else int(kernel["retained_bytes"] + kernel["set_aside_bytes"])
        now = int(controlled.node()["host"]["lots"]["ready_bytes"]), kept
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.05)
    return seen[1]


def timed_park(controlled: Controlled, kernel_id: str) -> tuple[float, float]:
    """Park it; seconds until the controller's answer, and what the shim took of them."""
    while True:
        begin = time.monotonic()
        kernel = controlled.park(kernel_id)
        if kernel is not None and kernel["residency"] == "parked":
            return time.monotonic() - begin, float(kernel["last_park"]["duration_s"])
        time.sleep(0.1)


def round_of(controlled: Controlled, size: int, *, waits: bool) -> dict[str, Any]:
    """One kernel's first park and its next."""
    kernel_id = str(uuid.uuid4())
    with BenchProcess(socket=controlled.socket, kernel_id=kernel_id) as child:
        child.ask("hold", size=size, block=min(size, GIB))
        took: dict[str, Any] = {"wrong": 0}
        for park in ("first", "later"):
            child.ask("change", seed=next(_seeds))
            if park == "first":
                took["ready_bytes"] = prepared(controlled, kernel_id) if waits else 0
            took[park], took[f"{park}_shim"] = timed_park(controlled, kernel_id)
            controlled.resume(kernel_id)
            controlled.until(kernel_id, "resident")
            took["wrong"] += child.ask("verify")["differing_words"]
        return took


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    parser = options(__doc__, time_s=90)
    parser.add_argument("--gib", type=float, default=32.0, help="what the kernel holds (32)")
    parser.add_argument("--repeats", type=int, default=3, help="how many kernels, one after the other (3)")
    parser.add_argument("--at-once", action="store_true", help="one more, parked without waiting")
    given = parser.parse_args()
    where, size = machine(), int(given.gib * GIB) // (2 * MIB) * 2 * MIB
    until, rounds = time.monotonic() + given.time, []
    with Controlled(usual=()) as controlled:
        with BenchProcess(socket=controlled.socket, kernel_id="beside") as beside:
            beside.ask("hold", size=64 * MIB, block=64 * MIB)
            for number in range(given.repeats + given.at_once):
                if time.monotonic() > until:
                    break
                waits = number < given.repeats
                say(f"round {number}")
                rounds.append((waits, round_of(controlled, size, waits=waits)))
        log = controlled.log()
    rows = [
        [
            "after a while" if waits else "at once",
            f"{took['ready_bytes'] / GIB:.2f} GiB",
            f"{took['first']:.3f} s ({took['first_shim']:.3f} s)",
            f"{took['later']:.3f} s ({took['later_shim']:.3f} s)",
            f"{took['first'] / took['later']:.2f}",
            "right" if not took["wrong"] else "WRONG",
        ]
        for waits, took in rounds
    ]
    ratios = [took["first"] / took["later"] for waits, took in rounds if waits]
    ratio = median(ratios) if ratios else float("inf")
    right = not any(took["wrong"] for _, took in rounds)
    passed = right and (ratio <= WANTED or where["simulated"])
    if not passed:
        print(log[-3000:], file=sys.stderr)
    return finish(
        "first park",
        where,
        given.json,
        headings=[
            "parked",
            "prepared",
            "first park (shim)",
            "later park (shim)",
            "first / later",
            "contents",
        ],
        rows=rows,
        passed=passed,
        notes=[f"{given.gib:g} GiB; first / later: {ratio:.2f}, at most {WANTED:g} wanted"],
        ratio=ratio,
    )


if __name__ == "__main__":
    sys.exit(main())
