"""A machine of its own for each test of the shim in real processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from shim_machine import Machine, Running


@pytest.fixture
def gpu(native: Path) -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="aff-", dir="/tmp"))
    made = Machine(folder, native)
    yield made
    made.listener.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def worker(gpu: Machine) -> Iterator[Running]:
    with gpu.start_worker() as running:
        yield running
