"""A machine under attack: the controller of all users, a bystander, an attacker, and what the bystander sees.

A test asserts functional facts (`Scene.check`: every request of the bystander was answered, in bounded memory). How
long the answers took depends on the machine, so `run.py` prints that for every program in `programs/`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

from live_machine import Machine
from people import Person, command_of, needs_root, open_to_everyone
from waiting import wait_until

from jupyter_affinode import environment
from jupyter_affinode.provisioning import preload as launch_environment

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
# Of this process alone: Linux counts what a user has in flight, and refuses a user's descriptors for another attack's.
HONEST, ATTACKER = 1_000_000 + 2 * os.getpid(), 1_000_001 + 2 * os.getpid()
MEMORY_MAX = 200 << 20  # of the controller
PATIENCE_S = 200.0  # only says when a test gives up


@dataclass(frozen=True)
class Answer:
    """What came of one request of the bystander's. `at` in seconds of CLOCK_MONOTONIC, when it was sent."""

    at: float
    lasted_s: float
    unscheduled_s: float  # of that, how long the controller or the bystander waited for a processor
    worked_s: float  # the processor time of the controller's threads meanwhile, whatever they did
    status: int  # 0: none came
    request: str

    @property
    def served_s(self) -> float:
        """How long it would have lasted with a processor for each: what other programs compute has no say in it."""
        return max(self.lasted_s - self.unscheduled_s, 0.0)


