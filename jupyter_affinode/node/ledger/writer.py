"""The ledger: history on disk, written in batches by a thread of its own.

Nothing that happens to the file reaches the controller: a full disk, a folder that cannot be written, a file that
is locked, damaged or too new means that the controller goes on without history, says so once, and tries again.
What waits meanwhile is bounded; what is too much is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .schema import LedgerTooNew
from .store import AuditRow, Batch, EventRow, KernelRow, LedgerStore, Retention, is_corrupt, set_aside
from .usage import Usage

FLUSH_EVENTS_EVERY_S = 2.0  # what a controller that is killed loses at most of what happened …
FLUSH_EVERY_S = 10.0  # … and of what was measured
FLUSH_QUIET_EVERY_S = 60.0  # while there is nothing but the time itself to write
RETRY_FIRST_S, RETRY_LAST_S = 5.0, 60.0
PURGE_EVERY_S = 3600.0
CLOCK_AHEAD_S = 86400.0  # a clock that is set by more is not believed when history is forgotten
EVENTS_MAX = 10_000  # that wait to be written
EVENTS_SOON = 500  # are written without waiting longer
KERNELS_MAX = 10_000
CLOSE_WAIT_S = 2.0
OVERSIZE = 1.1  # of the limit, before the oldest events go


class Ledger:
    """Takes what happens on the controller's loop; every method returns at once."""

    def __init__(self, path: Path, log: logging.Logger, *, retention: Retention | None = None):
        self.path = path
        self.problem: str | None = None  # why nothing is written just now, in words
        self.dropped = 0  # events that were not kept
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._filling = _empty()
        self._names: dict[str, str] = {}  # as they were told
        self._names_told_at = time.monotonic()
        self._in_hand: Batch | None = None
        self._is_sent = False
        self._batches = 0
        self._flushed_at = time.monotonic()
        self._retry_s, self._retry_at = RETRY_FIRST_S, 0.0
        self._orders: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._writer = _Writer(path, log, retention or Retention(), self._orders, self._report)
        self._writer.start()

    def event(self, row: EventRow) -> None:
        """Something happened."""
        events = self._filling.events
        events.append(row)
        if len(events) > EVENTS_MAX:
            self.dropped += len(events) - EVENTS_MAX // 2
            del events[: len(events) - EVENTS_MAX // 2]

    def audit(self, row: AuditRow) -> None:
        """Take what an administrator did; the oldest are dropped when too many wait to be written."""
        self._filling.audit.append(row)
        if len(self._filling.audit) > EVENTS_MAX:
            self.dropped += 1
            del self._filling.audit[0]

    def kernel(self, row: KernelRow) -> None:
        """A kernel began, lives or ended; the last word counts."""
        if row.kernel_id in self._filling.kernels or len(self._filling.kernels) < KERNELS_MAX:
            self._filling.kernels[row.kernel_id] = row

    def user(self, user: str, name: str) -> None:
        """Somebody's name for people."""
        if self._names.get(user) != name:
            if len(self._names) >= KERNELS_MAX:
                self._names.clear()
            self._names[user] = self._filling.users[user] = name

    def usage(self, usage: Usage) -> None:
        """What was measured since the last time."""
        self._filling.usage.add(usage)

    def only_these_live(self, kernel_ids: Sequence[str]) -> None:
        """Kernels of earlier controllers that are not among these ended when they were last seen."""
        self._filling.ends_others, self._filling.living = True, tuple(kernel_ids)

    def look(self, now: float, wall: float) -> None:
        """Have written what is due; `now` is monotonic, `wall` the wall clock."""
        if now - self._names_told_at > PURGE_EVERY_S:
            self._names_told_at = now
            self._names.clear()  # of somebody who was not here for long the file may have forgotten it
        if self._in_hand is not None:
            if not self._is_sent and now >= self._retry_at:
                self._send(self._in_hand)
            return
        if now - self._flushed_at >= _patience(self._filling):
            self._flushed_at = now
            self._take_in_hand(wall)

    def close(self, wall: float) -> None:
        """Have the rest written, waiting for it a moment at most."""
        if self._in_hand is None:
            self._take_in_hand(wall)
        else:
            if not self._is_sent:
                self._send(self._in_hand)
            if not _is_empty(self._filling):
                self._batches += 1
                self._filling.number, self._filling.at = self._batches, wall
                self._orders.put(self._filling)
        self._orders.put(None)
        self._writer.join(timeout=CLOSE_WAIT_S)
        if self._writer.is_alive():
            self._log.warning("the ledger at %s was not closed in time: its last entries may miss", self.path)

    def _take_in_hand(self, wall: float) -> None:
        if _is_empty(self._filling):
            return
        self._batches += 1
        batch, self._filling = self._filling, _empty()
        batch.number, batch.at = self._batches, wall
        self._in_hand = batch
        self._send(batch)

    def _send(self, batch: Batch) -> None:
        self._is_sent = True
        self._orders.put(batch)

    def _report(self, problem: str | None, again: bool, was_opened: bool) -> None:
        """Called by the writer's thread after each batch."""
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._written, problem, again, was_opened)

    def _written(self, problem: str | None, again: bool, was_opened: bool) -> None:
        self._is_sent = False
        if problem is None:
            if self.problem is not None:
                self._log.info("the ledger at %s is written again", self.path)
            self._retry_s = RETRY_FIRST_S
        elif problem != self.problem:
            self._log.warning("no history is written to %s: %s; everything else goes on", self.path, problem)
        self.problem = problem
        if again:
            self._retry_at = time.monotonic() + self._retry_s
            self._retry_s = min(self._retry_s * 2, RETRY_LAST_S)
        else:
            self._in_hand = None
        if was_opened:
            self._names.clear()  # it may be a new file


