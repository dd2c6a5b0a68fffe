"""Parks and resumes of a kernel: all its processes together, or none.

With several processes it is done in two steps ("Prepared moves" in shim/src/protocol.h), and so is every park in an
exchange; operations.py decides between COMMIT and ABORT.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from ...units import bytes_in_words
from ..model.actions import Park, Resume
from ..model.reasons import Cause
from ..protocol.page import Depth, State
from ..protocol.wire import CommandKind, MoveFlag, Status
from ..state.gpus.context_depth import kernel_depth
from ..state.host.host_lending import budget_argument
from ..state.records.kernel import KernelRecord
from ..state.records.operations import Exchange, Move, ParkMove, Participant, Phase, ResumeMove
from ..state.records.process import Process
from .kind import Kind, Surroundings
from .outcomes import Outcomes, is_where_it_should_be, waiter_fields

BEGINS_WITHIN_S = {CommandKind.PARK: 2.0, CommandKind.RESUME: 5.0}
REPLY_LOST_AFTER_S = 3.0  # after the last moment to begin, if the page shows that it was not begun
MOVE_LASTS_S = 600.0  # one that was begun; a slow host touches fresh memory at 6 GiB/s
ABORT_LASTS_S = 10.0  # a shim stops between two pieces of its copies

USED_MEANWHILE = (Status.REVOKED, "the kernel used the GPU while it was being freed")
RESUME_REQUESTED = (Status.REVOKED, "the GPU was asked back while it was being freed")
NEWCOMER = (Status.BUSY, "another process of the kernel began to use the GPU")
ENDED = (Status.BUSY, "one of the kernel's processes ended while the GPU was being freed")
SILENT = (Status.STALE, "one of the kernel's processes did not react in time (is it stopped?)")
TOO_SLOW = (Status.STALE, "it took too long to prepare to be freed")


class Moves(Kind[Move]):
    """Carries out parks and resumes."""

    def __init__(self, around: Surroundings, outcomes: Outcomes):
        super().__init__(around)
        self._outcomes = outcomes

    def park(self, kernel: KernelRecord, action: Park) -> None:
        """Tell every resident process to park, and how much host memory they may take together.

        Only a single process parks its CUDA context too, or parks although it computes. What was parked in part has
        nothing to prepare: in an exchange it is told when the others are to COMMIT.
        """
        now = time.monotonic()
        kernel.host.budget_bytes = action.budget_bytes
        is_asked = kernel.requests.park is not None
        move = kernel.operation = ParkMove(kernel=kernel, began=now, action=action, is_asked=is_asked)
        fields = waiter_fields(self._state, kernel, action.for_kernel)
        kernel.because(action.reason, action.cause, **fields)
        self._around.failed_parks.park_begins(move)
        self._around.unused_room.park_begins(kernel, action.for_kernel, now)
        targets = [process for process in kernel.connected() if process.data.state is State.RESIDENT]
        targets = targets or [process for process in kernel.connected() if process.resident_bytes]
        if action.exchanges:
            self._join_exchange(move)
        size = sum(process.resident_bytes for process in targets)
        self._log.info("park %s (%s): %s", kernel.id, bytes_in_words(size), action.reason)
        move.in_part = any(process.is_parked for process in targets)
        if move.exchange is not None or _can_prepare(targets):
            move.phase = Phase.PREPARING
        if move.exchange is not None and move.in_part:
            move.participants = {process.key: Participant(is_prepared=True) for process in targets}
        else:
            _tell(move, targets)

    def resume(
        self,
        kernel: KernelRecord,
        action: Resume,
        targets: Sequence[Process] | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        """Reserve the kernel's room and tell every parked process, or `targets`, to resume; only a single process
        migrates. `exchange`: others leave the GPU meanwhile.
        """
        now = time.monotonic()
        if action.cause is Cause.CELL and kernel.requests.resume:
            action = replace(action, cause=Cause.ASKED)
        move = kernel.operation = ResumeMove(kernel=kernel, began=now, action=action, exchange=exchange)
        kernel.exchange_failed = False
        move.from_gpu, move.from_context = kernel.main_gpu(), kernel_depth(kernel) is Depth.CONTEXT
        move.waited_s = None if kernel.wants_since is None else max(now - kernel.wants_since, 0.0)
        needs = action.reserved_bytes
        self._state.reservations.reserve_resume(kernel.id, needs, now, self._state.shown_bytes)
        self._log.info("resume %s (%s): %s", kernel.id, bytes_in_words(sum(needs.values())), action.reason)
        if targets is None:
            targets = [process for process in kernel.connected() if process.is_parked]
        if exchange is None and _can_prepare(targets):
            move.phase = Phase.PREPARING
        _tell(move, targets)

    def obstacle(self, move: Move) -> tuple[Status, str] | None:
        """Return why not all processes can move; None as long as all may."""
        for reply in move.replies.values():
            if reply.status not in (Status.OK, Status.NOTHING):
                return reply.status, reply.text
        if isinstance(move, ResumeMove):
            return None  # a process that is gone needs no room now, and the others need not wait for it
        kernel = move.kernel
        if move.lost:
            return SILENT if move.lost & kernel.processes.keys() else ENDED
        if kernel.requests.resume and not move.in_part:
            return RESUME_REQUESTED
        for key, process in kernel.processes.items():
            if key not in move.participants:
                holds_memory = process.data.state is State.RESIDENT and process.resident_bytes > 0
                if process.connected_at >= move.began or holds_memory:
                    return NEWCOMER
            elif process.data.want and not move.in_part:
                return USED_MEANWHILE
        return TOO_SLOW if move.exchange is not None and move.is_late and not move.is_prepared else None

    def commit(self, move: Move) -> None:
        """Commit a prepared move."""
        move.phase, move.decided_at = Phase.COMMITTING, time.monotonic()
        if isinstance(move, ParkMove) and move.in_part:
            kernel = move.kernel
            _tell(move, [kernel.processes[key] for key in move.awaited if key in kernel.processes])
        else:
            _pass_on(move, CommandKind.COMMIT, move.action.reason)

    def abort(self, move: Move, failure: tuple[Status, str]) -> None:
        """Abort a move that is not decided yet."""
        if move.phase is not Phase.PREPARING:
            return
        move.failure, move.phase, move.decided_at = failure, Phase.ABORTING, time.monotonic()
        if isinstance(move, ParkMove) and move.in_part:
            move.participants.clear()  # none was told
        _pass_on(move, CommandKind.ABORT, failure[1])

    def expire(self, move: Move, now: float) -> None:
        """Give up the processes whose last reply will not come, or is not worth waiting for."""
        for key, told in move.awaited.items():
            told.is_lost = _is_lost(move, told, move.kernel.processes.get(key), now)

    def end(self, move: Move) -> None:
        """Take note of how a move ended; undo a park in the processes that carried it out although others did not."""
        kernel, exchange = move.kernel, move.exchange
        failed = self._outcomes.take(move)
        if not isinstance(move, ParkMove):
            return
        if exchange is not None and exchange.hands_over:
            for process in kernel.processes.values():
                self._around.promise(process, 0)
        # After an exchange there may be no room before the waiter has come, or given up.
        if failed is not None and exchange is None and not move.in_part:
            self._bring_back(move, failed[1])

    def _bring_back(self, move: ParkMove, why: str) -> None:
        told = [key for key, each in move.participants.items() if each.epoch is not None]
        kernel = move.kernel
        parked = [process for process in kernel.connected() if process.key in told and process.is_parked]
        needs: dict[str, int] = {}
        for process in parked:
            for gpu in process.data.gpus:
                needs[gpu.uuid] = needs.get(gpu.uuid, 0) + gpu.parked_bytes
        if parked:
            reason = f"the kernel's other processes could not be freed: {why}"
            self.resume(kernel, Resume(kernel.id, needs, reason, Cause.UNDONE), parked)

    def _join_exchange(self, move: ParkMove) -> None:
        """Add a park to the exchange with its waiter."""
        waiter = self._state.kernels.get(move.action.for_kernel or "")
        if waiter is None or not (waiter.operation is None or isinstance(waiter.operation, Exchange)):
            return
        exchange = waiter.operation or Exchange(kernel=waiter, began=move.began, phase=Phase.PREPARING)
        exchange.hands_over = move.action.hands_over
        exchange.parks.append(move)
        waiter.operation = move.exchange = exchange


def _can_prepare(targets: Sequence[Process]) -> bool:
    """Return whether a move of these processes takes two steps.

    A single process needs no agreement. A process that resumes from context depth holds its GPU's lock from before its
    context is restored until it is resident: peers on that GPU cannot prepare beside it.
    """
    return len(targets) > 1 and all(process.data.depth is not Depth.CONTEXT for process in targets)


def _flags(move: Move, targets: Sequence[Process]) -> MoveFlag:
    flags = MoveFlag.PREPARE if move.phase is Phase.PREPARING else MoveFlag(0)
    if move.exchange is not None or (isinstance(move, ParkMove) and move.in_part):
        flags |= MoveFlag.STREAM
    if move.exchange is not None and move.exchange.hands_over:
        flags |= MoveFlag.HAND_OVER
    if isinstance(move, ResumeMove):
        flags |= MoveFlag.MIGRATE if move.action.gpu is not None else MoveFlag(0)
    elif len(targets) == 1:
        flags |= MoveFlag.CONTEXT if move.action.to_context else MoveFlag(0)
        flags |= MoveFlag.PREEMPT if move.action.preempts else MoveFlag(0)
    return flags


def _tell(move: Move, targets: Sequence[Process]) -> None:
    """Send the command to each process; each is to have begun soon."""
    flags, parks = _flags(move, targets), isinstance(move, ParkMove)
    gpu = None if isinstance(move, ParkMove) else move.action.gpu
    for process in targets:
        if process.connection is not None:
            budget = budget_argument(move.kernel, process, targets) if parks else 0
            told = move.participants.setdefault(process.key, Participant())
            told.epoch = process.connection.command(
                move.command,
                argument=budget | int(flags),
                reason=gpu or move.action.reason,
                lasts_s=BEGINS_WITHIN_S[move.command],
            )


def _pass_on(move: Move, decision: CommandKind, reason: str) -> None:
    """Send the decision to each process without a last answer; one that was given up may have begun, so it is told
    too.
    """
    for key, told in move.participants.items():
        process = move.kernel.processes.get(key)
        if process is not None and process.connection is not None and told.epoch and told.reply is None:
            process.connection.command(decision, request=told.epoch, reason=reason)


def _is_lost(move: Move, told: Participant, process: Process | None, now: float) -> bool:
    """Return whether a process's last reply will not come, or is not worth waiting for."""
    since = move.began if move.decided_at is None else move.decided_at
    if process is None or now - since > MOVE_LASTS_S:
        return True
    if move.phase is Phase.ABORTING:
        return now - since > ABORT_LASTS_S
    in_part = isinstance(move, ParkMove) and move.in_part
    if in_part and move.phase is Phase.PREPARING:
        return False  # it is told when the others are prepared
    if process.data.epoch == told.epoch:
        done = move.phase is not Phase.PREPARING and is_where_it_should_be(move, process)
        return done and now - max(since, process.data.state_since) > REPLY_LOST_AFTER_S
    told_at = since if in_part else move.began
    return now - told_at > BEGINS_WITHIN_S[move.command] + REPLY_LOST_AFTER_S
