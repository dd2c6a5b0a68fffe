"""Fixtures for the story tests: a real server on the simulated GPU, and kernels that use it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_machine import Machine, new_machine
from story_stage import Stage


@pytest.fixture(scope="module")
def stages(native: Path) -> Iterator[Callable[..., Stage]]:
    """`stages(**how)`: the module's server that was started that way; started at its first use."""
    made: dict[str, Stage] = {}
    with contextlib.ExitStack() as machines:

        def get(**how: Any) -> Stage:
            known = made.get(repr(how))
            if known is None or known.server.process.poll() is not None:  # type: ignore[union-attr]
                known = made[repr(how)] = Stage.set(machines.enter_context(new_machine()), **how)
            return known

        yield get


@pytest.fixture
def stage(stages: Callable[..., Stage]) -> Iterator[Callable[..., Stage]]:
    """`stage(memory="64MiB", idle_timeout_s=1)`: a server with these traits, and with whatever other `arguments`,
    on the simulated GPU. The module's tests that ask for the same share it; kernels and `policy` end with the test.
    """
    used: list[Stage] = []

    def start(**how: Any) -> Stage:
        used.append(stages(**how))
        return used[-1]

    yield start
    for each in used:
        each.clear_up()


@pytest.fixture
def own_stage(gpu_machine: Machine) -> Iterator[Callable[..., Stage]]:
    """The same for a test that leaves nothing to others."""
    used: list[Stage] = []

    def start(**how: Any) -> Stage:
        used.append(Stage.set(gpu_machine, **how))
        return used[-1]

    yield start
    for each in used:
        for kernel in each.server.kernels:
            kernel.close()
