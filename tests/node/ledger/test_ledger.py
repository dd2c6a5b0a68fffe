"""The ledger: each batch is written whole or dropped, and what happens to its file stops nothing else."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
import waiting

from jupyter_affinode.node.ledger import store as ledger_store
from jupyter_affinode.node.ledger import writer as ledger_module
from jupyter_affinode.node.ledger.schema import MIGRATIONS, LedgerTooNew, user_version
from jupyter_affinode.node.ledger.store import (
    Batch,
    EventRow,
    KernelRow,
    LedgerStore,
    Retention,
    on_network,
    surplus,
)
from jupyter_affinode.node.ledger.usage import DAY_S, ByteSeconds, Usage, UsageKey
from jupyter_affinode.node.ledger.writer import Ledger

NOW = 20000.5 * DAY_S


def usage(held=1.0, day=20000, user="alice"):
    """A sum."""
    return Usage({UsageKey(day, user, "G"): ByteSeconds(held, held / 2, held / 4)}, {day: 1.0})


def event(at=NOW, kind="park"):
    """An event."""
    return EventRow(at, kind, "k", "alice", "G", "idle", bytes=5)


def rows(path, query):
    """What a second reader finds."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def folder(tmp_path):
    """A folder that a ledger may lie in."""
    tmp_path.chmod(0o700)
    return tmp_path


# ---- the file


def test_the_sums_of_batches_add_up(folder):
    store = LedgerStore(folder / "l")
    store.write(Batch(NOW, [event()], {"k": KernelRow("k", "alice", NOW, NOW, None, False)}, usage()))
    store.close()
    store = LedgerStore(folder / "l")
    store.write(Batch(NOW, [event()], usage=usage()))
    store.close()
    assert rows(folder / "l", "SELECT count(*) FROM events") == [(2,)]
    sums = rows(folder / "l", "SELECT held_byte_s, used_byte_s, given_back_byte_s FROM usage")
    assert sums == [(2.0, 1.0, 0.5)]
    assert rows(folder / "l", "SELECT seconds FROM measured") == [(2.0,)]


def test_a_batch_that_cannot_be_written_whole_is_not_written_at_all(folder):
    store = LedgerStore(folder / "l")
    with pytest.raises(sqlite3.Error):
        store.write(Batch(NOW, [event(), EventRow(NOW, None, "k", "alice")], usage=usage()))
    assert rows(folder / "l", "SELECT count(*) FROM events") == [(0,)]
    store.write(Batch(NOW, [event()], usage=usage()))
    assert rows(folder / "l", "SELECT held_byte_s FROM usage") == [(1.0,)]
    store.close()


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from jupyter_affinode.node.ledger.store import Batch, EventRow, LedgerStore
from jupyter_affinode.node.ledger.usage import ByteSeconds, Usage, UsageKey
store = LedgerStore(Path(sys.argv[1]))
for number in range(1, 1000000):
    usage = Usage({UsageKey(20000, "alice", "G"): ByteSeconds(1.0)}, {20000: 1.0})
    store.write(Batch(20000.5 * 86400, [EventRow(1.0, "park", "k", "alice")], usage=usage))
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_leaves_all_that_it_had_said_and_one_batch_more_at_most(folder):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    patience = random.Random(seed)
    said = runs = 0
    for run in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITE_FOR_EVER, str(folder / "l"), str(run)], stdout=subprocess.PIPE
        ) as child:
            wanted = patience.randrange(1, 60)
            last = 0
            for line in child.stdout:
                last = int(line)
                if last >= wanted:
                    break
            child.send_signal(signal.SIGKILL)
            last = max([last, *(int(line) for line in child.stdout.read().split() if line.isdigit())])
            said, runs = said + last, runs + 1
        ((events,),) = rows(folder / "l", "SELECT count(*) FROM events")
        ((held,),) = rows(folder / "l", "SELECT held_byte_s FROM usage")
        assert events == held
        assert said <= events <= said + runs
        assert rows(folder / "l", "PRAGMA integrity_check") == [("ok",)]


