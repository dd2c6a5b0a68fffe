"""An attacker neither stops another user's spills, nor uses up what others may write, nor keeps them waiting."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from scene import ATTACKER, HONEST, scene_on

LONG = pytest.mark.long  # each fills and writes GPU memory
MIB = 1 << 20
DAILY = 1024 * MIB
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
    with scene_on(
        gpu_machine, f"--spill-dir={spill_dir}", "--host-reserve-bytes=0", f"--spill-daily-bytes={DAILY}"
    ) as made:
        yield made


def reserve(scene, size):
    """Have the controller keep so much host memory free."""
    change(scene, host_reserve_bytes=size)


def change(scene, **settings):
    """Change the controller's settings."""
    status, told = scene.machine.ask("PATCH", "/policy", settings)
    assert status == 200, told


def on_disk(person, kernel_id):
    """How much of a user's kernel is there."""
    return person.ask("GET", f"/kernels/{kernel_id}")[1]["disk_bytes"]


def test_names_that_another_user_takes_stop_no_spill(spilling_scene, spill_dir, wait_until):
    scene = spilling_scene
    program = scene.program(HONEST, "thesis", 25)
    assert program.is_well() and program.uses_gpu()  # zeros would take no memory
    with scene.attack("taking_spill_names", str(spill_dir), str(HONEST)):
        for _ in range(2):
            scene.park("thesis")
            reserve(scene, SHORT)
            wait_until(lambda: on_disk(scene.honest, "thesis"), message=scene.machine.controller_log)
            reserve(scene, 0)
            assert program.uses_gpu()
    assert list(spill_dir.iterdir()) == []


@pytest.mark.long
def test_what_was_not_written_takes_no_other_users_part_of_the_day(spilling_scene, wait_until):
    """Not in the next controller either."""
    scene = spilling_scene
    program = scene.program(HONEST, "thesis", 200)
    assert program.is_well() and program.uses_gpu()
    with scene.attack("false_spills", "6", "250", "real-written-renewed"):
        reserve(scene, SHORT)
        wait_until(
            lambda: scene.machine.node()["spill"]["written_bytes"] > DAILY - 250 * MIB or failures(scene)
        )
        reserve(scene, 0)
        is_spilled(scene, program, wait_until)
        scene.restart_controller()
        wait_until(lambda: "thesis" in scene.honest.kernels())
        is_spilled(scene, program, wait_until)


def is_spilled(scene, program, wait_until):
    """Have the honest user's kernel parked and written, and let it use the GPU again."""
    scene.park("thesis")
    reserve(scene, SHORT)
    wait_until(lambda: on_disk(scene.honest, "thesis"), message=scene.machine.controller_log)
    reserve(scene, 0)
    assert program.uses_gpu()


def failures(scene):
    """The spills of the attacker's kernels that failed."""
    return re.findall(rf"the spill of uid-{ATTACKER}/(\S+) failed", scene.machine.controller_log())


def spilled(scene):
    """The attacker's kernels that were told to write, as often as they were."""
    return re.findall(rf"uid-{ATTACKER}/(\S+) goes to disk", scene.machine.controller_log())


@LONG
@pytest.mark.parametrize("how", ["mute", "written", "revoked", "mute-renewed"])
def test_kernels_that_have_no_host_memory_are_not_waited_for(spilling_scene, how, wait_until):
    """Nor asked: together they have far less than one of them claims."""
    scene = spilling_scene
    program = scene.program(HONEST, "thesis", 200)
    assert program.is_well() and program.uses_gpu()
    with scene.attack("false_spills", "6", "8000", how):
        is_spilled(scene, program, wait_until)
        assert sum(told_bytes(scene)) < 500 * MIB


def told_bytes(scene):
    """How much the attacker's kernels were told to write, each time."""
    log = scene.machine.controller_log()
    return [int(size) * MIB for size in re.findall(rf"uid-{ATTACKER}/\S+ goes to disk \((\d+) MiB\)", log)]


@LONG
@pytest.mark.parametrize("how", ["real-mute-renewed", "real-revoked-renewed", "real-written-renewed"])
def test_a_user_whose_spills_come_to_nothing_is_not_asked_again_and_again(spilling_scene, how, wait_until):
    """By whatever other kernels."""
    scene = spilling_scene
    program = scene.program(HONEST, "thesis", 25)
    assert program.is_well() and program.uses_gpu()
    # A user is judged by the words for a GiB (execution/disk_transfers.py); else no more may be written in a day.
    change(scene, spill_daily_bytes=16 * DAILY)
    with scene.attack("false_spills", "4", "400", how):
        reserve(scene, SHORT)
        wait_until(lambda: failures(scene), message=scene.machine.controller_log)
        before = len(spilled(scene))
        for _ in range(3):
            reserve(scene, 0)
            is_spilled(scene, program, wait_until)
        assert len(spilled(scene)) <= before + 4, scene.machine.controller_log()
