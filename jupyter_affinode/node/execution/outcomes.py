"""How moves ended, from the shims' replies and their pages: what is answered, told, and not tried again for a while."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ...units import bytes_in_words, duration_in_words
from ..model.backoff import Backoff
from ..model.reasons import Cause, Refusal
from ..model.snapshot import Residency
from ..protocol.page import Depth, State
from ..protocol.wire import Status
from ..state.gpus.context_depth import kernel_depth
from ..state.host.host_lending import forget_trim, learn_from_park, refused_for_memory
from ..state.observer import MoveEnded
from ..state.records.kernel import KernelRecord
from ..state.records.operations import Move, Outcome, ParkMove, ResumeMove
from ..state.records.ownership import own_or_other
from ..state.records.process import Process
from ..state.registry import NodeState
from .kind import Surroundings

ASK_AGAIN_S = 0.1

SLUGS = {
    Status.BUSY: Refusal.BUSY,
    Status.REVOKED: Refusal.BUSY,
    Status.NO_GPU_ROOM: Refusal.NO_GPU_ROOM,
    Status.NO_HOST_ROOM: Refusal.NO_HOST_MEMORY,
    Status.STALE: Refusal.TOO_LATE,
    Status.NOTHING: Refusal.NOTHING_TO_MOVE,
    Status.FAILED: Refusal.FAILED,
    Status.REFUSED: Refusal.REFUSED,
}
PLAIN = {
    Status.BUSY: "the GPU is at work for this kernel",
    Status.REVOKED: "the kernel used the GPU while it was being freed",
    Status.NO_GPU_ROOM: "the GPU is full",
    Status.NO_HOST_ROOM: "host memory is short",
    Status.STALE: "the kernel did not react in time (is it stopped?)",
    Status.NOTHING: "there is no GPU memory that can be moved",
    Status.FAILED: "the driver refused",
    Status.REFUSED: Refusal.REFUSED,
}

Failure = tuple[Status, str]


class Outcomes:
    """Takes ended moves, and keeps failed ones from being tried in a loop."""

    def __init__(self, around: Surroundings):
        self._around, self._state, self._log = around, around.state, around.log

    def take(self, move: Move) -> Failure | None:
        """Take a move that has ended in every process; return why it failed."""
        kernel, now = move.kernel, time.monotonic()
        kernel.last_move.ended_at, kernel.last_move.lasted_s = now, now - move.began
        forget_trim(kernel)
        self._state.refresh(now)
        gpus = kernel.by_gpu().items()
        self._state.gpus.move_ended(
            [uuid for uuid, gpu in gpus if gpu.resident_bytes or gpu.parked_bytes], now
        )
        failed = _failure(move)
        from_gpu, to_gpu = self._migrated(move, failed) if isinstance(move, ResumeMove) else (None, None)
        self._around.observer.move_ended(kernel, _summary(move, failed, from_gpu, to_gpu, now))
        if isinstance(move, ParkMove):
            return self._parked(move, failed)
        self._resumed(move, failed, from_gpu, now)
        return failed

    def refuse_park(
        self,
        kernel: KernelRecord,
        status: Status,
        slug: Refusal,
        reason: str,
        *,
        was_tried: bool = False,
        found_less: bool = False,
        figures: Mapping[str, int] | None = None,
    ) -> None:
        """Record why a kernel cannot be parked, answer the client that asked, and leave the kernel alone for a while.

        For lack of host memory that lasts until there is more of it. A park that was asked for and tried is decided on
        again first: what it lacks is known better now. `found_less`: its processes found less host memory than there is
        by all that we know. `figures`: of the reason.
        """
        now = time.monotonic()
        may_pass = was_tried and status in (Status.BUSY, Status.NO_HOST_ROOM)
        if may_pass and kernel.requests.park is not None and now < kernel.requests.park_until:
            kernel.requests.park_again_at = now + ASK_AGAIN_S
            return
        kernel.failures.refusal, kernel.failures.refusal_code = reason, slug
        kernel.failures.refusal_args = figures or {}
        kernel.because(None, None)
        if status is Status.NO_HOST_ROOM:
            pause = refused_for_memory(kernel, now, self._state.host.left_for(kernel) if found_less else None)
            when = "there is more of it"
        else:
            pause = kernel.failures.park.fail(now)
            when = f"{pause:.1f} s have passed"
        if found_less:
            kernel.failures.park.wait(now, pause)
        self._log.info("%s stays on the GPU: %s; not tried again before %s", kernel.id, reason, when)
        self._around.observer.park_refused(kernel, slug, was_tried)
        kernel.end_park_request(Outcome(status, slug, reason))

    def _migrated(self, move: ResumeMove, failed: Failure | None) -> tuple[str | None, str | None]:
        """Return from which GPU and to which it migrated, or was to; by the page, since users are told where it is."""
        to_gpu, found = move.action.gpu, move.kernel.main_gpu()
        if to_gpu is None:
            return None, None
        if failed is not None or found in ("", to_gpu):
            return move.from_gpu, to_gpu
        self._log.warning("%s came back on %s, not on %s", move.kernel.id, found, to_gpu)
        return (None, None) if found == move.from_gpu else (move.from_gpu, found)

    def _parked(self, move: ParkMove, failed: Failure | None) -> Failure | None:
        kernel, replies = move.kernel, move.replies
        done = [reply for reply in replies.values() if reply.status is Status.OK]
        if failed is None and not done and not move.lost & kernel.processes.keys():
            failed = (Status.NOTHING, _in_words(move, Status.NOTHING))
        move.is_done = failed is None
        if failed is not None and move.is_called_off:
            kernel.because(None, None)
            return failed
        if failed is not None and failed[0] is Status.NOTHING and move.is_asked:
            return self._nothing_to_park(kernel, failed)
        self._around.failed_parks.park_ended(move, failed)
        found_less = learn_from_park(kernel, replies)
        if failed is not None:
            status, text = failed
            short = [reply.bytes for reply in replies.values() if reply.status is Status.NO_HOST_ROOM]
            figures = {"bytes": sum(short)} if any(short) else {}
            self.refuse_park(
                kernel, status, SLUGS[status], text, was_tried=True, found_less=found_less, figures=figures
            )
            return failed
        kernel.failures.refusal = kernel.failures.refusal_code = None
        kernel.failures.park.succeed()
        kernel.host.backoff.succeed()
        kernel.failures.context_refusal = next(
            (reply.text for reply in done if move.action.to_context and reply.text), None
        )
        if kernel_depth(kernel) is Depth.CONTEXT:
            context = sum(process.data.context_bytes for process in kernel.processes.values())
            self._state.gpus.take_parked_context(kernel.main_gpu(), context, time.monotonic())
        kernel.held_until = None if move.is_asked else kernel.held_until
        moved = bytes_in_words(sum(reply.bytes for reply in done))
        took = max((reply.duration_s for reply in done), default=0.0)
        self._log.info("parked %s: %s in %s", kernel.id, moved, duration_in_words(took))
        kernel.end_park_request(Outcome(Status.OK, None, f"{moved} freed"))
        return None

    def _nothing_to_park(self, kernel: KernelRecord, failed: Failure) -> Failure:
        """Answer a request for a park of a kernel that has nothing to move: it is so already, and not refused."""
        kernel.because(None, None)
        kernel.held_until = None
        self._log.info("%s has nothing to park: %s", kernel.id, failed[1])
        kernel.end_park_request(Outcome(Status.NOTHING, Refusal.NOTHING_TO_MOVE, failed[1]))
        return failed

    def _resumed(self, move: ResumeMove, failed: Failure | None, from_gpu: str | None, now: float) -> None:
        kernel, is_own_fault = move.kernel, _is_waiters_fault(move)
        if kernel.residency is not Residency.RESUMING:  # else it still takes what it was given
            reserved = self._state.reservations.finish_resume(kernel.id, now)
            if failed is not None and kernel.processes and is_own_fault:
                self._around.unused_room.resume_failed(kernel, reserved, now)
        _count_failed_resumes(move)
        if failed is None:
            kernel.failures.resume.succeed()
            kernel.failures.migration.clear()
            kernel.last_move.from_gpu = from_gpu
            kernel.because(None, move.action.cause)
            moved = sum(reply.bytes for reply in move.replies.values())
            took = duration_in_words(now - move.began)
            self._log.info("resumed %s: %s in %s", kernel.id, bytes_in_words(moved), took)
            kernel.end_resume_request(Outcome(Status.OK, None, "the GPU is back"))
            return
        status, text = failed
        if move.action.gpu is not None:
            self._stays_off(kernel, move.action.gpu, text, now)
            if status is not Status.FAILED:
                return
        pause = kernel.failures.resume.fail(now) if is_own_fault else 0.0
        kernel.because(text, Cause.FAILED)
        self._log.warning("%s stays parked: %s; tried again in %.1f s", kernel.id, text, pause)
        if status is Status.NO_GPU_ROOM:
            for uuid, gpu in kernel.by_gpu().items():
                if gpu.parked_bytes:
                    self._state.gpus.take_failure(uuid, gpu.parked_bytes)
        elif kernel.requests.resume_done is not None:
            kernel.end_resume_request(Outcome(status, SLUGS[status], text))

    def _stays_off(self, kernel: KernelRecord, gpu: str, text: str, now: float) -> None:
        """Note that a migration failed. The kernel is parked as before, and may be resumed at home at once."""
        pause = kernel.failures.migration.setdefault(gpu, Backoff()).fail(now)
        kernel.because(text, Cause.FAILED)
        self._log.warning(
            "%s does not come back on %s: %s; tried again in %.1f s", kernel.id, gpu, text, pause
        )


def waiter_fields(state: NodeState, kernel: KernelRecord, other_id: str | None) -> dict[str, str]:
    """Return which user this kernel was parked for, as its own user is told; {} if that is not known."""
    request = state.room_requests.get(other_id or "")
    other = state.kernels.get(other_id or "") if request is None else request.record
    return {} if other is None else {"for": own_or_other(kernel, other)}


def is_where_it_should_be(move: Move, process: Process) -> bool:
    """Return whether the page shows that the move was carried out."""
    return process.is_parked if isinstance(move, ParkMove) else process.data.state is State.RESIDENT


def _failure(move: Move) -> Failure | None:
    """Return why the move was not done in every process that still lives; None if it was."""
    processes = move.kernel.processes
    if move.failure is not None:
        status, said = move.failure
        return status, said or PLAIN[status]
    for reply in move.replies.values():
        if reply.status not in (Status.OK, Status.NOTHING):
            return reply.status, _in_words(move, reply.status)
    is_untold = isinstance(move, ResumeMove) and not move.participants
    if is_untold and any(process.is_parked for process in processes.values()):
        return Status.STALE, PLAIN[Status.STALE]
    lost = [processes[key] for key in move.lost & processes.keys()]
    if not all(is_where_it_should_be(move, process) for process in lost):
        return Status.STALE, PLAIN[Status.STALE]
    return None


def _summary(
    move: Move, failed: Failure | None, from_gpu: str | None, to_gpu: str | None, now: float
) -> MoveEnded:
    """Return an ended move as the observer is told; the pages are fresh."""
    if isinstance(move, ParkMove):
        is_context, waited_s = kernel_depth(move.kernel) is Depth.CONTEXT, None
        for_kernel = move.action.for_kernel
    else:
        is_context, waited_s, for_kernel = move.from_context, move.waited_s, None
    return MoveEnded(
        parks=isinstance(move, ParkMove),
        outcome="ok" if failed is None else SLUGS[failed[0]],
        cause=move.action.cause,
        depth="context" if is_context else "memory",
        bytes=sum(reply.bytes for reply in move.replies.values() if reply.status is Status.OK),
        duration_s=now - move.began,
        waited_s=waited_s,
        for_kernel=for_kernel,
        from_gpu=from_gpu,
        to_gpu=to_gpu,
    )


def _in_words(move: Move, status: Status) -> str:
    """Return what the shims reported, in plain words."""
    said = (reply.text for reply in move.replies.values() if reply.status is status and reply.text)
    return next(said, PLAIN[status])


def _is_waiters_fault(move: ResumeMove) -> bool:
    """Return whether a resume failed for another reason than that a victim of its exchange did not free its memory,
    though it may say that it did (failed_moves.py).
    """
    parks = [] if move.exchange is None else move.exchange.parks
    return all(park.is_done and not park.is_hollow for park in parks)


def _count_failed_resumes(move: ResumeMove) -> None:
    """Count the processes that could not be resumed for a reason that will not pass by itself."""
    for key, reply in move.replies.items():
        process = move.kernel.processes.get(key)
        if process is None:
            continue
        if reply.status is Status.FAILED:
            process.failed_resumes += 1
        elif reply.status is Status.OK:
            process.failed_resumes = 0
