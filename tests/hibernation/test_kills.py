"""What goes wrong at each step of hibernating and waking: the kernel is whole afterwards, and a sentence says why.

Real kernels with memory on the simulated GPU, the real keeper, the real CRIU.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator

import pytest
from interrupted import begin_and_stop, see_that_all_is_well
from lone_kernel import LoneKernel
from stopping_criu import CRIU_THAT_STOPS
from waiting import wait_until

from jupyter_affinode.hibernation.hibernate import BACK, INTO_IMAGE

STEPS = [*(f"hibernate: {step}" for step in INTO_IMAGE), *(f"wake: {step}" for step in BACK)]
MIDST = ["hibernate: midst of CRIU", "wake: midst of CRIU"]
VICTIMS = ("kernel", "controller", "keeper")
IN_CI = {("keeper", "wake: go_on")}


def row(victim: str, step: str):
    """A row of the table; one runs in CI, which goes both ways."""
    marks = [] if (victim, step) in IN_CI else [pytest.mark.long]
    return pytest.param(victim, step, marks=marks, id=f"{victim}-{step.replace(': ', '-').replace(' ', '-')}")


ROWS = [row(victim, step) for step in (*STEPS, *MIDST) for victim in VICTIMS] + [
    row("criu", step) for step in MIDST
]


def is_a_sentence(text: str) -> bool:
    """Whether it is one that a person can read: no name of a class, no trace."""
    return bool(text) and not re.search(r"Traceback|Error\b|Exception|\bErrno", text)


@pytest.fixture
def stopping_criu(lone: LoneKernel) -> Iterator[None]:
    """CRIU stops in the midst of its work where `stop-criu` says so."""
    path = lone.folder / "criu.py"
    path.write_text(f"CRIU = {lone.machine.environment['AFFINODE_CRIU'].split()!r}\n{CRIU_THAT_STOPS}")
    lone.environment["AFFINODE_CRIU"] = f"{sys.executable} {path}"
    lone.kill_keeper()
    lone.hand_over()
    yield


def kill(kernel: LoneKernel, victim: str) -> None:
    """Kill it at once."""
    if victim == "kernel" and kernel.lives():
        os.kill(kernel.pid, signal.SIGKILL)
    elif victim == "keeper":
        kernel.kill_keeper()
    elif victim == "controller":
        pid = kernel.machine.controller_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    elif victim == "criu":
        for pid in (kernel.folder / "criu-pids").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def is_where(kernel: LoneKernel) -> str | None:
    """Where a kernel is whose process was killed: gone, or in an image that was whole by then."""
    return {None: "gone", "image": "image"}.get(kernel.place())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("victim", "step"), ROWS)
def test_a_kill_at_any_step_loses_nothing_and_leaves_nothing_half(lone, stopping_criu, victim, step):
    lone.check()
    if step.startswith("wake"):
        lone.hibernate()
    request = begin_and_stop(lone, step)
    kill(lone, victim)
    lone.let_go()
    request.end()
    if request.refusal is not None:
        assert is_a_sentence(request.refusal), request.refusal
    if victim == "kernel" and step not in (
        "hibernate: end",
        *(s for s in (*STEPS, *MIDST) if s[:4] == "wake"),
    ):
        where = wait_until(lambda: is_where(lone), 60, lone.log)
        if where == "gone":
            assert request.refusal is not None and not lone.image.exists()
            return
    see_that_all_is_well(lone)
