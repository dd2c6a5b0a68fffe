"""A controller of its own for each test, and fake shims that connect to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_shim import FakeShim
from live_machine import Machine

QUICK = ("--settle=0.2",)


@pytest.fixture
def node(machine: Machine) -> Callable[..., Machine]:
    """`node("--park-when=idle")`: start the machine's controller."""

    def start(*arguments: str) -> Machine:
        machine.start_controller(*QUICK, *arguments)
        return machine

    return start


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
