"""Users' requests: park now, resume now, hold, release; by the API and by magics in the kernel."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...settings.policy import Settings
from ...time_of_day import clock_in_words
from ...units import bytes_in_words, duration_in_words
from ..model.reasons import Refusal
from ..model.snapshot import Residency
from ..protocol.page import State
from ..protocol.wire import CommandKind, Request, RequestKind, Status
from ..state.records.kernel import OTHER_VERSION_WORDS, KernelRecord
from ..state.records.operations import KERNEL_ENDED, Outcome
from ..state.records.process import Process
from ..state.registry import NodeState
from ..system.peers import pid_namespace_of

BUSY_PATIENCE_S = 2.0  # work that the kernel had just submitted is given that long to end
CANCEL_LASTS_S = 5.0
UNTRACKED_CANCEL_LASTS_S = 1.0  # no server will say that the cell ended
OPEN_REQUESTS_MAX = 8
HOLD_DEFAULT_S = 3600.0  # where a request names no time
# a second request while a resume waits to be tried again has it tried sooner, not at once
ASKED_AGAIN_S = 0.5

LOST = Outcome(Status.REFUSED, Refusal.LOST, "the kernel's GPU state is lost")

Done = asyncio.Future[Outcome]


class UserRequests:
    """Takes users' requests; the next decision sees them."""

    def __init__(self, state: NodeState, log: logging.Logger, on_change: Callable[[], None]):
        self._state = state
        self._log = log
        self._on_change = on_change

    def park(self, kernel: KernelRecord) -> Done:
        """Ask for the kernel's park now, open cell or not; ends a hold and a request to resume. Return a future of the
        outcome, the same for all requests meanwhile: never cancel it.

        A kernel that is parked and waits in the queue for a call of its own stays there, and the outcome tells that:
        only an interrupt ends the call.
        """
        was_wanted, other_version = kernel.requests.resume, kernel.other_version(time.monotonic())
        kernel.end_resume_request(
            Outcome(Status.REFUSED, Refusal.PARK_ASKED, "it was asked to free the GPU since")
        )
        if kernel.residency in (Residency.PARKED, Residency.QUEUED) and kernel.move is None:
            done = _at_once(_parked_already(kernel, was_wanted=was_wanted))
        elif kernel.residency is Residency.NONE and other_version is not None:
            words = OTHER_VERSION_WORDS[other_version]
            done = _at_once(Outcome(Status.REFUSED, other_version, words))
        elif not kernel.processes or kernel.residency is Residency.NONE:
            done = _at_once(
                Outcome(Status.NOTHING, Refusal.NOTHING_TO_MOVE, "the kernel does not use the GPU")
            )
        elif kernel.residency is Residency.LOST:
            done = _at_once(LOST)
        else:
            now = time.monotonic()
            kernel.requests.park = "the user asked for it"
            kernel.requests.park_until, kernel.requests.park_again_at = now + BUSY_PATIENCE_S, now
            done = kernel.requests.park_done = (
                kernel.requests.park_done or asyncio.get_running_loop().create_future()
            )
        self._on_change()
        return done

    def resume(self, kernel: KernelRecord) -> Done:
        """Ask for the kernel's resume as soon as there is room; it waits in the queue. Return a future of the outcome,
        as `park` does.
        """
        if kernel.residency in (Residency.NONE, Residency.RESIDENT) and not any(
            process.is_parked for process in kernel.processes.values()
        ):
            return _at_once(Outcome(Status.NOTHING, None, "already on the GPU"))
        if kernel.residency is Residency.LOST:
            return _at_once(LOST)
        now = time.monotonic()
        failed, soonest = kernel.failures.resume, now + ASKED_AGAIN_S if kernel.requests.resume else now
        failed.retry_at = min(failed.retry_at, soonest)
        kernel.requests.resume = True
        done = kernel.requests.resume_done = (
            kernel.requests.resume_done or asyncio.get_running_loop().create_future()
        )
        self._on_change()
        return done

    def hold(self, kernel: KernelRecord, duration_s: float | None) -> str:
        """Hold the kernel on the GPU for a while; return that in words. Raises HoldRefused."""
        settings: Settings = self._state.settings
        lasts, now = min(duration_s or HOLD_DEFAULT_S, settings.hold_max_s), time.monotonic()
        check_hold(kernel, self._state.kernels.values(), settings, now)
        kernel.held_until = now + lasts
        self._log.info("hold %s for %s", kernel.id, duration_in_words(lasts))
        self._on_change()
        is_cut = duration_s is not None and duration_s > lasts
        limit = ", the longest time that is allowed here" if is_cut else ""
        return f"the GPU is kept until {clock_in_words(lasts)}{limit}"

    def release(self, kernel: KernelRecord) -> str:
        """End a hold; return that in words."""
        was_held, kernel.held_until = kernel.held_until is not None, None
        self._on_change()
        return "the GPU is no longer kept" if was_held else "the GPU was not kept"

    def cancel(self, kernel: KernelRecord, group: ProcessGroup | None = None) -> None:
        """Have waiting calls fail in the processes that the user's interrupt reaches, until the cell ends or
        for 5 s.
        """
        lasts = CANCEL_LASTS_S if kernel.cell.is_open else UNTRACKED_CANCEL_LASTS_S
        if kernel.cell.is_tracked and not kernel.cell.is_open:
            lasts = 0.0  # the waiting call fails, and the next cell may wait again
        kernel.is_cancelling = True
        self._log.info("cancel %s: what waits for the GPU fails", kernel.id)
        for process in reached(kernel.connected(), group):
            if process.connection is not None:
                process.connection.command(CommandKind.CANCEL, argument=int(lasts * 1e9))
        kernel.end_resume_request(Outcome(Status.REFUSED, Refusal.CANCELLED, "interrupted"))
        self._on_change()

    def end_cancel(self, kernel: KernelRecord) -> None:
        """Let calls wait again: the interrupted cell ended."""
        if kernel.is_cancelling:
            kernel.is_cancelling = False
            for process in kernel.connected():
                if process.connection is not None:
                    process.connection.command(CommandKind.CANCEL_END)

    def dying(self, kernel: KernelRecord, group: ProcessGroup | None = None) -> None:
        """Tell the processes that a signal is about to end that they must not wait for the GPU any more."""
        self._log.info("%s is being shut down", kernel.id)
        for process in reached(kernel.connected(), group):
            process.said_dying = True
            if process.connection is not None:
                process.connection.command(CommandKind.DYING)
        self._on_change()

    def take_request(self, process: Process, request: Request, text: Callable[[KernelRecord], str]) -> None:
        """Take a magic's request; its RESULT is sent when it is done. `text` returns the kernel's state in words."""
        kernel = self._state.kernels[process.kernel_id]
        if process.open_requests >= OPEN_REQUESTS_MAX:
            return _answer(process, request, Status.REFUSED, "too many requests at once")
        if request.kind is RequestKind.PARK:
            self._answer_when_done(process, request, self.park(kernel))
        elif request.kind is RequestKind.RESUME:
            self._answer_when_done(process, request, self.resume(kernel))
        elif request.kind is RequestKind.HOLD:
            try:
                _answer(process, request, Status.OK, self.hold(kernel, request.argument / 1e9 or None))
            except HoldRefused as refused:
                _answer(process, request, Status.REFUSED, str(refused))
        elif request.kind is RequestKind.RELEASE:
            _answer(process, request, Status.OK, self.release(kernel))
        else:
            _answer(process, request, Status.OK, text(kernel))

    def ended(self, kernel: KernelRecord) -> None:
        """Answer the clients that wait for a move of a kernel that was shut down."""
        kernel.end_park_request(KERNEL_ENDED)
        kernel.end_resume_request(KERNEL_ENDED)

    def end_fulfilled(self, kernel: KernelRecord) -> None:
        """End requests that were fulfilled in another way, or cannot be fulfilled any more.

        A shim resumed by itself, say, or a process with memory ended.
        """
        if kernel.requests.resume_done is not None and kernel.residency in (
            Residency.RESIDENT,
            Residency.NONE,
        ):
            parked = any(process.data.state is State.PARKED for process in kernel.processes.values())
            if not parked and kernel.move is None:
                kernel.end_resume_request(Outcome(Status.OK, None, "the GPU is back"))
        is_over = kernel.move is None and kernel.residency is not Residency.RESIDENT
        if kernel.requests.park_done is not None and is_over:
            outcome = Outcome(Status.NOTHING, Refusal.NOTHING_TO_MOVE, "the kernel uses no GPU now")
            if kernel.residency in (Residency.PARKED, Residency.QUEUED):
                outcome = _parked_already(kernel, was_wanted=False)
            kernel.end_park_request(outcome)

    def _answer_when_done(self, process: Process, request: Request, done: Done) -> None:
        process.open_requests += 1

        def answer(future: Done) -> None:
            process.open_requests -= 1
            if not future.cancelled():
                outcome = future.result()
                _answer(process, request, outcome.status, outcome.text)

        done.add_done_callback(answer)


