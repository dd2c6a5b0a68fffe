"""The story of one framework in a real kernel: parked, resumed by its own cells, trained, interrupted, ended parked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from live_kernel import LiveKernel, ask, gpu_used_bytes, neighbour
from waiting import wait_until
from workloads import PROGRAMS

from jupyter_affinode.settings.policy import GIB


@dataclass
class Outcome:
    """A row of the table."""

    framework: str
    cycles: int = 0
    digests_equal: int = 0
    parked_gib: float = 0.0
    left_gib: float = 0.0  # that NVML says is in use on the whole GPU while it is parked
    park_s: list[float] = field(default_factory=list)
    resume_s: list[float] = field(default_factory=list)
    losses_equal: bool = False
    interrupt_s: float = float("nan")
    interrupt_error: str = ""
    after_interrupt: bool = False
    stop_parked_s: float = float("nan")
    notes: list[str] = field(default_factory=list)

    def row(self) -> list[str]:
        return [
            self.framework,
            f"{self.digests_equal}/{self.cycles}",
            f"{self.parked_gib:.2f} GiB",
            f"{self.left_gib:.2f} GiB",
            f"{median(self.park_s):.2f} s" if self.park_s else "-",
            f"{median(self.resume_s):.2f} s" if self.resume_s else "-",
            "equal" if self.losses_equal else "DIFFERENT",
            f"{self.interrupt_error} in {self.interrupt_s:.2f} s",
            "right" if self.after_interrupt else "WRONG",
            f"{self.stop_parked_s:.1f} s",
        ]

    @property
    def passed(self) -> bool:
        return (
            self.digests_equal == self.cycles > 0
            and self.losses_equal
            and self.interrupt_s <= 1.0
            and self.after_interrupt
            and self.parked_gib > 1
        )


HEADINGS = [
    "framework",
    "digests equal",
    "parked",
    "left on GPU",
    "park (median)",
    "cell that resumes (median)",
    "loss against unparked twin",
    "interrupt while waiting",
    "after it",
    "shutdown while parked",
]


def twin_losses(framework: str, cycles: int) -> list[str]:
    """The losses of the same program in a kernel without the shim."""
    kernel = LiveKernel(managed=False)
    try:
        answer = kernel.run(PROGRAMS[framework])
        if answer.error:
            raise RuntimeError(f"{framework} twin: {answer.text}")
        kernel.run("digest(); use()")
        return [kernel.value("train()") for _ in range(cycles)]
    finally:
        kernel.stop()


def park(kernel: LiveKernel) -> dict:
    """Park it, asking again while it is briefly busy."""

    def is_parked() -> bool:
        try:
            ask("park", kernel.id)
        except Exception as refused:
            if "busy" not in str(refused).lower():
                raise
        return kernel.described()["residency"] == "parked"

    wait_until(is_parked, 30, kernel.described)
    return kernel.described()


def one_cycle(kernel: LiveKernel, outcome: Outcome, expected: str) -> str:
    """Park, check that the GPU is free and the kernel alive, and let a cell bring it back; the loss."""
    described = park(kernel)
    outcome.park_s.append(described["last_park"]["duration_s"])
    outcome.parked_gib = described["parked_bytes"] / GIB
    outcome.left_gib = gpu_used_bytes() / GIB  # nothing else runs on the GPU in this test
    if kernel.value("1 + 1") != "2" or kernel.described()["residency"] != "parked":
        outcome.notes.append("a cell without CUDA resumed it")
    begin = time.monotonic()
    found = kernel.value("digest()")
    outcome.resume_s.append(time.monotonic() - begin)
    outcome.cycles += 1
    outcome.digests_equal += found == expected
    used = kernel.run("use()")
    if used.error:
        outcome.notes.append(f"use(): {used.text[:200]}")
    return kernel.value("train()")


def interrupt_while_waiting(kernel: LiveKernel, outcome: Outcome, expected: str) -> None:
    """With a neighbour on the GPU the next cell waits; an interrupt ends the wait, and later all is well."""
    park(kernel)
    with neighbour(leave_bytes=GIB):
        cell = kernel.begin("work()")
        kernel.wait_for("queued")
        begin = time.monotonic()
        kernel.manager.interrupt_kernel()
        answer = kernel.finish(cell, timeout_s=20)
        outcome.interrupt_s = time.monotonic() - begin
        outcome.interrupt_error = answer.error or "no error"
    after = kernel.run("digest()")
    outcome.after_interrupt = after.value == expected
    if after.error:
        outcome.notes.append(f"after the interrupt: {after.error}: {after.text[:200]}")


def tell(framework: str, cycles: int, say: Callable[[str], None]) -> Outcome:
    """Run the whole story for a framework."""
    outcome = Outcome(framework)
    say(f"{framework}: the twin")
    losses = twin_losses(framework, cycles)
    kernel = LiveKernel()
    try:
        answer = kernel.run(PROGRAMS[framework])
        if answer.error:
            raise RuntimeError(f"{framework}: {answer.text}")
        expected = kernel.value("digest()")
        kernel.run("use()")
        say(f"{framework}: {cycles} cycles")
        outcome.losses_equal = [one_cycle(kernel, outcome, expected) for _ in range(cycles)] == losses
        say(f"{framework}: interrupt")
        interrupt_while_waiting(kernel, outcome, expected)
        park(kernel)
    finally:
        outcome.stop_parked_s = kernel.stop()
    return outcome
