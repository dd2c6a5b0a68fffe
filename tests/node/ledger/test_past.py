"""The last hours as the API tells them: lanes of kernels, figures of GPUs, and other users as counts."""

from __future__ import annotations

import time

import pytest
from api_answers import checked
from fake_nvml import FakeNvml
from fake_shim import MIB

from jupyter_affinode.node.identity.identity import OWN_USER, Identity
from jupyter_affinode.node.ledger import recorder
from jupyter_affinode.node.ledger.past import Past, Present, Window, past_json
from jupyter_affinode.node.ledger.store import Batch, EventRow, KernelRow, LedgerStore, SampleRow
from jupyter_affinode.node.metrics.history_options import HistoryOptions
from jupyter_affinode.node.model.snapshot import Residency

GPU, OTHER_GPU = "GPU-1", "GPU-2"
NOW = 1_000_000.0
GPUS = [{"uuid": GPU, "index": 0, "name": "A", "total_bytes": 8}]


def kernel(name="k", began=NOW - 9000, ended=None, user="uid-1", gpus=GPU):
    return KernelRow(name, user, began, ended or NOW, ended, False, gpus=gpus)


def event(ago_s, kind, name="k", *, user="uid-1", gpu=GPU, **columns):
    return EventRow(NOW - ago_s, kind, name, user, gpu, **columns)


def present(residency=Residency.RESIDENT, ago_s=0.0, name="k", user="uid-1", gpus=(GPU,)):
    return Present(name, user, residency, NOW - ago_s, "", gpus, None, f"{name}.ipynb")


@pytest.fixture
def told(tmp_path):
    """Return the API's answer for what a ledger has of the last hour."""

    def tell(events, kernels=(), now_there=(), samples=(), identity=OWN_USER, unwritten=(), seconds=3600):
        path = tmp_path / "ledger.sqlite"
        store = LedgerStore(path)
        store.write(Batch(NOW, list(events), {row.kernel_id: row for row in kernels}, samples=list(samples)))
        store.close()
        return past_json(Past(path, Window(NOW - seconds, NOW), unwritten, now_there), GPUS, identity)

    return tell


def lanes(answer):
    """Each lane's changes as (seconds ago, state, cause)."""
    return {
        lane["kernel_id"]: [
            (round(NOW - each["at"], 1), each["state"], each["cause"]) for each in lane["changes"]
        ]
        for lane in answer["gpus"][0]["lanes"]
    }


def test_a_kernels_lane_says_when_it_was_freed_and_came_back_and_why(told):
    answer = told(
        [event(1800, "park", cause="room", duration_s=1.0), event(600, "resume", cause="cell")],
        [kernel()],
        [present(ago_s=600)],
    )
    assert lanes(answer) == {
        "k": [(3600, "resident", None), (1800, "parked", "room"), (600, "resident", "cell")]
    }
    assert answer["gpus"][0]["lanes"][0]["path"] == "k.ipynb"


def test_a_lane_begins_with_the_state_from_before_the_window(told):
    answer = told(
        [event(7200, "park", cause="idle"), event(60, "resume", cause="asked")], [kernel()], [present()]
    )
    assert lanes(answer) == {"k": [(3600, "parked", "idle"), (60, "resident", "asked")]}


def test_a_wait_lasts_until_its_end_whenever_its_resume_was_noted(told):
    for resumed_ago_s in (102, 100, 99):
        answer = told(
            [
                event(300, "park", cause="room"),
                event(resumed_ago_s, "resume", cause="cell"),
                event(100, "wait", outcome="served", waited_s=50.0),
            ],
            [kernel()],
            [present()],
        )
        assert lanes(answer)["k"][-3:] == [
            (300, "parked", "room"),
            (150, "queued", None),
            (100, "resident", "cell"),
        ], resumed_ago_s


def test_a_wait_that_was_given_up_leaves_the_kernel_freed(told):
    answer = told(
        [event(300, "park", cause="room"), event(100, "wait", outcome="given-up", waited_s=50.0)],
        [kernel()],
        [present(Residency.PARKED, 300)],
    )
    assert lanes(answer)["k"][-2:] == [(150, "queued", None), (100, "parked", "room")]


def test_the_present_has_the_last_word_and_a_move_under_way_changes_nothing_yet(told):
    waiting = told([event(300, "park", cause="room")], [kernel()], [present(Residency.QUEUED, 20)])
    assert lanes(waiting)["k"][-1] == (20, "queued", None)
    moving = told([], [kernel()], [present(Residency.RESUMING, 1)])
    assert lanes(moving)["k"][-1] == (300, "parked", "room")


def test_a_kernel_that_moved_to_another_gpu_leaves_the_lane_of_the_first(told):
    answer = told(
        [
            event(300, "park", cause="room", gpus=GPU),
            event(100, "resume", cause="cell", gpu=OTHER_GPU, gpus=OTHER_GPU, from_gpu=GPU),
        ],
        [kernel(gpus=OTHER_GPU)],
        [present(gpus=(OTHER_GPU,))],
    )
    assert lanes(answer)["k"] == [(3600, "resident", None), (300, "parked", "room"), (100, "none", "cell")]


