"""A kernel that no server has, on a machine with a keeper of its own and CRIU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from fetched_criu import fetched_criu  # noqa: E402
from live_machine import Machine, new_machine  # noqa: E402
from lone_kernel import LoneKernel  # noqa: E402


@pytest.fixture(scope="session")
def criu() -> str:
    """How CRIU is called."""
    return fetched_criu()


@pytest.fixture(scope="module")
def gpu_machine_with_criu(native: Path, criu: str) -> Iterator[Machine]:
    """A machine with a simulated GPU for all tests of a module, and its controller."""
    with new_machine() as made:
        made.simulate("4GiB")
        made.environment["AFFINODE_CRIU"] = criu
        made.start_controller("--settle=0")
        yield made


@pytest.fixture
def lone(gpu_machine_with_criu: Machine) -> Iterator[LoneKernel]:
    """An ipykernel with memory on the GPU, that its keeper has alone."""
    with LoneKernel(gpu_machine_with_criu) as kernel:
        yield kernel
