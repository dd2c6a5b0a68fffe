"""Group commit: a move of several processes in two steps, so that all of them move or none ("Prepared moves" in
shim/src/protocol.h).

`begin` sends PARK or RESUME, with MoveFlag.PREPARE where that is possible, and `Moves` gathers the replies; this module
decides between COMMIT and ABORT. A prepared process has given nothing up, so until all are prepared an abort costs
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..protocol.page import Depth, State
from ..protocol.wire import CommandKind, MoveFlag, Status
from ..state.host.host_usage import budget_argument
from ..state.records.kernel import KernelRecord
from ..state.records.moves import Move, Phase
from ..state.records.process import Process
from .outcomes import PARK_BEGINS_WITHIN_S

USED_MEANWHILE = (Status.REVOKED, "the kernel used the GPU while it was being freed")
RESUME_REQUESTED = (Status.REVOKED, "the GPU was asked back while it was being freed")
NEWCOMER = (Status.BUSY, "another process of the kernel began to use the GPU")
ENDED = (Status.BUSY, "one of the kernel's processes ended while the GPU was being freed")
NOT_TOLD = 0  # no epoch of a command
SILENT = (Status.STALE, "one of the kernel's processes did not react in time (is it stopped?)")


def can_prepare(targets: Sequence[Process]) -> bool:
    """Return whether a move of these processes takes two steps.

    A single process needs no agreement. A process that resumes from context depth holds its GPU's lock from before its
    context is restored until it is resident: peers on that GPU cannot prepare beside it.
    """
    return len(targets) > 1 and all(process.data.depth is not Depth.CONTEXT for process in targets)


def begin(
    kernel: KernelRecord, move: Move, targets: Sequence[Process], kind: CommandKind, lasts_s: float
) -> None:
    """Command a park or resume of these processes; each is to have begun within `lasts_s`.

    What was parked in part has nothing to prepare: in an exchange it is told when the others are to COMMIT.
    """
    is_exchange = move.exchange is not None
    move.in_part = move.parks and any(process.is_parked for process in targets)
    in_two_steps = move.parks if is_exchange else can_prepare(targets)
    move.phase = Phase.PREPARING if in_two_steps else Phase.DIRECT
    if is_exchange and move.in_part:
        move.pending = {process.key: NOT_TOLD for process in targets}
        move.prepared = set(move.pending)
    else:
        _tell(kernel, move, targets, kind, lasts_s)


def _tell(
    kernel: KernelRecord, move: Move, targets: Sequence[Process], kind: CommandKind, lasts_s: float
) -> None:
    """Send the command to each process."""
    is_exchange = move.exchange is not None
    flags = MoveFlag.PREPARE if move.phase is Phase.PREPARING else MoveFlag(0)
    if is_exchange or move.in_part:
        flags |= MoveFlag.STREAM
    if move.exchange is not None and move.exchange.hands_over:
        flags |= MoveFlag.HAND_OVER
    if move.to_context and len(targets) == 1:
        flags |= MoveFlag.CONTEXT
    if move.preempts and len(targets) == 1:
        flags |= MoveFlag.PREEMPT
    if move.gpu is not None:
        flags |= MoveFlag.MIGRATE
    for process in targets:
        if process.connection is not None:
            budget = budget_argument(kernel, process, targets) if move.parks else 0
            epoch = process.connection.command(
                kind, argument=budget | int(flags), reason=move.gpu or move.reason, lasts_s=lasts_s
            )
            move.epochs[process.key] = move.pending[process.key] = epoch


def advance(kernel: KernelRecord, move: Move) -> None:
    """Decide as soon as possible: abort at the first obstacle, commit once all are prepared; the parks of an exchange
    are committed together (exchanges.py).

    Called on each reply, on each change of the kernel's processes and before COMMIT; pages should be fresh.
    """
    if move.phase is not Phase.PREPARING:
        return
    failure = _obstacle(kernel, move)
    if failure is not None:
        move.failure = failure
        _decide(kernel, move, Phase.ABORTING, CommandKind.ABORT, failure[1])
    elif move.exchange is None and move.pending.keys() == move.prepared:
        commit(kernel, move)


def commit(kernel: KernelRecord, move: Move) -> None:
    """Commit a prepared move."""
    if move.in_part:
        targets = [kernel.processes[key] for key in move.pending if key in kernel.processes]
        move.phase, move.decided_at = Phase.COMMITTING, time.monotonic()
        _tell(kernel, move, targets, CommandKind.PARK, PARK_BEGINS_WITHIN_S)
    else:
        _decide(kernel, move, Phase.COMMITTING, CommandKind.COMMIT, move.reason)


def abort(kernel: KernelRecord, move: Move, failure: tuple[Status, str]) -> None:
    """Abort a move that is not decided yet, for a reason that no reply and no page shows."""
    if move.phase is Phase.PREPARING:
        move.failure = failure
        _decide(kernel, move, Phase.ABORTING, CommandKind.ABORT, failure[1])


def _decide(kernel: KernelRecord, move: Move, phase: Phase, command: CommandKind, reason: str) -> None:
    """Send the decision to each process without a last answer; one that was given up may have begun, so it is told
    too.
    """
    move.phase, move.decided_at = phase, time.monotonic()
    if move.in_part:
        move.pending.clear()  # none was told
    for key, epoch in move.epochs.items():
        process = kernel.processes.get(key)
        if process is not None and process.connection is not None and key not in move.replies:
            process.connection.command(command, request=epoch, reason=reason)


def _obstacle(kernel: KernelRecord, move: Move) -> tuple[Status, str] | None:
    """Return why not all can move; None as long as all may."""
    for reply in move.replies.values():
        if reply.status not in (Status.OK, Status.NOTHING):
            return reply.status, reply.text
    if not move.parks:
        return None  # a process that is gone needs no room now, and the others need not wait for it
    if move.gone:
        return SILENT if move.gone & kernel.processes.keys() else ENDED
    if kernel.requests.resume and not move.in_part:
        return RESUME_REQUESTED
    for key, process in kernel.processes.items():
        if key not in move.epochs and key not in move.pending:
            if process.connected_at >= move.began or _holds_memory(process):
                return NEWCOMER
        elif process.data.want and not move.in_part:
            return USED_MEANWHILE
    return None


def _holds_memory(process: Process) -> bool:
    return process.data.state is State.RESIDENT and process.resident_bytes > 0