def _parked_already(kernel: KernelRecord, *, was_wanted: bool) -> Outcome:
    """Return the outcome of a request to park a kernel that is parked, or in part; `was_wanted`: a request to resume
    was open.
    """
    if not any(process.data.state is State.QUEUED for process in kernel.connected()):
        withdrawn = "; it no longer waits to get it back" if was_wanted else ""
        return Outcome(Status.NOTHING, None, f"the GPU is freed already{withdrawn}")
    has_memory = any(process.resident_bytes for process in kernel.processes.values())
    freed = "a part of the GPU memory" if has_memory else "the GPU"
    text = f"{freed} is freed already, and a cell waits to get it back: interrupt the kernel to end that"
    withdrawn = "; the request to get it back is withdrawn" if was_wanted else ""
    return Outcome(Status.REFUSED, Refusal.WAITS_FOR_GPU, text + withdrawn)


def _at_once(outcome: Outcome) -> Done:
    done: Done = asyncio.get_running_loop().create_future()
    done.set_result(outcome)
    return done


def _answer(process: Process, request: Request, status: Status, text: str) -> None:
    if process.connection is not None:
        process.connection.result(request.number, status, text)


# ---- how much a user may hold


class HoldRefused(Exception):
    """The user holds as much as they may already; the message says how much that is."""


