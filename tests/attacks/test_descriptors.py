"""Descriptors that an attacker passes hold up nobody, whatever their close does, and none is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from people import needs_root
from scene import Scene

OLD_LINUX = Path(__file__).with_name("old_linux_controller.py")


@pytest.fixture(params=[None, OLD_LINUX], ids=["this-linux", "old-linux"])
def any_scene(gpu_machine, request):
    """A scene on this Linux, and as on one that cannot refuse descriptors."""
    needs_root()
    made = Scene(gpu_machine, program=request.param)
    yield made
    made.check()
    made.close()


@pytest.mark.parametrize("attack", ["lingering_on_link", "lingering_on_api"])
def test_a_bystander_is_answered_while_descriptors_linger(any_scene, attack, wait_until):
    before = any_scene.descriptors()
    with any_scene.attack(attack):
        any_scene.bystander.wait_for(40)
    wait_until(lambda: any_scene.descriptors() <= before + 2, message="no descriptor is left behind")
