"""Traces in the format of NotebookOS, and compute as the limit. All samples here are synthetic."""

from __future__ import annotations

import copy
import json

import pytest
from notebookos_sample import synthetic_template
from small_plans import replay, session

from jupyter_affinode.cli import main
from jupyter_affinode.planner.model.baselines import Reservation, Sharing
from jupyter_affinode.planner.model.machine import GIB, MIB, Machine
from jupyter_affinode.planner.model.sessions import Cell, Session
from jupyter_affinode.planner.notebookos import LEAST_SHARE, TICK_S, read_notebookos
from jupyter_affinode.planner.trace import TraceError

TEMPLATE = {
    "sessions": [
        {
            "id": "a",
            "start_tick": 10,
            "stop_tick": 40,
            "trainings": [
                {
                    "start_tick": 12,
                    "duration_in_ticks": 3,
                    "vram": 4.75,
                    "gpus": 2,
                    "gpu_utilizations": [{"utilization": 8.5}, {"utilization": 4.0}],
                },
                {"start_tick": 16, "duration_in_ticks": 4, "vram": 0.0, "gpu_utilizations": []},
                {
                    "start_tick": 25,
                    "duration_in_ticks": 5,
                    "vram": 0.0,
                    "gpu_utilizations": [{"utilization": 0}],
                },
            ],
        },
        {"id": "no GPU", "start_tick": 0, "stop_tick": 9, "trainings": []},
    ]
}


def written(path, template):
    path.write_text(json.dumps(template))
    return path


def test_a_template_becomes_sessions_of_gpu_cells(tmp_path):
    (found,) = read_notebookos(written(tmp_path / "t.json", TEMPLATE))
    assert found.id == "a" and found.end_think_s == 10 * TICK_S
    first, second = found.cells
    assert first == Cell(2 * TICK_S, 3 * TICK_S, 4_750_000_000, 0.0, pytest.approx(0.125))
    assert second == Cell(10 * TICK_S, 5 * TICK_S, MIB, 0.0, LEAST_SHARE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("sessions"), "no list `sessions`"),
        (lambda t: t["sessions"][0].pop("stop_tick"), "session 1: stop_tick missing"),
        (lambda t: t["sessions"][0]["trainings"][0].update(vram="x"), "training 1: vram must be a number"),
        (lambda t: t["sessions"][0]["trainings"][0].update(gpu_utilizations=3), "must be a list"),
        (lambda t: t["sessions"].pop(0), "has no records"),
    ],
)
def test_what_is_no_template_is_named(tmp_path, change, words):
    template = copy.deepcopy(TEMPLATE)
    change(template)
    with pytest.raises(TraceError, match=words):
        read_notebookos(written(tmp_path / "t.json", template))


@pytest.mark.parametrize(("shares", "took_s"), [((0.3, 0.7), 10.0), ((0.9, 0.6), 15.0)])
def test_cells_slow_each_other_when_they_want_more_than_the_gpu(shares, took_s):
    sessions = [
        Session(str(number), str(number), 0.0, (Cell(0.0, 10.0, GIB, 0.0, share),))
        for number, share in enumerate(shares)
    ]
    outcome = replay(sessions).run()
    assert outcome.ended_s == pytest.approx(took_s)
    assert outcome.slowdown == pytest.approx(took_s / 10)


def test_hours_held_without_computing_are_reclaimable():
    one = session("a", [(10.0, 30.0, 50)], end_think_s=60.0)
    machine = Machine(gpu_bytes=100 * GIB, context_bytes=0)
    assert Reservation(machine, [one]).run().reclaimable_share == pytest.approx(0.7)
    assert Sharing(machine, [one]).run().reclaimable_share == pytest.approx(60 / 90)
    assert replay([one]).run().reclaimable_share == 0


@pytest.mark.parametrize("percent", [8.5, 90.0])
def test_the_answer_says_whether_memory_is_the_limit(tmp_path, capsys, percent):
    path = written(tmp_path / "synthetic.json", synthetic_template(12, percent=percent))
    report = tmp_path / "report.json"
    trace = ["--trace", str(path), "--trace-format", "notebookos"]
    assert main(["plan", *trace, "--json", str(report), "--quiet"]) == 0
    table = capsys.readouterr().out
    assert "RECLAIMABLE" in table
    assert ("memory is not your limit: these cells slow each other down" in table) == (percent == 90.0)
    ways = json.loads(report.read_text())["answer"]["ways"]
    assert ways["affinode"]["reclaimable_share"] == 0 < ways["reservation"]["reclaimable_share"] < 1
