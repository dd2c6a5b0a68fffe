"""Random faults on a machine of light kernels: no kernel may be lost or stuck, and no byte wrong.

`python tests/chaos/chaos.py --faults 1000` prints what was injected, at which residencies it hit, and how it ended;
with `--seed` the same faults are drawn in the same order, as far as processes allow. Kernels change places, and host
memory is short, so that parts of them go to disk. Only kernels with more than a hand-over begins with (320 MiB) hand
over host memory: with `--ballast 480` all have that much. With `--hibernate` kernels go to disk, process and all, and
are woken again. The suite injects a few faults (test_chaos.py).
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import http.client
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import faults as f
from light_kernels import HERE, LightKernel, LightMachine, Phase, Workload, state_of
from sharing import CONTROLLER, RESTORE_MIB, gpu_mib
from waiting import NotInTime, wait_until

from jupyter_affinode.node.model.backoff import JITTER, Backoff

if TYPE_CHECKING:
    from live_machine import Machine

WORTH = 3  # kernels for which the GPU has room
WORTH_WITH_DISK = 2
AIM_S = 0.5  # a fault waits that long for a kernel in the state it aims at
ASK_TIMEOUT_S = 2.0
RECOVER_S = 300.0  # much, for a machine that has other work
# After the faults a kernel's moves may be put off for that long, for its own failures and for another's.
PUT_OFF_S = 2 * Backoff().last_s * (1 + JITTER)
# Then each kernel has its turn for each cell of another: to change places, with a write and a read where a disk is used
# (tests/node/policy/resources/test_disk.py has that bound). Two seconds with ballast, and much more beside other work.
TURN_S = 15.0
CHECK_EVERY = 40
SPILL_MIB = 256  # on disk, of all kernels together: less than they have
HOST_MIB = 320  # that the controller sees for what is parked and kept, where there is a disk
DISK_FOLDER = "/var/tmp"  # where /tmp may be memory, to which the product spills nothing
# What the controller writes of each, so that those of controllers that were killed are counted.
WRITTEN_OF = {
    "exchanges": re.compile(r"^.*resume .* others leave the GPU for it", re.M),
    "hand-overs": re.compile(r"^.* hands its host memory over to ", re.M),
    "spills": re.compile(r"^.*: [1-9].* written to disk in ", re.M),
    "failed spills": re.compile(r"^.*the spill of .* failed", re.M),
    "reads back from disk": re.compile(r"^.*: [1-9].* read from disk in ", re.M),
    "hibernations": re.compile(r"^\S+ is hibernated$", re.M),
    "refused hibernations": re.compile(r"^\S+ is not hibernated: ", re.M),
    "wakes": re.compile(r"^\S+ is awake$", re.M),
    "refused wakes": re.compile(r"^\S+ is not woken: ", re.M),
    "parts brought back": re.compile(r"^.*resume .* a part of it ", re.M),
}
REFUSED = re.compile(r"^\S+ is not (hibernated|woken): (.*)$", re.M)
COPY_RATE = "200MiB"  # of the simulated link, so that moves last long enough to be hit
LARGE_COPY_RATE = "1GiB"
CALM_CELLS = 3  # of each kernel, where moves are that long
LOT_MIB = 256  # parked memory lies in lots of that size (state/host/lots.py)
BEGINS_WITH_MIB = (
    384  # free when as many are parked as do not fit on the GPU: for a hand-over, not for a park
)
# Where kernels are so large that the GPU is always nearly full.
PARK_FOR_WAITERS = ("--low-watermark=0", "--contended-idle-timeout=1")


@dataclass
class Account:
    """What was done, and what came of it."""

    seed: int
    hits: dict[str, Counter[str]] = field(default_factory=dict)
    lasted_s: float = 0.0
    cells: int = 0
    words_checked: int = 0
    processes: int = 0
    longest_recovery_s: float = 0.0
    calm_cells: int = 1  # of each kernel, in that time
    moves: Counter[str] = field(default_factory=Counter)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)  # of hibernations and wakes

    def count(self, kind: str, state: str) -> None:
        self.hits.setdefault(kind, Counter())[state] += 1

    @property
    def faults(self) -> int:
        return sum(sum(states.values()) for states in self.hits.values())

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.faults} faults in {self.lasted_s:.0f} s"]
        for kind, states in sorted(self.hits.items()):
            where = ", ".join(f"{state} {count}" for state, count in sorted(states.items()))
            lines.append(f"  {kind:28} {sum(states.values()):5}   at {where}")
        lines.append("  " + ", ".join(f"{count} {what}" for what, count in self.moves.items()))
        lines += [f"  not {what}, {count} times: {why}" for (what, why), count in self.refusals.most_common()]
        lines.append(
            f"{self.processes} kernels' processes ran {self.cells} cells and looked at"
            f" {self.words_checked / 1e6:.0f} million words: none wrong; no kernel lost, stuck or out of memory."
            f" After faults each kernel had run {self.calm_cells} more cells within {self.longest_recovery_s:.1f} s."
        )
        return "\n".join(lines)


class Chaos:
    """A machine under faults."""

    def __init__(
        self,
        machine: Machine,
        seed: int,
        kernels: int,
        servers: int,
        block_s: float = 5.0,
        spill_dir: str = "",
        ballast_mib: int = 0,
        host_mib: int = 0,
        images: str = "",
        criu: str = "",
    ):
        """`spill_dir`: where parked memory goes when host memory is short, which it is then: `host_mib`.

        `ballast_mib`: what each kernel has on the GPU beside the little that it works with. `images`: a folder on a
        disk; kernels hibernate there. `criu`: how CRIU is called then.
        """
        self.machine = machine
        self.account = Account(seed)
        self.threads: list[threading.Thread] = []
        self._hands_over = bool(ballast_mib and spill_dir)  # host memory is short only then
        self.account.calm_cells = CALM_CELLS if self._hands_over else 1
        # With a disk they have more, since less than LEAST_BYTES (policy/resources/disk.py) never goes there.
        mebibytes = 48 if spill_dir and not ballast_mib else 20
        # … and think for longer, so that kernels are idle that can change places with waiters.
        think_ms = 4000 if ballast_mib or images else 1000 if spill_dir else 150
        workload = Workload(mebibytes, think_ms, work_ms=5, ballast_mib=ballast_mib)
        spill_mib = ballast_mib or SPILL_MIB
        options = (f"--spill-dir={spill_dir}", f"--spill-limit-bytes={spill_mib << 20}") if spill_dir else ()
        worth = WORTH_WITH_DISK if spill_dir else WORTH
        if ballast_mib:
            options += PARK_FOR_WAITERS
            parked_mib = -(-(ballast_mib + mebibytes) // LOT_MIB) * LOT_MIB
            host_mib = host_mib or (kernels - worth) * parked_mib + BEGINS_WITH_MIB
        host_mib = host_mib or HOST_MIB
        rate = LARGE_COPY_RATE if ballast_mib else COPY_RATE
        self.images = images
        self.kinds = f.KINDS | f.HIBERNATING if images else f.KINDS
        gpu = gpu_mib(kernels, worth, workload) + (RESTORE_MIB if images else 0)
        machine.simulate(f"{gpu}MiB", copy_rate=rate)
        self.clocks = f.Clocks(machine.folder / "clocks")
        self.disk = f.Disk(Path(spill_dir) if spill_dir else None, machine.folder / "disk")
        machine.environment |= {
            "AFFINODE_SIM_CONTEXT": "1MiB",
            "CHAOS_BLOCK_S": str(block_s),
            "CHAOS_CLOCK": str(machine.folder / "clocks"),
            "CHAOS_DISK": str(machine.folder / "disk"),
            "CHAOS_IMAGES": images,
            "AFFINODE_CRIU": criu,
            "CHAOS_HOST_MIB": str(host_mib if spill_dir else 0),
            "LD_PRELOAD": str(compile_preloaded(machine.folder)),
            "PYTHONPATH": os.pathsep.join(
                [str(HERE / "hooks"), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
        }
        self.light = LightMachine(machine, workload, seed, (*CONTROLLER, *options))
        self._numbers = itertools.count(1)
        self._kernels_each = kernels // servers
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        for _ in range(servers):
            self.start_server()

    # ---- what faults use

    def aim(self, fault: f.Fault, *, of_server: bool = False) -> tuple[LightKernel | None, str]:
        """A kernel in the state that the fault aims at, or any if there is none for a while; and its state."""

        def candidates() -> list[LightKernel]:
            living = self.light.living()
            living = [k for k in living if not k.is_away]
            return [k for k in living if not of_server or k.id.rpartition("-")[0] in self.light.servers]

        def look() -> list[LightKernel]:
            running = [k for k in candidates() if k.pid and state_of(k.pid) not in ("T", "t")]
            return [k for k in running if k.residency() == fault.aim]

        try:
            found = wait_until(look, AIM_S, longest_pause_s=0.001)
        except NotInTime:
            found = candidates()
        if not found:
            return None, "nobody"
        victim = f.pick(found, fault)
        return victim, victim.residency()

    def later(self, seconds: float, what: Callable[[], object]) -> None:
        """Undo something then."""
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), what))

    def controller_pid(self) -> int | None:
        """By the lock that it holds, also while it does not answer."""
        try:
            said = re.search(r"process (\d+)", self.machine.socket.with_name("node.lock").read_text())
            pid = int(said[1]) if said else 0
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None
        return pid if b"jupyter_affinode.node" in command else None

    def signal_controller(self, number: signal.Signals) -> int | None:
        """To the controller that serves; None if there is none."""
        pid = self.controller_pid()
        return pid if pid is not None and f.send(pid, number) else None

    def kill_server(self, name: str) -> None:
        """Kill it, and start another one with kernels of its own."""

        def let_its_kernels_die() -> None:
            for kernel in self.light.look():
                kernel.may_die = kernel.id.rpartition("-")[0] == name

        let_its_kernels_die()
        process = self.light.servers.pop(name)
        process.kill()
        process.wait()
        let_its_kernels_die()  # the process that it started at its last moment, too
        self.start_server()

    def start_server(self) -> None:
        self.light.start_server(f"s{next(self._numbers)}", self._kernels_each)

    def set_policy(self, **settings: Any) -> bool:
        """Whether the controller took it."""
        return self._ask("PATCH", "/policy", settings)

    def give_host_memory_back(self) -> None:
        """Until a controller has taken it: a blocked one may still read the other wish."""
        if not self.set_policy(host_reserve_bytes=0):
            self.later(0.5, self.give_host_memory_back)

    # ---- the run

    def run(self, count: int, gap_s: float, tell: Callable[[str], object] = lambda line: None) -> Account:
        """Inject so many faults, about `gap_s` apart; AssertionError with the machine's state at a problem.

        `tell` is told each time that everything was well again.
        """
        source = random.Random(self.account.seed)
        began = time.monotonic()
        self.recover("the start")
        for number, fault in enumerate(f.draw(source, count, self.kinds), 1):
            state = self.kinds[fault.kind][1](self, fault)
            self.account.count(fault.kind, state)
            until = time.monotonic() + gap_s * source.uniform(0, 2)
            self.light.wait(lambda until=until: time.monotonic() >= until, 60, "a moment", self.undo_due)
            if number % CHECK_EVERY == 0 or number == count:
                self.recover(f"fault {number}, {fault}")
                moves = ", ".join(f"{times} {what}" for what, times in self.moves_written_of().items())
                tell(f"{number} faults in {time.monotonic() - began:.0f} s: {moves}")
        if self._hands_over:
            self.light.wait(
                lambda: self.moves_written_of()["hand-overs"], RECOVER_S, "a hand-over", self.undo_due
            )
        self.light.end(RECOVER_S, self.undo_due)
        boards = [kernel.board.seen for kernel in self.light.kernels.values()]
        self.account.cells = sum(board.cells for board in boards)
        self.account.words_checked = sum(board.words_checked for board in boards)
        self.account.processes = len(boards)
        self.account.moves = self.moves_written_of()
        self.account.lasted_s = time.monotonic() - began
        self.account.refusals = Counter(REFUSED.findall(self._light_log()))
        return self.account

    def moves_written_of(self) -> Counter[str]:
        """What all controllers wrote of moves."""
        folder = self.machine.socket.parent
        text = "".join(path.read_text(errors="replace") for path in folder.glob("node.log*"))
        text += self._light_log()
        return Counter({what: len(pattern.findall(text)) for what, pattern in WRITTEN_OF.items()})

    def _light_log(self) -> str:
        return (self.machine.folder / "light.log").read_text(errors="replace")

    def undo_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()

    def recover(self, after: str) -> None:
        """Let everything be well again, and every kernel run another cell: one that does not is stuck.

        Where moves are long, a few cells: faults leave them little time.
        """
        while self._due:
            self.undo_due()
            time.sleep(0.01)
        pid = self.controller_pid()
        if pid is not None:
            f.send(pid, signal.SIGCONT)
        for thread in self.threads:  # floods, and wishes that a stuck controller has not read yet
            thread.join(timeout=RECOVER_S)
        self.threads.clear()
        self.light.wait(lambda: self.set_policy(host_reserve_bytes=0), RECOVER_S, "the controller to answer")
        began = time.monotonic()
        self.light.wait(self.everyone_lives, RECOVER_S, f"all kernels to be started after {after}")
        everyone = self.light.living()
        cells_each = self.account.calm_cells
        cells = {kernel: kernel.board.seen.cells for kernel in everyone}

        def is_through(kernel: LightKernel) -> bool:
            seen = kernel.board.seen
            more = seen.cells - cells[kernel]
            return (
                kernel.may_die or more > cells_each or (more == cells_each and seen.phase is Phase.THINKING)
            )

        left = list(everyone)

        def all_through() -> bool:
            left[:] = [kernel for kernel in left if not is_through(kernel)]
            return not left

        bound_s = PUT_OFF_S + cells_each * len(everyone) * TURN_S
        self.light.wait(all_through, bound_s, f"another cell of {left} after {after}")
        self.account.longest_recovery_s = max(self.account.longest_recovery_s, time.monotonic() - began)

    def everyone_lives(self) -> bool:
        ours = [k for k in self.light.living() if k.board.seen.cells]
        return len(ours) >= self._kernels_each * len(self.light.servers)

    def _ask(self, method: str, path: str, body: dict[str, Any]) -> bool:
        answered: list[bool] = []

        def ask() -> None:
            with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                answered.append(self.machine.ask(method, path, body)[0] == 200)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        self.threads.append(thread)
        thread.join(timeout=ASK_TIMEOUT_S)
        return bool(answered and answered[0])


@contextlib.contextmanager
def spill_folder(parent: str = DISK_FOLDER) -> Iterator[str]:
    """A folder for parked memory; "" if there is to be none."""
    if not parent:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="aff-spill-", dir=parent) as folder:
        inner = Path(folder) / "spill"  # which is taken away at times
        inner.mkdir(mode=0o700)
        yield str(inner)


def compile_preloaded(folder: Path) -> Path:
    """The library of clock.c and disk.c."""
    made = folder / "chaos.so"
    command = [os.environ.get("CC", "cc"), "-O2", "-Wall", "-shared", "-fPIC"]
    command += [str(HERE / "clock.c"), str(HERE / "disk.c")]
    done = subprocess.run([*command, "-o", str(made), "-ldl"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


def main() -> None:
    """The command line."""
    from conftest import new_machine
    from fetched_criu import fetched_criu

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--kernels", type=int, default=10)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--gap", type=float, default=0.3, help="seconds between two faults, on average")
    parser.add_argument(
        "--spill-in",
        default=DISK_FOLDER,
        help="a folder on a disk: parked memory goes to one made in it, and host memory is short; empty: to none",
    )
    parser.add_argument(
        "--ballast", type=int, default=0, help="more MiB of each kernel: above 320 they hand over host memory"
    )
    parser.add_argument(
        "--host-mib", type=int, default=0, help="host memory, where there is a disk; 0: a little too little"
    )
    parser.add_argument(
        "--hibernate", action="store_true", help="to disk, process and all, and back, beside all else"
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    criu = fetched_criu() if given.hibernate else ""
    with (
        new_machine() as machine,
        spill_folder(given.spill_in) as spill_dir,
        spill_folder(DISK_FOLDER if given.hibernate else "") as images,
    ):
        chaos = Chaos(
            machine,
            given.seed,
            given.kernels,
            given.servers,
            spill_dir=spill_dir,
            ballast_mib=given.ballast,
            host_mib=given.host_mib,
            images=images,
            criu=criu,
        )
        try:
            print(chaos.run(given.faults, given.gap, lambda line: print(line, flush=True)))
        except AssertionError:
            chaos.account.moves = chaos.moves_written_of()
            print(chaos.account)
            raise


if __name__ == "__main__":
    main()
