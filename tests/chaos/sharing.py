"""Forty kernels over one simulated GPU that has room for four: everyone is served, and nothing is lost.

`python tests/chaos/sharing.py --kernels 40 --seconds 600` runs it as long as wanted; the suite runs it for a few
seconds (test_many_kernels.py). Prints how it went: cells, parks, how fair it was. With `--host-mib` host memory is
short too: `--kernels 20 --gpus 2 --worth 3 --mebibytes 512 --think-ms 3000 --host-mib 2600` is about as it is for
twenty kernels of 20 GiB on two GPUs of 140 GiB, where each context that comes back must find 2 GiB free.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from light_kernels import LightMachine, Workload
from live_machine import UnixConnection
from waiting import wait_until

from jupyter_affinode.environment import controller_environment

if TYPE_CHECKING:
    from live_machine import Machine

CONTEXT_MIB = 1
FIXED_MIB = 6  # of each process beside its context: small allocations, the shim's digests
MARGIN_MIB = 4
RESTORE_MIB = 2 << 10  # what must be free so that a context can be restored for sure
END_WITHIN_S = 120.0
CONTROLLER = (
    "--idle-timeout=0.2",
    f"--margin-bytes={MARGIN_MIB << 20}",
    "--host-reserve-bytes=0",
)


@dataclass(frozen=True)
class Account:
    """How a run went. Times in seconds."""

    seed: int
    kernels: int
    lasted_s: float
    cells: list[int]
    longest_cell_s: float
    mean_cell_s: float
    words_checked: int
    parks: int
    resumes: int
    elsewhere: int = 0  # of the resumes, on another GPU
    worth: int = 4
    refusals: str = "none"  # by reason
    spills: int = 0  # that ended well

    @property
    def fairness(self) -> float:
        """The slowest kernel's share over the fastest's."""
        return min(self.cells) / max(self.cells)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.kernels} kernels on GPUs worth {self.worth}, {self.lasted_s:.0f} s,"
            f" {sum(self.cells)} cells ({min(self.cells)} to {max(self.cells)} a kernel,"
            f" fairness {self.fairness:.2f}), {self.parks} parks, {self.resumes} resumes,"
            f" {self.elsewhere} of them on another GPU;"
            f" a cell took {self.mean_cell_s:.2f} s on average, {self.longest_cell_s:.1f} s at most;"
            f" parks that were refused: {self.refusals};"
            f" {self.words_checked / 1e6:.0f} million words looked at, none wrong; no kernel out of memory"
        )


def gpu_mib(kernels: int, worth: int, workload: Workload) -> int:
    """A GPU with every kernel's context and room for `worth` kernels' memory."""
    return (
        kernels * (CONTEXT_MIB + FIXED_MIB) + worth * (workload.mebibytes + workload.ballast_mib) + MARGIN_MIB
    )


def share(
    machine: Machine,
    *,
    kernels: int,
    seconds: float,
    seed: int,
    workload: Workload,
    gpus: int = 1,
    worth: int | None = None,
    host_mib: int | None = None,
    spill_dir: str = "",
) -> Account:
    """Let the kernels work for so long, then end them; AssertionError at the first thing that must not be.

    With several GPUs all begin on the first, contexts leave too, and they come back where there is room. `worth`: how
    many fit on each; `host_mib`: how much host memory the controller sees for all that is
    parked and kept; `spill_dir`: what does not fit there goes to that folder.
    """
    worth = worth or (4 if gpus == 1 else 2)
    mebibytes, controller = gpu_mib(kernels, worth, workload), list(CONTROLLER)
    if gpus > 1:
        mebibytes += RESTORE_MIB
        controller += ["--depth=context", "--low-watermark=0"]
        controller += ["--park-when=idle"] if host_mib is None else ["--contended-idle-timeout=0.2"]
        machine.environment["AFFINODE_DEPTH"] = "context"
    if spill_dir:
        controller += [f"--spill-dir={spill_dir}"]
    machine.simulate(memory=f"{mebibytes}MiB", gpus=gpus)
    machine.environment["AFFINODE_SIM_CONTEXT"] = f"{CONTEXT_MIB}MiB"
    if host_mib is not None:
        start_bounded(machine, host_mib, controller)
    light = LightMachine(machine, workload, seed, controller)
    light.start_server("server", kernels)
    light.wait(lambda: len(light.look()) == kernels, END_WITHIN_S, "every kernel to start")
    light.wait(lambda: all(k.board.seen.cells for k in light.look()), END_WITHIN_S, "everyone's first cell")
    began = time.monotonic()
    light.wait(lambda: time.monotonic() - began > seconds, seconds + END_WITHIN_S, "the time to pass")
    if spill_dir:
        light.wait(lambda: spills(metrics(machine)) > 0, END_WITHIN_S, "the disk to be used")
    lasted = time.monotonic() - began
    cells = [kernel.board.seen.cells for kernel in light.look()]
    moves = machine.kernels().values()
    parks, resumes = sum(k["parks"] for k in moves), sum(k["resumes"] for k in moves)
    counters = metrics(machine)
    light.end(END_WITHIN_S)
    boards = [kernel.board.seen for kernel in light.look()]
    return Account(
        seed,
        kernels,
        lasted,
        cells,
        max(board.cell_longest_ns for board in boards) / 1e9,
        sum(board.cell_sum_ns for board in boards) / 1e9 / sum(board.cells for board in boards),
        sum(board.words_checked for board in boards),
        parks,
        resumes,
        int(counters.get('affinode_resumes_elsewhere_total{outcome="ok"}', 0)),
        worth,
        refusals=refusals(counters) or "none",
        spills=spills(counters),
    )


def start_bounded(machine: Machine, host_mib: int, controller: list[str]) -> None:
    """A controller that sees so much host memory, and keeps a tenth of it free."""
    program = str(Path(__file__).with_name("bounded_controller.py"))
    log = (machine.folder / "controller.log").open("ab")
    machine.start(
        sys.executable,
        program,
        str(host_mib),
        *(option for option in controller if not option.startswith("--host-reserve-bytes")),
        f"--host-reserve-bytes={(host_mib << 20) // 10}",
        env=controller_environment(machine.environment),
        stdout=log,
        stderr=log,
    )
    log.close()
    wait_until(machine.node, END_WITHIN_S, machine.controller_log)


def spills(counters: dict[str, float]) -> int:
    """How often parked memory went to disk."""
    return int(counters.get('affinode_spills_total{outcome="ok"}', 0))


def metrics(machine: Machine) -> dict[str, float]:
    """The controller's counters, by name and labels."""
    connection = UnixConnection(machine.socket)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def refusals(counters: dict[str, float]) -> str:
    """How many parks came to nothing, and why."""
    found = {
        match[1]: int(value)
        for name, value in counters.items()
        if value and (match := re.match(r'affinode_park_refusals_total\{reason="(.*)"\}', name))
    }
    return ", ".join(f"{reason} {count}" for reason, count in sorted(found.items()))


def main() -> None:
    """The command line."""
    from conftest import new_machine

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--gpus", type=int, default=1, help="with several, contexts leave them too")
    parser.add_argument("--worth", type=int, help="how many kernels fit on each GPU (4; of several, 2)")
    parser.add_argument("--host-mib", type=int, help="host memory that the controller sees (the machine's)")
    parser.add_argument("--spill-dir", default="", help="a folder on a disk for what does not fit there")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--mebibytes", type=int, default=Workload.mebibytes, help="of each kernel")
    parser.add_argument("--think-ms", type=int, default=Workload.think_ms)
    given = parser.parse_args()
    workload = Workload(given.mebibytes, given.think_ms)
    print(f"seed {given.seed}", flush=True)
    with new_machine() as machine:
        names = ("kernels", "seconds", "seed", "gpus", "worth", "host_mib", "spill_dir")
        account = share(machine, workload=workload, **{name: getattr(given, name) for name in names})
        print(account)
        if given.spill_dir:
            print(f"{account.spills} times parked memory went to disk")


if __name__ == "__main__":
    main()
