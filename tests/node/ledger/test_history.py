"""What the controller remembers of what happened: in the ledger, and as the report tells it."""

from __future__ import annotations

import csv
import getpass
import io
import json
import os
import sqlite3
import time
from contextlib import closing

import pytest
from api_answers import checked
from fake_shim import BUSY, MIB

from jupyter_affinode import environment
from jupyter_affinode.cli import main
from jupyter_affinode.node.ledger import recorder
from jupyter_affinode.node.ledger import writer as ledger_module
from jupyter_affinode.node.ledger.store import Batch, LedgerStore
from jupyter_affinode.node.metrics.history_options import HistoryOptions
from jupyter_affinode.node.state.records.kernel import Account, KernelRecord
from jupyter_affinode.settings.policy import GIB

ME = getpass.getuser()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """What happens is written at the next look."""
    monkeypatch.setattr(ledger_module, "FLUSH_EVENTS_EVERY_S", 0.0)
    monkeypatch.setattr(ledger_module, "FLUSH_EVERY_S", 0.0)
    monkeypatch.setattr(ledger_module, "FLUSH_QUIET_EVERY_S", 0.0)
    monkeypatch.setattr(ledger_module, "CLOSE_WAIT_S", 30.0)


@pytest.fixture
def path(machine):
    """Where the ledger is."""
    return machine.folder / "history" / "ledger.sqlite"


def rows(path, query):
    """What the file says; nothing if it is not there yet."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError:  # no table yet
            return []


def test_parks_resumes_waits_and_refusals_are_written_with_their_reasons(node, shim, path, wait_until):
    machine = node(history=HistoryOptions(path))
    kernel = shim("k1", resident=300 * MIB)
    assert machine.ask("POST", "/kernels/k1/park", {})[0] == 200
    kernel.touch()
    wait_until(lambda: machine.kernel("k1")["residency"] == "resident")
    kernel.park_status = BUSY
    assert machine.ask("POST", "/kernels/k1/park", {})[0] == 409
    kernel.park_status = 0
    assert machine.ask("POST", "/kernels/k1/park", {})[0] == 200
    assert machine.ask("POST", "/kernels/k1/resume", {})[0] == 200
    # A look at the page may end a wait before the reply ends the resume.
    wait_until(lambda: len(rows(path, "SELECT * FROM events WHERE kind IN ('wait', 'resume')")) == 4)
    told = rows(path, "SELECT kind, cause, outcome, depth FROM events WHERE outcome <> 'busy' ORDER BY at")
    assert [event for event in told if event[0] != "wait"] == [
        ("park", "asked", "ok", "memory"),
        ("resume", "cell", "ok", "memory"),
        ("park", "asked", "ok", "memory"),
        ("resume", "asked", "ok", "memory"),
    ]
    assert ("wait", "", "served", "") in told
    assert rows(path, "SELECT DISTINCT kind, cause FROM events WHERE outcome = 'busy'") == [("park", "asked")]
    for bytes_, user, gpu, duration in rows(
        path,
        "SELECT bytes, user, gpu, duration_s FROM events WHERE kind IN ('park', 'resume') AND outcome = 'ok'",
    ):
        assert (
            (bytes_, user) == (300 * MIB, f"uid-{os.getuid()}") and gpu.startswith("GPU-") and duration >= 0
        )
    assert rows(path, "SELECT name FROM users") == [(ME,)]


def test_a_name_of_any_bytes_is_text_that_every_file_takes():
    account = Account(owner="uid-7", name=os.fsdecode(b"jos\xe9"))
    assert recorder.owner_name(KernelRecord("k", account)) == "jos?"


def test_a_user_with_ever_new_kernels_has_only_so_many_written(node, shim, path, wait_until, monkeypatch):
    monkeypatch.setattr(recorder, "ROWS_AT_ONCE", 3.0)
    monkeypatch.setattr(recorder, "ROWS_PER_S", 1e-6)
    machine = node(history=HistoryOptions(path))
    for number in range(6):
        shim(f"k{number}", resident=MIB)
    wait_until(lambda: len(machine.kernels()) == 6)
    wait_until(lambda: len(rows(path, "SELECT * FROM kernels")) == 3)
    assert machine.ask("POST", "/kernels/k5/park", {})[0] == 200
    wait_until(lambda: rows(path, "SELECT * FROM usage"))
    node.stop()
    assert len(rows(path, "SELECT * FROM kernels")) == 3 and rows(path, "SELECT * FROM events") == []


def test_a_user_has_only_so_many_sums_a_day_whatever_gpus_pages_name(
    node, shim, path, wait_until, monkeypatch
):
    """Sums are kept when the file is too large, and would displace other users' events."""
    monkeypatch.setattr(recorder, "SUMS_A_DAY_MAX", 1)
    monkeypatch.setattr(recorder, "LOOK_EVERY_S", 0.05)
    node(history=HistoryOptions(path))
    kernel = shim("k", resident=MIB)
    sums = "SELECT count(*), sum(held_byte_s) FROM usage"
    wait_until(lambda: rows(path, sums))
    for number in range(3):
        before = rows(path, sums)[0][1] or 0
        kernel.page.memory = {bytes([number]) * 16: [MIB, 0, 0]}
        kernel.page.write()
        wait_until(lambda before=before: (rows(path, sums)[0][1] or 0) > before + 0.3 * MIB)
    node.stop()
    assert rows(path, "SELECT count(*), sum(gpu = '') FROM usage") == [(2, 1)]


