"""Reports: one user's figures, of which days, and no other user's."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_affinode.cli.machine.report import report_text
from jupyter_affinode.node.ledger.report import Question, ReportRefused, csv_rows, report
from jupyter_affinode.node.ledger.store import Batch, EventRow, LedgerStore
from jupyter_affinode.node.ledger.usage import DAY_S, ByteSeconds, Usage, UsageKey

GIB_HOUR = float(1 << 30) * 3600
TODAY = datetime.date(1970, 1, 1) + datetime.timedelta(days=20000)


def day(offset):
    """A day, as text."""
    return (TODAY + datetime.timedelta(days=offset)).isoformat()


@pytest.fixture
def ledger(tmp_path):
    """Two users over three days; Alice's name is Bob's, too."""
    tmp_path.chmod(0o700)
    usage = Usage()
    for offset, user, gpu, held in ((-2, "uid-1", "G", 1.0), (-1, "uid-1", "H", 2.0), (0, "uid-2", "G", 4.0)):
        key = UsageKey(20000 + offset, user, gpu)
        usage.by_key[key] = ByteSeconds(held * GIB_HOUR, held / 4 * GIB_HOUR, held * 10 * GIB_HOUR)
        usage.measured_s[20000 + offset] = 3600.0
    midnight = 20000 * DAY_S
    events = [
        EventRow(midnight - 0.001, "park", "k", "uid-1", "G", "room", "ok"),
        EventRow(midnight, "park", "k", "uid-2", "G", "room", "ok"),
        EventRow(midnight, "park", "k", "uid-2", "G", "room", "busy"),
        EventRow(midnight, "refusal", "k", "uid-2", "G", "", "no-host-memory"),
        EventRow(midnight, "room", "k", "uid-2", "G", "", "denied"),
        *(EventRow(midnight, "wait", "k", "uid-2", "G", waited_s=float(n)) for n in range(1, 101)),
    ]
    store = LedgerStore(tmp_path / "l")
    store.write(Batch(midnight, events, usage=usage, users={"uid-1": "alice", "uid-2": "bob"}))
    store.close()
    return tmp_path / "l"


def test_by_user(ledger):
    answer = report(ledger, Question.of(TODAY))
    alice, bob = answer["rows"]
    assert [alice["user"], bob["user"]] == ["alice", "bob"]
    assert (alice["held_gib_hours"], alice["used_gib_hours"], alice["idle_gib_hours"]) == (3.0, 0.75, 2.25)
    assert alice["given_back_gib_hours"] == 30.0
    assert (alice["parks"], bob["parks"], bob["refusals"], bob["denied"]) == (1, 1, 2, 1)
    assert (bob["waits"], bob["waited_p50_s"], bob["waited_p95_s"], bob["waited_most_s"]) == (
        100,
        50.0,
        95.0,
        100.0,
    )
    assert alice["waits"] == 0 and alice["waited_p95_s"] is None
    assert answer["total"]["held_gib_hours"] == 7.0
    assert answer["measured_hours"] == 3.0
    assert {(each["of"], each["reason"]) for each in answer["refusals"]} == {
        ("park", "busy"),
        ("park", "no-host-memory"),
        ("room", "denied"),
    }


def test_by_day_and_by_gpu(ledger):
    days = report(ledger, Question.of(TODAY, by="day"))["rows"]
    assert [(row["day"], row["held_gib_hours"], row["parks"]) for row in days] == [
        (day(-2), 1.0, 0),
        (day(-1), 2.0, 1),
        (day(0), 4.0, 1),
    ]
    gpus = report(ledger, Question.of(TODAY, by="gpu"))["rows"]
    assert [(row["gpu"], row["held_gib_hours"]) for row in gpus] == [("G", 5.0), ("H", 2.0)]


def test_both_days_of_a_period_are_in_it(ledger):
    def held(since, until):
        return report(ledger, Question.of(TODAY, since=since, until=until))["total"]["held_gib_hours"]

    assert held(day(-2), day(-2)) == 1.0
    assert held(day(-1), day(0)) == 6.0
    assert held("1d", None) == 4.0
    assert held("2d", day(-1)) == 3.0
    with pytest.raises(ReportRefused):
        held(day(0), day(-1))


@pytest.mark.parametrize("user", [None, "bob", "uid-2", "alice", "uid-1", "nobody", "' OR 1=1 --"])
def test_a_user_sees_their_own_figures_alone(ledger, user):
    answer = report(ledger, Question.of(TODAY, user=user, only="uid-1"))
    assert {row["user"] for row in answer["rows"]} <= {"alice"}
    assert answer["total"]["held_gib_hours"] == (3.0 if user in (None, "alice", "uid-1") else 0.0)
    assert answer["total"]["waits"] == 0
    assert answer["refusals"] == []


def test_one_user_of_all(ledger):
    answer = report(ledger, Question.of(TODAY, user="bob"))
    assert [row["user"] for row in answer["rows"]] == ["bob"]
    assert answer["total"]["parks"] == 1


def test_two_of_one_name_are_told_apart(ledger):
    store = LedgerStore(ledger)
    store.write(Batch(20000.0 * DAY_S, users={"uid-2": "alice"}))
    store.close()
    answer = report(ledger, Question.of(TODAY))
    assert [row["user"] for row in answer["rows"]] == ["alice (uid-1)", "alice (uid-2)"]


def test_a_table_and_csv_have_every_row(ledger):
    answer = report(ledger, Question.of(TODAY))
    text = report_text(answer)
    assert "bob" in text and "100 s" in text and "Measured for 3.0 h" in text and "park busy 1" in text
    header, alice, bob = csv_rows(answer)
    assert header[:2] == ["user", "held_gib_hours"] and alice[:2] == ["alice", "3"] and bob[0] == "bob"
    assert len(header) == len(alice) == len(bob)


def test_little_is_not_nothing(ledger):
    store = LedgerStore(ledger)
    usage = Usage({UsageKey(20000, "uid-3", "G"): ByteSeconds(1.0, 0.0, 0.0)})
    store.write(Batch(20000.0 * DAY_S, usage=usage, users={"uid-3": "carol"}))
    store.close()
    (line,) = [
        line for line in report_text(report(ledger, Question.of(TODAY))).splitlines() if "carol" in line
    ]
    assert line.split()[1:5] == ["<0.01", "0.00", "<0.01", "0.00"]


def test_nothing_happened_is_a_report_too(tmp_path):
    tmp_path.chmod(0o700)
    LedgerStore(tmp_path / "l").close()
    answer = report(tmp_path / "l", Question.of(TODAY))
    assert answer["rows"] == [] and answer["total"]["held_gib_hours"] == 0
    assert "Measured for 0.0 h" in report_text(answer)


@pytest.mark.parametrize("content", [None, b"", b"no database " * 1000])
def test_a_file_that_is_no_ledger_is_refused_in_words(tmp_path, content):
    if content is not None:
        (tmp_path / "l").write_bytes(content)
    with pytest.raises(ReportRefused):
        report(tmp_path / "l", Question.of(TODAY))
    assert (tmp_path / "l").exists() == (content is not None)


@given(st.text(max_size=12), st.text(max_size=12), st.text(max_size=6))
def test_any_text_is_a_question_or_refused(since, until, by):
    try:
        question = Question.of(TODAY, since, until, by)
    except ReportRefused:
        return
    assert question.since <= question.until


def test_by_account_and_by_job(tmp_path):
    """What a batch system's own report has beside it: its accounts, and its jobs' numbers."""
    tmp_path.chmod(0o700)
    usage = Usage()
    for account, job, held in (("physics", "7", 1.0), ("physics", "8", 2.0), ("", "", 4.0)):
        key = UsageKey(20000, "user-ana", "G", account, job)
        usage.by_key[key] = ByteSeconds(held * GIB_HOUR, 0.0, 10 * held * GIB_HOUR)
    at = 20000 * DAY_S
    events = [EventRow(at, "park", "k", "user-ana", "G", "room", account="physics", job="8")]
    store = LedgerStore(tmp_path / "l")
    store.write(Batch(at, events, usage=usage, users={"user-ana": "hub:ana"}))
    store.close()
    none, physics = report(tmp_path / "l", Question.of(TODAY, by="account"))["rows"]
    assert (none["account"], physics["account"]) == ("", "physics")
    assert (physics["held_gib_hours"], physics["given_back_gib_hours"], physics["parks"]) == (3.0, 30.0, 1)
    answer = report(tmp_path / "l", Question.of(TODAY, by="job"))
    assert [(row["job"], row["held_gib_hours"], row["parks"]) for row in answer["rows"]] == [
        ("", 4.0, 0),
        ("7", 1.0, 0),
        ("8", 2.0, 1),
    ]
    assert next(iter(csv_rows(answer)))[0] == "job"
    assert "physics" in report_text(report(tmp_path / "l", Question.of(TODAY, by="account")))
