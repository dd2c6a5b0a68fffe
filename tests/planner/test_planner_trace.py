"""Traces: what is read is what was written, and a line that is none is named."""

from __future__ import annotations

import csv
import json

import pytest

from jupyter_affinode.cli import main
from jupyter_affinode.planner.model.machine import GIB
from jupyter_affinode.planner.trace import NEEDED, OPTIONAL, TraceError, read_trace

GOOD = {"session": "a", "start_s": 5, "gpu_s": 2.5, "bytes": GIB}


def written(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_csv_and_json_lines_say_the_same(tmp_path):
    records = [
        {**GOOD, "cpu_s": 1, "user": "p", "session_start_s": 1, "session_end_s": 100},
        {**GOOD, "start_s": 20, "user": "p", "compute_share": 0.25},
        {**GOOD, "session": "b", "start_s": 2},
    ]
    lines = read_trace(written(tmp_path / "t.jsonl", *records))
    with open(tmp_path / "t.csv", "w", newline="") as file:
        table = csv.DictWriter(file, [*NEEDED, *OPTIONAL])
        table.writeheader()
        table.writerows(records)
    assert read_trace(tmp_path / "t.csv") == lines
    a, b = lines
    assert a.start_s == 0 and [cell.think_s for cell in a.cells] == [4, 11.5] and a.end_think_s == 77.5
    assert [cell.compute_share for cell in a.cells] == [None, 0.25]
    assert b.start_s == 1 and b.cells[0].think_s == 0 and b.end_think_s == 0


def test_cells_that_were_queued_follow_at_once(tmp_path):
    (a,) = read_trace(written(tmp_path / "t.jsonl", {**GOOD, "start_s": 7}, GOOD))
    assert [cell.think_s for cell in a.cells] == [0, 0]


def test_few_people_of_a_trace_stand_for_more(tmp_path):
    trace = written(tmp_path / "t.jsonl", GOOD)
    answer = ["plan", "--quiet", "--trace", str(trace), "--users", "3", "--json", str(tmp_path / "a.json")]
    assert main(answer) == 0
    assert json.loads((tmp_path / "a.json").read_text())["answer"]["users"] == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "a JSON object, not list"),
        (json.dumps({"session": "a", "start_s": 1}), "gpu_s, bytes missing"),
        (json.dumps({**GOOD, "gpu_s": "soon"}), "gpu_s must be a number, not 'soon'"),
        (json.dumps({**GOOD, "gpu_s": True}), "gpu_s must be a number"),
        (json.dumps({**GOOD, "gpu_s": -1}), "gpu_s must not be negative"),
        (json.dumps({**GOOD, "gpu_s": 1e300}), "gpu_s must"),
        (json.dumps({**GOOD, "start_s": None}), "start_s must be a number"),
        ('{"session": "a", "start_s": NaN, "gpu_s": 1, "bytes": 1}', "start_s must be a number"),
        (json.dumps({**GOOD, "bytes": 0}), "at least 1"),
        (json.dumps({**GOOD, "bytes": 1.5}), "a whole number"),
        (json.dumps({**GOOD, "gpus": 2}), "unknown field 'gpus'"),
        (json.dumps({**GOOD, "session_start_s": 6}), "a cell before its start"),
        (json.dumps({**GOOD, "user": "other"}), "several users"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, words):
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(GOOD) + "\n\n" + line + "\n")
    with pytest.raises(TraceError, match=words) as refused:
        read_trace(path)
    assert f"{path}:3: " in str(refused.value) or "several users" in words or "before its start" in words
    assert f"{path}:" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "header lacks session, start_s"),
        ("session,start_s,gpu_s,bytes\n", "has no records"),
        ("session,start_s,gpu_s,bytes\na,1,2,3\na,1,2\n", ":3: bytes missing"),
        ("session,start_s,gpu_s,bytes\na,1,2,3,4\n", ":2: more fields"),
        ("session,start_s,gpu_s,bytes\na,1,x,3\n", ":2: gpu_s must be a number, not 'x'"),
        ("session,start_s,gpu_s,bytes,hat\na,1,2,3,4\n", ":2: unknown field 'hat'"),
    ],
)
def test_a_bad_table_is_named(tmp_path, text, words):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=words):
        read_trace(path)


def test_what_is_not_text_is_refused(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not text"):
        read_trace(path)
