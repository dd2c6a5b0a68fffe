"""Outcomes of moves, from the shims' replies and their pages."""

from __future__ import annotations

from ..model.reasons import Refusal
from ..protocol.page import Depth, State
from ..protocol.wire import Status
from ..state.gpus.context_depth import kernel_depth
from ..state.observer import MoveEnded
from ..state.records.kernel import KernelRecord
from ..state.records.moves import Move, Phase
from ..state.records.process import Process

PARK_BEGINS_WITHIN_S = 2.0
RESUME_BEGINS_WITHIN_S = 5.0
REPLY_LOST_AFTER_S = 3.0  # after the last moment to begin, if the page shows that it was not begun
MOVE_LASTS_S = 600.0  # one that was begun; a slow host touches fresh memory at 6 GiB/s
ABORT_LASTS_S = 10.0  # a shim stops between two pieces of its copies

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


def failure(move: Move, kernel: KernelRecord) -> tuple[Status, str] | None:
    """Return why the move was not done in every process that still lives; None if it was."""
    if move.failure is not None:
        status, said = move.failure
        return status, said or PLAIN[status]
    for reply in move.replies.values():
        if reply.status not in (Status.OK, Status.NOTHING):
            return reply.status, in_words(move, reply.status)
    if not (move.parks or move.epochs) and any(process.is_parked for process in kernel.processes.values()):
        return Status.STALE, PLAIN[Status.STALE]  # no process could be told
    gone = [kernel.processes[key] for key in move.gone & kernel.processes.keys()]
    if not all(_is_where_it_should_be(move, process) for process in gone):
        return Status.STALE, PLAIN[Status.STALE]
    return None


def summary(kernel: KernelRecord, move: Move, failed: tuple[Status, str] | None, now: float) -> MoveEnded:
    """Return an ended move as the observer is told; the pages are fresh."""
    done = [reply for reply in move.replies.values() if reply.status is Status.OK]
    is_context = kernel_depth(kernel) is Depth.CONTEXT if move.parks else move.from_context
    return MoveEnded(
        parks=move.parks,
        outcome="ok" if failed is None else SLUGS[failed[0]],
        cause=move.cause,
        depth="context" if is_context else "memory",
        bytes=sum(reply.bytes for reply in done),
        duration_s=now - move.began,
        waited_s=move.waited_s,
        for_kernel=move.for_kernel,
        from_gpu=move.from_gpu,
        to_gpu=move.gpu,
    )


def in_words(move: Move, status: Status) -> str:
    """Return what the shims reported, in plain words."""
    said = next((reply.text for reply in move.replies.values() if reply.status is status and reply.text), "")
    return said or PLAIN[status]


def is_lost(move: Move, process: Process | None, now: float) -> bool:
    """Return whether a process's last reply will not come, or is not worth waiting for."""
    since = move.began if move.decided_at is None else move.decided_at
    if process is None or now - since > MOVE_LASTS_S:
        return True
    if move.phase is Phase.ABORTING:
        return now - since > ABORT_LASTS_S
    if move.in_part and move.phase is Phase.PREPARING:
        return False  # it is told when the others are prepared
    if process.data.epoch == move.pending[process.key]:
        done = move.phase is not Phase.PREPARING and _is_where_it_should_be(move, process)
        return done and now - max(since, process.data.state_since) > REPLY_LOST_AFTER_S
    begins_within = PARK_BEGINS_WITHIN_S if move.parks else RESUME_BEGINS_WITHIN_S
    return now - (since if move.in_part else move.began) > begins_within + REPLY_LOST_AFTER_S


def _is_where_it_should_be(move: Move, process: Process) -> bool:
    """Return whether the page shows that the move was carried out."""
    return process.is_parked if move.parks else process.data.state is State.RESIDENT


def count_failed_resumes(kernel: KernelRecord, move: Move) -> None:
    """Count the processes that could not be resumed for a reason that will not pass by itself."""
    for key, reply in move.replies.items():
        process = kernel.processes.get(key)
        if process is None:
            continue
        if reply.status is Status.FAILED:
            process.failed_resumes += 1
            process.failed_resume_text = reply.text or PLAIN[Status.FAILED]
        elif reply.status is Status.OK:
            process.failed_resumes = 0