class _Writer(threading.Thread):
    """Opens the file, and opens it again where that failed; writes what it is given.

    A daemon: one that hangs in a file system keeps neither the loop nor the process's end.
    """

    def __init__(
        self,
        path: Path,
        log: logging.Logger,
        retention: Retention,
        orders: queue.SimpleQueue[Batch | None],
        report: Callable[[str | None, bool, bool], None],
    ):
        """`report(problem, again, was_opened)`: why a batch was not written, whether it should be given again, and
        whether the file was opened for it.
        """
        super().__init__(name="affinode-ledger", daemon=True)
        self._path = path
        self._log = log
        self._retention = retention
        self._orders = orders
        self._report = report
        self._run_id = uuid.uuid4().hex
        self._store: LedgerStore | None = None
        self._purged_at = 0.0
        self._was_opened = False
        self._first_batch: tuple[float, float] | None = (
            None  # when it came by the monotonic and the wall clock
        )

    def run(self) -> None:
        """The thread: write each batch, report how it went, wait for the next."""
        while (batch := self._orders.get()) is not None:
            problem, again = self._write_or_tell(batch)
            was_opened, self._was_opened = self._was_opened, False
            self._report(problem, again, was_opened)
        if self._store is not None:
            self._store.close()

    def _write_or_tell(self, batch: Batch) -> tuple[str | None, bool]:
        """Write it; why not, and whether trying again makes sense."""
        try:
            self._write(batch)
            return None, False
        except sqlite3.DatabaseError as error:
            self._forget_store()
            if not is_corrupt(error):
                return str(error), True
            return self._begin_anew(batch, error)
        except LedgerTooNew as error:
            return f"the file is of a newer version ({error})", True
        except OSError as error:
            self._forget_store()
            return str(error), True
        except Exception as error:  # a batch that cannot be written must not stop those after it
            self._forget_store()
            self._log.exception("the ledger dropped a batch")
            return f"{type(error).__name__}: {error}", False

    def _write(self, batch: Batch) -> None:
        if self._store is None:
            self._store = LedgerStore(self._path, self._run_id)
            self._was_opened = True
            self._purged_at = 0.0
        self._store.write(batch)
        is_due = time.monotonic() - self._purged_at > PURGE_EVERY_S or not self._purged_at
        if is_due or self._store.size_bytes > OVERSIZE * self._retention.bytes:
            self._purged_at = time.monotonic()
            self._purge(self._store, self._age_from(batch.at))

    def _age_from(self, wall: float) -> float:
        """The moment from which ages are counted: a clock that was set far ahead must not make all history old."""
        now = time.monotonic()
        if self._first_batch is None:
            self._first_batch = now, wall
        began, first_wall = self._first_batch
        return min(wall, first_wall + now - began + CLOCK_AHEAD_S)

    def _purge(self, store: LedgerStore, wall: float) -> None:
        """Forget what is old. The batch is written by now: a failure here is no reason to write it again."""
        try:
            store.purge(self._retention, wall)
        except sqlite3.Error as error:
            self._log.warning("the ledger's old entries could not be removed: %s", error)

    def _begin_anew(self, batch: Batch, error: sqlite3.Error) -> tuple[str | None, bool]:
        """The file is damaged: set it aside, and write to a fresh one."""
        try:
            aside = set_aside(self._path)
            self._log.error("the ledger was damaged (%s): it is %s now, and a new one begins", error, aside)
            self._write(batch)
            return None, False
        except (OSError, sqlite3.Error, LedgerTooNew) as again:
            self._forget_store()
            return f"{error}, and no new one can be made: {again}", True

    def _forget_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def _empty() -> Batch:
    return Batch(0, 0.0)


def _is_empty(batch: Batch) -> bool:
    measured: Any = batch.usage.measured_s or batch.usage.by_key
    return not (batch.events or batch.audit or batch.kernels or measured or batch.ends_others)


def _patience(batch: Batch) -> float:
    """How long a batch may be filled; 0: no longer."""
    if len(batch.events) >= EVENTS_SOON:
        return 0.0
    if batch.events or batch.audit or batch.kernels:
        return FLUSH_EVENTS_EVERY_S
    return FLUSH_EVERY_S if batch.usage.by_key else FLUSH_QUIET_EVERY_S
