"""A controller of its own for each test, and fake shims that connect to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from fake_shim import FakeShim
from live_machine import Machine
from preparing_shim import PreparingShim
from thread_controller import ThreadController


@pytest.fixture
def node(machine: Machine) -> Iterator[Callable[..., Machine]]:
    """`node(park_when="idle")`: the machine's controller with these settings, on a thread of this process."""
    running: list[ThreadController] = []

    def start(*, nvml: Any = None, history: Any = None, **settings: Any) -> Machine:
        running.append(ThreadController(machine.socket, nvml, history, **settings))
        return machine

    yield start
    for controller in running:
        controller.stop()
    log = machine.controller_log()
    print(log)  # pytest shows it for a test that failed
    assert "a pass failed" not in log, log
    assert "Traceback" not in log, log


@pytest.fixture
def shim(machine: Machine) -> Iterator[Callable[..., FakeShim]]:
    """`shim("kernel-1", resident=…)`: a process of a kernel, connected to the machine's controller."""
    made: list[FakeShim] = []

    def connect(*arguments: Any, **options: Any) -> FakeShim:
        made.append(FakeShim(machine.socket.parent, *arguments, **options))
        return made[-1]

    yield connect
    for each in made:
        each.close()


@pytest.fixture
def preparing(machine: Machine) -> Iterator[Callable[..., PreparingShim]]:
    """As `shim`, but it knows prepared moves."""
    made: list[PreparingShim] = []

    def connect(*arguments: Any, **options: Any) -> PreparingShim:
        made.append(PreparingShim(machine.socket.parent, *arguments, **options))
        return made[-1]

    yield connect
    for each in made:
        each.close()


@pytest.fixture
def residency(machine: Machine) -> Callable[[str], str | None]:
    """`residency("k")`: as the API says."""

    def of(kernel_id: str) -> str | None:
        kernel = machine.kernel(kernel_id)
        return kernel and kernel["residency"]

    return of
