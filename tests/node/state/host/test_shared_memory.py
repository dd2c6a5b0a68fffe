"""Which process is told to share host memory next, and what is removed of those that ended."""

from __future__ import annotations

import fcntl
import os
from types import SimpleNamespace

from jupyter_affinode.node.identity.identity import Identity
from jupyter_affinode.node.model.snapshot import Residency
from jupyter_affinode.node.state.host.shared_memory import APART_S, PARKED_FOR_S, SharedMemory, remove_left

NOW = 1000.0


def kernel(user=None, parks=1, parked_for_s=PARKED_FOR_S):
    """A parked kernel of one process."""
    data = SimpleNamespace(parks=parks)
    process = SimpleNamespace(data=data, is_parked=True, uses_gpu=True, shared=None)
    return SimpleNamespace(
        account=SimpleNamespace(charged_user=user),
        processes={1: process},
        connected=lambda: [process],
        operation=None,
        residency=Residency.PARKED,
        residency_since=NOW - parked_for_s,
    )


def due(sharing, kernels, now=NOW):
    """Which of them have a process that is to be told."""
    sharing.look(kernels)
    return [index for index, each in enumerate(kernels) if sharing.next_of(each, now) is not None]


def shares(sharing, kernel, now, *, news):
    """Have its process look, and perhaps put something there."""
    (process,) = kernel.connected()
    sharing.ended(kernel, now, news=news)
    process.shared = sharing.seen_by(kernel, process)


def test_a_process_looks_once_after_each_park_and_again_when_another_of_its_user_has_something_new():
    sharing, one, other = SharedMemory(), kernel("ann"), kernel("ann")
    assert due(sharing, [one]) == [], "with no other kernel there is nothing to share"
    assert due(sharing, [one, kernel("bob")]) == [], "other users' kernels are not compared"
    assert due(sharing, [one, kernel("ann", parked_for_s=0.0)]) == [0]
    shares(sharing, one, NOW, news=False)
    assert due(sharing, [one, other]) == [], "not one right after the other"
    now = NOW + APART_S
    assert due(sharing, [one, other], now) == [1]
    shares(sharing, other, now, news=True)
    assert due(sharing, [one, other], now + APART_S) == [0], "the first may have the same"
    shares(sharing, one, now + APART_S, news=False)
    now += 2 * APART_S
    assert due(sharing, [one, other], now) == []
    other.connected()[0].data.parks += 1
    assert due(sharing, [one, other], now) == [1]


def test_a_users_folder_has_a_name_that_no_other_user_can_know_and_the_next_controller_does():
    sharing, ann = SharedMemory(), kernel("ann")
    number = sharing.number_for(ann)
    assert number not in (sharing.number_for(kernel("bob")), SharedMemory().number_for(ann))
    after = SharedMemory()
    after.recall(sharing.secret)
    assert after.number_for(kernel("ann")) == number
    sharing.name_is_taken(ann)
    assert sharing.number_for(ann) != number
    for wrong in (None, 7, "", "zz" * 16, "ab" * 1000):
        after.recall(wrong)
    assert after.number_for(ann) == number


def test_what_a_process_says_is_in_the_way_is_told_to_its_own_user_alone():
    sharing, ann = SharedMemory(), kernel("uid-1")
    sharing.look([ann])
    assert sharing.problem_for(Identity("uid-0", is_admin=True)) is None
    sharing.ended(ann, NOW, problem="forged")
    assert sharing.problem_for(Identity("uid-1")) == "forged"
    assert sharing.problem_for(Identity("uid-2")) is None
    assert "forged" not in (sharing.problem_for(Identity("uid-0", is_admin=True)) or "forged")
    sharing.look([])
    assert sharing.problem_for(Identity("uid-1")) is None, "it is not kept for users without kernels"


def test_what_ended_processes_left_is_removed_and_nothing_else(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (outside / "file").touch()
    users = tmp_path / f"affinode-{os.getuid()}-{7:016x}"
    names = ("ended", "lives", "open")
    for folder in (users, *(users / name for name in names)):
        folder.mkdir(mode=0o700)
    for name in names:
        (users / name / "gpu-1.0").touch()
    (users / "open").chmod(0o755)
    (users / "link").symlink_to(outside)
    lives = os.open(users / "lives", os.O_RDONLY)
    try:
        fcntl.flock(lives, fcntl.LOCK_EX)
        remove_left(str(tmp_path))
    finally:
        os.close(lives)
    assert {path.name for path in users.iterdir()} == {"lives", "open", "link"}
    assert (users / "lives" / "gpu-1.0").exists() and (outside / "file").exists()
    remove_left(str(tmp_path / "there is none"))
