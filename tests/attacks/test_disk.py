"""An attacker neither stops another user's spills, nor uses up what others may write, nor keeps them waiting."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from scene import HONEST, scene_on

SHORT = 1 << 50  # a reserve that no machine has: whatever is parked goes to disk


@pytest.fixture
def spill_dir():
    """A folder on a disk for every user's parked memory. /tmp may be memory."""
    with tempfile.TemporaryDirectory(prefix="affinode-spill-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@pytest.fixture
def spilling_scene(gpu_machine, spill_dir):
    """A scene in which parked memory goes to disk where host memory is short."""
    with scene_on(gpu_machine, f"--spill-dir={spill_dir}", "--host-reserve-bytes=0") as made:
        yield made


def reserve(scene, size):
    """Have the controller keep so much host memory free."""
    status, told = scene.machine.ask("PATCH", "/policy", {"host_reserve_bytes": size})
    assert status == 200, told


def on_disk(person, kernel_id):
    """How much of a user's kernel is there."""
    return person.ask("GET", f"/kernels/{kernel_id}")[1]["disk_bytes"]


def test_names_that_another_user_takes_stop_no_spill(spilling_scene, spill_dir, wait_until):
    scene = spilling_scene
    program = scene.program(HONEST, "thesis", 200)
    assert program.is_well() and program.uses_gpu()  # zeros would take no memory
    with scene.attack("taking_spill_names", str(spill_dir), str(HONEST)):
        for _ in range(2):
            scene.park("thesis")
            reserve(scene, SHORT)
            wait_until(lambda: on_disk(scene.honest, "thesis"), message=scene.machine.controller_log)
            reserve(scene, 0)
            assert program.uses_gpu()
    assert list(spill_dir.iterdir()) == []
