"""The ledger's file: opening it wherever it lies, writing batches, forgetting what is old. Blocks.

Used by the ledger's one thread. Every batch is one transaction.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

from ...environment import make_folder
from ...settings.controller import ControllerSettings
from .schema import migrate
from .usage import DAY_S, Usage

BUSY_S = 30.0  # how long another program may keep the file locked before a batch is dropped
NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "fuse.", "9p")
SAMPLES_LAST_S = 9 * 3600.0  # the longest picture is of eight hours
PURGED_SHARE = 0.1  # of the events, when the file is too large
_USERS_SOMEWHERE = " UNION ".join(
    f"SELECT user FROM {table}" for table in ("events", "kernels", "usage", "audit")
)
# By name, which a user's containers share with the user, whatever user ids they have.
_OF_NAME = "(SELECT coalesce((SELECT name FROM users WHERE users.user = {table}.user), {table}.user))"
_NAMED = " UNION ALL ".join(
    f"SELECT {_OF_NAME.format(table=table)} AS name, {moment} AS at FROM {table}"
    for table, moment in (("events", "at"), ("kernels", "seen"))
)
_ROWS_BY_USER = f"SELECT name, count(*) FROM ({_NAMED}) GROUP BY name"
_NTH_OLDEST = f"SELECT at FROM ({_NAMED}) WHERE name = ? ORDER BY at LIMIT 1 OFFSET ?"
_DELETE_OLDEST = [
    f"DELETE FROM {table} WHERE {_OF_NAME.format(table=table)} = ? AND {moment} <= ?"
    for table, moment in (("events", "at"), ("kernels", "seen"))
]


@dataclass(frozen=True)
class EventRow:
    """Something that happened; columns of the table `events`."""

    at: float
    kind: str
    kernel_id: str
    user: str
    gpu: str = ""
    cause: str = ""
    outcome: str = "ok"
    depth: str = ""
    bytes: int = 0
    duration_s: float | None = None
    waited_s: float | None = None
    from_gpu: str = ""
    gpus: str = ""
    account: str = ""
    job: str = ""


@dataclass(frozen=True)
class SampleRow:
    """A GPU at one moment; columns of the table `samples`."""

    at: int
    gpu: str
    used_bytes: int
    utilization: float | None


@dataclass(frozen=True)
class AuditRow:
    """Something that an administrator did; columns of the table `audit`."""

    at: float
    actor: str
    place: str
    program: str
    action: str
    kernel_id: str
    user: str
    detail: str
    outcome: str


@dataclass(frozen=True)
class KernelRow:
    """A kernel as it is now; columns of the table `kernels`."""

    kernel_id: str
    user: str
    began: float
    seen: float
    ended: float | None
    simulated: bool
    name: str | None = None
    path: str | None = None
    server: str | None = None
    gpus: str = ""


@dataclass
class Batch:
    """What is written in one transaction."""

    at: float = 0.0  # the wall clock
    events: list[EventRow] = field(default_factory=list)
    kernels: dict[str, KernelRow] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    users: dict[str, str] = field(default_factory=dict)  # names
    audit: list[AuditRow] = field(default_factory=list)
    samples: list[SampleRow] = field(default_factory=list)
    is_done: bool = False  # written, or dropped

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to write."""
        measured = self.usage.measured_s or self.usage.by_key
        return not (self.events or self.audit or self.kernels or self.samples or measured)


@dataclass(frozen=True)
class Retention:
    """What is kept: nothing older than `days`, and no more than about `bytes` in the file."""

    days: float = ControllerSettings.ledger_days
    bytes: int = 256 << 20


