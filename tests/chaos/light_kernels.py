"""Light kernels on a test machine: started by light servers, watched through their boards and pages."""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waiting import wait_until

if TYPE_CHECKING:
    from live_machine import Machine

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PAGE_NAMES = ("memfd:affinode-page", "memfd:fake-page")
PAGE_STATE_AT = 16  # of struct affinode_page
AWAY, HERE_AGAIN = b"away", b"here"
RESIDENCIES = ("none", "resident", "parking", "parked", "queued", "resuming", "lost")  # enum affinode_state


class Phase(enum.IntEnum):
    """`enum phase` of light_kernel.c."""

    STARTING = 0
    THINKING = 1
    IN_CELL = 2
    ENDED = 3
    BROKEN = 4


class Board:
    """`struct board` of light_kernel.c: what a kernel says of itself, and what it is told."""

    LAYOUT = struct.Struct("=II7QII256s")
    BYTES_AT, END_AT, HURRY_AT = 56, 64, 68

    def __init__(self, path: Path):
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self.LAYOUT.size)

    @classmethod
    def create(cls, path: Path) -> None:
        """Make an empty one, whole at once."""
        fresh = path.with_name(f".{path.name}")
        fresh.write_bytes(bytes(cls.LAYOUT.size))
        fresh.rename(path)

    @property
    def seen(self) -> BoardSeen:
        """What is on it now."""
        values = self.LAYOUT.unpack(self._map[:])
        text = values[-1].split(b"\0")[0].decode(errors="replace")
        return BoardSeen(values[0], Phase(values[1]), *values[2:9], problem=text)

    @property
    def told_end(self) -> bool:
        """Whether it is time to end; for kernels in Python."""
        return self._map[self.END_AT] != 0

    def write(self, pid: int, phase: Phase, cells: int, size: int) -> None:
        """Say how it is going; for kernels in Python."""
        struct.pack_into("=IIQ", self._map, 0, pid, phase, cells)
        struct.pack_into("=Q", self._map, self.BYTES_AT, size)

    def tell_end(self) -> None:
        """After this cell, check everything and end."""
        self._map[self.END_AT] = 1

    def hurry(self, on: bool) -> None:
        """Run cell after cell without thinking."""
        self._map[self.HURRY_AT] = on


@dataclass(frozen=True)
class BoardSeen:
    """A board at one moment. Times in nanoseconds of CLOCK_MONOTONIC."""

    pid: int
    phase: Phase
    cells: int
    cell_since_ns: int
    cell_sum_ns: int
    cell_longest_ns: int
    words_checked: int
    out_of_memory: int
    bytes: int
    problem: str


def incarnation_path(board: Path) -> Path:
    """Where a kernel's server says whether it is in an image."""
    return board.with_name(f".{board.name}.incarnation")


def wish_path(board: Path) -> Path:
    """A file by which its server is asked to hibernate it, and to wake it again after as many seconds as it says."""
    return board.with_name(f".{board.name}.wish")


class LightKernel:
    """One process of a light kernel; a restart of it is another one."""

    def __init__(self, path: Path):
        self.board = Board(path)
        self.id, _, generation = path.name.rpartition(".")
        self.generation = int(generation)
        self.may_die = False  # it was killed, or its server
        self._page: mmap.mmap | None = None
        self._incarnation = b""

    def __repr__(self) -> str:
        return f"{self.id}.{self.generation}"

    @property
    def pid(self) -> int:
        return self.board.seen.pid

    @property
    def lives(self) -> bool:
        """Whether its process is there (a zombie is not), or it is in an image."""
        pid = self.pid
        return pid == 0 or any(
            (state_of(pid) not in ("", "Z"), self.is_away, state_of(pid) not in ("", "Z"))
        )  # in that order: it is woken before that is said

    @property
    def is_away(self) -> bool:
        """Whether it is in an image, or about to be."""
        return self.incarnation.startswith(AWAY)

    @property
    def incarnation(self) -> bytes:
        """What its server says: whether it is away, and the how many-eth process it is."""
        with contextlib.suppress(OSError):
            return incarnation_path(self.board.path).read_bytes()
        return b""

    def residency(self) -> str:
        """The state in its page, as its shim says it this moment; "none" before there is a page."""
        if (incarnation := self.incarnation) != self._incarnation:
            self.close()
            self._incarnation = incarnation
        if incarnation.startswith(AWAY):
            return "hibernated"
        if self._page is None:
            self._page = _map_page(self.pid)
        if self._page is None:
            return "none"
        return RESIDENCIES[struct.unpack_from("=I", self._page, PAGE_STATE_AT)[0]]

    def close(self) -> None:
        """Nothing more is asked of it."""
        if self._page is not None:
            self._page.close()
            self._page = None