def check_hold(kernel: KernelRecord, kernels: Iterable[KernelRecord], settings: Settings, now: float) -> None:
    """Raise HoldRefused if its owner may not hold this kernel beside `kernels` (all users').

    A kernel that is held already may be held for longer: that takes no more of the quota. So no user gets more by
    asking twice, and a kernel that grows while it is held stays held until the hold ends.
    """
    is_held = kernel.held_until is not None and kernel.held_until > now
    if settings.hold_bytes_max is None or is_held:
        return
    others = [
        each
        for each in kernels
        if each is not kernel
        and each.account.charged_user == kernel.account.charged_user
        and each.held_until is not None
        and each.held_until > now
    ]
    size = sum(gpu.in_all_bytes for each in [kernel, *others] for gpu in each.by_gpu().values())
    if size > settings.hold_bytes_max:
        raise HoldRefused(
            f"you would keep {bytes_in_words(size)} of GPU memory, and may keep"
            f" {bytes_in_words(settings.hold_bytes_max)}"
        )


# ---- which processes a signal to a kernel reaches
#
# Interrupts and ends of a kernel concern the process group that it was started in. A job in a session of its own goes
# on. A late message about a kernel that was restarted since does not reach the new processes: they have another group.


@dataclass(frozen=True)
class ProcessGroup:
    """A process group by its number, as the server sees it that started the kernel in it."""

    number: int
    namespace: str  # of the server's process ids; "" if that cannot be seen


def reached(processes: Iterable[Process], group: ProcessGroup | None) -> list[Process]:
    """Return the processes that a signal to `group` reaches, as far as that can be known; None reaches all.

    Where numbers cannot be compared, a signal may be handed on: a program that runs a kernel in a container does so.
    """
    return [process for process in processes if group is None or _is_reached(process, group)]


def _is_reached(process: Process, group: ProcessGroup) -> bool:
    if process.hello.process_group in (0, group.number):
        return True
    return pid_namespace_of(process.pid) != group.namespace
