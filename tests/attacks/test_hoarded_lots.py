"""An attacker is lent no more of the machine's memory than what NVML shows, and other users have their part."""

from __future__ import annotations

import pytest
from scene import scene_on

MIB = 1 << 20
LOT, STOCK = 256 * MIB, 1024 * MIB


@pytest.fixture
def stocked_scene(gpu_machine):
    """A scene with four lots to lend."""
    lends = f"--NodeController.lot_bytes={STOCK}"
    with scene_on(
        gpu_machine, lends, "--park-when=idle", "--idle-timeout=0.1", "--host-reserve-bytes=0"
    ) as made:
        made.beside_bytes = LOT  # while it is being touched
        yield made


def lots(scene):
    """What the controller has of lots."""
    return scene.machine.node()["host"]["lots"]


@pytest.mark.long
def test_many_links_of_one_process_are_lent_what_one_is(stocked_scene, wait_until):
    scene = stocked_scene
    wait_until(lambda: lots(scene)["ready_bytes"] == STOCK)
    with scene.attack("hoarding_lots", "12") as said:
        assert said["held"] <= LOT, said
        assert said["pages"] in ([], [4096]), "a part of a huge page holds it whole"
        wait_until(lambda: lots(scene)["ready_bytes"] >= STOCK - LOT)


@pytest.mark.long
def test_what_an_earlier_controller_lent_is_counted_until_it_is_free(stocked_scene, wait_until):
    scene = stocked_scene
    wait_until(lambda: lots(scene)["ready_bytes"] == STOCK)
    with scene.attack("hoarding_lots", "2") as said:
        assert said["held"] == LOT, said
        scene.restart_controller()
        wait_until(lambda: lots(scene)["ready_bytes"] == STOCK - LOT, message=scene.machine.controller_log)
        scene.bystander.wait_for(20)
        assert lots(scene)["ready_bytes"] + said["held"] <= STOCK
