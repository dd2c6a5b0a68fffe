"""Traces: one record for each cell that used the GPU, as CSV (`.csv`, with a header) or as JSON Lines.

| field | | |
|---|---|---|
| `session` | needed | the kernel: any text, the same in all its records |
| `start_s` | needed | when the cell called CUDA first, in seconds from any moment |
| `gpu_s` | needed | how long it computed, waits for the GPU left out |
| `bytes` | needed | the GPU memory that its kernel held from then on |
| `cpu_s` | 0 | how long it ran on without the GPU |
| `compute_share` | as `--compute-share` | the part of a GPU's compute that the cell uses when it is alone there |
| `user` | the session | the user, who did not begin the next session before this one had ended |
| `session_start_s`, `session_end_s` | first and last cell | when the kernel was started and shut down |

What is replayed are think times: from the end of one cell to the start of the next (0 where they overlap, as with
"run all"). So cells come later where their forerunners wait longer than they did when the trace was made.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .model.sessions import Cell, Session
from .workload import LONGEST_S

NEEDED = ("session", "start_s", "gpu_s", "bytes")
OPTIONAL = ("cpu_s", "compute_share", "user", "session_start_s", "session_end_s")


class TraceError(ValueError):
    """A line that is not a record; the message names the file and the line."""


@dataclass(frozen=True)
class _Record:
    line: int
    session: str
    start_s: float
    gpu_s: float
    bytes: int
    cpu_s: float
    compute_share: float | None
    user: str
    session_start_s: float | None
    session_end_s: float | None


def read_trace(path: Path) -> list[Session]:
    """Return the sessions of a trace. Raises OSError and TraceError."""
    with open(path, encoding="utf-8", newline="") as file:
        try:
            rows = _csv_rows(file, path) if path.suffix.lower() == ".csv" else _json_rows(file, path)
            return sessions_of(rows, path)
        except UnicodeDecodeError as error:
            raise TraceError(f"{path} is not text: {error}") from None


def sessions_of(rows: Iterable[tuple[int, Mapping[str, Any]]], path: Path) -> list[Session]:
    """Return the sessions of numbered records, as the table above has them. Raises TraceError."""
    records = [_record(row, f"{path}:{number}", number) for number, row in rows]
    if not records:
        raise TraceError(f"{path} has no records")
    by_session: dict[str, list[_Record]] = {}
    for record in records:
        by_session.setdefault(record.session, []).append(record)
    zero = min(
        record.start_s if record.session_start_s is None else record.session_start_s for record in records
    )
    return [_session(name, each, zero, path) for name, each in by_session.items()]


def _json_rows(lines: Iterable[str], path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise TraceError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise TraceError(f"{path}:{number}: a record is a JSON object, not {type(row).__name__}")
        yield number, row


def _csv_rows(lines: Iterable[str], path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(lines, strict=True)
    try:
        missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            raise TraceError(f"{path}:1: the header lacks {', '.join(missing)}")
        for row in reader:
            if row.pop(None, None) is not None:
                raise TraceError(f"{path}:{reader.line_num}: more fields than the header names")
            yield reader.line_num, {name: value for name, value in row.items() if value not in (None, "")}
    except csv.Error as error:
        raise TraceError(f"{path}:{reader.line_num}: {error}") from None


def _record(row: Mapping[str, Any], where: str, line: int) -> _Record:
    unknown = [name for name in row if name not in NEEDED + OPTIONAL]
    if unknown:
        raise TraceError(f"{where}: unknown field {', '.join(map(repr, unknown))}")
    missing = [name for name in NEEDED if name not in row]
    if missing:
        raise TraceError(f"{where}: {', '.join(missing)} missing")
    session = str(row["session"])
    size = _number(row, "bytes", where)
    if size < 1 or size != int(size):
        raise TraceError(f"{where}: bytes must be a whole number and at least 1, not {row['bytes']!r}")
    times = {name: _number(row, name, where) for name in row if name.endswith("_s")}
    for name in ("gpu_s", "cpu_s"):
        if times.get(name, 0.0) < 0:
            raise TraceError(f"{where}: {name} must not be negative, not {row[name]!r}")
        if times.get(name, 0.0) > LONGEST_S:
            raise TraceError(f"{where}: {name} must be at most {LONGEST_S:.0f} s, not {row[name]!r}")
    share = _number(row, "compute_share", where) if "compute_share" in row else None
    if share is not None and not 0 < share <= 1:
        raise TraceError(f"{where}: compute_share must be more than 0 and at most 1, not {share:g}")
    return _Record(
        line,
        session,
        times["start_s"],
        times["gpu_s"],
        int(size),
        times.get("cpu_s", 0.0),
        share,
        str(row.get("user", session)),
        times.get("session_start_s"),
        times.get("session_end_s"),
    )


def _number(row: Mapping[str, Any], name: str, where: str) -> float:
    value = row[name]
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise TraceError(f"{where}: {name} must be a number, not {value!r}")
    return number


def _session(name: str, records: list[_Record], zero: float, path: Path) -> Session:
    records.sort(key=lambda record: (record.start_s, record.line))
    given = [record.session_start_s for record in records if record.session_start_s is not None]
    start_s = min(given, default=records[0].start_s)
    if start_s > records[0].start_s:
        raise TraceError(f"{path}:{records[0].line}: session {name} has a cell before its start")
    users = {record.user for record in records}
    if len(users) > 1:
        raise TraceError(f"{path}:{records[0].line}: session {name} is of several users")
    now, cells = start_s, []
    for record in records:
        think_s = max(record.start_s - now, 0.0)
        cells.append(Cell(think_s, record.gpu_s, record.bytes, record.cpu_s, record.compute_share))
        now = max(now, record.start_s) + record.gpu_s + record.cpu_s
    ends = [record.session_end_s for record in records if record.session_end_s is not None]
    return Session(name, users.pop(), start_s - zero, tuple(cells), max(max(ends, default=now) - now, 0.0))
