"""The ledger: history on disk, written in batches by a thread of its own.

Nothing that happens to the file reaches the controller. A batch that cannot be written, because the disk is full, the
file locked or damaged, or its folder not writable, is dropped with a warning, and the next one is tried anew. What
waits for a thread that hangs is bounded.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from .schema import LedgerTooNew
from .store import (
    AuditRow,
    Batch,
    EventRow,
    KernelRow,
    LedgerStore,
    Retention,
    SampleRow,
    is_corrupt,
    set_aside,
)
from .usage import Usage

FLUSH_EVENTS_EVERY_S = 2.0  # what a controller that is killed loses at most of what happened …
FLUSH_EVERY_S = 10.0  # … and of what was measured
FLUSH_QUIET_EVERY_S = 60.0  # while there is nothing but the time itself to write
PURGE_EVERY_S = 3600.0
CLOCK_AHEAD_S = 86400.0  # a clock that is set by more is not believed when history is forgotten
EVENTS_MAX = 10_000  # that wait to be written
EVENTS_SOON = 500  # are written without waiting longer
KERNELS_MAX = SAMPLES_MAX = 10_000
CLOSE_WAIT_S = 2.0
OVERSIZE = 1.1  # of the limit, before the oldest events go


class Ledger:
    """Takes history on the controller's loop; every method returns at once."""

    def __init__(self, path: Path, log: logging.Logger, *, retention: Retention | None = None):
        self.path = path
        self.problem: str | None = None  # why the last batch was dropped, in words; the thread's
        self._log = log
        self._retention = retention or Retention()
        self._began, self._first_wall = time.monotonic(), time.time()
        self._filling = Batch()
        self._handed_over: tuple[Batch, ...] = ()
        self._flushed_at = time.monotonic()
        self._store: LedgerStore | None = None  # the thread's
        self._purged_at = 0.0  # the thread's
        self._batches: queue.Queue[Batch | None] = queue.Queue(maxsize=1)
        # A daemon: one that hangs in a file system keeps neither the loop nor the process's end.
        self._thread = threading.Thread(target=self._run, name="affinode-ledger", daemon=True)
        self._thread.start()

    def event(self, row: EventRow) -> None:
        """Take something that happened; the oldest are dropped when too many wait to be written."""
        events = self._filling.events
        events.append(row)
        if len(events) > EVENTS_MAX:
            del events[: len(events) - EVENTS_MAX // 2]

    def audit(self, row: AuditRow) -> None:
        """Take what an administrator did; the oldest are dropped when too many wait to be written."""
        self._filling.audit.append(row)
        if len(self._filling.audit) > EVENTS_MAX:
            del self._filling.audit[0]

    def kernel(self, row: KernelRow) -> None:
        """Take a kernel that began, lives or ended; the last report counts."""
        if row.kernel_id in self._filling.kernels or len(self._filling.kernels) < KERNELS_MAX:
            self._filling.kernels[row.kernel_id] = row

    def user(self, user: str, name: str) -> None:
        """Take a user's name as it is displayed."""
        if user in self._filling.users or len(self._filling.users) < KERNELS_MAX:
            self._filling.users[user] = name

    def usage(self, usage: Usage) -> None:
        """Take what was measured since the last time."""
        self._filling.usage.add(usage)

    def samples(self, rows: Iterable[SampleRow]) -> None:
        """Take the GPUs' figures of one moment."""
        if len(self._filling.samples) < SAMPLES_MAX:
            self._filling.samples.extend(rows)

    def unwritten(self) -> tuple[Batch, ...]:
        """Return what the file may not have yet, for readers to add; all but the last may be in the file by now."""
        filling = self._filling
        copied = Batch(filling.at, list(filling.events), dict(filling.kernels), samples=list(filling.samples))
        return *self._handed_over, copied

    def write_due(self, now: float, wall: float) -> None:
        """Have written what is due; `now` is monotonic, `wall` the wall clock."""
        if now - self._flushed_at >= _patience(self._filling) and not self._batches.full():
            self._flushed_at = now
            self._hand_over(wall, timeout_s=0.0)

    def close(self, wall: float) -> None:
        """Have the rest written, waiting for it a moment at most."""
        try:
            self._hand_over(wall, timeout_s=CLOSE_WAIT_S)
            self._batches.put(None, timeout=CLOSE_WAIT_S)
            self._thread.join(timeout=CLOSE_WAIT_S)
        except queue.Full:
            pass
        if self._thread.is_alive():
            self._log.warning("the ledger at %s was not closed in time: its last entries may miss", self.path)

    def _hand_over(self, wall: float, timeout_s: float) -> None:
        """Give the thread what there is. Raises queue.Full."""
        if not self._filling.is_empty:
            self._filling.at = wall
            self._batches.put(self._filling, timeout=timeout_s)
            pending = (each for each in self._handed_over if not each.is_done)
            self._handed_over, self._filling = (*pending, self._filling), Batch()

    # ---- the thread

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._write(batch)
            except (OSError, sqlite3.Error, LedgerTooNew) as error:
                self._dropped(error)
            except Exception as error:  # a batch that cannot be written must not stop those after it
                self._log.exception("the ledger cannot write a batch")
                self._dropped(error)
            else:
                if self.problem is not None:
                    self._log.info("the ledger at %s is written again", self.path)
                self.problem = None
            batch.is_done = True
        if self._store is not None:
            self._store.close()

    def _write(self, batch: Batch) -> None:
        if self._store is None:
            self._store, self._purged_at = LedgerStore(self.path), 0.0
        self._store.write(batch)
        is_due = time.monotonic() - self._purged_at > PURGE_EVERY_S or not self._purged_at
        if is_due or self._store.size_bytes > OVERSIZE * self._retention.bytes:
            self._purged_at = time.monotonic()
            # A clock that was set far ahead must not make all history old.
            latest = self._first_wall + time.monotonic() - self._began + CLOCK_AHEAD_S
            self._store.purge(self._retention, min(batch.at, latest))

    def _dropped(self, error: Exception) -> None:
        """Log once for each cause that history has a gap; a damaged file is set aside, and the next batch makes a new
        one.
        """
        if self._store is not None:
            self._store.close()
            self._store = None
        problem = f"{type(error).__name__}: {error}"
        if problem != self.problem:
            self._log.warning("history is dropped, not written to %s: %s", self.path, problem)
        self.problem = problem
        if is_corrupt(error):
            try:
                self._log.error(
                    "the ledger was damaged: it is %s now, and a new one begins", set_aside(self.path)
                )
            except OSError as again:
                self._log.error("the damaged ledger cannot be set aside: %s", again)


def _patience(batch: Batch) -> float:
    """Return how long a batch may be filled; 0: no longer."""
    if len(batch.events) >= EVENTS_SOON:
        return 0.0
    if batch.events or batch.audit or batch.kernels:
        return FLUSH_EVENTS_EVERY_S
    return FLUSH_EVERY_S if batch.usage.by_key else FLUSH_QUIET_EVERY_S
