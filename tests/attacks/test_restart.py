"""What lies in other users' folders keeps a controller that starts again from nothing."""

from __future__ import annotations

import pytest
from scene import ATTACKER, HONEST

WAITS = "waits for users' controllers to give way"


@pytest.fixture
def three_gpus(gpu_machine):
    gpu_machine.simulate(memory="1GiB", gpus=3)


@pytest.mark.long
@pytest.mark.usefixtures("three_gpus")
def test_locks_that_no_controller_can_hold_are_not_waited_for(scene, wait_until):
    program = scene.program(HONEST, "thesis", 200)
    assert program.is_well()
    with scene.attack("holding_locks", "odd"):
        scene.restart_controller()
        wait_until(lambda: "thesis" in scene.honest.kernels())
        scene.park("thesis")
        assert program.uses_gpu()
        scene.bystander.wait_for(10)
        assert WAITS not in scene.machine.controller_log()
    with scene.attack(
        "holding_locks", "files"
    ):  # as a controller's are, but the attacker has nothing on the GPU
        scene.restart_controller()
        wait_until(lambda: "thesis" in scene.honest.kernels())
        scene.park("thesis")
        assert program.uses_gpu()
        scene.bystander.wait_for(10)
        assert WAITS not in scene.machine.controller_log()
    assert scene.program(ATTACKER, "own", 100).is_well()
    with scene.attack("holding_locks", "files"):
        scene.restart_controller()
        wait_until(lambda: WAITS in scene.machine.controller_log())
        assert f"affinode-{ATTACKER}, process 1 (/a/node.sock)" in scene.machine.controller_log()
        scene.bystander.wait_for(10)
    wait_until(lambda: "thesis" in scene.honest.kernels())
    scene.park("thesis")
    assert program.uses_gpu()
