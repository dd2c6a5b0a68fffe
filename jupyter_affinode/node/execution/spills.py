"""Spills under way: passes the policy's choice to the shims, and learns from the results.

The shim writes, and stops by itself as soon as a call waits for the GPU. A user's request for the GPU, which no call
waits for, is passed to it here. Whatever was not written by then is still in host memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ...units import bytes_in_words, duration_in_words
from ..model.actions import Spill
from ..protocol.wire import CommandKind, Reply, Status
from ..state.host.host_usage import on_disk_bytes, spillers, with_copy_on_disk
from ..state.observer import Observer, SpillEnded
from ..state.records.kernel import KernelRecord
from ..state.records.moves import SpillRecord
from ..state.records.process import Process
from ..state.registry import NodeState

BEGINS_WITHIN_S = 2.0
STALLED_S = 10.0  # without progress for so long, others do not wait for it any more
GIVEN_UP_S = 60.0  # after that its answer is not waited for either


class Spills:
    """Carries out spills; one at a time for each kernel, and none beside a move."""

    def __init__(
        self, state: NodeState, log: logging.Logger, on_change: Callable[[], None], observer: Observer
    ):
        self._state = state
        self._log = log
        self._on_change = on_change
        self._observer = observer

    def begin(self, kernel: KernelRecord, action: Spill) -> None:
        """Tell the kernel's processes how much each is to write, or to drop what they only retain on disk."""
        now, left = time.monotonic(), action.bytes
        before = on_disk_bytes(kernel)
        spill = kernel.host.spill = SpillRecord(now, action.bytes, before, kernel.wants_since is not None)
        spill.progress_bytes, spill.progress_at = before, now
        for process in spillers(kernel) if action.bytes else with_copy_on_disk(kernel):
            size = min(left, process.data.copy_bytes)
            if process.connection is None or (action.bytes and not size):
                continue
            left -= size if action.bytes else 0
            spill.pending[process.key] = process.connection.command(
                CommandKind.SPILL,
                argument=size if action.bytes else 0,
                reason=self._state.settings.spill_dir,
                lasts_s=BEGINS_WITHIN_S,
            )
        if action.bytes:
            self._state.host.disk.begin_writing(action.bytes, now)
            self._log.info("%s goes to disk (%s): %s", kernel.id, bytes_in_words(action.bytes), action.reason)
        self._end_if_done(kernel)

    def take_reply(self, process: Process, reply: Reply) -> None:
        """Take the reply of a process that has written what it was told to, or could not."""
        kernel = self._state.kernels[process.kernel_id]
        spill = kernel.host.spill
        if spill is None or spill.pending.get(process.key) != reply.epoch:
            return
        del spill.pending[process.key]
        if spill.asked_bytes:  # what a page says has no more weight than what it was asked for
            spill.written_bytes += min(reply.bytes, spill.asked_bytes - spill.written_bytes)
        if reply.status is not Status.REVOKED and (reply.status is not Status.OK or not reply.bytes):
            spill.failure = reply.text or "none of it can go to disk"
        self._end_if_done(kernel)

    def look(self, now: float) -> None:
        """End spills that are not wanted any more, and stop waiting for those that are gone or make no progress."""
        for kernel in self._state.kernels.values():
            spill = kernel.host.spill
            if spill is None:
                continue
            on_disk = on_disk_bytes(kernel)
            if on_disk > spill.progress_bytes:
                spill.progress_bytes, spill.progress_at = on_disk, now
            stalled_s = now - spill.progress_at
            if stalled_s > STALLED_S:
                spill.failure = spill.failure or "the disk makes no progress"
            is_wanted = kernel.wants_since is not None and not spill.is_wanted
            if (is_wanted or stalled_s > STALLED_S) and not spill.is_ended:
                self._end(kernel, spill)
            connected = {process.key for process in kernel.connected()}
            for key in list(spill.pending):
                if key not in connected or stalled_s > GIVEN_UP_S:
                    del spill.pending[key]
                    spill.failure = spill.failure or "the disk, or the kernel, does not answer"
                    spill.is_unanswered = True
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
        took_s = now - spill.began
        self._state.refresh(now)
        if not spill.asked_bytes and on_disk_bytes(kernel) >= spill.before_bytes:
            spill.failure = "it keeps on disk what it should forget"
        if spill.failure is not None:
            pause_s = kernel.host.spill_backoff.fail(now)
            again = duration_in_words(pause_s)
            self._log.warning(
                "the spill of %s failed: %s; tried again in %s", kernel.id, spill.failure, again
            )
        elif spill.written_bytes:
            kernel.host.spill_backoff.succeed()
        if spill.asked_bytes:
            if not spill.is_unanswered:
                self._state.host.disk.end_writing(spill.asked_bytes, spill.written_bytes, spill.began, now)
            ended = SpillEnded("ok" if spill.failure is None else "failed", spill.written_bytes, took_s)
            self._observer.spill_ended(kernel, ended)
            size = bytes_in_words(spill.written_bytes)
            self._log.info("%s: %s written to disk in %s", kernel.id, size, duration_in_words(took_s))
        self._on_change()
