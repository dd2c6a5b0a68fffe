"""`jupyter affinode plan` as users call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_affinode.cli import main
from jupyter_affinode.planner.model.machine import GIB, Speeds, speeds_from_bench

SMALL = ["plan", "--users", "4", "--days", "1", "--quiet"]
WAYS = {"affinode", "sharing", "culling", "reservation"}


def test_an_answer_is_a_table_and_json(tmp_path, capsys):
    assert main([*SMALL, "--set", "idle_timeout_s=60", "--json", str(tmp_path / "a.json")]) == 0
    table = capsys.readouterr().out
    report = json.loads((tmp_path / "a.json").read_text())
    assert set(report["answer"]["ways"]) == WAYS and report["settings"]["idle_timeout_s"] == 60
    assert all(way in table for way in WAYS) and "assumed" in table and "settings: idle_timeout_s=60" in table
    cells = report["answer"]["cells"]
    assert cells and all(way["cells"] == cells for way in report["answer"]["ways"].values())
    held = report["answer"]["without_waits"]
    assert held["affinode"]["gpus"] == 1 and held["reservation"]["gpus"] >= held["culling"]["gpus"] >= 1
    assert "SAVED" in table


def test_the_same_seed_gives_the_same_answer(tmp_path):
    for name in ("a", "b"):
        assert main([*SMALL, "--seed", "7", "--json", str(tmp_path / name)]) == 0
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()
    assert main([*SMALL, "--seed", "8", "--json", str(tmp_path / "c")]) == 0
    assert (
        json.loads((tmp_path / "c").read_text())["answer"]
        != json.loads((tmp_path / "a").read_text())["answer"]
    )


def test_a_search_finds_the_most_people(tmp_path, capsys):
    """Footprints of 30 GiB: four fit beside each other; with us more users do than with a GPU for each."""
    arguments = ["plan", "--quiet", "--days", "1", "--footprint", "30,30", "--search", "20"]
    assert main([*arguments, "--json", str(tmp_path / "a.json")]) == 0
    assert "The most users" in capsys.readouterr().out
    search = json.loads((tmp_path / "a.json").read_text())["search"]
    assert search["ways"]["affinode"]["users"] > search["ways"]["reservation"]["users"] >= 1
    for found in search["ways"].values():
        if found["users"]:
            assert found["tried"][str(found["users"])] and not found["tried"][str(found["users"] + 1)]
            assert found["outcome"]["wait_s"]["p95"] <= 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu-memory", "0.1"], "no room beside one CUDA context"),
        (["--set", "idle_timeout=5"], "there is no setting 'idle_timeout'"),
        (["--set", "idle_timeout_s"], "NAME=VALUE"),
        (["--set", "lot_bytes=1"], "not modelled"),
        (["--set", "quotas=@staff=1GiB"], "knows no groups"),
        (["--trace", "/nowhere/trace.csv"], "/nowhere/trace.csv"),
        (["--busy-share", "0.99"], "is the most"),
        (["--run", "600000,600000", "--break", "1"], "more than 1000 breaks for each cell"),
        (["--bench", "/nowhere.json"], "/nowhere.json"),
    ],
)
def test_what_cannot_be_planned_is_explained_in_one_line(arguments, words, capsys):
    assert main([*SMALL, *arguments]) == 1
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and said.out == ""


def bench_report(tmp_path: Path, **changes):
    def row(name, seconds, size=8 * GIB):
        return {"name": name, "bytes": size, "median_s": seconds}

    rows = [row("first park", 4.0), row("park, all changed", 2.0), row("resume", 1.0)]
    rows += [row("resume", 9.0, GIB)]
    machine = {"gpu": "Card", "date": "2026-01-01"}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"simulated": False, "ours": rows, "machine": machine, **changes}))
    return path


def test_speeds_come_from_a_bench(tmp_path, capsys):
    speeds = speeds_from_bench(bench_report(tmp_path))
    assert speeds.first_park_bytes_per_s == 2 * GIB and speeds.resume_bytes_per_s == 8 * GIB
    assert speeds.wake_s == Speeds().wake_s
    assert main([*SMALL, "--bench", str(tmp_path / "bench.json")]) == 0
    assert "Card, measured on 2026-01-01" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"simulated": True}, "no GPU's performance"),
        ({"ours": []}, "no park and resume"),
        ({"ours": 5}, "not a report"),
    ],
)
def test_a_bench_that_says_nothing_is_refused(tmp_path, capsys, changes, words):
    assert main([*SMALL, "--bench", str(bench_report(tmp_path, **changes))]) == 1
    assert words in capsys.readouterr().err


def test_ctrl_c_cancels():
    """A plan of hours; progress on stderr says that it has begun."""
    command = [sys.executable, "-m", "jupyter_affinode.cli", "plan", "--users", "300", "--gpus", "8"]
    child = subprocess.Popen(
        [*command, "--search", "1", "--ways", "affinode,sharing"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert child.stderr is not None
    assert "affinode" in child.stderr.readline()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130 and out == "" and "cancelled" in err
