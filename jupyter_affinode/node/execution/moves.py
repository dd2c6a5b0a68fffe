"""Parks and resumes under way: all processes of a kernel together, or none.

The policy decides; `Moves` commands the shims, gathers their replies and keeps failed moves from being tried in a loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from ...units import bytes_in_words, duration_in_words
from ..model.actions import Park, Resume
from ..model.backoff import Backoff
from ..model.reasons import Cause, Refusal
from ..model.snapshot import Node, Residency
from ..protocol.page import Depth, State
from ..protocol.wire import CommandKind, Reply, Status
from ..state.gpus.context_depth import kernel_depth
from ..state.host.host_usage import forget_trim, learn_from_park, refused_for_memory
from ..state.observer import Observer
from ..state.records.kernel import KernelRecord
from ..state.records.moves import KERNEL_ENDED, Exchange, Move, Outcome, Phase
from ..state.records.ownership import own_or_other
from ..state.records.process import Process
from ..state.registry import NodeState
from . import group_commit as together
from .exchanges import Exchanges
from .failed_moves import FailedParks, UnusedRoom
from .outcomes import (
    PARK_BEGINS_WITHIN_S,
    RESUME_BEGINS_WITHIN_S,
    SLUGS,
    count_failed_resumes,
    failure,
    in_words,
    is_lost,
    summary,
)

ASK_AGAIN_S = 0.1


class Moves:
    """Carries out parks and resumes; one at a time for each kernel."""

    def __init__(
        self,
        state: NodeState,
        log: logging.Logger,
        on_change: Callable[[], None],
        observer: Observer,
        promise: Callable[[Process, int], None] = lambda process, size: None,
    ):
        """Prepare. `observer` is told of all that ended. `promise` reserves lots for a process, lent as they come; 0
        ends that.
        """
        self._state = state
        self._log = log
        self._on_change = on_change
        self._observer = observer
        self._failed_parks = FailedParks(state, log)
        self._unused_room = UnusedRoom(state, log)
        self._exchanges = Exchanges(state, log, self._unused_room, self._bring_in, promise)

    def park(self, kernel: KernelRecord, action: Park, budget_bytes: int | None) -> None:
        """Tell every resident process to park, and how much host memory they may take together; None: as they like.

        Only a single process parks its CUDA context too, or parks although it computes.
        """
        now = time.monotonic()
        kernel.host.budget_bytes = budget_bytes
        asked = kernel.requests.park is not None
        kernel.move = Move(
            True, action.reason, now, asked=asked, to_context=action.to_context, cause=action.cause
        )
        kernel.move.for_kernel, kernel.move.preempts = action.for_kernel, action.preempts
        kernel.because(action.reason, action.cause, **self.waiter_fields(kernel, action.for_kernel))
        self._failed_parks.park_begins(kernel, kernel.move)
        self._unused_room.park_begins(kernel, action.for_kernel, now)
        targets = [process for process in kernel.connected() if process.data.state is State.RESIDENT]
        targets = targets or [process for process in kernel.connected() if process.resident_bytes]
        if action.exchanges and action.for_kernel is not None:
            self._exchanges.join(kernel, kernel.move, action.for_kernel, hands_over=action.hands_over)
        size = sum(process.resident_bytes for process in targets)
        self._log.info("park %s (%s): %s", kernel.id, bytes_in_words(size), action.reason)
        self._command(kernel, kernel.move, targets, CommandKind.PARK, PARK_BEGINS_WITHIN_S)

    def resume(self, kernel: KernelRecord, action: Resume) -> None:
        """Reserve the kernel's room and tell every parked process to resume; only a single process migrates."""
        is_asked = action.cause is Cause.CELL and kernel.requests.resume
        cause = Cause.ASKED if is_asked else action.cause
        targets = [process for process in kernel.connected() if process.is_parked]
        self._resume(kernel, targets, action.reserved_bytes, action.reason, cause, action.gpu)

    def take_reply(self, process: Process, reply: Reply) -> None:
        """Take a shim's reply; a reply to anything but the command under way is ignored."""
        kernel = self._state.kernels[process.kernel_id]
        move = kernel.move
        if move is None or move.pending.get(process.key) != reply.epoch:
            return
        if reply.command is not (CommandKind.PARK if move.parks else CommandKind.RESUME):
            return
        if reply.status is not Status.PREPARED:
            del move.pending[process.key]
            move.prepared.discard(process.key)
            move.replies[process.key] = reply
        elif move.phase is Phase.PREPARING:
            move.prepared.add(process.key)
            move.lacks[process.key] = reply.bytes
        self._go_on(kernel, move)

    def process_came(self, process: Process) -> None:
        """Check a park of the kernel after a process said HELLO: an undecided park would leave the process out."""
        kernel = self._state.kernels[process.kernel_id]
        if kernel.move is not None:
            self._go_on(kernel, kernel.move)

    def process_wants(self, process: Process) -> None:
        """Abort an undecided park of which a call waits at the gate: the call is let through, and no process parks."""
        kernel = self._state.kernels[process.kernel_id]
        move = kernel.move
        if move is not None and move.parks and process.key in move.epochs:
            together.abort(kernel, move, together.USED_MEANWHILE)
            self._go_on(kernel, move)

    def process_gone(self, process: Process, kernel: KernelRecord) -> None:
        """Stop waiting for the reply of a process that ended or fell silent."""
        if kernel.exchange is not None:  # it waits for others that are to leave the GPU
            self._state.refresh(time.monotonic())
            self._exchanges.advance(kernel.exchange)
        move = kernel.move
        if move is not None and move.pending.pop(process.key, None) is not None:
            move.prepared.discard(process.key)
            move.gone.add(process.key)
            self._go_on(kernel, move)

    def look_for_lost_replies(self, now: float) -> None:
        """End moves that no shim will answer any more, and exchanges that are not wanted any more."""
        self._exchanges.look()
        for kernel in list(self._state.kernels.values()):
            move = kernel.move
            if move is None:
                continue
            for key in list(move.pending):
                if is_lost(move, kernel.processes.get(key), now):
                    del move.pending[key]
                    move.prepared.discard(key)
                    move.gone.add(key)
            self._go_on(kernel, move)

    def look_at_promises(self, node: Node, now: float) -> None:
        """Count the parks that last too long and the room that is not taken; `node` is the last snapshot."""
        self._failed_parks.look(node, now)
        self._unused_room.look(now)

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
        may_pass = status is Status.BUSY or (status is Status.NO_HOST_ROOM and was_tried)
        if may_pass and kernel.requests.park is not None and now < kernel.requests.park_until:
            kernel.requests.park_again_at = now + ASK_AGAIN_S
            self._on_change()
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
        self._observer.park_refused(kernel, slug, was_tried)
        self.end_park_request(kernel, Outcome(status, slug, reason))

    def waiter_fields(self, kernel: KernelRecord, other_id: str | None) -> dict[str, str]:
        """Return which user this kernel was parked for, as its own user is told; {} if that is not known."""
        request = self._state.room_requests.get(other_id or "")
        other = self._state.kernels.get(other_id or "") if request is None else request.record
        return {} if other is None else {"for": own_or_other(kernel, other)}

    def end_park_request(self, kernel: KernelRecord, outcome: Outcome) -> None:
        """Answer the client that asked for a park; a kernel without processes has ended, whatever came of the park."""
        kernel.requests.park = None
        done, kernel.requests.park_done = kernel.requests.park_done, None
        if done is not None:
            done.set_result(outcome if kernel.processes else KERNEL_ENDED)

    def end_resume_request(self, kernel: KernelRecord, outcome: Outcome) -> None:
        """Answer the client that asked for a resume, in the same way."""
        kernel.requests.resume = False
        done, kernel.requests.resume_done = kernel.requests.resume_done, None
        if done is not None:
            done.set_result(outcome if kernel.processes else KERNEL_ENDED)

    def _command(
        self, kernel: KernelRecord, move: Move, targets: list[Process], kind: CommandKind, lasts_s: float
    ) -> None:
        together.begin(kernel, move, targets, kind, lasts_s)
        self._go_on(kernel, move)

    def _resume(
        self,
        kernel: KernelRecord,
        targets: list[Process],
        needs: Mapping[str, int],
        reason: str,
        cause: Cause,
        gpu: str | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        now = time.monotonic()
        kernel.move = Move(False, reason, now, asked=kernel.requests.resume, cause=cause, exchange=exchange)
        kernel.exchange_failed = False
        if gpu is not None:
            kernel.move.gpu, kernel.move.from_gpu = gpu, kernel.main_gpu()
        kernel.move.from_context = kernel_depth(kernel) is Depth.CONTEXT
        kernel.move.waited_s = None if kernel.wants_since is None else max(now - kernel.wants_since, 0.0)
        self._state.reservations.reserve_resume(kernel.id, needs, now, self._state.shown_bytes)
        self._log.info("resume %s (%s): %s", kernel.id, bytes_in_words(sum(needs.values())), reason)
        self._command(kernel, kernel.move, targets, CommandKind.RESUME, RESUME_BEGINS_WITHIN_S)

    def _bring_in(self, kernel: KernelRecord, needs: Mapping[str, int], exchange: Exchange) -> None:
        """Resume a waiter while others leave the GPU for it."""
        targets = [process for process in kernel.connected() if process.is_parked]
        cause = Cause.ASKED if kernel.requests.resume else Cause.CELL
        self._resume(kernel, targets, needs, "others leave the GPU for it", cause, exchange=exchange)

    def _go_on(self, kernel: KernelRecord, move: Move) -> None:
        """Decide on a move in two steps if that is due; finish a move that has ended in every process."""
        if move.phase is Phase.PREPARING:
            self._state.refresh(time.monotonic())
            together.advance(kernel, move)
            if move.exchange is not None:
                self._exchanges.advance(move.exchange)
        if not move.pending and kernel.move is move:
            self._finish(kernel, move)

    def _finish(self, kernel: KernelRecord, move: Move) -> None:
        kernel.move = None
        now = kernel.last_move.ended_at = time.monotonic()
        kernel.last_move.lasted_s = now - move.began
        forget_trim(kernel)
        self._state.refresh(now)
        gpus = kernel.by_gpu().items()
        self._state.gpus.move_ended(
            [uuid for uuid, gpu in gpus if gpu.resident_bytes or gpu.parked_bytes], now
        )
        failed = failure(move, kernel)
        if failed is None:
            self._look_where_it_is(kernel, move)
        self._observer.move_ended(kernel, summary(kernel, move, failed, now))
        if move.parks:
            self._parked(kernel, move)
        else:
            self._resumed(kernel, move, now)
        self._on_change()

    def _look_where_it_is(self, kernel: KernelRecord, move: Move) -> None:
        """Correct a migration's target by the kernel's page: users are told where the kernel is."""
        found = kernel.main_gpu()
        if move.gpu is None or found in ("", move.gpu):
            return
        self._log.warning("%s came back on %s, not on %s", kernel.id, found, move.gpu)
        if found == move.from_gpu:
            move.gpu = move.from_gpu = None
        else:
            move.gpu = found

    def _parked(self, kernel: KernelRecord, move: Move) -> None:
        failed = failure(move, kernel)
        done = [reply for reply in move.replies.values() if reply.status is Status.OK]
        if failed is None and not done and not move.gone & kernel.processes.keys():
            failed = (Status.NOTHING, in_words(move, Status.NOTHING))
        self._exchanges.park_ended(kernel, move, failed)
        if failed is not None and move.is_called_off:
            kernel.because(None, None)
            return
        self._failed_parks.park_ended(kernel, move, failed)
        found_less = learn_from_park(kernel, move.replies)
        if failed is None:
            kernel.failures.refusal = kernel.failures.refusal_code = None
            kernel.failures.park.succeed()
            kernel.host.backoff.succeed()
            kernel.failures.context_refusal = next(
                (reply.text for reply in done if move.to_context and reply.text), None
            )
            if kernel_depth(kernel) is Depth.CONTEXT:
                context = sum(process.data.context_bytes for process in kernel.processes.values())
                self._state.gpus.take_parked_context(kernel.main_gpu(), context, time.monotonic())
            kernel.held_until = None if move.asked else kernel.held_until
            moved = sum(reply.bytes for reply in done)
            took = max((reply.duration_s for reply in done), default=0.0)
            self._log.info("parked %s: %s in %s", kernel.id, bytes_in_words(moved), duration_in_words(took))
            self.end_park_request(kernel, Outcome(Status.OK, None, f"{bytes_in_words(moved)} freed"))
            return
        status, text = failed
        # After an exchange there may be no room before the waiter has come, or given up.
        if move.exchange is None and not move.in_part:
            self._bring_back(kernel, move, text)
        short = [reply.bytes for reply in move.replies.values() if reply.status is Status.NO_HOST_ROOM]
        figures = {"bytes": sum(short)} if any(short) else {}
        self.refuse_park(
            kernel, status, SLUGS[status], text, was_tried=True, found_less=found_less, figures=figures
        )

    def _bring_back(self, kernel: KernelRecord, move: Move, why: str) -> None:
        """Undo a park in the processes that carried it out although others did not."""
        parked = [
            process for process in kernel.connected() if process.key in move.epochs and process.is_parked
        ]
        needs: dict[str, int] = {}
        for process in parked:
            for gpu in process.data.gpus:
                needs[gpu.uuid] = needs.get(gpu.uuid, 0) + gpu.parked_bytes
        if parked:
            reason = f"the kernel's other processes could not be freed: {why}"
            self._resume(kernel, parked, needs, reason, Cause.UNDONE)

    def _resumed(self, kernel: KernelRecord, move: Move, now: float) -> None:
        failed = failure(move, kernel)
        is_own_fault = self._exchanges.is_waiters_fault(move)
        if kernel.residency is not Residency.RESUMING:  # else it still takes what it was given
            reserved = self._state.reservations.finish_resume(kernel.id, now)
            if failed is not None and kernel.processes and is_own_fault:
                self._unused_room.resume_failed(kernel, reserved, now)
        count_failed_resumes(kernel, move)
        if failed is None:
            kernel.failures.resume.succeed()
            kernel.failures.migration.clear()
            kernel.last_move.from_gpu = move.from_gpu
            kernel.because(None, move.cause)
            moved = sum(reply.bytes for reply in move.replies.values())
            took = now - move.began
            self._log.info("resumed %s: %s in %s", kernel.id, bytes_in_words(moved), duration_in_words(took))
            self.end_resume_request(kernel, Outcome(Status.OK, None, "the GPU is back"))
            return
        status, text = failed
        if move.gpu is not None:
            self._stays_off(kernel, move.gpu, text, now)
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
            self.end_resume_request(kernel, Outcome(status, SLUGS[status], text))

    def _stays_off(self, kernel: KernelRecord, gpu: str, text: str, now: float) -> None:
        """Note that a migration failed. The kernel is parked as before, and may be resumed at home at once."""
        pause = kernel.failures.migration.setdefault(gpu, Backoff()).fail(now)
        kernel.because(text, Cause.FAILED)
        self._log.warning(
            "%s does not come back on %s: %s; tried again in %.1f s", kernel.id, gpu, text, pause
        )
