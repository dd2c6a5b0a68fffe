"""Answers that are long, not read or not waited for take neither the controller's memory nor other users' time."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "never_reading",
        pytest.param("asking_and_hanging_up", marks=pytest.mark.long),
        pytest.param("streams_unread", marks=pytest.mark.long),
        pytest.param("asking_without_end", marks=pytest.mark.long),
    ],
)
def test_a_bystander_is_served_whatever_another_user_does_with_answers(scene, name):
    with scene.attack(name) as said:
        assert set(said.get("statuses", [200])) == {200}, "the attack has not all its kernels"
        scene.bystander.wait_for(20)
