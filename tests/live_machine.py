"""A machine for tests: one folder with its own controller socket, simulated GPU and Jupyter folders."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waiting import wait_until

# A controller that takes no shim for stopped, since those that live in the test's own process are silent while that is
# stalled; and that waits for kernels to drop their caches though they were stalled for three seconds.
PATIENT = """
from jupyter_affinode.node.simulation import start_over
start_over()
from jupyter_affinode.node.execution import cache_drops
from jupyter_affinode.node.link import connection
cache_drops.BEGINS_WITHIN_S, cache_drops.LASTS_S = 4.0, 5.0
connection.HEARTBEATS_MISSED = 100
from jupyter_affinode.node.app import main
main()
"""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket, to ask a controller without the code that is under test."""

    def __init__(self, path: Path, timeout: float = 65):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A Unix socket waits for a place in the line only if it blocks.
        self.sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", math.ceil(self.timeout), 0)
        )
        self.sock.connect(str(self._path))
        self.sock.settimeout(self.timeout)


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    """One request on a connection, which stays open: (status, JSON, other text or None)."""
    sent = None if body is None else json.dumps(body)
    connection.request(method, path, sent, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    return response.status, decoded(response.read())


def decoded(raw: bytes) -> Any:
    """The JSON, or the text that is none; None of nothing."""
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return raw.decode(errors="replace")


class Machine:
    """Environment and processes of one test machine; `environment` is what to start processes with."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.socket = folder / "run" / "node.sock"
        self.processes: list[subprocess.Popen[Any]] = []
        self._before = _own_pids()
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AFFINODE_", "JUPYTER_", "JPY_", "IPYTHON")) and name != "PYTHONSTARTUP"
        }
        for name, where in {
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "IPYTHONDIR": "ipython",
            "XDG_RUNTIME_DIR": "xdg",
            "AFFINODE_SIM_DIR": "gpu",
            "AFFINODE_SOCKET": "run/node.sock",
        }.items():
            path = folder / where
            (path.parent if where.endswith(".sock") else path).mkdir(mode=0o700, parents=True, exist_ok=True)
            self.environment[name] = str(path)
        self.environment["NO_COLOR"] = "1"
        self.work = folder / "work"
        self.work.mkdir(exist_ok=True)

    def simulate(self, memory: str = "1GiB", gpus: int = 1, copy_rate: str | None = None) -> None:
        """Give the machine a simulated GPU."""
        self.environment.update(AFFINODE_SIM="1", AFFINODE_SIM_MEMORY=memory, AFFINODE_SIM_GPUS=str(gpus))
        if copy_rate is not None:
            self.environment["AFFINODE_SIM_COPY_RATE"] = copy_rate

    def start(self, *command: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a process of this machine; it is killed with the machine."""
        options.setdefault("env", self.environment)
        options.setdefault("cwd", self.work)
        process = subprocess.Popen(command, **options)
        self.processes.append(process)
        return process

    def affinode(
        self, *arguments: str, timeout: float = 100, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run `jupyter affinode …` on this machine."""
        return subprocess.run(
            [sys.executable, "-m", "jupyter_affinode.cli", *arguments],
            env=options.pop("env", self.environment),
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=timeout,
            **options,
        )

    def start_controller(
        self, *arguments: str, patient: bool = False, timeout: float = 240
    ) -> subprocess.Popen[Any]:
        """Start the controller (`--park-when=idle`, …) and wait until it answers. `patient`: see `PATIENT`."""
        log = (self.folder / "controller.log").open("ab")
        process = self.start(
            sys.executable,
            *(("-c", PATIENT) if patient else ("-m", "jupyter_affinode.node")),
            *arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()

        def serves() -> bool:
            if self.node() is not None:
                return True
            assert process.poll() is None, f"the controller did not come up:\n{self.controller_log()}"
            return False

        wait_until(serves, timeout, self.controller_log)
        return process

    def controller_log(self) -> str:
        """What the controller wrote, however it was started."""
        logs = [self.folder / "controller.log", self.socket.with_name("node.log")]
        return "\n".join(log.read_text(errors="replace") for log in logs if log.exists())

    def controller_pid(self) -> int | None:
        """The pid of the controller that answers, or None."""
        node = self.node()
        return None if node is None else int(node["controller"]["pid"])

    def kill_controller(self) -> None:
        """Kill the controller, and wait until another one answers, which servers start."""
        killed = self.controller_pid()
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: self.controller_pid() not in (None, killed))

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """One request to the controller's API (`path` after /api/v1): (status, JSON or None)."""
        with contextlib.closing(UnixConnection(self.socket)) as connection:
            return ask(connection, method, f"/api/v1{path}", body, **headers)

    def node(self) -> dict[str, Any] | None:
        """GET /node, or None when no controller answers."""
        try:
            status, answer = self.ask("GET", "/node")
        except OSError:
            return None
        return answer if status == 200 else None

    def kernels(self) -> dict[str, dict[str, Any]]:
        """The controller's kernels by id."""
        status, answer = self.ask("GET", "/kernels")
        assert status == 200, answer
        return {kernel["id"]: kernel for kernel in answer["kernels"]}

    def kernel(self, kernel_id: str) -> dict[str, Any] | None:
        """One kernel as the controller sees it; None when there is no controller, or it does not know it."""
        try:
            status, answer = self.ask("GET", f"/kernels/{kernel_id}")
        except OSError:
            return None
        return answer if status == 200 else None

    def processes_of(self, kernel_id: str) -> list[dict[str, Any]]:
        """A kernel's processes; none of one that is not known."""
        return (self.kernel(kernel_id) or {"processes": []})["processes"]

    def pids_with(self, word: str) -> list[int]:
        """The processes that live in this machine's environment, and have the word in their command."""
        return pids_with(word, f"AFFINODE_SOCKET={self.socket}")

    def kill_everything(self) -> None:
        """Kill every process that lives in this machine's environment, whichever process started it, and reap our
        own, with controllers that the product's client started in this process.
        """
        mark = f"AFFINODE_SOCKET={self.socket}".encode()
        killed: set[int] = set()
        for _ in range(3):  # a dying server may just have started something
            pids = [pid for pid in _own_pids() - self._before if mark in _environment_of(pid)]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(pids)
            if not pids:
                break
        client = sys.modules.get("jupyter_affinode.client.starting")
        for controller in client._started if client else ():
            if controller.pid in killed:
                controller.wait(timeout=60)
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=60)
            for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def new_machine() -> Iterator[Machine]:
    """A machine of one's own for as long as the context lasts; in a path short enough for Unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="aff-", dir="/tmp"))
    folder.chmod(0o700)
    made = Machine(folder)
    try:
        yield made
    finally:
        made.kill_everything()
        shutil.rmtree(folder, ignore_errors=True)


def _own_pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()}


def pids_with(word: str, variable: str) -> list[int]:
    """The processes with this in their command and in their environment (or in the value of a variable there)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ends meanwhile
            is_there = word.encode() in (folder / "cmdline").read_bytes()
            if is_there and variable.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def environment_of_started(pid: int, timeout: float = 60.0) -> bytes:
    """The environment that a process was started with. Popen returns a moment before Linux has put it in place."""
    return wait_until(Path(f"/proc/{pid}/environ").read_bytes, timeout, f"the environment of process {pid}")


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
