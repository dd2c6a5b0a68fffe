"""Spills, reads back into host memory, and all of a kernel into an image: tells the shims, and learns from the results.

The shim writes, and stops by itself as soon as a call waits for the GPU. A user's request for the GPU, which no call
waits for, is passed to it here. Whatever was not written by then is still in host memory. What is read back is for a
kernel that waits, so calls do not end that.

For an image (jupyter_affinode/keeping) each process writes all that it has to a file of its own, and leaves. If an
image cannot be made of the processes afterwards, they come back by themselves, parked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from ...settings.policy import MIB
from ...units import bytes_in_words, duration_in_words
from ..link.connection import Ending
from ..model.actions import ReadBack, Spill
from ..model.reasons import Refusal
from ..model.snapshot import Residency
from ..protocol.wire import CommandKind, Reply, Status
from ..state.host.host_usage import (
    on_disk_bytes,
    readers,
    spillable_bytes,
    spillers,
    with_copy_on_disk,
)
from ..state.observer import SpillEnded
from ..state.records.kernel import KernelRecord
from ..state.records.operations import DiskTransfer, Outcome, Participant, Phase
from ..state.records.process import Process
from ..system.host_memory import memory_of_process
from .kind import Kind, Surroundings
from .outcomes import SLUGS

BEGINS_WITHIN_S = 2.0
STALLED_S, IMAGE_STALLED_S = 10.0, 60.0  # without progress for so long, others do not wait for it any more
COPIED_BYTES_PER_S = 1e8  # at least: what is on disk already goes into an image without being seen to
OWED_MAX_BYTES = 512 * MIB  # the half of the largest lot
GIVEN_UP_S = 50.0  # after that its answer is not waited for either

Done = asyncio.Future[Outcome]


class DiskTransfers(Kind[DiskTransfer]):
    """Carries out spills and reads."""

    def __init__(self, around: Surroundings):
        super().__init__(around)
        # by user: half of what was said to be written, as far as it is not free yet
        self._owed_bytes: dict[str, int] = {}

    def begin(self, kernel: KernelRecord, action: Spill | ReadBack) -> None:
        """Tell the kernel's processes how much each is to write or to read, or to drop what they only retain on
        disk.
        """
        now = time.monotonic()
        transfer = kernel.operation = DiskTransfer(
            kernel=kernel,
            began=now,
            command=CommandKind.READ_BACK if isinstance(action, ReadBack) else CommandKind.SPILL,
            asked_bytes=action.bytes,
            before_bytes=on_disk_bytes(kernel),
            was_wanted=kernel.wants_since is not None,
            progress_at=now,
            patience_s=STALLED_S,
        )
        for process, size in _shares(kernel, action):
            self._tell(transfer, process, self._state.settings.spill_dir, size)
        size_in_words = bytes_in_words(action.bytes)
        if transfer.reads:
            self._log.info("%s comes back from disk (%s): %s", kernel.id, size_in_words, action.reason)
        elif action.bytes:
            self._state.host.disk.begin_writing(_user(kernel), action.bytes, now)
            self._log.info("%s goes to disk (%s): %s", kernel.id, size_in_words, action.reason)

    def hibernate(self, kernel: KernelRecord, folder: str) -> Done:
        """Tell all of a kernel's processes to write to the image in `folder`; return a future of the outcome."""
        now, on_disk = time.monotonic(), on_disk_bytes(kernel)
        done: Done = asyncio.get_running_loop().create_future()
        if kernel.operation is not None or not _may_leave(kernel):
            done.set_result(Outcome(Status.REFUSED, Refusal.BUSY, "the kernel is at work, or on its way"))
            return done
        if silent := [each.pid for each in kernel.processes.values() if each.connection is None]:
            words = f"its process {silent[0]} does not speak to the controller"
            done.set_result(Outcome(Status.REFUSED, Refusal.REFUSED, words))
            return done
        transfer = kernel.operation = DiskTransfer(
            kernel=kernel,
            began=now,
            command=CommandKind.HIBERNATE,
            asked_bytes=spillable_bytes(kernel),
            before_bytes=on_disk,
            was_wanted=kernel.wants_since is not None,
            progress_at=now,
            patience_s=IMAGE_STALLED_S + on_disk / COPIED_BYTES_PER_S,
            done=done,
        )
        for process in kernel.connected():
            self._tell(transfer, process, folder)
        self._state.host.disk.begin_writing(_user(kernel), transfer.asked_bytes, now)
        self._log.info("%s goes into an image (%s)", kernel.id, bytes_in_words(transfer.asked_bytes))
        return done

    def _tell(self, transfer: DiskTransfer, process: Process, folder: str, size: int = 0) -> None:
        if process.connection is not None:
            had_bytes = self._memory_of(process, transfer.kernel)
            epoch = process.connection.command(
                transfer.command, argument=size, reason=folder, lasts_s=BEGINS_WITHIN_S
            )
            transfer.participants[process.key] = Participant(epoch, had_bytes=had_bytes)

    def take_reply(self, transfer: DiskTransfer, process: Process, reply: Reply) -> None:
        """Note that a process has written or read what it was told to, or could not, and what it gave back."""
        kernel, had = transfer.kernel, transfer.participants[process.key].had_bytes
        has = self._memory_of(process, kernel)
        if has is None or had is None:
            transfer.freed_bytes = None
        elif transfer.freed_bytes is not None:
            transfer.freed_bytes += had - has
        is_ended = transfer.phase is Phase.ABORTING
        if reply.status is Status.REVOKED and not (reply.bytes or is_ended or _may_end_itself(kernel)):
            transfer.problem, transfer.is_deception = "it ended without cause", True
        is_nothing = reply.status is Status.OK and not (reply.bytes or transfer.hibernates)
        if reply.status not in (Status.OK, Status.REVOKED) or is_nothing:
            how = "be read" if transfer.reads else "go to disk"
            transfer.problem = reply.text or f"none of it can {how}"

    def _memory_of(self, process: Process, kernel: KernelRecord) -> int | None:
        """Return the host memory that a process has; None where it need not, or cannot, be known."""
        return memory_of_process(process.pid) if kernel.account.charged_user is not None else None

    def _compare_freed(self, transfer: DiskTransfer) -> None:
        """Note what a user's kernels said that they wrote and did not give back.

        Slabs and lots are given back whole, and a program may take memory meanwhile: so half of it counts, and the next
        spill may make up for it.
        """
        user = transfer.kernel.account.charged_user
        if user is None or transfer.reads or transfer.freed_bytes is None or not transfer.asked_bytes:
            return
        owes = max(self._owed_bytes.pop(user, 0) + transfer.moved_bytes // 2 - transfer.freed_bytes, 0)
        if owes > OWED_MAX_BYTES:
            transfer.problem, transfer.is_deception = "it gave back no host memory", True
        elif owes:
            self._owed_bytes[user] = owes

    def expire(self, transfer: DiskTransfer, now: float) -> None:
        """End a transfer that is not wanted any more, and stop waiting for one that is gone or makes no progress."""
        kernel, is_ended = transfer.kernel, transfer.phase is Phase.ABORTING
        moved = abs(on_disk_bytes(kernel) - transfer.before_bytes)
        if moved > transfer.progress_bytes:
            transfer.progress_bytes, transfer.progress_at = moved, now
        stalled_s = now - transfer.progress_at
        if stalled_s > transfer.patience_s and not is_ended:
            transfer.problem = transfer.problem or "the disk makes no progress"
            self._state.failed_spills.failed(kernel.account.charged_user, transfer.began, now)
        is_wanted = kernel.wants_since is not None and not (transfer.was_wanted or transfer.reads)
        if (is_wanted or stalled_s > transfer.patience_s) and not is_ended:
            self.stop(transfer)
        connected = {process.key for process in kernel.connected()}
        for key, told in transfer.awaited.items():
            if key not in connected or stalled_s > transfer.patience_s + GIVEN_UP_S:
                told.is_lost = True
                transfer.problem = transfer.problem or "the disk, or the kernel, does not answer"
                # One that has ended has given its memory back.
                transfer.is_deception = transfer.is_deception or key in kernel.processes

    def end(self, transfer: DiskTransfer) -> None:
        """Learn from how it went: what is not tried again for a while, and how fast the disk is."""
        kernel, now = transfer.kernel, time.monotonic()
        self._state.refresh(now)
        self._compare_freed(transfer)
        if transfer.is_deception:
            self._state.failed_spills.failed(kernel.account.charged_user, transfer.began, now)
        forgets = not (transfer.asked_bytes or transfer.hibernates)
        if forgets and on_disk_bytes(kernel) >= transfer.before_bytes:
            transfer.problem = "it keeps on disk what it should forget"
        if transfer.problem is not None:
            what, again = WORDS[transfer.command], ""
            if not transfer.hibernates:  # the keeper decides when that is tried again
                again = f"; tried again in {duration_in_words(kernel.host.spill_backoff.fail(now))}"
            self._log.warning("%s %s failed: %s%s", what, kernel.id, transfer.problem, again)
        elif transfer.moved_bytes:
            kernel.host.spill_backoff.succeed()
        if not forgets:
            self._note_moved(transfer, now)
        if transfer.done is not None:
            self._end_hibernation(transfer, transfer.done)

    def _end_hibernation(self, transfer: DiskTransfer, done: Done) -> None:
        """Answer the keeper: it can have the processes written, or one of them says why not.

        The links of the processes that are done are closed: they wait for it, and are written without a link.
        """
        kernel, loop = transfer.kernel, asyncio.get_running_loop()
        bad = [reply for reply in transfer.replies.values() if reply.status is not Status.OK]
        outcome = Outcome(Status.OK, None, "")
        if transfer.lost:
            outcome = Outcome(Status.FAILED, Refusal.FAILED, "a process of it did not answer in time")
        elif bad:
            outcome = Outcome(Status.REFUSED, SLUGS.get(bad[0].status, Refusal.REFUSED), bad[0].text)
        else:
            kernel.leave_for_image(time.monotonic())
        for process in kernel.connected():
            reply = transfer.replies.get(process.key)
            if reply is not None and reply.status is Status.OK and process.connection is not None:
                loop.call_soon(process.connection.end, Ending.OURS, "the process becomes an image")
        if not done.done():
            done.set_result(outcome)

    def _note_moved(self, transfer: DiskTransfer, now: float) -> None:
        kernel, moved, took_s = transfer.kernel, transfer.moved_bytes, now - transfer.began
        how_much = bytes_in_words(moved), duration_in_words(took_s)
        if transfer.reads:
            self._log.info("%s: %s read from disk in %s", kernel.id, *how_much)
            return
        if not transfer.lost:  # else a process did not say how much it wrote
            disk = self._state.host.disk
            disk.end_writing(_user(kernel), transfer.asked_bytes, moved, transfer.began)
            if moved and not transfer.is_deception:
                disk.take_written(moved, took_s)
        outcome = "ok" if transfer.problem is None else "failed"
        ended = SpillEnded(outcome, moved, took_s, into_image=transfer.hibernates)
        self._around.observer.spill_ended(kernel, ended)
        self._log.info("%s: %s written to disk in %s", kernel.id, *how_much)


WORDS = {
    CommandKind.SPILL: "the spill of",
    CommandKind.READ_BACK: "reading back",
    CommandKind.HIBERNATE: "the image of",
}


def _user(kernel: KernelRecord) -> str:
    """Return the user that the kernel counts for, as in the snapshot."""
    return kernel.account.charged_user or ""


def _may_leave(kernel: KernelRecord) -> bool:
    """Return whether its processes can leave for an image: all that can be moved is parked, or there is nothing. One
    without processes may have left already.
    """
    if kernel.residency is Residency.RESIDENT:
        return not any(process.resident_bytes for process in kernel.processes.values())
    return not kernel.processes or kernel.residency in (Residency.NONE, Residency.PARKED)


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