def test_what_is_too_old_is_forgotten(folder):
    store = LedgerStore(folder / "l")
    old, new = NOW - 11 * DAY_S, NOW - 9 * DAY_S
    both = Usage()
    both.add(usage(day=int(old // DAY_S)))
    both.add(usage(day=int(new // DAY_S)))
    kernels = {name: KernelRow(name, "u", at, at, at, False) for name, at in (("old", old), ("new", new))}
    users = {"alice": "Alice", "u": "Ursula", "left": "Somebody who left"}
    store.write(Batch(NOW, [event(old), event(new)], kernels, both, users=users))
    store.purge(Retention(days=10), NOW)
    assert dict(rows(folder / "l", "SELECT * FROM users")) == {"alice": "Alice", "u": "Ursula"}
    assert rows(folder / "l", "SELECT at FROM events") == [(new,)]
    assert rows(folder / "l", "SELECT kernel_id FROM kernels") == [("new",)]
    assert rows(folder / "l", "SELECT day FROM usage") == [(int(new // DAY_S),)]
    assert rows(folder / "l", "SELECT day FROM measured") == [(int(new // DAY_S),)]
    store.close()


def test_a_file_that_is_too_large_loses_its_oldest_events_and_keeps_its_sums(folder):
    store = LedgerStore(folder / "l")
    store.write(Batch(NOW, [event(NOW + number) for number in range(20_000)], usage=usage()))
    before = store.size_bytes
    store.purge(Retention(bytes=before // 2), NOW)
    assert store.size_bytes <= before // 2
    store.close()
    ((oldest, newest, count),) = rows(folder / "l", "SELECT min(at), max(at), count(*) FROM events")
    assert newest == NOW + 19_999 and newest - oldest == count - 1 and 0 < count < 20_000
    assert rows(folder / "l", "SELECT held_byte_s FROM usage") == [(1.0,)]


def test_a_users_events_do_not_displace_other_users_events(folder):
    store = LedgerStore(folder / "l")
    many = [replace(event(), user="mallory", at=NOW + number) for number in range(20_000)]
    store.write(Batch(NOW, [event(NOW - DAY_S), *many]))
    store.purge(Retention(bytes=store.size_bytes // 3), NOW)
    store.close()
    counts = dict(rows(folder / "l", "SELECT user, count(*) FROM events GROUP BY user"))
    assert counts["alice"] == 1 and 0 < counts["mallory"] < 10_000


def test_a_users_kernels_do_not_displace_other_users_history(folder):
    """New kernel ids are rows as events are; those of a user's containers have other users of the same name."""
    store = LedgerStore(folder / "l")
    many = {
        f"m{number}": KernelRow(
            f"m{number}", f"uid-{100_000 + number % 5000}", NOW, NOW + number, None, False
        )
        for number in range(20_000)
    }
    names = {f"uid-{100_000 + number}": "mallory" for number in range(5000)} | {"alice": "Alice"}
    own = KernelRow("k", "alice", NOW - DAY_S, NOW - DAY_S, None, False)
    events = [event(NOW - DAY_S + number) for number in range(100)]
    store.write(Batch(NOW, events, {"k": own, **many}, users=names))
    store.purge(Retention(bytes=store.size_bytes // 2), NOW)
    store.close()
    assert rows(folder / "l", "SELECT count(*) FROM events") == [(100,)]
    ((kept, oldest),) = rows(folder / "l", "SELECT count(*), min(seen) FROM kernels WHERE user <> 'alice'")
    assert rows(folder / "l", "SELECT kernel_id FROM kernels WHERE user = 'alice'") == [("k",)]
    assert 0 < kept < 15_000 and oldest == NOW + 20_000 - kept


@pytest.mark.parametrize(
    ("counts", "amount", "taken"),
    [
        ({}, 5, {}),
        ({"a": 10}, 4, {"a": 4}),
        ({"a": 10, "b": 3}, 4, {"a": 4}),
        ({"a": 10, "b": 8}, 6, {"a": 4, "b": 2}),
        ({"a": 5, "b": 5, "c": 1}, 3, {"a": 2, "b": 2}),
        ({"a": 2, "b": 1}, 9, {"a": 2, "b": 1}),
    ],
)
def test_rows_are_taken_from_the_largest_users_down_to_one_level(counts, amount, taken):
    assert surplus(counts, amount) == taken


def test_each_migration_of_an_older_file_keeps_what_is_in_it(folder):
    """With every migration that there is, one after the other."""
    for version in range(len(MIGRATIONS) + 1):
        path = folder / f"version{version}"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statements in MIGRATIONS[:version]:
                connection.executescript(statements)
            connection.execute(f"PRAGMA user_version = {version}")
            if version:
                connection.execute("INSERT INTO measured VALUES (20000, 7.0)")
        store = LedgerStore(path)
        store.write(Batch(NOW, usage=usage()))
        store.close()
        assert rows(path, "SELECT seconds FROM measured") == [(8.0 if version else 1.0,)]
        with closing(sqlite3.connect(path)) as connection:
            assert user_version(connection) == len(MIGRATIONS)


def test_a_file_of_a_newer_version_is_left_alone(folder):
    with closing(sqlite3.connect(folder / "l")) as connection:
        connection.execute("PRAGMA user_version = 999")
        connection.execute("CREATE TABLE theirs (a)")
    before = (folder / "l").read_bytes()
    with pytest.raises(LedgerTooNew):
        LedgerStore(folder / "l")
    assert (folder / "l").stat().st_size == len(before)
    assert rows(folder / "l", "SELECT name FROM sqlite_master") == [("theirs",)]


def test_others_cannot_read_it_and_a_link_is_not_followed(folder):
    LedgerStore(folder / "l").close()
    assert (folder / "l").stat().st_mode & 0o777 == 0o600
    (folder / "link").symlink_to(folder / "l")
    with pytest.raises(OSError):
        LedgerStore(folder / "link")


def test_a_network_file_system_is_recognised(folder):
    device = os.stat(folder).st_dev
    line = f"36 35 {os.major(device)}:{os.minor(device)} / /home rw - %s server:/home rw\n"
    mounts = folder / "mountinfo"
    for kind, expected in (("nfs4", True), ("fuse.sshfs", True), ("lustre", True), ("ext4", False)):
        mounts.write_text(line % kind)
        assert on_network(folder / "l", mounts) is expected
    assert on_network(folder / "l", folder / "missing") is False


# ---- the thread


@pytest.fixture
def impatient(monkeypatch):
    """Everything at once, so that tests need not wait."""
    for name in ("FLUSH_EVENTS_EVERY_S", "FLUSH_EVERY_S", "FLUSH_QUIET_EVERY_S"):
        monkeypatch.setattr(ledger_module, name, 0.01)
    monkeypatch.setattr(ledger_store, "BUSY_S", 0.05)
    monkeypatch.setattr(ledger_module, "CLOSE_WAIT_S", 30.0)


async def until(condition, ledger, wall=NOW):
    """Let the ledger work until something is so."""

    def looked():
        ledger.write_due(asyncio.get_running_loop().time(), wall)
        return condition()

    await waiting.until(looked, message=lambda: f"problem: {ledger.problem}")


def story(path, tell, **options):
    """Run `tell(ledger)` on a loop; what the ledger logged."""
    records = []
    log = logging.Logger("ledger")
    log.addHandler(_Collect(records))

    async def run():
        ledger = Ledger(path, log, **options)
        await tell(ledger)
        ledger.close(NOW)

    asyncio.run(run())
    return [record.getMessage() for record in records]


class _Collect(logging.Handler):
    def __init__(self, records):
        super().__init__()
        self.emit = records.append


def test_what_happened_is_written_also_at_the_end(folder, impatient):
    async def tell(ledger):
        ledger.event(event())
        ledger.usage(usage())
        await until(
            lambda: (folder / "l").exists() and rows(folder / "l", "SELECT * FROM sqlite_master"), ledger
        )
        ledger.event(event())
        ledger.usage(usage())

    assert story(folder / "l", tell) == []
    assert rows(folder / "l", "SELECT count(*) FROM events") == [(2,)]
    assert rows(folder / "l", "SELECT held_byte_s FROM usage") == [(2.0,)]


def test_what_cannot_be_written_to_a_locked_file_is_dropped_and_what_comes_later_is_written(
    folder, impatient
):
    LedgerStore(folder / "l").close()
    blocker = sqlite3.connect(folder / "l", isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")

    async def tell(ledger):
        ledger.event(event(kind="dropped"))
        await until(lambda: ledger.problem, ledger)
        assert "locked" in ledger.problem
        blocker.execute("ROLLBACK")
        ledger.event(event())
        await until(lambda: ledger.problem is None, ledger)

    said = story(folder / "l", tell)
    blocker.close()
    assert len(said) == 2 and "history is dropped" in said[0] and "written again" in said[1]
    assert rows(folder / "l", "SELECT kind FROM events") == [("park",)]


def test_readers_are_told_of_all_that_waits_to_be_written(folder, impatient, monkeypatch):
    """The thread may have one batch in hand, and the next one waits for it."""
    go_on = threading.Event()
    write = LedgerStore.write

    def slow_write(store, batch):
        go_on.wait()
        write(store, batch)

    monkeypatch.setattr(LedgerStore, "write", slow_write)

    def told(ledger):
        return [each.kind for batch in ledger.unwritten() for each in batch.events]

    async def tell(ledger):
        for kind, batches in (("first", 2), ("second", 3)):
            ledger.event(event(kind=kind))
            await until(lambda batches=batches: len(ledger.unwritten()) == batches, ledger)
        ledger.event(event(kind="third"))
        assert told(ledger) == ["first", "second", "third"]
        go_on.set()
        # The second may be told still: the last but one is known to be written when another is handed over.
        await until(lambda: told(ledger) in (["third"], ["second", "third"]), ledger)

    story(folder / "l", tell)
    assert rows(folder / "l", "SELECT kind FROM events") == [("first",), ("second",), ("third",)]


@pytest.mark.parametrize("damage", ["text", "zeros inside", "cut"])
def test_a_damaged_file_is_set_aside_and_a_new_one_begins(folder, impatient, damage):
    store = LedgerStore(folder / "l")
    store.write(Batch(NOW, [event() for _ in range(5000)]))
    store.close()
    size = (folder / "l").stat().st_size
    with (folder / "l").open("r+b") as file:
        if damage == "text":
            file.write(b"this is no database at all " * 100)
        elif damage == "zeros inside":
            file.seek(4096)
            file.write(bytes(size - 4096))
        else:
            file.truncate(size // 2)

    async def tell(ledger):
        ledger.event(event(kind="dropped"))
        await until(lambda: (folder / "l.corrupt").exists(), ledger)
        ledger.event(event())
        await until(lambda: ledger.problem is None, ledger)

    said = story(folder / "l", tell)
    assert any("damaged" in line for line in said)
    assert rows(folder / "l", "SELECT kind FROM events") == [("park",)]


def test_where_it_cannot_be_made_that_is_said_once_and_tried_again(folder, impatient, monkeypatch):
    (folder / "sub").write_text("a file where a folder should be")
    tries = []
    monkeypatch.setattr(ledger_module, "LedgerStore", lambda path: tries.append(path) or LedgerStore(path))

    async def tell(ledger):
        ledger.event(event())
        await until(lambda: ledger.problem, ledger)
        await until(lambda: ledger.event(event()) or len(tries) >= 5, ledger)
        (folder / "sub").unlink()
        ledger.event(event(kind="resume"))
        await until(lambda: ledger.problem is None, ledger)

    said = story(folder / "sub" / "l", tell)
    assert ["history is dropped" in line for line in said] == [True, False]
    assert ("resume",) in rows(folder / "sub" / "l", "SELECT kind FROM events")


def test_what_waits_for_a_thread_that_hangs_is_bounded(folder, impatient, monkeypatch):
    monkeypatch.setattr(ledger_module, "EVENTS_MAX", 100)
    monkeypatch.setattr(ledger_module, "KERNELS_MAX", 10)
    hangs, goes_on, write = threading.Event(), threading.Event(), LedgerStore.write

    def hang(store, batch):
        hangs.set()
        assert goes_on.wait(60)
        write(store, batch)

    monkeypatch.setattr(LedgerStore, "write", hang)

    async def tell(ledger):
        ledger.event(event(kind="first"))
        await until(hangs.is_set, ledger)
        for number in range(1000):
            ledger.event(event(NOW + number))
            ledger.kernel(KernelRow(f"k{number}", "u", NOW, NOW, None, False))
            ledger.user(f"u{number}", "u")
            ledger.write_due(asyncio.get_running_loop().time() + number, NOW)
        goes_on.set()

    story(folder / "l", tell)
    ((newest, count),) = rows(folder / "l", "SELECT max(at), count(*) FROM events")
    assert newest == NOW + 999 and count <= 202, "the hanging batch, one more, and what came last"
    ((kernels,),) = rows(folder / "l", "SELECT count(*) FROM kernels")
    assert kernels <= 20


def test_a_batch_that_no_file_would_take_is_dropped_and_the_next_is_written(folder, impatient):
    async def tell(ledger):
        ledger.event(EventRow(NOW, "park", "\ud800", "alice"))
        await until(lambda: ledger.problem, ledger)
        ledger.event(event())
        await until(lambda: ledger.problem is None, ledger)

    story(folder / "l", tell)
    assert rows(folder / "l", "SELECT kernel_id FROM events") == [("k",)]


def is_in(path, at):
    """Whether an event of that moment was written."""
    return (at,) in rows(path, "SELECT at FROM events")


def test_a_clock_that_is_set_far_ahead_makes_no_history_old(folder, impatient, monkeypatch):
    monkeypatch.setattr(ledger_module, "PURGE_EVERY_S", 0.0)

    now = time.time()
    LedgerStore(folder / "l").close()

    async def tell(ledger):
        for wall in (now, now + 10_000 * DAY_S):
            ledger.event(event(wall))
            await until(partial(is_in, folder / "l", wall), ledger, wall)

    story(folder / "l", tell, retention=Retention(days=2))
    assert rows(folder / "l", "SELECT at FROM events") == [(now,), (now + 10_000 * DAY_S,)]


FULL_DISK = """
import asyncio, logging, resource, signal, sys
from pathlib import Path
from jupyter_affinode.node.ledger import writer as module
from jupyter_affinode.node.ledger.store import EventRow
module.FLUSH_EVENTS_EVERY_S = module.FLUSH_EVERY_S = 0.01
module.CLOSE_WAIT_S = 30.0
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def until(condition, ledger, kind):
    loop = asyncio.get_running_loop()
    while not condition():
        for _ in range(100):
            ledger.event(EventRow(1.0, kind, "k", "alice"))
        ledger.write_due(loop.time(), 1.0)
        await asyncio.sleep(0.005)

async def main():
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    ledger = module.Ledger(Path(sys.argv[1]), logging.getLogger())
    await until(lambda: ledger.problem, ledger, "before")
    print(ledger.problem)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await until(lambda: ledger.problem is None, ledger, "between")
    for _ in range(100):
        ledger.event(EventRow(1.0, "after", "k", "alice"))
    ledger.close(1.0)

asyncio.run(main())
"""


def test_a_full_disk_stops_history_alone_and_what_comes_after_it_is_written(folder):
    """The limit on a file's size stands in for the disk's."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(folder / "l")], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    counts = dict(rows(folder / "l", "SELECT kind, count(*) FROM events GROUP BY kind"))
    assert counts["after"] == 100
    assert rows(folder / "l", "PRAGMA integrity_check") == [("ok",)]
