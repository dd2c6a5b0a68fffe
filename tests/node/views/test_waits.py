"""What a waiter is told of the kernel in its way, in text: for cells, `%gpu_status` and the command line."""

from __future__ import annotations

import time

import pytest

from jupyter_affinode.node.model.reasons import BlockerReason, WaitReason
from jupyter_affinode.node.model.snapshot import Residency
from jupyter_affinode.node.policy.wait_blockers import Blocker
from jupyter_affinode.node.policy.wait_estimates import WaitEstimate
from jupyter_affinode.node.protocol.wire import TEXT_BYTES
from jupyter_affinode.node.state.records.kernel import KernelRecord
from jupyter_affinode.node.views.kernel_words import (
    notice_in_words,
    residency_in_words,
    status_in_words,
)
from jupyter_affinode.node.views.waits import wait_json
from jupyter_affinode.printable import TEXT_MAX, is_printable

NOW = 1000.0
LONGEST = "é" * (TEXT_MAX - len(".ipynb")) + ".ipynb"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A time of day of half past three in the zone of the test, so that a moment has a name."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    yield
    monkeypatch.undo()
    time.tzset()


def kernel(kernel_id, owner="uid-1", path=None, held_for_s=None):
    record = KernelRecord(kernel_id, held_until=None if held_for_s is None else NOW + held_for_s)
    record.account.owner = owner
    record.processes[1] = None  # there is one
    record.describe(path=path)
    return record


def wait(why, *others, code=WaitReason.COMPUTING, estimate_s=None):
    """The JSON of a wait for `others`, the first of which is in the way for the reason `why`."""
    blockers = tuple(Blocker(each.id, why) for each in others) or (Blocker(None, why),)
    estimate = WaitEstimate(1, NOW, code, estimate_s, {"bytes": 5 << 30, "kernels": 2}, blockers)
    return wait_json(kernel("waiter"), estimate, {each.id: each for each in others}, NOW)


def test_the_users_own_notebook_in_the_way_is_named():
    train = kernel("k", path="models/train.ipynb")
    assert wait(BlockerReason.COMPUTING, train)["wait_reason"] == "train.ipynb is computing"
    idle = wait(BlockerReason.IDLE, train, code=WaitReason.FULL)["wait_reason"]
    assert idle == "train.ipynb is freed when it has been idle for long enough"
    unnamed = kernel("k")
    assert wait(BlockerReason.COMPUTING, unnamed)["wait_reason"] == "another notebook of yours is computing"


def test_a_kept_kernel_names_the_same_moment_in_its_own_state_and_to_those_that_wait_for_it():
    kept = kernel("k", path="train.ipynb", held_for_s=3600)
    (blocker,) = wait(BlockerReason.HELD, kept, code=WaitReason.HELD)["wait"]["blockers"]
    state = residency_in_words(
        Residency.RESIDENT,
        resident_bytes=2**30,
        parked_bytes=0,
        place=None,
        held_for_s=3600,
        reason=None,
        is_simulated=False,
    )
    assert (state, blocker["held_until"]) == ("On the GPU: 1 GiB, kept until 09:00 UTC", "09:00 UTC")


def test_a_kept_notebook_is_named_with_the_end_and_the_way_to_end_it():
    kept = kernel("k", path="train.ipynb", held_for_s=3600)
    told = wait(BlockerReason.HELD, kept, code=WaitReason.HELD)["wait_reason"]
    assert told == "train.ipynb is kept on the GPU until 09:00 UTC; `%gpu_release` there ends that"
    kept.held_until = NOW + 30 * 3600
    assert (
        "until 2027-01-16 14:00 UTC;" in wait(BlockerReason.HELD, kept, code=WaitReason.HELD)["wait_reason"]
    )


def test_another_users_notebook_has_no_name():
    secret = kernel("secret", owner="uid-2", path="thesis.ipynb", held_for_s=60)
    told = wait(BlockerReason.HELD, secret, code=WaitReason.HELD)["wait_reason"]
    assert told == "another user's notebook is kept on the GPU until 08:01 UTC"
    assert wait(BlockerReason.COMPUTING, secret)["wait_reason"] == "another user's notebook is computing"


def test_a_wait_that_is_not_for_a_kernel_keeps_its_reason():
    train = kernel("k", path="train.ipynb")
    moving = wait(BlockerReason.MOVING, train, code=WaitReason.MOVING)
    assert moving["wait_reason"] == "memory is being freed for it"
    assert wait(BlockerReason.OUTSIDE)["wait_reason"] == "a program outside Jupyter uses the GPU"


@pytest.mark.parametrize("code", WaitReason)
def test_there_are_words_for_every_reason_to_wait(code):
    said = wait(BlockerReason.IDLE, code=code)["wait_reason"]
    assert is_printable(said) and len(said) > 12 and not set("{}") & set(said)
    size = "it needs 5 GiB, more than can become free"
    assert (said == size) is (code is WaitReason.TOO_LARGE)


@pytest.mark.parametrize("why", BlockerReason)
@pytest.mark.parametrize("path", [LONGEST, "a/\N{RIGHT-TO-LEFT OVERRIDE}\n\x1b[2J.ipynb"])
def test_every_reason_is_printable_and_fits_what_a_shim_takes(why, path):
    other = kernel("k", path=path, held_for_s=40 * 3600)
    told = wait(why, other)
    assert is_printable(told["wait_reason"])
    for said in (
        status_in_words({**told, "text": "Waiting: 123rd (simulated)"}),
        notice_in_words({**told, "text": "", "place": 123}),
    ):
        assert len(said.encode()) < TEXT_BYTES, said


def test_the_bound_is_told_beside_the_reason_and_rounded_up():
    train = kernel("k", path="train.ipynb")
    for estimate_s, bound in (
        (0.0, "at most 1 s more"),
        (12.2, "at most 13 s more"),
        (121.0, "at most 3 min more"),
        (None, "how long cannot be said"),
    ):
        told = {**wait(BlockerReason.COMPUTING, train, estimate_s=estimate_s), "text": "Waiting: 1st"}
        assert status_in_words(told) == f"Waiting: 1st (train.ipynb is computing; {bound})"