class Told:
    """A process that answers each line on its standard input with one line of JSON."""

    def __init__(self, process: subprocess.Popen[str]):
        self.process = process

    def tell(self, line: str) -> None:
        """Write a line; `hear` gives its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """The next line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args} ended with {self.process.wait()}"
        return json.loads(line)

    def ask(self, line: str) -> Any:
        """One line, and the answer."""
        self.tell(line)
        return self.hear()

    def is_well(self) -> bool:
        """Whether a `gpu_program.py` says that what it was told last went well, without one wrong word."""
        heard = self.hear()
        print(heard)  # shown where it is not
        return (heard["wrong"], heard["error"]) == (0, None)

    def uses_gpu(self) -> bool:
        """Whether a `gpu_program.py` finds its memory as it left it."""
        self.tell("use")
        return self.is_well()

    def end(self) -> None:
        """Close its standard input and wait for its end."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait(timeout=PATIENCE_S)


class Bystander:
    """An honest user who asks the API again and again, as `bystander.py` does in a process of its own."""

    def __init__(self, start: Callable[..., subprocess.Popen[str]], folder: Path, controller_pid: int):
        self.answers: list[Answer] = []
        self._process = Told(
            start(sys.executable, str(HERE / "bystander.py"), str(folder), str(controller_pid))
        )
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def wait_for(self, count: int, timeout: float = PATIENCE_S) -> list[Answer]:
        """The next `count` answers to requests that are sent from now on."""
        now = time.monotonic()

        def new() -> list[Answer]:
            return [answer for answer in self.answers if answer.at >= now]

        with self._news:
            came = self._news.wait_for(lambda: len(new()) >= count, timeout)
        assert came, f"{len(new())} of {count} requests were answered within {timeout:g} s"
        return new()

    def close(self) -> None:
        """Ask no more."""
        self._process.end()
        self._thread.join(timeout=PATIENCE_S)

    def _follow(self) -> None:
        assert self._process.process.stdout is not None
        for line in self._process.process.stdout:
            with self._news:
                self.answers.append(Answer(*json.loads(line)))
                self._news.notify_all()


class Scene:
    """The controller serves from the moment this is made."""

    def __init__(self, machine: Machine, *arguments: str, old_linux: bool = False):
        """`arguments`: more of the controller's command line; `old_linux`: Linux cannot refuse descriptors."""
        self.machine = machine
        open_to_everyone(machine)
        if old_linux:
            machine.environment["LD_PRELOAD"] = str(compile_old_linux(machine.folder))
        self._arguments = ("--system", "--settle=0.1", *arguments)
        self.honest, self.attacker = Person(machine, HONEST), Person(machine, ATTACKER)
        self._told: list[Told] = []
        self.beside_bytes = 0  # of the controller's memory, what no attack takes
        self._serve()
        self._open_gpu()

    def restart_controller(self) -> None:
        """Kill the controller and start it again; the bystander asks that one from then on."""
        self._check_answers()
        self.bystander.close()
        self._controller.kill()
        self._controller.wait(timeout=PATIENCE_S)
        self._serve()

    def _serve(self) -> None:
        self._controller = self.machine.start_controller(*self._arguments)
        pid = self.machine.controller_pid()
        assert pid is not None
        self.controller_pid: int = pid
        self.bystander = Bystander(
            lambda *command: self.start(HONEST, *command), self.machine.socket.parent, pid
        )
        self.bystander.wait_for(5)

    def start(self, uid: int, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Start a process as a user, with pipes to talk to it."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return self.machine.start(*command_of(uid, *command), text=True, cwd="/", **pipes, **options)

    def program(self, uid: int, kernel_id: str, mebibytes: int) -> Told:
        """A kernel with the real shim and that much on the simulated GPU; what it is told: see `gpu_program.py`."""
        command = [sys.executable, str(HERE / "gpu_program.py"), str(mebibytes)]
        environ = self.environment_of(uid)
        launch_environment.manage(environ, kernel_id, command, python=False)
        environ["LD_LIBRARY_PATH"] = str(self._libraries())
        self._told.append(Told(self.start(uid, *command, env=environ)))
        return self._told[-1]

    def environment_of(self, uid: int) -> dict[str, str]:
        """Return the environment of a user's own programs, with a home folder that is theirs alone."""
        environ = {
            name: value
            for name, value in self.machine.environment.items()
            if not name.startswith(("XDG_", "JUPYTER_", "IPYTHON"))
        }
        home = self.machine.folder / f"home-{uid}"
        if not home.exists():
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)
        return environ | {"HOME": str(home), "AFFINODE_FOLDER": str(home / "affinode")}

    @contextlib.contextmanager
    def attack(self, name: str, *arguments: str) -> Iterator[Any]:
        """Run `programs/NAME.py` as the attacker; what it said when its attack was under way."""
        command = [sys.executable, str(PROGRAMS / f"{name}.py"), str(self.machine.socket.parent), *arguments]
        environ = self.machine.environment | {"LD_LIBRARY_PATH": str(self._libraries())}
        attacker = Told(self.start(ATTACKER, *command, env=environ))
        try:
            yield attacker.hear()
            assert attacker.process.poll() is None, f"the attack {name} ended by itself"
        finally:
            attacker.end()

    def park(self, kernel_id: str) -> None:
        """Have the honest user's kernel parked. A kernel whose work has not ended within some seconds is refused."""

        def is_parked() -> bool:
            status, told = self.honest.ask("POST", f"/kernels/{kernel_id}/park", {})
            assert status in (200, 202, 409), told
            return status == 200 and told["residency"] == "parked"

        wait_until(is_parked, PATIENCE_S)

    def memory_bytes(self) -> int:
        """The most resident memory that the controller ever had."""
        status = Path(f"/proc/{self.controller_pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10

    def descriptors(self) -> int:
        """How many sockets and memfds the controller has open."""
        found = 0
        for path in Path(f"/proc/{self.controller_pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found += os.readlink(path).startswith(("socket:", "/memfd:"))
        return found

    def check(self) -> None:
        """Everything that must hold after any attack."""
        self.bystander.wait_for(5)
        log = self.machine.controller_log()
        self._check_answers()
        assert self.machine.controller_pid() == self.controller_pid
        assert self.memory_bytes() < MEMORY_MAX + self.beside_bytes
        assert "Traceback" not in log, log
        assert "a pass failed" not in log, log

    def _check_answers(self) -> None:
        refused = [answer for answer in self.bystander.answers if answer.status != 200]
        assert not refused, f"{len(refused)} of {len(self.bystander.answers)} were not served: {refused[:5]}"

    def close(self) -> None:
        """End the bystander and all programs."""
        self.bystander.close()
        for told in self._told:
            told.end()
        self.honest.close()
        self.attacker.close()

    def _libraries(self) -> Path:
        """The simulated driver where every user may load it; the product's own folder for it is one user's."""
        folder = self.machine.folder / "libraries"
        folder.mkdir(exist_ok=True)
        for name, library in (environment.sim_paths() or {}).items():
            if not (folder / name).exists():
                (folder / name).symlink_to(library)
        return folder

    def _open_gpu(self) -> None:
        """Every user may use the simulated GPU, which the controller made for root alone."""
        folder = Path(self.machine.environment["AFFINODE_SIM_DIR"])
        # It makes that when it first looks at the GPU, on a thread.
        wait_until(lambda: (self.machine.node() or {}).get("gpus"), PATIENCE_S)
        folder.chmod(0o777)
        for path in folder.iterdir():
            path.chmod(0o666)


@contextlib.contextmanager
def scene_on(machine: Machine, *arguments: str, old_linux: bool = False) -> Iterator[Scene]:
    """A scene for as long as the context lasts; at its end all that must hold after an attack holds."""
    needs_root()
    made = Scene(machine, *arguments, old_linux=old_linux)
    yield made
    made.check()
    made.close()


def compile_old_linux(folder: Path) -> Path:
    """The library of old_linux.c."""
    made = folder / "old_linux.so"
    command = [os.environ.get("CC", "cc"), "-O2", "-Wall", "-shared", "-fPIC", str(HERE / "old_linux.c")]
    subprocess.run([*command, "-o", str(made)], check=True)
    return made
