"""The ledger's tables, and how an older file becomes a newer one.

`PRAGMA user_version` is the number of migrations that a file has been through. A migration that was released is
never changed; what comes later is a new one at the end.
"""

from __future__ import annotations

import sqlite3

FIRST = """
CREATE TABLE kernels (          -- every kernel that used CUDA
    kernel_id TEXT PRIMARY KEY,
    user TEXT NOT NULL,
    began REAL NOT NULL,        -- seconds since 1970, as are all moments here
    seen REAL NOT NULL,         -- when it was last known to live
    ended REAL,                 -- NULL: it lives, or the controller ended before it
    simulated INTEGER NOT NULL, -- 1: on the simulated GPU
    name TEXT,                  -- of the notebook's kernel, its path and its server: NULL unless the administrator
    path TEXT,                  -- turned them on
    server TEXT,
    gpus TEXT NOT NULL DEFAULT '' -- all that it had memory on, with commas
) WITHOUT ROWID;
CREATE TABLE users (
    user TEXT PRIMARY KEY,      -- identity.py: the user; no two have the same name
    name TEXT NOT NULL          -- for people
) WITHOUT ROWID;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    kind TEXT NOT NULL,         -- recorder.EventKind
    kernel_id TEXT NOT NULL,
    user TEXT NOT NULL,
    gpu TEXT NOT NULL,          -- the one that it was most about; '' if none
    cause TEXT NOT NULL,        -- reasons.Cause, or ''
    outcome TEXT NOT NULL,      -- 'ok', or a slug
    depth TEXT NOT NULL,        -- 'memory', 'context' or ''
    bytes INTEGER NOT NULL,
    duration_s REAL,
    waited_s REAL,
    from_gpu TEXT NOT NULL DEFAULT '', -- of a resume on another GPU: the one that was left
    gpus TEXT NOT NULL DEFAULT '', -- all that the kernel had memory on, with commas
    account TEXT NOT NULL DEFAULT '', -- of a batch system, '' without one, as is the job
    job TEXT NOT NULL DEFAULT ''
);
CREATE INDEX events_at ON events (at);
CREATE INDEX events_kernel ON events (kernel_id, at);
CREATE TABLE usage (            -- usage.py says what each sum means
    day INTEGER NOT NULL,       -- days since 1970-01-01 UTC
    user TEXT NOT NULL,
    gpu TEXT NOT NULL,
    account TEXT NOT NULL,
    job TEXT NOT NULL,
    held_byte_s REAL NOT NULL,
    used_byte_s REAL NOT NULL,
    given_back_byte_s REAL NOT NULL,
    PRIMARY KEY (day, user, gpu, account, job)
) WITHOUT ROWID;
CREATE TABLE measured (         -- how long a controller was there to measure, by day
    day INTEGER PRIMARY KEY,
    seconds REAL NOT NULL
);
CREATE TABLE audit (            -- what administrators did to other users' kernels and to the settings
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    actor TEXT NOT NULL,        -- the administrator, as the program that connected says: 'hub:ana', else its own user
    place TEXT NOT NULL,        -- the address that this program gave for the administrator; '' if none
    program TEXT NOT NULL,      -- what the kernel of the system says of the program: user and pid
    action TEXT NOT NULL,       -- the last word of the request's path: 'park', 'policy', ...
    kernel_id TEXT NOT NULL,    -- '' if it was about no kernel
    user TEXT NOT NULL,         -- whose kernel it was
    detail TEXT NOT NULL,       -- the request's body
    outcome TEXT NOT NULL       -- 'ok', a slug, or 'unanswered': the program hung up
);
CREATE INDEX audit_at ON audit (at);
CREATE TABLE samples (          -- for the pictures of the last hours; older ones go
    at INTEGER NOT NULL,
    gpu TEXT NOT NULL,
    used_bytes INTEGER NOT NULL,
    utilization REAL,           -- percent, the mean since the sample before; NULL: not known
    PRIMARY KEY (at, gpu)
) WITHOUT ROWID;
"""

MIGRATIONS = (FIRST,)


class LedgerTooNew(Exception):
    """The file was written by a newer version; this one leaves it alone."""


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file up to date, each migration whole or not at all.

    Raises LedgerTooNew, and sqlite3.Error where the file cannot be read or written.
    """
    version = user_version(connection)
    if version > len(MIGRATIONS):
        raise LedgerTooNew(f"its version is {version}, this program knows {len(MIGRATIONS)}")
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        connection.executescript(f"BEGIN IMMEDIATE;\n{statements}\nPRAGMA user_version = {number};\nCOMMIT;")


def user_version(connection: sqlite3.Connection) -> int:
    """Return how many migrations a file has been through; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
