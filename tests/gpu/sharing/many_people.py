"""A person at a notebook, for many_kernels.py: thinks, runs a cell, looks at its answer, thinks again."""

from __future__ import annotations

import ast
import contextlib
import queue
import random
import threading
import time
from dataclasses import dataclass, field

from live_kernel import LiveKernel, ask
from many_programs import PIECE_WORDS, PROGRAMS, WORD, blocks_of, checksum

from jupyter_affinode.client.api import ControllerRefused, ControllerUnavailable

ANSWERS_WITHIN_S = 120.0


@dataclass(frozen=True)
class Cell:
    """One that was answered. Moments are CLOCK_MONOTONIC's, which all processes of a machine share."""

    sent: float
    wait_s: float  # from sending it until its first work on the GPU was done
    work_s: float  # from then to its last
    is_right: bool


@dataclass(frozen=True)
class Day:
    """What all persons have in common."""

    program: str
    size: int  # bytes of each kernel
    think_s: tuple[float, float]
    filling: dict[
        int, threading.Lock
    ]  # one kernel a GPU takes its memory at a time, as people come one by one
    fills: threading.Event  # they may take their memory
    begins: threading.Event
    ends: threading.Event


@dataclass
class Person:
    """One kernel and its user, on a thread."""

    number: int
    gpu: int  # on which it starts
    seed: int
    day: Day
    env: dict[str, str]
    kernel: LiveKernel | None = None
    is_set_up: threading.Event = field(
        default_factory=threading.Event
    )  # its CUDA context is there, or it failed
    is_ready: threading.Event = field(default_factory=threading.Event)  # … and its memory
    cells: list[Cell] = field(default_factory=list)
    error: str = ""
    has_finished: bool = False

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._thread = threading.Thread(target=self._live, name=f"person-{self.number}", daemon=True)

    def start(self) -> None:
        """Begin; `is_ready` is set when the kernel has its memory."""
        self._thread.start()

    def join(self, until: float) -> None:
        """Wait for the end, until a moment; a kernel that has not finished by then is cut off."""
        self._thread.join(max(until - time.monotonic(), 0.0))
        if self._thread.is_alive():
            self.error = self.error or f"did not finish in time; {self._said_of_it()}"[:400]
            self.kill()

    def _live(self) -> None:
        try:
            self.kernel = LiveKernel(env=self.env)
            self._take_memory(self.kernel)
            self.is_ready.set()
            self.day.begins.wait()
            while not self.day.ends.wait(self._random.uniform(*self.day.think_s)):
                self._run_a_cell(self.kernel)
            self._run_a_cell(self.kernel)  # a kernel that ends parked has its contents looked at too
            self.kernel.stop()
            self.has_finished = True
        except Exception as error:  # whatever it is, it is this person's, and told
            self.error = self.error or f"{self._why(error)}"[:400]
            self.kill()
        finally:
            self.is_set_up.set()
            self.is_ready.set()

    def _take_memory(self, kernel: LiveKernel) -> None:
        words = PIECE_WORDS[self.day.program]
        self._blocks, self._start = blocks_of(self.day.size, words), self._random.randrange(WORD)
        self._do(kernel, PROGRAMS[self.day.program])
        self.is_set_up.set()
        self.day.fills.wait()
        with self.day.filling[self.gpu]:
            self._do(kernel, f"fill({self._blocks}, {words}, {self._start})")

    def _run_a_cell(self, kernel: LiveKernel) -> None:
        number = self._random.randrange(1, WORD)
        sent, value = self._do(kernel, f"work({number})")
        self._start = (self._start + number) % WORD
        began, ended, found = ast.literal_eval(value or "")
        right = checksum(sum(self._blocks), PIECE_WORDS[self.day.program], self._start)
        self.cells.append(Cell(sent, began - sent, ended - began, found == right))

    def _do(self, kernel: LiveKernel, code: str) -> tuple[float, str | None]:
        """Run a cell, telling the controller of it as a server's tracker does: when it was sent, and its value."""
        _tell(kernel, True)
        sent = time.monotonic()
        answer = kernel.run(code, timeout_s=ANSWERS_WITHIN_S)
        _tell(kernel, False)
        if answer.error:
            raise RuntimeError(f"{answer.error}: {answer.text}")
        return sent, answer.value

    def _why(self, error: Exception) -> str:
        if isinstance(error, queue.Empty):
            return f"a cell had no answer within {ANSWERS_WITHIN_S:.0f} s; {self._said_of_it()}"
        return f"{type(error).__name__}: {error}"

    def _said_of_it(self) -> str:
        """What the controller says of its kernel."""
        if self.kernel is None:
            return "its kernel had not started"
        try:
            seen = self.kernel.described()
        except (ControllerUnavailable, ControllerRefused, OSError) as error:
            return f"the controller does not say why: {error}"
        reason = seen["wait_reason"] or seen["refusal"] or "no reason"
        return f"by the controller it is {seen['residency']} since {seen['residency_age_s']:.0f} s: {reason}"

    def kill(self) -> None:
        """End its kernel, if there is one."""
        provisioner = self.kernel and self.kernel.manager.provisioner
        process = getattr(provisioner, "process", None)
        if process is not None:
            process.kill()


def _tell(kernel: LiveKernel, is_open: bool) -> None:
    """Say that a cell begins or has ended; a controller that does not answer now keeps no kernel from working."""
    with contextlib.suppress(ControllerUnavailable):
        ask("cell", kernel.id, is_open)
