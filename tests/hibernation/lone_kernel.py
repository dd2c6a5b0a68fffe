"""An ipykernel that its keeper has and no server, so that it can be hibernated and woken many times in a test."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from gpu_cells import SETUP
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from live_machine import Machine
from live_server import free_port
from waiting import wait_until

from jupyter_affinode.keeping.processes import name_of
from jupyter_affinode.keeping.records import SOCKET_NAME, Owner, Record

LAUNCH = """
import os, sys
from jupyter_affinode.provisioning.preload import manage
environ = dict(os.environ)
command = [*sys.argv[3:], "-f", sys.argv[1]]
manage(environ, sys.argv[2], command, server=True, depth="context")
environ["AFFINODE_KERNEL_ID"] = sys.argv[2]
with open(sys.argv[1] + ".pid", "w") as file:
    file.write(str(os.getpid()))
os.execvpe(command[0], command, environ)
"""
# A keeper that stops where a file says, until another file is there.
KEEPER = """
import os, sys, time
from pathlib import Path
from jupyter_affinode.hibernation import hibernate as images
folder = Path(sys.argv[1])

def stopping(function, which):
    async def instead(*arguments, on_step=None, **others):
        def step(name):
            if on_step is not None:
                on_step(name)
            told = folder / "stop"
            if told.exists() and told.read_text() == f"{which}: {name}":
                told.unlink()
                (folder / "stopped").touch()
                while not (folder / "go").exists():
                    time.sleep(0.002)
        return await function(*arguments, on_step=step, **others)
    return instead

if "NO_HOST_MEMORY" in os.environ:
    images.pages.free_memory = lambda: 0
