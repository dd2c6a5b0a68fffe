"""The scene of an attack: the machine's controller as root, an honest user and an attacking one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "node" / "support"))
sys.path.insert(0, str(HERE))

from live_machine import Machine  # noqa: E402
from scene import Scene, scene_on  # noqa: E402


@pytest.fixture
def scene(gpu_machine: Machine) -> Iterator[Scene]:
    """An honest user whose requests never stop; afterwards they were all answered, in bounded memory."""
    with scene_on(gpu_machine) as made:
        yield made
