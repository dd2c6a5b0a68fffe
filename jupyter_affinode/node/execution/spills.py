"""Spills under way, and reads back into host memory: passes the policy's choice to the shims, and learns from the
results.

The shim writes, and stops by itself as soon as a call waits for the GPU. A user's request for the GPU, which no call
waits for, is passed to it here. Whatever was not written by then is still in host memory. What is read back is for a
kernel that waits, so calls do not end that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from ...settings.policy import MIB
from ...units import bytes_in_words, duration_in_words
from ..model.actions import ReadBack, Spill
from ..protocol.wire import CommandKind, Reply, Status
from ..state.host.host_usage import on_disk_bytes, readers, spillers, with_copy_on_disk
from ..state.observer import Observer, SpillEnded
from ..state.records.kernel import KernelRecord
from ..state.records.moves import SpillRecord
from ..state.records.process import Process
from ..state.registry import NodeState
from ..system.host_memory import memory_of_process

BEGINS_WITHIN_S = 2.0
STALLED_S = 10.0  # without progress for so long, others do not wait for it any more
OWED_MAX_BYTES = 512 * MIB  # the half of the largest lot
GIVEN_UP_S = 60.0  # after that its answer is not waited for either


class Spills:
    """Carries out spills and reads; one at a time for each kernel, and none beside a move."""

    def __init__(
        self, state: NodeState, log: logging.Logger, on_change: Callable[[], None], observer: Observer
    ):
        self._state = state
        self._log = log
        self._on_change = on_change
        self._observer = observer
        # by user: half of what was said to be written, as far as it is not free yet
        self._owed_bytes: dict[str, int] = {}

    def begin(self, kernel: KernelRecord, action: Spill | ReadBack) -> None:
        """Tell the kernel's processes how much each is to write or to read, or to drop what they only retain on
        disk.
        """
        now, reads = time.monotonic(), isinstance(action, ReadBack)
        spill = SpillRecord(now, action.bytes, on_disk_bytes(kernel), kernel.wants_since is not None, reads)
        spill.progress_at = now
        kernel.host.spill = spill
        for process, size in _shares(kernel, action):
            if process.connection is not None:
                if (had := self._memory_of(process, kernel)) is not None:
                    spill.had_bytes[process.key] = had
                spill.pending[process.key] = process.connection.command(
                    CommandKind.READ_BACK if reads else CommandKind.SPILL,
                    argument=size,
                    reason=self._state.settings.spill_dir,
                    lasts_s=BEGINS_WITHIN_S,
                )
        size_in_words = bytes_in_words(action.bytes)
        if reads:
            self._log.info("%s comes back from disk (%s): %s", kernel.id, size_in_words, action.reason)
        elif action.bytes:
            self._state.host.disk.begin_writing(_user(kernel), action.bytes, now)
            self._log.info("%s goes to disk (%s): %s", kernel.id, size_in_words, action.reason)
        self._end_if_done(kernel)

    def take_reply(self, process: Process, reply: Reply) -> None:
        """Take the reply of a process that has written or read what it was told to, or could not."""
        kernel = self._state.kernels[process.kernel_id]
        spill = kernel.host.spill
        if spill is None or spill.pending.get(process.key) != reply.epoch:
            return
        del spill.pending[process.key]
        self._take_freed(process, kernel, spill)
        if spill.asked_bytes:  # what a page says has no more weight than what it was asked for
            spill.moved_bytes += min(reply.bytes, spill.asked_bytes - spill.moved_bytes)
        if reply.status is Status.REVOKED and not (reply.bytes or spill.is_ended or _may_end_itself(kernel)):
            spill.failure, spill.is_deception = "it ended without cause", True
        if reply.status is not Status.REVOKED and (reply.status is not Status.OK or not reply.bytes):
            spill.failure = reply.text or f"none of it can {'be read' if spill.reads else 'go to disk'}"
        self._end_if_done(kernel)

    def _memory_of(self, process: Process, kernel: KernelRecord) -> int | None:
        """Return the host memory that a process has; None where it need not, or cannot, be known."""
        return memory_of_process(process.pid) if kernel.account.charged_user is not None else None

    def _take_freed(self, process: Process, kernel: KernelRecord, spill: SpillRecord) -> None:
        """Add the host memory that a process gave back since it was told to write."""
        has, had = self._memory_of(process, kernel), spill.had_bytes.get(process.key)
        if has is None or had is None:
            spill.freed_bytes = None
        elif spill.freed_bytes is not None:
            spill.freed_bytes += had - has

    def _compare_freed(self, kernel: KernelRecord, spill: SpillRecord) -> None:
        """Note what a user's kernels said that they wrote and did not give back.

        Slabs and lots are given back whole, and a program may take memory meanwhile: so half of it counts, and the next
        spill may make up for it.
        """
        user = kernel.account.charged_user
        if user is None or spill.reads or spill.freed_bytes is None or not spill.asked_bytes:
            return
        owes = max(self._owed_bytes.pop(user, 0) + spill.moved_bytes // 2 - spill.freed_bytes, 0)
        if owes > OWED_MAX_BYTES:
            spill.failure, spill.is_deception = "it gave back no host memory", True
        elif owes:
            self._owed_bytes[user] = owes

    def look(self, now: float) -> None:
        """End spills that are not wanted any more, and stop waiting for those that are gone or make no progress."""
        for kernel in self._state.kernels.values():
            spill = kernel.host.spill
            if spill is None:
                continue
            moved = abs(on_disk_bytes(kernel) - spill.before_bytes)
            if moved > spill.progress_bytes:
                spill.progress_bytes, spill.progress_at = moved, now
            stalled_s = now - spill.progress_at
            if stalled_s > STALLED_S and not spill.is_ended:
                spill.failure = spill.failure or "the disk makes no progress"
                self._state.failed_spills.failed(kernel.account.charged_user, spill.began, now)
            is_wanted = kernel.wants_since is not None and not (spill.is_wanted or spill.reads)
            if (is_wanted or stalled_s > STALLED_S) and not spill.is_ended:
                self._end(kernel, spill)
            connected = {process.key for process in kernel.connected()}
            for key in list(spill.pending):
                if key not in connected or stalled_s > GIVEN_UP_S:
                    del spill.pending[key]
                    spill.failure = spill.failure or "the disk, or the kernel, does not answer"
                    spill.is_unanswered = True
                    # One that has ended has given its memory back.
                    spill.is_deception = spill.is_deception or key in kernel.processes
            self._end_if_done(kernel)

    def _end(self, kernel: KernelRecord, spill: SpillRecord) -> None:
        """Have its processes stop after the chunks that they are writing."""
        spill.is_ended = True
        for process in kernel.connected():
            if process.key in spill.pending and process.connection is not None:
                process.connection.command(CommandKind.ABORT, request=spill.pending[process.key])

    def _end_if_done(self, kernel: KernelRecord) -> None:
        spill = kernel.host.spill
        if spill is None or spill.pending:
            return
        kernel.host.spill = None
        now = time.monotonic()
        self._state.refresh(now)
        self._compare_freed(kernel, spill)
        if spill.is_deception:
            self._state.failed_spills.failed(kernel.account.charged_user, spill.began, now)
        if not spill.asked_bytes and on_disk_bytes(kernel) >= spill.before_bytes:
            spill.failure = "it keeps on disk what it should forget"
        if spill.failure is not None:
            again = duration_in_words(kernel.host.spill_backoff.fail(now))
            what = "reading back" if spill.reads else "the spill of"
            self._log.warning("%s %s failed: %s; tried again in %s", what, kernel.id, spill.failure, again)
        elif spill.moved_bytes:
            kernel.host.spill_backoff.succeed()
        if spill.asked_bytes:
            self._note_moved(kernel, spill, now)
        self._on_change()

    def _note_moved(self, kernel: KernelRecord, spill: SpillRecord, now: float) -> None:
        took_s = now - spill.began
        how_much = bytes_in_words(spill.moved_bytes), duration_in_words(took_s)
        if spill.reads:
            self._log.info("%s: %s read from disk in %s", kernel.id, *how_much)
            return
        if not spill.is_unanswered:
            disk = self._state.host.disk
            disk.end_writing(_user(kernel), spill.asked_bytes, spill.moved_bytes, spill.began)
            if spill.moved_bytes and not spill.is_deception:
                disk.take_written(spill.moved_bytes, took_s)
        ended = SpillEnded("ok" if spill.failure is None else "failed", spill.moved_bytes, took_s)
        self._observer.spill_ended(kernel, ended)
        self._log.info("%s: %s written to disk in %s", kernel.id, *how_much)


def _user(kernel: KernelRecord) -> str:
    """Return the user that the kernel counts for, as in the snapshot."""
    return kernel.account.charged_user or ""


def _may_end_itself(kernel: KernelRecord) -> bool:
    """Return whether it may end a spill: for a call that waits, or because it is about to end."""
    return kernel.wants_since is not None or any(process.is_dying for process in kernel.processes.values())


def _shares(kernel: KernelRecord, action: Spill | ReadBack) -> Iterator[tuple[Process, int]]:
    """Yield how many bytes of the action are for each process."""
    left = action.bytes
    if isinstance(action, Spill) and not action.bytes:
        yield from ((process, 0) for process in with_copy_on_disk(kernel))
        return
    for process in readers(kernel) if isinstance(action, ReadBack) else spillers(kernel):
        has = process.data.disk_bytes if isinstance(action, ReadBack) else process.data.copy_bytes
        if size := min(left, has):
            left -= size
            yield process, size