def state_of(pid: int) -> str:
    """The letter of a process's state in /proc; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def _map_page(pid: int) -> mmap.mmap | None:
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder) if pid else ():
            if any(page in os.readlink(f"{folder}/{name}") for page in PAGE_NAMES):
                descriptor = os.open(f"{folder}/{name}", os.O_RDONLY)
                try:
                    return mmap.mmap(descriptor, 4096, access=mmap.ACCESS_READ)
                finally:
                    os.close(descriptor)
    except OSError:  # it ended meanwhile
        pass
    return None


@dataclass(frozen=True)
class Workload:
    """What each light kernel does: at most `mebibytes` on the GPU, thinking and computing so long on average.

    `ballast_mib`: what it has there beside that, and mostly does not look at.
    """

    mebibytes: int = 24
    think_ms: int = 400
    work_ms: int = 10
    ballast_mib: int = 0


class LightMachine:
    """A test machine with light servers, each with some light kernels."""

    def __init__(self, machine: Machine, workload: Workload, seed: int, controller: tuple[str, ...] = ()):
        """`controller`: the command line of a controller that a server starts."""
        self.machine = machine
        self.workload = workload
        self.seed = seed
        self.controller = controller
        self.servers: dict[str, subprocess.Popen[Any]] = {}
        self.kernels: dict[str, LightKernel] = {}  # every process that ever was, by its board's name
        self._boards = machine.folder / "boards"
        self._boards.mkdir()
        self._program = compile_light_kernel(machine.folder)

    def start_server(self, name: str, kernels: int) -> None:
        """Start a server and its kernels; it restarts those that die, under their ids."""
        work = self.workload
        log = (self.machine.folder / "light.log").open("ab")
        arguments = [name, self._boards, self._program, kernels, self.seed]
        arguments += [work.mebibytes, work.think_ms, work.work_ms, work.ballast_mib, *self.controller]
        self.servers[name] = self.machine.start(
            sys.executable, str(HERE / "light_server.py"), *map(str, arguments), stdout=log, stderr=log
        )
        log.close()

    def look(self) -> list[LightKernel]:
        """Every process whose end no fault has caused, living or not; new ones are noticed."""
        for path in self._boards.iterdir():
            if not path.name.startswith(".") and path.name not in self.kernels:
                self.kernels[path.name] = LightKernel(path)
        return [kernel for kernel in self.kernels.values() if not kernel.may_die]

    def living(self) -> list[LightKernel]:
        """Those whose process is there and has something to do."""
        return [k for k in self.look() if k.board.seen.phase is not Phase.ENDED and k.lives]

    def problems(self) -> Iterator[str]:
        """What must never be: a wrong word, a driver's error, out of memory, a death that no fault caused."""
        for kernel in self.look():
            lives = kernel.lives  # asked first: its last word may come in between
            seen = kernel.board.seen
            if seen.problem or seen.out_of_memory:
                yield f"{kernel} met {seen.problem}"
            elif seen.phase is not Phase.ENDED and not lives:
                yield f"{kernel} died in {seen.phase.name}"
            elif kernel.residency() == "lost":
                yield f"{kernel} is lost"

    def end(self, timeout_s: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Tell every kernel to check all it has and to end; AssertionError with the machine's state if one does not."""
        for kernel in self.living():
            kernel.board.tell_end()
        self.wait(lambda: not self.living(), timeout_s, "every kernel to end", meanwhile)

    def wait(
        self,
        condition: Callable[[], object],
        timeout_s: float,
        what: str,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Until the condition holds; AssertionError with the machine's state at a problem, or when it does not."""

        def holds() -> bool:
            if condition():
                return True
            meanwhile()
            if problems := list(self.problems()):
                time.sleep(0.5)  # for the last words in the logs
                raise AssertionError(self.account(problems))
            return False

        wait_until(holds, timeout_s, lambda: self.account([what]))

    def account(self, problems: list[str]) -> str:
        """The problems, and all that helps to understand them."""
        lines = [f"seed {self.seed}", *problems]
        for kernel in self.look():
            if kernel.board.seen.phase is not Phase.ENDED:
                lines.append(f"{kernel} pid {kernel.pid} {kernel.residency()} {kernel.board.seen}")
        node = self.machine.node()
        lines.append(f"controller: {node}")
        lines += [f"  {seen}" for seen in (self.machine.kernels().values() if node else ())]
        for path in sorted(self.machine.folder.glob("light*.log")):
            lines += [path.name, *path.read_text(errors="replace").splitlines()[-40:]]
        lines += ["the controller's log ends:", *self.machine.controller_log().splitlines()[-150:]]
        return "\n".join(lines)


def compile_light_kernel(folder: Path) -> Path:
    """The program, without the shim: that is preloaded."""
    shim = REPOSITORY / "shim" / "src"
    support = REPOSITORY / "tests" / "shim" / "c" / "support"
    made = folder / "light_kernel"
    sources = [
        HERE / "light_kernel.c",
        *(support / "harness" / f"{name}.c" for name in ("harness", "controller", "watcher")),
        support / "driver" / "cuda.c",
    ]
    command = [os.environ.get("CC", "cc"), "-O2", "-Wall", "-D_GNU_SOURCE"]
    command += [f"-I{support / each}" for each in ("harness", "driver")]
    command += ["-iquote", str(shim)]  # it has a spawn.h and a link.h, as the system has
    done = subprocess.run(
        [*command, *map(str, sources), "-o", str(made), "-pthread", "-ldl"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return made
