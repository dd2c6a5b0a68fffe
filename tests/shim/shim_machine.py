"""A simulated GPU with a link that the test itself is at the other end of, and processes under the shim there."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

from link_peer import OK, PARK, QUEUED, RESUME, LinkListener, Reply

from jupyter_affinode.node.protocol.wire import MoveFlag

HERE = Path(__file__).resolve().parent / "processes"
CC = os.environ.get("CC", "cc")
DEADLINE_S = 60.0


class Machine:
    """A simulated GPU, a link to listen on, and the environment that joins a process to both."""

    def __init__(self, folder: Path, native: Path) -> None:
        self.folder = folder
        driver = folder / "driver"
        driver.mkdir()
        for name in ("libcuda.so.1", "libcuda.so"):
            (driver / name).symlink_to(native / "libaffinode-sim-cuda.so")
        self.driver = driver
        self.listener = LinkListener(folder / "run")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AFFINODE_")}
        self.environment = {
            **clean,
            "LD_PRELOAD": str(native / "libaffinode.so"),
            "LD_LIBRARY_PATH": str(driver),
            "AFFINODE_SOCKET": str(self.listener.socket_path),
            "AFFINODE_SIM_DIR": str(folder / "gpu"),
            "AFFINODE_SIM_COPY_RATE": "400MiB",  # 4 MiB take 10 ms, long enough to come in between
        }

    @property
    def bare_environment(self) -> dict[str, str]:
        """The environment of a program without the shim."""
        return {name: value for name, value in self.environment.items() if name != "LD_PRELOAD"}

    def start_worker(self, *through: str) -> Running:
        """A process with two blocks on the GPU that does what it is asked (`worker.py`), started by that command."""
        running = Running(self, *through, sys.executable, HERE / "worker.py")
        assert json.loads(running.answer()) == "ready"
        return running

    def compile(self, source: str | Path, *options: str, name: str) -> Path:
        made = self.folder / name
        # The compiler's linker must not meet the simulated driver's symbols unless it is asked to.
        command = [CC, "-O1", "-Wall", "-Werror", str(HERE / source), "-o", str(made), *options]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return made


class Running:
    """The process under test, its link, and a controller's manners: a process that wants the GPU gets it back."""

    def __init__(self, machine: Machine, *command: str | Path) -> None:
        self.process = subprocess.Popen(
            list(map(str, command)),
            env=machine.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.peer = machine.listener.accept()
        self.resuming, self.resumer = 0, self.peer

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.peer.close()

    def serve(self) -> None:
        """Resume it if a call of its waits."""
        self.peer.pump()
        if self.resumer is not self.peer:  # what was told to an earlier link is not answered on this one
            self.resumer, self.resuming = self.peer, 0
        if self.peer.page().state == QUEUED and not self.resuming:
            self.resuming = self.peer.command(RESUME)
        if any(reply.epoch == self.resuming for reply in self.peer.replies):
            self.resuming = 0

    def answer(self, timeout_s: float = DEADLINE_S) -> str:
        """The next line it writes, serving it meanwhile."""
        assert self.process.stdout
        deadline = time.monotonic() + timeout_s
        while not select.select([self.process.stdout], [], [], 0.005)[0]:
            assert time.monotonic() < deadline, f"hangs; page {self.peer.page()}"
            self.serve()
        line = self.process.stdout.readline()
        assert line, f"ended with {self.process.wait()}"
        return line.strip()

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def ask(self, line: str) -> object:
        self.say(line + "\n")
        return json.loads(self.answer())

    def park_deep(self) -> Reply:
        """Park at context depth, again while the process is too young or its work is in the way."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            reply = self.peer.reply_to(self.peer.command(PARK, argument=MoveFlag.CONTEXT))
            passing = any(word in reply.text for word in ("just begun", "waits", "in progress"))
            if reply.status == OK and not passing:
                return reply
            assert time.monotonic() < deadline, reply
            if reply.status == OK:
                self.peer.resume()


class Installed:
    """A copy of the shim that is to park at context depth, with a program of the test's choice beside it."""

    PROGRAM = "affinode-gpu-memory"

    def __init__(self, gpu: Machine, native: Path) -> None:
        self.gpu = gpu
        self.folder = gpu.folder / "lib"
        self.folder.mkdir()
        self.real = native / self.PROGRAM
        self.nvml = gpu.driver / "libnvidia-ml.so.1"
        self.nvml.symlink_to(native / "libaffinode-sim-nvml.so")
        shutil.copy(native / "libaffinode.so", self.folder)
        gpu.environment.update(LD_PRELOAD=str(self.folder / "libaffinode.so"), AFFINODE_DEPTH="context")

    def program(self, script: str, *, mode: int = 0o755) -> None:
        """Put a shell script in the place of the program; it has the real one's path in $REAL."""
        made = self.folder / self.PROGRAM
        made.write_text(f"#!/bin/sh\nREAL={self.real}\n{script}\n")
        made.chmod(mode)

    def run(self, *command: str | Path) -> str:
        """What a program without the shim prints."""
        return subprocess.check_output(list(map(str, command)), env=self.gpu.bare_environment, text=True)
