"""Hibernations: a kernel's processes write all that they have to disk, and leave the controller.

Nothing is decided here: a kernel that no server has is its keeper's (jupyter_affinode/keeping), which asks for this,
has CRIU write the processes afterwards, and ends them. If that fails the processes come back by themselves, parked.
"""

from __future__ import annotations

import asyncio
import time

from ..link.connection import Ending
from ..model.reasons import Refusal
from ..model.snapshot import Residency
from ..protocol.wire import CommandKind, Status
from ..state.host.host_usage import on_disk_bytes
from ..state.records.kernel import KernelRecord
from ..state.records.operations import Hibernation, Outcome, Participant
from .kind import Kind
from .outcomes import SLUGS

BEGINS_WITHIN_S = 2.0
STALLED_S = 60.0  # without progress for so long it is given up

Done = asyncio.Future[Outcome]


class Hibernations(Kind[Hibernation]):
    """Has kernels' processes hibernate."""

    def begin(self, kernel: KernelRecord, folder: str) -> Done:
        """Tell all of a kernel's processes to write to the image in `folder`; return a future of the outcome."""
        now = time.monotonic()
        done: Done = asyncio.get_running_loop().create_future()
        if kernel.operation is not None or kernel.residency not in (Residency.NONE, Residency.PARKED):
            done.set_result(Outcome(Status.REFUSED, Refusal.BUSY, "the kernel is at work, or on its way"))
            return done
        if silent := [each.pid for each in kernel.processes.values() if each.connection is None]:
            words = f"its process {silent[0]} does not speak to the controller"
            done.set_result(Outcome(Status.REFUSED, Refusal.REFUSED, words))
            return done
        hibernation = kernel.operation = Hibernation(kernel=kernel, began=now, done=done, progress_at=now)
        for process in kernel.connected():
            assert process.connection is not None
            epoch = process.connection.command(hibernation.command, reason=folder, lasts_s=BEGINS_WITHIN_S)
            hibernation.participants[process.key] = Participant(epoch)
        self._log.info("%s hibernates", kernel.id)
        return done

    def look(self, hibernation: Hibernation, now: float) -> None:
        """Stop waiting for processes that are gone, or whose disk makes no progress."""
        kernel = hibernation.kernel
        written = on_disk_bytes(kernel)
        if written != hibernation.seen_bytes:
            hibernation.seen_bytes, hibernation.progress_at = written, now
        connected = {process.key for process in kernel.connected()}
        for key, told in hibernation.awaited.items():
            if key not in connected or now - hibernation.progress_at > STALLED_S:
                told.is_lost = True
                process = kernel.processes.get(key)
                if process is not None and process.connection is not None and told.epoch is not None:
                    process.connection.command(CommandKind.ABORT, request=told.epoch)

    def end(self, hibernation: Hibernation) -> None:
        """Answer the keeper: it can have the processes written, or one of them says why not."""
        bad = [reply for reply in hibernation.replies.values() if reply.status is not Status.OK]
        outcome = Outcome(Status.OK, None, "")
        self._hang_up(hibernation)
        if hibernation.lost:
            outcome = Outcome(Status.FAILED, Refusal.FAILED, "a process of it did not answer in time")
        elif bad:
            outcome = Outcome(bad[0].status, SLUGS.get(bad[0].status, Refusal.REFUSED), bad[0].text)
        if outcome.slug is not None:
            self._log.warning("%s does not hibernate: %s", hibernation.kernel.id, outcome.text)
        if not hibernation.done.done():
            hibernation.done.set_result(outcome)

    def _hang_up(self, hibernation: Hibernation) -> None:
        """Close the links of the processes that are done: they wait for it, and are written without a link."""
        loop = asyncio.get_running_loop()
        for process in hibernation.kernel.connected():
            reply = hibernation.replies.get(process.key)
            if reply is not None and reply.status is Status.OK and process.connection is not None:
                loop.call_soon(process.connection.end, Ending.OURS, "the process becomes an image")
