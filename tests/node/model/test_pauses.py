"""How long kernels of a machine stay unused."""

from __future__ import annotations

from dataclasses import replace

from snapshots import NOW, parked, resident

from jupyter_affinode.node.model import pauses
from jupyter_affinode.node.model.pauses import Pauses
from jupyter_affinode.node.model.snapshot import Residency


def used(name, at, user=""):
    return replace(resident(name), last_activity=at, charged_user=user)


def test_the_time_between_two_uses_is_a_pause_and_a_shorter_one_is_computing():
    seen = Pauses()
    for at in (0.0, 5.0, 5.3, 5.9, 8.9):
        seen.learn([used("k", at), used("other", 0.0)], at)
    assert [round(length, 6) for length in seen.lengths_s] == [3.0, 5.0]


def test_a_kernel_that_waits_for_the_gpu_is_in_use_until_it_has_it():
    seen, waiting = Pauses(), parked("k", waits=0.0)
    seen.learn([used("k", NOW - 4.0)], NOW - 4.0)
    for now in (NOW, NOW + 7.0):
        seen.learn([waiting], now)
    seen.learn([used("k", NOW + 7.5)], NOW + 7.5)
    assert seen.lengths_s == (4.0,)


def test_what_has_not_used_the_gpu_yet_or_has_ended_makes_no_pause():
    seen = Pauses()
    seen.learn([replace(used("new", 0.0), residency=Residency.NONE), used("gone", 0.0)], 0.0)
    seen.learn([used("new", 50.0)], 50.0)
    seen.learn([used("gone", 90.0), used("new", 60.0)], 90.0)
    assert seen.lengths_s == (10.0,)


def test_a_user_without_new_pauses_counts_no_more_once_enough_others_have_some():
    seen = Pauses()
    for number in range(pauses.USERS + 1):
        seen.add(f"user-{number}", 10.0 + number)
        seen.add("always", 5.0)
    assert len(seen.lengths_s) == pauses.USERS - 1 + pauses.MOST // pauses.USERS
    assert seen.lengths_s[pauses.MOST // pauses.USERS] == 12.0  # the first two are forgotten


def test_each_users_newest_pauses_count_alike(monkeypatch):
    monkeypatch.setattr(pauses, "MOST", 8)
    seen = Pauses()
    for length in range(1, 101):
        seen.add("many", 1000.0 + length)
    assert len(seen.lengths_s) == 8
    for length in (5.0, 6.0):
        seen.add("few", length)
    assert seen.lengths_s == (5.0, 6.0, 1097.0, 1098.0, 1099.0, 1100.0)
