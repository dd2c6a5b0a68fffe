"""Reports from the ledger: GPU memory held, used and given back, and waits. Reads, and blocks.

Used by the API (on a thread) and by `jupyter affinode report` where no controller runs.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .schema import MIGRATIONS, user_version
from .store import open_for_reading
from .usage import DAY_S

GIB = 1 << 30
HOUR_S = 3600.0
GROUPS = ("day", "user", "gpu", "account", "job")
DAYS_MAX = 36525
_DAY_OF_EVENT = "CAST(at / 86400 AS INTEGER)"


class ReportRefused(ValueError):
    """An invalid question, or a ledger that cannot be read; the message tells why."""


@dataclass(frozen=True)
class Question:
    """What to report. Days are UTC, both included."""

    since: datetime.date
    until: datetime.date
    by: str = "user"  # one of GROUPS
    user: str | None = None  # this one alone, by name or identity
    only: str | None = None  # what the client may see: this identity's. None: everything

    @classmethod
    def of(
        cls,
        today: datetime.date,
        since: str | None = None,
        until: str | None = None,
        by: str | None = None,
        user: str | None = None,
        only: str | None = None,
    ) -> Question:
        """Make a question from text: days as 2026-01-31, or `since` as "7d", so many days up to `until`. Raises
        ReportRefused.

        Default: the last 30 days by user.
        """
        if by is not None and by not in GROUPS:
            raise ReportRefused(f"a report is by {', '.join(GROUPS)}, not by {by!r}")
        last = _day("until", until) if until else today
        length = (since or "30d")[:-1]
        if (since or "30d").endswith("d") and length.isdecimal() and length.isascii():
            days = int(length) if len(length) < 8 else DAYS_MAX + 1
            if not 1 <= days <= DAYS_MAX or last.toordinal() <= days:
                raise ReportRefused(f"since={since!r}: from 1 to {DAYS_MAX} days")
            first = last - datetime.timedelta(days=days - 1)
        else:
            first = _day("since", since or "")
        if first > last:
            raise ReportRefused(f"{first} is after {last}")
        return cls(first, last, by or "user", user or None, only)


def report(path: Path, question: Question) -> dict[str, Any]:
    """Return the answer, as JSON. Raises ReportRefused."""
    with reading(path) as connection:
        return _Answer(connection, question).as_json()


def audit_rows(path: Path, limit: int) -> list[dict[str, Any]]:
    """Return what administrators did, the newest first, as JSON. Raises ReportRefused."""
    with reading(path) as connection:
        names = ("at", "actor", "place", "program", "action", "kernel_id", "user", "detail", "outcome")
        found = connection.execute(
            "SELECT at, actor, place, program, action, kernel_id, coalesce(name, audit.user), detail, outcome"
            " FROM audit LEFT JOIN users ON users.user = audit.user ORDER BY id DESC LIMIT ?",
            (limit,),
        )
        return [dict(zip(names, row, strict=True)) for row in found]


class NothingWritten(ReportRefused):
    """The ledger is not there yet, or this version of the controller has written nothing to it."""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a ledger as it is at one moment. Raises ReportRefused."""
    try:
        connection = open_for_reading(path)
    except FileNotFoundError:
        raise NothingWritten(f"there is no history yet: no controller has written {path}") from None
    except (OSError, sqlite3.Error) as error:
        raise ReportRefused(f"the ledger cannot be read: {error}") from None
    try:
        if user_version(connection) > len(MIGRATIONS):
            raise ReportRefused(f"{path} was written by a newer version")
        if user_version(connection) < len(MIGRATIONS):
            raise NothingWritten(f"this version of the controller has written nothing to {path} so far")
        connection.execute("BEGIN")  # one picture of all tables
        yield connection
    except sqlite3.Error as error:
        raise ReportRefused(f"the ledger cannot be read: {error}") from None
    finally:
        connection.close()