def test_a_kernel_that_was_restarted_while_it_was_freed_is_not_freed_any_more(told):
    answer = told(
        [event(1800, "park", cause="room"), event(900, "gone"), event(300, "park", cause="idle")],
        [kernel()],
        [present(Residency.PARKED, 300)],
    )
    assert lanes(answer)["k"][1:] == [
        (1800, "parked", "room"),
        (900, "resident", None),
        (300, "parked", "idle"),
    ]


def test_a_kernel_that_ended_ends_its_lane_and_one_from_before_the_window_has_none(told):
    answer = told([], [kernel(ended=NOW - 60), kernel("old", ended=NOW - 7200)])
    assert lanes(answer) == {"k": [(3600, "resident", None), (60, "none", None)]}


@pytest.mark.parametrize("ledger", ["missing", "empty"])
def test_a_controller_that_has_written_nothing_yet_tells_what_it_knows(tmp_path, ledger):
    path = tmp_path / "ledger.sqlite"
    if ledger == "empty":
        path.touch()
    batch = Batch(NOW, [event(60, "park", cause="asked", outcome="ok", duration_s=1.0)], {"k": kernel()})
    past = Past(path, Window(NOW - 3600, NOW), [batch], [present(Residency.PARKED, 60)])
    answer = past_json(past, GPUS, OWN_USER)
    assert lanes(answer)["k"][-1][1] == "parked"
    assert not (tmp_path / "ledger.sqlite-wal").exists()


def test_what_is_not_written_yet_counts_and_nothing_counts_twice(told):
    rows = [event(1800, "park", cause="room")]
    unwritten = (
        Batch(NOW, rows),
        Batch(NOW, [event(60, "resume", cause="asked")], {"new": kernel("new", NOW - 9)}),
    )
    answer = told(rows, [kernel()], [present()], unwritten=unwritten)
    assert lanes(answer)["k"] == [
        (3600, "resident", None),
        (1800, "parked", "room"),
        (60, "resident", "asked"),
    ]
    assert lanes(answer)["new"][0] == (9, "resident", None)


def test_other_users_are_counts_without_names_or_ids(told):
    answer = told(
        [event(1800, "park", "uid-2/secret", user="uid-2", cause="room")],
        [kernel("uid-1/k"), kernel("uid-2/secret", user="uid-2")],
        [present(name="uid-1/k"), present(Residency.PARKED, 1800, "uid-2/secret", "uid-2")],
        identity=Identity("uid-1", "ana"),
    )
    assert lanes(answer) == {"k": [(3600, "resident", None)]}
    others = answer["gpus"][0]["others"]
    assert (others["resident"][0], others["parked"][0]) == (1, 0)
    assert (others["resident"][-1], others["parked"][-1]) == (0, 1)
    assert "secret" not in str(answer)


def test_figures_are_means_of_each_step_and_null_where_no_controller_looked(told):
    samples = [SampleRow(int(NOW) - 80, GPU, 4, 10.0), SampleRow(int(NOW) - 70, GPU, 6, None)]
    answer = told([], samples=samples, seconds=28800)
    gpu = answer["gpus"][0]
    assert answer["step_s"] == 80.0 and len(gpu["used_bytes"]) == 360
    assert gpu["used_bytes"][-1] == 5 and gpu["utilization_percent"][-1] == 10.0
    assert gpu["used_bytes"][0] is None


def test_the_controller_answers_with_what_has_just_happened(node, shim, machine, wait_until, monkeypatch):
    monkeypatch.setattr(recorder, "SAMPLED_EVERY_S", 1)
    controller = node(nvml=FakeNvml(600 * MIB), history=HistoryOptions(machine.folder / "ledger.sqlite"))
    shim("k1", resident=300 * MIB)
    assert controller.ask("POST", "/kernels/k1/park", {})[0] == 200

    def past():
        status, answer = checked("GET", "/past", controller.ask("GET", "/past?seconds=600"))
        return answer if status == 200 else None

    wait_until(lambda: past())
    gpu = next(each for each in past()["gpus"] if each["lanes"])
    assert [each["state"] for each in gpu["lanes"][0]["changes"]] == ["resident", "parked"]
    assert gpu["lanes"][0]["changes"][-1]["cause"] == "asked"
    assert abs(gpu["lanes"][0]["changes"][-1]["at"] - time.time()) < 30
    wait_until(lambda: any(each is not None for gpu in past()["gpus"] for each in gpu["used_bytes"]))
    for query in ("seconds=59", "seconds=28801", "seconds=x", "hours=1"):
        assert controller.ask("GET", f"/past?{query}")[0] == 400


def test_without_a_ledger_there_is_no_past(node):
    assert node().ask("GET", "/past")[0] == 409
