"""How long what failed is left alone."""

from __future__ import annotations

import pytest

from jupyter_affinode.node.model.backoff import back_off_s


@pytest.mark.parametrize(("failures", "pause_s"), [(1, 0.5), (2, 1.0), (6, 16.0), (7, 30.0), (8, 30.0)])
def test_it_doubles_up_to_half_a_minute(failures, pause_s):
    assert back_off_s(failures) == pause_s


def test_a_night_of_refusals_is_no_overflow():
    """A park that is refused every 30 s for nine hours has failed more often than a float can double."""
    assert back_off_s(2000) == 30.0
