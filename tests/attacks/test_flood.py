"""An attacker who fills the controller's sockets costs no other user an answer."""

from __future__ import annotations

import pytest
from scene import HONEST


def test_a_bystander_is_answered_while_connections_and_messages_flood_the_controller(scene):
    with scene.attack("flood"):
        scene.bystander.wait_for(30)


@pytest.mark.long
def test_an_honest_users_kernel_is_served_while_another_user_floods_the_controller(scene):
    program = scene.program(HONEST, "thesis", 200)
    assert program.is_well()
    with scene.attack("flood"):
        for _ in range(2):
            scene.park("thesis")
            assert program.uses_gpu()
