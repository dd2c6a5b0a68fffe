"""Names that an attacker takes in a folder that all users share keep no other user from sharing host memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from scene import HONEST, scene_on

NAMES, WEIGHTS_MIB = ("thesis", "paper"), 25


@pytest.fixture
def share_dir():
    """A folder in host memory, as /dev/shm is."""
    with tempfile.TemporaryDirectory(prefix="affinode-share-", dir="/dev/shm") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@pytest.fixture
def sharing_scene(gpu_machine, share_dir):
    """A scene in which parked kernels share host memory."""
    options = ("--park-when=idle", "--idle-timeout=0.1", "--low-watermark=0", "--lot-bytes=0")
    with scene_on(gpu_machine, f"--share-dir={share_dir}", "--host-reserve-bytes=0", *options) as made:
        yield made


@pytest.mark.long
def test_a_user_shares_host_memory_although_another_took_the_name_of_the_folder(
    sharing_scene, share_dir, wait_until
):
    """Also with the next controller, which knows the folder again."""
    scene = sharing_scene

    def is_shared():
        """Whether both kernels have their contents in common, and nothing is in the way."""
        problem = scene.machine.node()["host"]["share_problem"]
        assert problem is None, problem
        kernels = [kernel for name, kernel in scene.honest.kernels().items() if name in NAMES]
        return all(kernel["shared_bytes"] and not kernel["copy_bytes"] for kernel in kernels)

    with scene.attack("taking_shared_folder", str(share_dir), str(HONEST)):
        programs = [scene.program(HONEST, name, WEIGHTS_MIB) for name in NAMES]
        for program in programs:
            assert program.is_well() and program.uses_gpu()  # zeros would be nowhere
        wait_until(is_shared, 60, scene.machine.controller_log)
        folders = {path for path in share_dir.iterdir() if path.stat().st_uid == HONEST}
        scene.restart_controller()
        wait_until(lambda: set(NAMES) <= scene.honest.kernels().keys())
        for program in programs:
            assert program.uses_gpu()
        wait_until(is_shared, 60, scene.machine.controller_log)
        assert {path for path in share_dir.iterdir() if path.stat().st_uid == HONEST} == folders
        assert all(program.uses_gpu() for program in programs)