def test_a_kernel_without_host_memory_to_go_to_is_a_refusal(node, shim, path, wait_until):
    machine = node(history=HistoryOptions(path), host_reserve_bytes=1 << 60)
    shim("k1", resident=300 * MIB)
    assert machine.ask("POST", "/kernels/k1/park", {})[0] == 409
    wait_until(lambda: rows(path, "SELECT kind, outcome FROM events") == [("refusal", "no-host-memory")])
    status, answer = checked("GET", "/report", machine.ask("GET", "/report"))
    assert status == 200
    assert answer["refusals"] == [{"of": "park", "reason": "no-host-memory", "count": 1}]


def test_memory_is_counted_where_it_is_and_a_later_controller_goes_on_counting(node, path, shim, wait_until):
    def held():
        return rows(path, "SELECT sum(held_byte_s), sum(used_byte_s), sum(given_back_byte_s) FROM usage")

    def measured():
        return rows(path, "SELECT sum(seconds) FROM measured")[0][0]

    machine = node(history=HistoryOptions(path))
    kernel = shim("k1", resident=GIB, busy=True)
    wait_until(lambda: held() and held()[0][1])
    kernel.page.calls_in_flight = 0
    kernel.page.write()
    assert machine.ask("POST", "/kernels/k1/park", {})[0] == 200
    wait_until(lambda: held()[0][2])
    node.stop()
    before, measured_before = held()[0], measured()
    assert 0 < before[1] <= before[0]
    assert before[0] + before[2] <= measured_before * GIB * 1.0001
    node(history=HistoryOptions(path))
    shim("k1", parked=GIB)
    wait_until(lambda: held()[0][2] > before[2])
    node.stop()
    after = held()[0]
    assert after[:2] == before[:2]
    assert after[2] - before[2] <= (measured() - measured_before) * GIB * 1.0001
    assert len(rows(path, "SELECT * FROM kernels")) == 1


def test_controllers_that_are_killed_count_nothing_twice(machine, shim, wait_until):
    """Real ones, killed as soon as something was written; each shim is another process of the same kernel."""
    path, began, sums = machine.socket.with_name("ledger.sqlite"), time.monotonic(), [0.0]

    def held():
        return (rows(path, "SELECT coalesce(sum(held_byte_s), 0) FROM usage") or [(0.0,)])[0][0]

    for _ in range(2):
        controller = machine.start_controller("--settle=0.1", patient=True)
        shim("k1", resident=GIB)
        wait_until(lambda: held() > sums[-1])
        controller.kill()
        controller.wait()
        sums.append(held())
    assert sums[-1] <= (time.monotonic() - began) * GIB
    assert rows(path, "SELECT count(*) FROM kernels") == [(1,)]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("with_names", [False, True])
