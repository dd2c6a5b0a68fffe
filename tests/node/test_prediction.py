"""Prediction: what is learnt of pauses and cells, what it changes, and that it changes nothing while it is off."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing

import pytest
from fake_shim import MIB
from hypothesis import given
from hypothesis import strategies as st

from jupyter_affinode.node import ledger as ledger_module
from jupyter_affinode.node import prediction as prediction_module
from jupyter_affinode.node import prediction_trial as trial
from jupyter_affinode.node.actions import Cause, Resume
from jupyter_affinode.node.eligibility import eligible_at
from jupyter_affinode.node.history_options import HistoryOptions
from jupyter_affinode.node.ledger_store import Batch, CellCount, LedgerStore
from jupyter_affinode.node.pauses import BUCKETS, SHORTEST_S, bucket_begins_s, bucket_of
from jupyter_affinode.node.policy import decide
from jupyter_affinode.node.prediction import (
    LEAST_CHANCE,
    MOST_CHANCE,
    NOTHING_KNOWN,
    Prediction,
    needed_soon,
    patience_s,
    survival,
)
from jupyter_affinode.node.settings import Settings
from jupyter_affinode.node.snapshot import Gpu, Host, Kernel, Node, Residency, RoomRequest

GIB = 1 << 30
NOW = 10_000.0
HAZARDS = st.lists(st.floats(0, 1), min_size=BUCKETS, max_size=BUCKETS)


# ---- what is learnt


@given(st.floats(SHORTEST_S, 1e7))
def test_a_pause_lies_in_its_bucket(length):
    bucket = bucket_of(length)
    assert bucket_begins_s(bucket) <= length * (1 + 1e-9)
    assert bucket == BUCKETS - 1 or length <= bucket_begins_s(bucket + 1) * (1 + 1e-9)


def test_of_nobody_it_is_known_that_half_of_them_last_as_long_again():
    hazards = Prediction().hazards("k", "u")
    for idle in (5.0, 60.0, 3600.0):
        assert needed_soon(hazards, idle) == pytest.approx(0.5)


@given(HAZARDS, st.floats(0, 1e7), st.floats(0, 1e7))
def test_chances_are_chances(hazards, one, other):
    shorter, longer = sorted((one, other))
    assert 1 >= survival(hazards, shorter) >= survival(hazards, longer) - 1e-12 >= -1e-12
    assert LEAST_CHANCE <= needed_soon(hazards, one) <= MOST_CHANCE


def test_a_kernels_own_history_outweighs_its_users_and_that_everybodys():
    prediction = Prediction()
    for _ in range(200):
        prediction.paused("others", "others", 3600.0)
    before = survival(prediction.hazards("mine", "me"), 600.0)
    for _ in range(30):
        prediction.paused("other of mine", "me", 20.0)
    as_my_others = survival(prediction.hazards("mine", "me"), 600.0)
    for _ in range(30):
        prediction.paused("mine", "me", 1800.0)
    by_itself = survival(prediction.hazards("mine", "me"), 600.0)
    assert before > 0.8 and as_my_others < 0.3 and by_itself > 0.8


def test_whether_a_cell_uses_cuda_is_learnt_too():
    prediction = Prediction()
    assert prediction.uses_cuda("k", "u") == 0.5
    for _ in range(20):
        prediction.cell_ended("k", "u", used_cuda=False)
        prediction.cell_ended("other", "v", used_cuda=True)
    assert prediction.uses_cuda("k", "u") < 0.1
    assert prediction.uses_cuda("another", "v") > 0.7


def test_what_the_ledger_has_is_as_good_as_what_was_seen():
    seen, loaded = Prediction(), Prediction()
    for length in (6.0, 7.0, 300.0):
        seen.paused("k", "u", length)
    seen.cell_ended("k", "u", used_cuda=True)
    loaded.load([("k", "u", bucket_of(7.0), 2), ("k", "u", bucket_of(300.0), 1)], [("k", "u", 1, 0)])
    assert seen.hazards("k", "u") == loaded.hazards("k", "u")
    assert seen.uses_cuda("k", "u") == loaded.uses_cuda("k", "u")
    loaded.load([("k", "u", -1, 5), ("k", "u", BUCKETS, 5), ("k", "u", 0, -5)], [])
    assert seen.hazards("k", "u") == loaded.hazards("k", "u")


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(prediction_module, "KERNELS_MAX", 5)
    prediction = Prediction()
    for number in range(20):
        prediction.paused("mine", "me", 3600.0)
        prediction.paused(f"k{number}", "u", 10.0)
    assert len(prediction._kernels) == 5 and "mine" in prediction._kernels


@pytest.mark.parametrize("price", [1.0, 10.0, 60.0, 600.0])
def test_the_patience_is_the_cheapest_that_there_is(price):
    """Against trying every bound on the pauses themselves."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    prediction, pauses = Prediction(), []
    for _ in range(3000):
        length = max(chance.lognormvariate(4.0, 1.5), SHORTEST_S)
        pauses.append(length)
        prediction.paused("k", "u", length)
    chosen = patience_s(prediction.hazards("k", "u"), price)
    best = min(trial.mean_cost(pauses, bucket_begins_s(bucket), price) for bucket in range(BUCKETS))
    assert trial.mean_cost(pauses, chosen, price) <= best * 1.05


