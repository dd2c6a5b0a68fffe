"""How long what failed is left alone."""

from __future__ import annotations

from jupyter_affinode.node.model.backoff import Backoff


def test_pauses_double_up_to_half_a_minute_and_begin_anew_after_a_success():
    backoff, now = Backoff(), 100.0
    assert [backoff.fail(now + step) for step in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert (backoff.since, backoff.retry_at) == (now, now + 7 + 30.0)
    backoff.succeed()
    assert backoff.retry_at == 0.0
    assert backoff.fail(200.0) == 0.5 and backoff.since == 200.0


def test_a_night_of_refusals_is_no_overflow():
    """A park that is refused every 30 s for nine hours has failed more often than a float can double."""
    assert Backoff(failures=2000).fail(1.0) == 30.0
