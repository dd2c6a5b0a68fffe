"""Following the controller, and starting one again."""

from __future__ import annotations

from jupyter_affinode.server.controller_watch import pause_s


def test_a_controller_is_never_started_again_at_once_and_ever_later_if_it_fails_at_its_start():
    pauses = [pause_s(failures) for failures in range(6)]
    assert min(pauses) > 0
    assert pauses == sorted(pauses) and pauses[0] < pauses[-1]