class _Answer:
    """Puts one report together."""

    def __init__(self, connection: sqlite3.Connection, question: Question):
        self._db = connection
        self._question = question
        self._first = (question.since - datetime.date(1970, 1, 1)).days
        self._last = (question.until - datetime.date(1970, 1, 1)).days
        self._names: dict[str, str] = dict(self._db.execute("SELECT user, name FROM users").fetchall())
        self._users = self._users_asked()

    def as_json(self) -> dict[str, Any]:
        """Return the report."""
        question = self._question
        groups: dict[Any, dict[str, Any]] = {}
        self._add_usage(groups)
        self._add_counts(groups)
        waits = self._add_waits(groups)
        rows = [
            {
                question.by: self._shown(key),
                **{name: row.get(name, 0) for name in _COUNTS},
                **_waited(waits.get(key, [])),
            }
            for key, row in sorted(groups.items())
        ]
        everything: dict[str, Any] = {name: sum(row[name] for row in rows) for name in _COUNTS}
        everything |= _waited([length for lengths in waits.values() for length in lengths])
        (measured,) = self._db.execute(
            "SELECT coalesce(sum(seconds), 0) FROM measured WHERE day BETWEEN ? AND ?",
            (self._first, self._last),
        ).fetchone()
        return {
            "since": question.since.isoformat(),
            "until": question.until.isoformat(),
            "by": question.by,
            "measured_hours": round(measured / HOUR_S, 4),
            "rows": rows,
            "total": everything,
            "refusals": self._refusals(),
        }

    def _users_asked(self) -> list[str] | None:
        """Return the identities to report on; None for all."""
        question = self._question
        if question.user is None:
            return None if question.only is None else [question.only]
        named = [user for user, name in self._names.items() if question.user in (user, name)]
        return [user for user in named if question.only in (None, user)]

    def _where(self, table: str) -> tuple[str, list[Any]]:
        """Return the condition on day and user, with its values."""
        if table == "usage":
            condition, values = "day BETWEEN ? AND ?", [self._first, self._last]
        else:
            condition, values = "at >= ? AND at < ?", [self._first * DAY_S, (self._last + 1) * DAY_S]
        if self._users is None:
            return condition, values
        marks = ", ".join("?" * len(self._users))
        return f"{condition} AND user IN ({marks})", [*values, *self._users]

    def _group(self, table: str) -> str:
        return _DAY_OF_EVENT if self._question.by == "day" and table == "events" else self._question.by

    def _add_usage(self, groups: dict[Any, dict[str, Any]]) -> None:
        where, values = self._where("usage")
        group = self._group("usage")
        for key, held, used, given_back in self._db.execute(
            f"SELECT {group}, sum(held_byte_s), sum(used_byte_s), sum(given_back_byte_s) FROM usage"
            f" WHERE {where} GROUP BY 1",
            values,
        ):
            row = groups.setdefault(key, {})
            row["held_gib_hours"] = _gib_hours(held)
            row["used_gib_hours"] = _gib_hours(used)
            row["idle_gib_hours"] = _gib_hours(max(held - used, 0.0))
            row["given_back_gib_hours"] = _gib_hours(given_back)

    def _add_counts(self, groups: dict[Any, dict[str, Any]]) -> None:
        where, values = self._where("events")
        group = self._group("events")
        for key, parks, resumes, refusals, denied in self._db.execute(
            f"SELECT {group}, sum(kind = 'park' AND outcome = 'ok'), sum(kind = 'resume' AND outcome = 'ok'),"
            " sum(kind IN ('park', 'refusal') AND outcome <> 'ok'), sum(kind = 'room' AND outcome = 'denied')"
            f" FROM events WHERE {where} GROUP BY 1",
            values,
        ):
            row = groups.setdefault(key, {})
            row |= {"parks": parks, "resumes": resumes, "refusals": refusals, "denied": denied}

    def _add_waits(self, groups: dict[Any, dict[str, Any]]) -> dict[Any, list[float]]:
        where, values = self._where("events")
        waits: dict[Any, list[float]] = {}
        for key, waited in self._db.execute(
            f"SELECT {self._group('events')}, waited_s FROM events WHERE kind = 'wait' AND waited_s IS NOT NULL"
            f" AND {where}",
            values,
        ):
            waits.setdefault(key, []).append(waited)
            groups.setdefault(key, {})
        return waits

    def _refusals(self) -> list[dict[str, Any]]:
        where, values = self._where("events")
        found = self._db.execute(
            "SELECT kind, outcome, count(*) FROM events WHERE ((kind IN ('park', 'refusal', 'resume')"
            " AND outcome <> 'ok') OR (kind = 'room' AND outcome = 'denied'))"
            f" AND {where} GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2",
            values,
        )
        kinds = {"refusal": "park"}
        return [{"of": kinds.get(kind, kind), "reason": slug, "count": count} for kind, slug, count in found]

    def _shown(self, key: Any) -> str:
        if self._question.by == "day":
            return (datetime.date(1970, 1, 1) + datetime.timedelta(days=int(key))).isoformat()
        if self._question.by == "user":
            name = self._names.get(key, key)
            is_shared = sum(other == name for other in self._names.values()) > 1
            return f"{name} ({key})" if is_shared else str(name)
        return str(key)


_COUNTS = (
    "held_gib_hours",
    "used_gib_hours",
    "idle_gib_hours",
    "given_back_gib_hours",
    "parks",
    "resumes",
    "refusals",
    "denied",
)
COLUMNS = (*_COUNTS, "waits", "waited_s", "waited_p50_s", "waited_p95_s", "waited_most_s")


def _waited(lengths: Sequence[float]) -> dict[str, Any]:
    """Return how long a group waited; without waits no percentiles."""
    ordered = sorted(lengths)
    return {
        "waits": len(ordered),
        "waited_s": round(sum(ordered), 3),
        "waited_p50_s": _percentile(ordered, 0.5),
        "waited_p95_s": _percentile(ordered, 0.95),
        "waited_most_s": _percentile(ordered, 1.0),
    }


def _percentile(ordered: Sequence[float], fraction: float) -> float | None:
    """Return the smallest value that at least this fraction of all does not exceed."""
    if not ordered:
        return None
    return round(ordered[max(math.ceil(fraction * len(ordered)) - 1, 0)], 3)


def _gib_hours(byte_seconds: float) -> float:
    return byte_seconds / GIB / HOUR_S


def _day(name: str, text: str) -> datetime.date:
    try:
        if len(text) != len("2026-01-31"):
            raise ValueError
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise ReportRefused(f"{name}={text!r} is no day; write it as 2026-01-31") from None


def csv_rows(answer: dict[str, Any]) -> Iterable[list[str]]:
    """Yield a report as a table: names of columns, then a row each."""
    yield [answer["by"], *COLUMNS]
    for row in answer["rows"]:
        yield [row[answer["by"]], *("" if row[name] is None else _figure(row[name]) for name in COLUMNS)]


def _figure(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