# ---- what it changes


def node(*kernels, free=100 * GIB, total=140 * GIB):
    """A machine with one GPU."""
    return Node({"A": Gpu("A", free, total, NOW)}, kernels, Host(1 << 40, total_bytes=1 << 40))


def parked(**others):
    """A parked kernel of 10 GiB."""
    return Kernel("k", Residency.PARKED, parked_bytes={"A": 10 * GIB}, last_activity=NOW - 600, **others)


def resident(**others):
    """One of 10 GiB on the GPU, idle for long."""
    return Kernel("k", Residency.RESIDENT, {"A": 10 * GIB}, last_activity=NOW - 20, **others)


def test_who_is_expected_is_brought_back_where_there_is_room():
    (action,) = decide(NOW, node(parked(expected_until=NOW + 5)), Settings())
    assert isinstance(action, Resume) and action.cause is Cause.PREFETCH
    assert action.reserved_bytes == {"A": 10 * GIB}


@pytest.mark.parametrize(
    ("kernel", "machine"),
    [
        (parked(), {}),
        (parked(expected_until=NOW - 1), {}),
        (parked(expected_until=NOW + 5), {"free": 9 * GIB}),
        (parked(expected_until=NOW + 5), {"free": 15 * GIB}),  # it would fall under the low watermark
        (parked(expected_until=NOW + 5, is_dying=True), {}),
        (parked(expected_until=NOW + 5, resume_retry_at=NOW + 1), {}),
        (parked(expected_until=NOW + 5, is_moving=True), {}),
    ],
)
def test_nobody_is_brought_back_early_at_anybodys_cost(kernel, machine):
    assert decide(NOW, node(kernel, **machine), Settings()) == []


def test_nobody_is_brought_back_early_while_somebody_waits():
    room = RoomRequest((1, 1), "A", 200 * GIB, NOW - 0.1)
    waiter = Kernel("w", Residency.RESIDENT, {"A": GIB}, last_activity=NOW, rooms=(room,))
    actions = decide(NOW, node(parked(expected_until=NOW + 5), waiter), Settings())
    assert not any(action.kernel_id == "k" for action in actions)


def test_nobody_is_brought_back_beyond_their_users_limit():
    expected = parked(expected_until=NOW + 5, user="alice")
    other = Kernel(
        "o", Residency.RESIDENT, {"A": 8 * GIB}, last_activity=NOW, user="alice", calls_in_flight=1
    )
    assert decide(NOW, node(expected, other), Settings(user_limits="alice=16GiB")) == []
    assert decide(NOW, node(expected, other), Settings(user_limits="alice=32GiB"))