class LedgerStore:
    """The open file."""

    def __init__(self, path: Path):
        """Open or make it. Raises OSError, sqlite3.Error and LedgerTooNew."""
        make_folder(path.parent)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            # A write-ahead log needs memory that all readers share: there is none over a network.
            self._db.execute(f"PRAGMA journal_mode = {'DELETE' if on_network(path) else 'WAL'}")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(f"PRAGMA journal_size_limit = {4 << 20}")
            migrate(self._db)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def write(self, batch: Batch) -> None:
        """Write a batch, or nothing of it. Raises sqlite3.Error."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._insert(batch)
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def purge(self, keep: Retention, now: float) -> None:
        """Forget what is too old, then the largest users' oldest rows until the file is small enough.

        Raises sqlite3.Error.
        """
        oldest = now - keep.days * DAY_S
        for statement in (
            "DELETE FROM events WHERE at < ?",
            "DELETE FROM audit WHERE at < ?",
            "DELETE FROM kernels WHERE seen < ?",
        ):
            self._db.execute(statement, (oldest,))
        self._db.execute("DELETE FROM samples WHERE at < ?", (now - SAMPLES_LAST_S,))
        for table in ("usage", "measured"):
            self._db.execute(f"DELETE FROM {table} WHERE day < ?", (oldest // DAY_S,))
        self._db.execute(f"DELETE FROM users WHERE user NOT IN ({_USERS_SOMEWHERE})")
        while self.size_bytes > keep.bytes and self._purge_largest():
            pass
        self._db.execute("PRAGMA incremental_vacuum").fetchall()

    @property
    def size_bytes(self) -> int:
        """Return what the file holds, without pages that are free again."""
        pages, free, size = (
            int(self._db.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def _insert(self, batch: Batch) -> None:
        self._db.executemany(_insert_into("events", EventRow), map(astuple, batch.events))
        self._db.executemany(
            f"{_insert_into('kernels', KernelRow)} ON CONFLICT (kernel_id) DO UPDATE SET"
            " user = excluded.user, seen = excluded.seen, ended = excluded.ended, name = excluded.name,"
            " path = excluded.path, server = excluded.server, gpus = excluded.gpus",
            map(astuple, batch.kernels.values()),
        )
        self._db.executemany(
            "INSERT INTO users VALUES (?1, ?2) ON CONFLICT (user) DO UPDATE SET name = ?2",
            list(batch.users.items()),
        )
        self._db.executemany(_insert_into("audit", AuditRow), map(astuple, batch.audit))
        self._db.executemany(
            f"{_insert_into('samples', SampleRow)} ON CONFLICT DO NOTHING", map(astuple, batch.samples)
        )
        self._add_usage(batch.usage)

    def _add_usage(self, usage: Usage) -> None:
        self._db.executemany(
            "INSERT INTO usage VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"
            " ON CONFLICT (day, user, gpu, account, job) DO UPDATE SET held_byte_s = held_byte_s + ?6,"
            " used_byte_s = used_byte_s + ?7, given_back_byte_s = given_back_byte_s + ?8",
            [(*astuple(key), sums.held, sums.used, sums.given_back) for key, sums in usage.by_key.items()],
        )
        self._db.executemany(
            "INSERT INTO measured VALUES (?1, ?2) ON CONFLICT (day) DO UPDATE SET seconds = seconds + ?2",
            list(usage.measured_s.items()),
        )

    def _purge_largest(self) -> bool:
        """Delete a share of the events and kernels, the oldest of the users with the most: no user displaces another's.

        Return False where nothing is left.
        """
        counts: dict[str, int] = dict(self._db.execute(_ROWS_BY_USER).fetchall())
        share = max(int(sum(counts.values()) * PURGED_SHARE), 1)
        for user, count in surplus(counts, share).items():
            (until,) = self._db.execute(_NTH_OLDEST, (user, count - 1)).fetchone()
            for statement in _DELETE_OLDEST:
                self._db.execute(statement, (user, until))
        return bool(counts)


def surplus(counts: Mapping[str, int], amount: int) -> dict[str, int]:
    """Return by user how many rows to take from those with the most, so that about `amount` go and none falls below
    another from whom rows are taken.
    """
    level, taken = 0, 0
    ordered = sorted(counts.values(), reverse=True)
    for number, count in enumerate(ordered, 1):
        following = ordered[number] if number < len(ordered) else 0
        if taken + number * (count - following) >= amount:
            level = count - -(-(amount - taken) // number)
            break
        taken += number * (count - following)
    return {user: count - level for user, count in counts.items() if count > level}


def _insert_into(table: str, row: type) -> str:
    """Return the statement that inserts instances of a dataclass. Its fields are named like the table's columns."""
    names = [column.name for column in fields(row)]
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


def on_network(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Return whether a file lies on a file system that several machines share; False if that cannot be told."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
        device = os.stat(path.parent).st_dev
    except OSError:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [wanted]:
            return after.split()[0].startswith(NETWORK_FILE_SYSTEMS) if after.split() else False
    return False


def set_aside(path: Path) -> Path:
    """Rename a file that is no ledger (any more), with its log; return the new name. Raises OSError.

    One is kept: an older one is replaced.
    """
    aside = path.with_name(f"{path.name}.corrupt")
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()
    return aside


def is_corrupt(error: Exception) -> bool:
    """Return whether an error means that the file itself is bad, not that it is unreachable for now."""
    return isinstance(error, sqlite3.DatabaseError) and any(
        words in str(error) for words in ("malformed", "not a database", "file is encrypted")
    )


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Return a connection that changes nothing. Raises sqlite3.Error and FileNotFoundError."""
    if not path.exists():
        raise FileNotFoundError(f"there is no ledger at {path}")
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