images.criu.PATIENCE_S = float(os.environ.get("CRIU_PATIENCE_S", images.criu.PATIENCE_S))
images.hibernate = stopping(images.hibernate, "hibernate")
images.wake = stopping(images.wake, "wake")
from jupyter_affinode.keeping.keeper import main
sys.exit(main())
"""
CELLS = f"""
{SETUP}
import os
block, kept, count = Block(8, seed=7), {{"a": [1, 2]}}, 0
print(os.getpid(), id(kept), block.checksum())
"""
NEXT_CELL = "count += 1; print(os.getpid(), id(kept), block.checksum(), count)"
CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
REMEMBERED = ("pid", "kept", "checksum", "cells")
PATIENCE_S = 120.0
numbers = itertools.count(1)
T = TypeVar("T")


class LoneKernel:
    """One kernel and the machine's keeper. A context; at its end both are killed."""

    def __init__(
        self,
        machine: Machine,
        kernel_id: str = "",
        *,
        uses_gpu: bool = True,
        cells: str = CELLS,
        beside: LoneKernel | None = None,
    ):
        """`kernel_id`: one that another process knew, and `save` has written down.

        `cells`: what it runs first. `beside`: whose keeper it has.
        """
        self.machine = machine
        self.id = kernel_id or f"lone-{next(numbers)}"
        self.folder = machine.folder / self.id
        self.folder.mkdir(mode=0o700, exist_ok=bool(kernel_id))
        self.store = self.folder / "images"
        self.environment = {
            **machine.environment,
            "AFFINODE_FOLDER": str(self.folder / "own"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "STOPPING": str(self.folder),
        }
        self.beside = beside
        if beside is not None:
            self.store, self.environment = beside.store, beside.environment
        self.uses_gpu = uses_gpu
        self.first_cells = cells
        self.command = [sys.executable, "-m", "ipykernel_launcher"]
        self.streams: dict[str, Any] = {}  # where its input and output lead to, instead of its log
        self.keeper: subprocess.Popen[Any] | None = None
        self.cells = 0
        self.pid = 0

    def __enter__(self) -> LoneKernel:
        try:
            self.start()
        except BaseException:
            print(self.log())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.log())
        self.kill_keeper()
        self.kill_kernel()
        with contextlib.suppress(OSError):
            self.machine.ask("DELETE", f"/kernels/{self.id}")

    # ---- the kernel

    def start(self) -> None:
        """Start the kernel anew, and give it to the keeper."""
        connection = self.folder / "connection.json"
        chosen: set[int] = set()
        while len(chosen) < len(CHANNELS):  # by chance, and not bound before the kernel runs
            chosen.add(free_port())
        ports = {f"{channel}_port": chosen.pop() for channel in CHANNELS}
        write_connection_file(str(connection), transport="tcp", ip="127.0.0.1", key=b"key", **ports)
        with (self.folder / "kernel.log").open("ab") as log:
            self.machine.start(
                "setsid", "--fork", sys.executable, "-c", LAUNCH, str(connection), self.id, *self.command,
                env=self.environment,
                **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **self.streams},
            )  # fmt: skip
        self.begin()
        self.cells = 0
        self.hand_over()

    def begin(self) -> None:
        """Run the first cells."""
        cells = (
            self.first_cells
            if self.uses_gpu
            else "import os\nkept, count = {}, 0\nprint(os.getpid(), id(kept), 0)"
        )
        self.pid, self.kept, self.checksum = map(int, self.run(cells).split())

    def record(self, **changes: Any) -> Record:
        """What its server would tell the keeper."""
        told = {
            "kernel_id": self.id,
            "kernel_name": "python3",
            "owner": Owner("", "/"),
            "process": name_of(self.pid),
            "process_group": None,
            "connection_file": str(self.folder / "connection.json"),
            "connection": json.loads((self.folder / "connection.json").read_text()),
            "is_managed": self.uses_gpu,
            "hibernate_dir": str(self.store),
            "image_spare_bytes": 0,
        }
        return Record(**{**told, **changes})

    def save(self) -> None:
        """Write down what it is, for another process that wakes it."""
        told = {name: getattr(self, name) for name in REMEMBERED}
        (self.folder / "known.json").write_text(json.dumps(told))

    def load(self) -> None:
        """Know what it was."""
        vars(self).update(json.loads((self.folder / "known.json").read_text()))

    def run(self, code: str) -> str:
        """What a cell prints. Each time with a client of its own, which hears the kernel from its start on."""
        client = BlockingKernelClient(connection_file=str(self.folder / "connection.json"))
        wait_until(lambda: _loaded(client), PATIENCE_S)
        client.start_channels()
        printed: list[str] = []

        def output(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])

        try:
            wait_until(lambda: _is_ready(client), PATIENCE_S, self.log)
            reply = client.execute_interactive(
                code, timeout=PATIENCE_S, output_hook=output, allow_stdin=False
            )
        finally:
            client.stop_channels()
        assert reply["content"]["status"] == "ok", "\n".join(reply["content"].get("traceback", ["aborted"]))
        return "".join(printed)

    def check(self) -> None:
        """Assert that it is what it was, its GPU memory too, and that it ran each cell once."""
        self.cells += 1
        said = self.run(NEXT_CELL if self.uses_gpu else NEXT_CELL.replace("block.checksum()", "0"))
        words = said.splitlines()[-1].split()  # before that it may say that it waits for the GPU
        assert words == [str(each) for each in (self.pid, self.kept, self.checksum, self.cells)], said

    def kill_kernel(self) -> None:
        """Kill all of its processes."""
        for pid in self._of_kernel():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def lives(self) -> bool:
        """Whether its process does; a zombie does not."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def _of_kernel(self) -> list[int]:
        # Other tests have kernels of this id at the same time.
        marks = {f"AFFINODE_KERNEL_ID={self.id}".encode(), f"STOPPING={self.folder}".encode()}
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if marks <= set(path.read_bytes().split(b"\0")):
                    found.append(int(path.parent.name))
        return found

    # ---- the keeper

    def start_keeper(self) -> None:
        """Start one, unless it lives."""
        if self.beside is not None:
            self.beside.start_keeper()
            return
        if self.keeper is not None and self.keeper.poll() is None:
            return
        with (self.folder / "keeper.log").open("ab") as log:
            self.keeper = self.machine.start(
                sys.executable, "-c", KEEPER, str(self.folder),
                env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(self._can_connect, PATIENCE_S, self.log)

    def kill_keeper(self) -> None:
        """Kill it."""
        if self.keeper is not None:
            self.keeper.kill()
            self.keeper.wait()

    def ask(self, what: str, **request: Any) -> Any:
        """What the keeper answers. Raises AssertionError with the reason if it refused, ConnectionError if it died."""
        with self._connected() as asked, asked.makefile("rwb") as file:
            file.write(json.dumps({"do": what, **request}).encode() + b"\n")
            file.flush()
            line = file.readline()
        if not line:
            raise ConnectionError("the keeper hung up")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["answer"]

    def hand_over(self, **changes: Any) -> None:
        """Have the keeper keep it, with other settings than before if need be."""
        self.start_keeper()
        self.ask("hand_over", record=asdict(self.record(**changes)))

    def hibernate(self) -> None:
        """Put it into its image."""
        self.ask("hibernate", kernel=self.id)
        assert not self.lives() and self.is_hibernated()

    def wake(self) -> None:
        """Start it again."""
        self.ask("wake", kernel=self.id, store=str(self.store))

    def place(self) -> str | None:
        """Where the keeper has it: "process", "image"; None: it does not know it."""
        listed = self.ask("list", store=str(self.store))["kernels"]
        return next(
            (each["record"]["place"] for each in listed if each["record"]["kernel_id"] == self.id), None
        )

    def is_hibernated(self) -> bool:
        """Whether it is in its image, whole."""
        return (self.image / "manifest.json").exists()

    @property
    def image(self) -> Path:
        """The folder of its image."""
        return self.store / self.id

    def log(self) -> str:
        """What kernel and keeper wrote."""
        paths = [self.folder / name for name in ("kernel.log", "keeper.log")]
        return "\n".join(path.read_text(errors="replace") for path in paths if path.exists())

    def _can_connect(self) -> bool:
        try:
            self._connected().close()
        except OSError:
            assert self.keeper is not None and self.keeper.poll() is None, self.log()
            return False
        return True

    def _connected(self) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(PATIENCE_S)
        try:
            connected.connect(str(Path(self.environment["AFFINODE_FOLDER"]) / SOCKET_NAME))
        except OSError:
            connected.close()
            raise
        return connected

    def in_background(self, work: Callable[[], T]) -> Callable[[], T]:
        """Do it on a thread of its own; the function that is returned waits for what it gives."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return lambda: done.result(timeout=PATIENCE_S)

    # ---- stopping it at a step

    def stop_at(self, step: str) -> None:
        """Have the keeper stop when it comes to a step, as "hibernate: dump"."""
        for name in ("stopped", "go"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "stop").write_text(step)

    def is_stopped(self) -> bool:
        """Whether it is there."""
        return (self.folder / "stopped").exists()

    def let_go(self) -> None:
        """Let it go on."""
        (self.folder / "stop").unlink(missing_ok=True)
        (self.folder / "go").touch()


class Refused(AssertionError):
    """The keeper did not do it; the message says why."""


def _is_ready(client: BlockingKernelClient) -> bool:
    with contextlib.suppress(RuntimeError):  # a heartbeat that is missed while it starts is no death
        client.wait_for_ready(timeout=PATIENCE_S)
        return True
    return False


def _loaded(client: BlockingKernelClient) -> bool:
    with contextlib.suppress(OSError, ValueError):
        client.load_connection_file()
        return True
    return False
