"""Sharing: a parked process is told to share host memory with its user's others, and when another is told so.

The shim compares, and stops by itself as soon as a call waits for the GPU. Nothing depends on it: what it has not
shared by then is its own, as before.
"""

from __future__ import annotations

import time

from ...units import bytes_in_words, duration_in_words
from ..protocol.wire import Reply, Status
from ..state.records.kernel import KernelRecord
from ..state.records.operations import Participant, Sharing
from ..state.records.process import Process
from .kind import Kind

BEGINS_WITHIN_S = 2.0
LASTS_S = 120.0  # 80 GiB at a GiB a second
GIVEN_UP_S = 30.0  # after that its answer is not waited for either
HARMLESS = (Status.OK, Status.REVOKED, Status.BUSY, Status.STALE, Status.NOTHING)


class SharingOperations(Kind[Sharing]):
    """Tells processes to share, one of a kernel at a time."""

    def begin(self, kernel: KernelRecord) -> None:
        """Tell the next process of the kernel."""
        now, sharing = time.monotonic(), self._state.sharing
        process = sharing.next_of(kernel, now)
        if process is None or process.connection is None:
            return
        operation = kernel.operation = Sharing(
            kernel=kernel, began=now, seen=sharing.seen_by(kernel, process)
        )
        epoch = process.connection.command(
            operation.command,
            argument=sharing.number_for(kernel),
            reason=self._state.settings.share_dir,
            lasts_s=BEGINS_WITHIN_S,
        )
        operation.participants[process.key] = Participant(epoch)

    def take_reply(self, operation: Sharing, process: Process, reply: Reply) -> None:
        """Note up to when the process has looked, and whether its user's others have something to look at."""
        kernel, now, sharing = operation.kernel, time.monotonic(), self._state.sharing
        news = reply.bytes > 0
        problem = None if reply.status in HARMLESS else reply.text or "it cannot share host memory"
        if reply.status is Status.REFUSED:
            sharing.name_is_taken(kernel)
        if problem is not None and sharing.is_news(kernel, problem):
            self._log.warning("%s shares no host memory: %s", kernel.id, problem)
        sharing.ended(kernel, now, news=news, problem=problem)
        if reply.status is Status.OK:
            # its own news need not be looked at again
            own = sharing.seen_by(kernel, process)
            process.shared = own if own.news == operation.seen.news + news else operation.seen
            took = duration_in_words(now - operation.began)
            self._log.info("%s looked at what it can share: %s", kernel.id, took)
        if news:
            self._log.info("%s shares %s more of host memory", kernel.id, bytes_in_words(reply.bytes))

    def expire(self, operation: Sharing, now: float) -> None:
        """End what is in the way of a kernel that is wanted, and stop waiting for a process that is gone."""
        kernel, lasted_s = operation.kernel, now - operation.began
        is_wanted = kernel.wants_since is not None or kernel.cell.is_open or kernel.requests.resume
        connected = {process.key for process in kernel.connected()}
        for key, told in operation.awaited.items():
            told.is_lost = key not in connected or lasted_s > LASTS_S + GIVEN_UP_S
        if is_wanted or lasted_s > LASTS_S:
            self.stop(operation)

    def end(self, operation: Sharing) -> None:
        """Begin what waited for its end."""
        now = time.monotonic()
        self._state.refresh(now)
        if operation.lost:
            self._state.sharing.ended(operation.kernel, now, problem="a process did not answer")
        if operation.then is not None:
            operation.then()