def test_who_is_expected_stays_unless_somebody_waits():
    settings = Settings(idle_timeout_s=10.0, queue_idle_timeout_s=10.0)
    kernel = resident(expected_until=NOW + 30)
    assert eligible_at(kernel, settings, waits_since=None) == NOW + 30
    assert eligible_at(kernel, settings, waits_since=NOW) <= NOW


def test_patience_takes_the_place_of_the_time_out_while_somebody_waits():
    settings = Settings()
    assert eligible_at(resident(patience_s=40.0), settings, waits_since=NOW) == NOW + 20
    assert eligible_at(resident(patience_s=7.0), settings, waits_since=NOW) == NOW - 13
    assert eligible_at(resident(patience_s=7.0), settings, waits_since=None) == NOW + 280
    assert eligible_at(resident(patience_s=9e9), settings, waits_since=NOW) == NOW + 280


@pytest.mark.parametrize("prediction", [False, True])
def test_a_cell_brings_its_kernel_back_early_if_history_says_so_and_that_is_wanted(
    node, shim, machine, wait_until, monkeypatch, prediction
):
    monkeypatch.setattr(ledger_module, "FLUSH_EVENTS_EVERY_S", 0.0)
    monkeypatch.setattr(ledger_module, "FLUSH_EVERY_S", 0.0)
    path = machine.folder / "history" / "l"
    path.parent.mkdir(mode=0o700)
    store = LedgerStore(path, "an earlier controller")
    store.write(Batch(1, 1.0, cells={"k1": CellCount("uid-of-another-run", 50, 0)}))
    store.close()
    node_machine = node(history=HistoryOptions(path), prediction=prediction)
    kernel = shim("k1", parked=300 * MIB)

    def is_loaded():
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute("SELECT count(*) FROM runs").fetchone() == (2,)

    wait_until(lambda: "k1" in node_machine.kernels() and is_loaded(), timeout=30)
    assert node_machine.ask("POST", "/kernels/k1/cell", {"open": True, "cell_id": "c"})[0] == 204
    if prediction:
        wait_until(lambda: node_machine.kernel("k1")["residency"] == "resident")
        assert [command.reason for command in kernel.heard.of(2)] == ["it is about to be used"]
    else:
        kernel.touch()  # only that brings it back
        wait_until(lambda: node_machine.kernel("k1")["residency"] == "resident")
        (command,) = kernel.heard.of(2)
        assert command.reason.startswith("it waited")


# ---- the comparison


def test_it_is_off_as_long_as_it_does_not_win():
    """`python -m jupyter_affinode.node.prediction_trial` prints the whole of it."""
    results = [
        trial.compare(f"{family}", trial.synthetic(family, unlike=unlike, seed=1), price)
        for family in trial.FAMILIES
        for unlike in (False, True)
        for price in (10.0,)
    ]
    print(trial.table(results))
    for each in results:
        assert each.future <= min(each.fixed, each.ski_rental, each.shipped, each.prediction) * 1.0001
        assert each.prediction <= 2 * each.ski_rental
    assert not all(each.wins for each in results)
    assert Settings().prediction is False


def test_where_pauses_are_as_clear_as_can_be_it_does_win():
    """People who come back at once, and people who do not: the comparison can tell."""
    people = [
        trial.Person(f"p{number}", [[6.0, 7.0] * 20 if number // 2 % 2 else [3000.0, 4000.0] * 20])
        for number in range(40)
    ]
    result = trial.compare("clear", people, 60.0)
    assert result.wins and result.prediction < 1.2 * result.future


def test_a_sites_own_ledger_can_be_tried(tmp_path, capsys):
    tmp_path.chmod(0o700)
    store = LedgerStore(tmp_path / "l", "run")
    pauses = {(f"k{number}", f"u{number % 4}", number % 7): 5 for number in range(40)}
    store.write(Batch(1, 1.0, pauses=pauses))
    store.close()
    assert trial.main([str(tmp_path / "l")]) == 0
    assert "Pauses of 4 people" in capsys.readouterr().out
    assert trial.main([str(tmp_path / "missing")]) == 1
    assert Prediction().hazards("k", "u") == NOTHING_KNOWN