def test_names_and_paths_of_notebooks_are_written_only_where_that_was_turned_on(
    node, shim, path, wait_until, with_names
):
    machine = node(history=HistoryOptions(path, with_names=with_names))
    description = {"name": "Python 3", "path": "secret/plan.ipynb", "server": "http://x"}
    assert machine.ask("PUT", "/kernels/k1", description)[0] == 200
    shim("k1", resident=300 * MIB)
    wait_until(lambda: rows(path, "SELECT * FROM kernels"))
    expected = ("Python 3", "secret/plan.ipynb", "http://x") if with_names else (None, None, None)
    assert rows(path, "SELECT name, path, server FROM kernels") == [expected]
    files = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert (b"secret" in files) is with_names


# ---- the report


def test_the_report_is_the_same_from_a_controller_and_from_its_file(node, machine, shim, wait_until, capsys):
    path = machine.socket.with_name("ledger.sqlite")
    node(history=HistoryOptions(path))
    kernel = shim("k1", resident=300 * MIB)
    assert machine.ask("POST", "/kernels/k1/park", {})[0] == 200
    kernel.touch()
    wait_until(lambda: len(rows(path, "SELECT * FROM events WHERE kind IN ('wait', 'resume')")) == 2)
    live = json.loads(machine.affinode("report", "--json").stdout)
    node.stop()
    left = json.loads(machine.affinode("report", "--json").stdout)
    for answer in (live, left):
        (row,) = answer["rows"]
        assert (row["user"], row["parks"], row["resumes"], row["waits"]) == (ME, 1, 1, 1)
        assert row["held_gib_hours"] >= row["used_gib_hours"] >= 0
        assert row["waited_p50_s"] == row["waited_p95_s"] == row["waited_most_s"] >= 0
    assert left["measured_hours"] >= live["measured_hours"] > 0
    assert main(["report", "--ledger", str(path), "--csv", "--by", "gpu"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(line["gpu"][:4], line["parks"]) for line in lines] == [("GPU-", "1")]
    assert main(["report", "--ledger", str(path), "--by", "day", "--since", "1d"]) == 0
    text = capsys.readouterr().out
    assert "FREED" in text and "Measured for" in text


def test_where_none_runs_an_administrator_is_told_what_the_machines_controller_left(
    path, monkeypatch, capsys
):
    store = LedgerStore(path)
    store.write(Batch(0.0, users={"uid-7": "alice"}))
    store.close()
    monkeypatch.setattr(environment, "NODE_LEDGER", path)
    monkeypatch.setattr(environment, "NODE_SOCKET", path.with_name("none.sock"))
    monkeypatch.delenv(environment.SOCKET, raising=False)
    monkeypatch.setenv(environment.FOLDER, str(path.parent))
    monkeypatch.setattr(environment, "TEMPORARY", path.parent)  # one of ours may run in the usual folder
    assert main(["report"]) == 0
    assert "Measured for 0.0 h" in capsys.readouterr().out


def test_a_ledger_that_cannot_be_written_is_told_and_stops_no_move(node, shim, path, wait_until):
    path.parent.write_text("a file where a folder should be")
    machine = node(history=HistoryOptions(path))
    kernel = shim("k1", resident=300 * MIB)
    wait_until(lambda: machine.ask("GET", "/node")[1]["history"]["problem"])
    assert machine.ask("POST", "/kernels/k1/park", {})[0] == 200
    kernel.touch()
    wait_until(lambda: machine.kernel("k1")["residency"] == "resident")
    assert checked("GET", "/node", machine.ask("GET", "/node"))[1]["history"]["kept"] is True
    assert checked("GET", "/report", machine.ask("GET", "/report"))[0] == 409
    assert "No history is written" in machine.affinode("status").stdout


def test_a_controller_without_history_says_so(node, machine):
    node()
    status, answer = checked("GET", "/report", machine.ask("GET", "/report"))
    assert (status, answer["error"]) == (409, "no-ledger")


@pytest.mark.parametrize(
    "query",
    ["by=kernel", "since=yesterday", "until=2026-02-30", "since=0d", "since=99999999999d", "color=red"],
)
def test_a_question_that_makes_no_sense_is_refused(node, path, query):
    machine = node(history=HistoryOptions(path))
    status, answer = checked("GET", "/report", machine.ask("GET", f"/report?{query}"))
    assert status == 400 and answer["message"]
