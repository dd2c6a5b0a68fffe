"""Run every attack and print what an honest user saw of it: `python tests/attacks/run.py [NAME …]`, as root.

Each program in `programs/` attacks a controller of its own for `--seconds` on a simulated GPU. One line for each: how
many of the bystander's requests were answered, how many were not, the median, the 99th percentile and the longest
answer in milliseconds, the longest less the time in which the controller or the bystander waited for a processor, the
most processor time that the controller used during one request, for the attacker too, and the most memory that it had.
The first line is without an attack.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import quantiles

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "node" / "support")]

from live_machine import new_machine  # noqa: E402
from scene import PROGRAMS, Answer, Scene  # noqa: E402

QUIET = "no attack"
NOT_FOR_ANY_SCENE = {  # parts of others, and what asks for arguments or for a controller with other settings
    "attacking", "false_spills", "hoarding_lots", "holding_locks", "lingering_on_ipc", "many_texts", "planting",
    "taking_folder", "taking_lots", "taking_shared_folder", "taking_spill_names", "talking"
}  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    known = sorted({path.stem for path in PROGRAMS.glob("*.py")} - NOT_FOR_ANY_SCENE)
    heads = f"{'p50':>6} {'p99':>6} {'longest':>8} {'served':>7} {'worked':>7}"
    print(f"{'attack':32} {'answered':>8} {'failed':>6} {heads} ms {'MB':>5}")
    for name in given.names or [QUIET, *known]:
        answers, memory = attacked(name, given.seconds)
        print(row(name, answers, memory), flush=True)


def attacked(name: str, seconds: float) -> tuple[list[Answer], int]:
    """The answers that the bystander got within so many seconds of one attack, and the controller's memory."""
    with new_machine() as machine:
        machine.simulate(memory="1GiB")
        scene = Scene(machine)
        began = time.monotonic()
        if name == QUIET:
            time.sleep(seconds)
        else:
            with scene.attack(name):
                began = time.monotonic()
                time.sleep(seconds)
        scene.bystander.close()  # after its last answer, or its last time-out
        memory = scene.memory_bytes()
        scene.close()
        return [answer for answer in scene.bystander.answers if answer.at >= began], memory


def row(name: str, answers: list[Answer], memory: int) -> str:
    """A line of the table."""
    answered = [answer for answer in answers if answer.status == 200]
    good = [answer.lasted_s * 1000 for answer in answered]
    served = max((answer.served_s * 1000 for answer in answered), default=0.0)
    worked = max((answer.worked_s * 1000 for answer in answered), default=0.0)
    cuts = quantiles(good, n=100) if len(good) > 1 else [0.0] * 99
    figures = f"{cuts[49]:6.1f} {cuts[98]:6.1f} {max(good, default=0.0):8.1f} {served:7.1f} {worked:7.1f}"
    return f"{name:32} {len(good):8} {len(answers) - len(good):6} {figures}    {memory / 1e6:5.0f}"


if __name__ == "__main__":
    main()
