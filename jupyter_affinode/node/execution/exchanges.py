"""Exchanges: kernels leave the GPU while a waiter comes in ("Exchanges" in shim/src/protocol.h).

Victims are told to PARK with PREPARE and STREAM. Until all are prepared nothing is given up, and any obstacle calls all
of them off: a victim that is used, cannot be parked, ends or takes too long; a waiter that ends, is cancelled or is
resumed into other room; room that an unmanaged program took. Victims that are called off for another's reason are not
blamed. They may be chosen again at once, to be parked before the waiter is resumed: nothing is called off twice. As
soon as the last one is prepared, all are told to COMMIT and the waiter is told to RESUME in the same step, since a
prepared kernel keeps its calls waiting.

Where there is host memory for one copy only, the waiter hands its own over (policy/reclaim/hand_over.py): what a victim
lacks beside what it got when it prepared, it is lent in lots as they come.

From then on each continues by itself. A victim whose copy fails stays on the GPU, wholly or in part; the policy resumes
the rest of it (policy/decide.py), and the park counts as failed. A waiter that finds no room is parked as before, at
its place in the queue; if a victim is to blame for that, it is tried again without a pause. A victim that ended has
left its memory, and a waiter that ended needs none. A controller that is killed leaves prepared parks, which the shims
undo, or moves that end by themselves.
"""

from __future__ import annotations

import time

from ..model.actions import Resume
from ..model.reasons import Cause
from ..model.snapshot import Residency
from ..policy.reclaim.exchange import room_to_begin
from ..protocol.wire import Status
from ..state.records.operations import Exchange, ParkMove, Phase
from ..state.records.ownership import entitlements_of
from ..state.snapshot_builder import snapshot
from .kind import Kind, Surroundings
from .moves import Moves

NOT_NEEDED = (Status.REVOKED, "the kernel that waited for the memory does not need it now")
OTHERS_STAY = (Status.REVOKED, "another kernel that was to be freed with it stays on the GPU")


class Exchanges(Kind[Exchange]):
    """Begins exchanges, or calls them off; `Moves` adds parks to them."""

    def __init__(self, around: Surroundings, moves: Moves):
        super().__init__(around)
        self._moves = moves

    def obstacle(self, exchange: Exchange) -> tuple[Status, str] | None:
        """Return why a victim stays, or that the waiter waits no more."""
        under_way = exchange.under_way
        if len(under_way) < len(exchange.parks) or any(
            park.phase is not Phase.PREPARING for park in under_way
        ):
            return OTHERS_STAY
        return None if _is_awaited(exchange) else NOT_NEEDED

    def commit(self, exchange: Exchange) -> None:
        """Park all victims and resume the waiter, if there will be room for it."""
        now, waiter = time.monotonic(), exchange.kernel
        node = snapshot(self._state, now, is_settled=True)
        hands_over = exchange.hands_over
        needs = room_to_begin(now, node, self._state.settings, waiter.id, hands_over=hands_over)
        if needs is None:
            self.abort(exchange, NOT_NEEDED)
            return
        exchange.phase = Phase.COMMITTING
        for park in exchange.under_way:
            if hands_over:
                self._log.info("%s hands its host memory over to %s", waiter.id, park.kernel.id)
                if not park.in_part:
                    park.kernel.host.budget_bytes = 0  # it has taken by itself what it needs
            self._moves.commit(park)
        priority = entitlements_of(waiter, self._state.settings).priority
        self._state.last_served.take(waiter.account.charged_user or "", priority, needs, now)
        comes = Resume(waiter.id, needs, "others leave the GPU for it", Cause.CELL)
        self._moves.resume(waiter, comes, exchange=exchange)
        for park in exchange.under_way if hands_over else ():
            self._promise_lots(park)

    def abort(self, exchange: Exchange, failure: tuple[Status, str]) -> None:
        """Call an exchange off."""
        exchange.phase, waiter = Phase.ABORTING, exchange.kernel
        if failure is NOT_NEEDED and not _is_awaited(exchange) and waiter.operation in (None, exchange):
            # the gates of its victims were closed in vain
            self._around.unused_room.was_left(waiter, exchange.began)
        waiter.exchange_failed = True
        self._log.info("%s does not change places: %s", waiter.id, failure[1])
        for park in exchange.under_way:
            if park.phase is Phase.PREPARING:
                park.is_called_off = True
                self._moves.abort(park, failure)

    def _promise_lots(self, park: ParkMove) -> None:
        for key, told in park.participants.items():
            process = park.kernel.processes.get(key)
            if process is not None and told.is_prepared:
                lacks = process.resident_bytes if park.in_part else told.lacks_bytes
                self._around.promise(process, min(lacks, process.resident_bytes))


def _is_awaited(exchange: Exchange) -> bool:
    """Return whether the waiter still waits, and for nothing else."""
    waiter = exchange.kernel
    return waiter.operation is exchange and waiter.residency is Residency.QUEUED
