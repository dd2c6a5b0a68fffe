"""Exchanges under way: kernels leave the GPU while a waiter comes in ("Exchanges" in shim/src/protocol.h).

Victims are told to PARK with PREPARE and STREAM. Until all are prepared nothing is given up, and any obstacle calls all
of them off: a victim that is used, cannot be parked, ends or takes too long; a waiter that ends, is cancelled or is
resumed into other room; room that an unmanaged program took. Victims that are called off for another's reason are not
blamed. They may be chosen again at once, to be parked before the waiter is resumed: nothing is called off twice. As
soon as the last one is prepared, all are told to COMMIT and the waiter is told to RESUME in the same step, since a
prepared kernel keeps its calls waiting.

Where there is host memory for one copy only, the waiter hands its own over (policy/reclaim/hand_over.py): what a victim
lacks beside what it got when it prepared, it is lent in lots as they come. A victim that was parked in part has nothing
to prepare, and is told to park its rest when the others are told to COMMIT.

From then on each continues by itself. A victim whose copy fails stays on the GPU, wholly or in part; the policy resumes
the rest of it (policy/decide.py), and the park counts as failed. A waiter that finds no room is parked as before, at
its place in the queue; if a victim is to blame for that, it is tried again without a pause. A victim that ended has
left its memory, and a waiter that ended needs none. A controller that is killed leaves prepared parks, which the shims
undo, or moves that end by themselves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping

from ..model.snapshot import Residency
from ..policy.reclaim.exchange import room_to_begin
from ..protocol.wire import Status
from ..state.records.kernel import KernelRecord
from ..state.records.moves import Exchange, Move, Phase
from ..state.records.ownership import entitlements_of
from ..state.records.process import Process
from ..state.registry import NodeState
from . import group_commit as together
from .failed_moves import UnusedRoom

NOT_NEEDED = (Status.REVOKED, "the kernel that waited for the memory does not need it now")
OTHERS_STAY = (Status.REVOKED, "another kernel that was to be freed with it stays on the GPU")
TOO_SLOW = (Status.STALE, "it took too long to prepare to be freed")

BringIn = Callable[[KernelRecord, Mapping[str, int], Exchange], None]
Promise = Callable[[Process, int], None]


class Exchanges:
    """Decides when an exchange begins or is called off, for `Moves`."""

    def __init__(
        self,
        state: NodeState,
        log: logging.Logger,
        unused_room: UnusedRoom,
        bring_in: BringIn,
        promise: Promise,
    ):
        """Prepare. `bring_in` resumes the waiter, with its room; `promise` reserves lots for a process."""
        self._state = state
        self._log = log
        self._unused_room = unused_room
        self._bring_in = bring_in
        self._promise = promise

    def join(self, victim: KernelRecord, move: Move, waiter_id: str, *, hands_over: bool) -> None:
        """Add a victim to the exchange with a waiter. `hands_over`: it gets the waiter's host memory."""
        waiter = self._state.kernels.get(waiter_id)
        if waiter is None:
            return
        if waiter.exchange is None:
            waiter.exchange = Exchange(waiter_id)
        move.exchange = waiter.exchange
        waiter.exchange.hands_over = hands_over
        waiter.exchange.parks[victim.id] = move

    def advance(self, exchange: Exchange) -> None:
        """Begin or call off an exchange, if that is due. Called when anything of its victims or its waiter changed."""
        if exchange.is_decided:
            return
        parks = list(self._parks(exchange))
        if len(parks) < len(exchange.parks) or any(move.phase is not Phase.PREPARING for _, move in parks):
            self._call_off(exchange, OTHERS_STAY)
        elif not self._is_awaited(exchange):
            self._call_off(exchange, NOT_NEEDED)
            self._waiter_left(exchange)
        elif all(move.is_prepared for _, move in parks):
            self._begin(exchange)

    def look(self) -> None:
        """Call off exchanges that are not wanted any more, or last too long (failed_moves.py)."""
        for waiter in list(self._state.kernels.values()):
            exchange = waiter.exchange
            if exchange is None:
                continue
            for kernel, move in self._parks(exchange):
                if move.is_late and not move.is_prepared:
                    together.abort(kernel, move, TOO_SLOW)
            self.advance(exchange)

    def park_ended(self, kernel: KernelRecord, move: Move, failed: tuple[Status, str] | None) -> None:
        """Take note of a victim's ended park; `failed`: why it came to nothing."""
        if move.exchange is None:
            return
        if move.exchange.hands_over:
            for process in kernel.processes.values():
                self._promise(process, 0)
        if failed is None:
            move.exchange.parked.add(kernel.id)
        self.advance(move.exchange)

    def is_waiters_fault(self, move: Move) -> bool:
        """Return whether a resume failed for another reason than that a victim did not free its memory, though it may
        say that it did (failed_moves.py).
        """
        if move.exchange is None:
            return True
        return move.exchange.parked >= move.exchange.parks.keys() and not any(
            each.is_hollow for each in move.exchange.parks.values()
        )

    def _parks(self, exchange: Exchange) -> Iterator[tuple[KernelRecord, Move]]:
        """Yield the parks that are under way."""
        for kernel_id, move in exchange.parks.items():
            kernel = self._state.kernels.get(kernel_id)
            if kernel is not None and kernel.move is move:
                yield kernel, move

    def _is_awaited(self, exchange: Exchange) -> bool:
        waiter = self._state.kernels.get(exchange.waiter_id)
        return waiter is not None and waiter.move is None and waiter.residency is Residency.QUEUED

    def _waiter_left(self, exchange: Exchange) -> None:
        """Count a waiter that went while others prepared to leave for it: their gates were closed in vain."""
        waiter = self._state.kernels.get(exchange.waiter_id)
        if waiter is not None and waiter.move is None:
            self._unused_room.was_left(waiter, min(move.began for move in exchange.parks.values()))

    def _begin(self, exchange: Exchange) -> None:
        now, waiter = time.monotonic(), self._state.kernels[exchange.waiter_id]
        node = self._state.snapshot(now, is_settled=True)
        hands_over = exchange.hands_over
        needs = room_to_begin(now, node, self._state.settings, waiter.id, hands_over=hands_over)
        if needs is None:
            self._call_off(exchange, NOT_NEEDED)
            return
        self._decided(exchange)
        for kernel, move in self._parks(exchange):
            if hands_over:
                self._log.info("%s hands its host memory over to %s", waiter.id, kernel.id)
                if not move.in_part:
                    kernel.host.budget_bytes = 0  # it has taken by itself what it needs
            together.commit(kernel, move)
        priority = entitlements_of(waiter, self._state.settings).priority
        self._state.last_served.take(waiter.account.charged_user or "", priority, needs, now)
        self._bring_in(waiter, needs, exchange)
        for kernel, move in self._parks(exchange) if hands_over else ():
            for key in move.prepared & kernel.processes.keys():
                process = kernel.processes[key]
                lacks = process.resident_bytes if move.in_part else move.lacks[key]
                self._promise(process, min(lacks, process.resident_bytes))

    def _call_off(self, exchange: Exchange, failure: tuple[Status, str]) -> None:
        self._decided(exchange)
        waiter = self._state.kernels.get(exchange.waiter_id)
        if waiter is not None:
            waiter.exchange_failed = True
        self._log.info("%s does not change places: %s", exchange.waiter_id, failure[1])
        for kernel, move in self._parks(exchange):
            if move.phase is Phase.PREPARING:
                move.is_called_off = True
                together.abort(kernel, move, failure)

    def _decided(self, exchange: Exchange) -> None:
        exchange.is_decided = True
        waiter = self._state.kernels.get(exchange.waiter_id)
        if waiter is not None and waiter.exchange is exchange:
            waiter.exchange = None
