"""Programs of cycle_programs.py that run, and how what they computed compares with twins that are never parked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from controlled import Controlled

PROGRAMS = Path(__file__).with_name("cycle_programs.py")
MODULES = {"PyTorch": "torch", "PyTorch, expandable segments": "torch", "JAX, preallocated": "jax"}
MODULES.update({"JAX": "jax", "CuPy": "cupy", "numba": "numba", "driver API": "cuda"})
ENDS_WITHIN_S = 60.0


@dataclass
class Program:
    """One running program, the losses it printed, and what happened to it."""

    name: str
    process: subprocess.Popen[str]
    kernel_id: str | None
    losses: list[str] = field(default_factory=list)
    ended: int | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    heard: float = field(default_factory=time.monotonic)
    heard_more: threading.Condition = field(default_factory=threading.Condition)
    cycles: int = 0
    refused: int = 0
    mended: int = 0
    park_s: list[float] = field(default_factory=list)
    resume_s: list[float] = field(default_factory=list)
    parked_bytes: int = 0
    problem: str = ""
    stderr: Path = Path(os.devnull)

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        try:
            lines = self.stderr.read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:  # its controller's folder is gone, and it with that
            lines = []
        return " / ".join(line.strip() for line in lines[-4:]) or "no words"

    def read(self) -> None:
        """Read its output to the end; runs on a thread."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.heard = time.monotonic()
            word, _, rest = line.strip().partition(" ")
            if word == "ready":
                self.ready.set()
            elif word == "end":
                self.ended = int(rest)
            elif word == str(len(self.losses)):
                with self.heard_more:
                    self.losses.append(rest)
                    self.heard_more.notify_all()
            else:
                self.problem = self.problem or f"said {line.strip()!r}"
        with self.heard_more:
            if self.ended is None:
                status = self.process.wait()
                words = f"it ended by itself with status {status}: {self.last_words()}"
                self.problem = self.problem or words
            self.heard_more.notify_all()
        self.ready.set()

    def until(self, steps: int) -> None:
        """Tell it to end at that step."""
        self._tell(f"until {steps}")

    def go(self, steps: int, timeout_s: float) -> None:
        """Have a program that runs in cells compute up to that step; `problem` says what went wrong."""
        if self.problem:
            return
        self._tell(f"go {steps}")
        with self.heard_more:
            done = self.heard_more.wait_for(lambda: self.problem or len(self.losses) >= steps, timeout_s)
        if not done:
            self.problem = f"it hangs since step {len(self.losses)}"

    def _tell(self, order: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(order + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.problem = self.problem or "it ended before it was told"


def start(
    controlled: Controlled,
    name: str,
    seed: int,
    pause_s: float,
    *,
    managed: bool,
    mib: int = 0,
    in_cells: bool = False,
) -> Program:
    """Start a program; with `mib` it holds about so much, `in_cells` it computes only when it is told to."""
    kernel_id = str(uuid.uuid4()) if managed else None
    how = "cells" if in_cells else "free"
    command = [sys.executable, str(PROGRAMS), name, str(seed), str(pause_s), str(mib), how]
    stderr = controlled.folder / f"{kernel_id or uuid.uuid4()}.stderr"
    with stderr.open("w") as file:
        program = Program(name, controlled.start(command, kernel_id, stderr=file), kernel_id, stderr=stderr)
    threading.Thread(target=program.read, daemon=True).start()
    return program


def compare(program: Program, twin: Program) -> str:
    """How the losses compare, in words; "equal" if all of at least one are."""
    steps = min(len(program.losses), len(twin.losses))
    for number in range(steps):
        if program.losses[number] != twin.losses[number]:
            return f"DIFFERENT at step {number}: {program.losses[number]} / {twin.losses[number]}"
    if not steps or len(twin.losses) < len(program.losses):
        return f"MISSING: {len(program.losses)} steps, its twin {len(twin.losses)}"
    return "equal"


def end(program: Program, steps: int) -> None:
    """Have it end at that step; `problem` says what went wrong."""
    program.until(steps)
    try:
        status = program.process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        program.problem = program.problem or "it did not end when told"
        return
    if status != 0 and "status" not in program.problem:
        program.problem = f"it ended with status {status}: {program.last_words()}"
