"""Carries out what the policy says."""

from __future__ import annotations

import logging
from collections.abc import Callable

from .actions import (
    Action,
    DenyRoom,
    DropCaches,
    EndKernel,
    GiveLots,
    GrantRoom,
    Park,
    RefusePark,
    Resume,
    Trim,
)
from .cache_drops import CacheDrops
from .endings import ask_for_end
from .host_care import give_lots, trim
from .lots import LotStock
from .moves import Moves
from .notices import Notice
from .observer import Observers
from .records import KernelRecord
from .rooms import Rooms
from .state import NodeState
from .wire import Status
from .words import bytes_in_words


class Effects:
    """What each action sets going; all of it ends later, and is heard of by the parts that are given here."""

    def __init__(
        self,
        state: NodeState,
        log: logging.Logger,
        observers: Observers,
        tell_notice: Callable[[Notice], None],
        *,
        moves: Moves,
        lots: LotStock,
        cache_drops: CacheDrops,
        rooms: Rooms,
    ):
        self._state = state
        self._log = log
        self._observers = observers
        self._tell_notice = tell_notice
        self._moves = moves
        self._lots = lots
        self._cache_drops = cache_drops
        self._rooms = rooms

    def carry_out(self, action: Action, now: float) -> None:
        """Begin with one action, decided at `now` (monotonic seconds) on a kernel that is still known."""
        kernel = self._state.kernels[action.kernel_id]
        if isinstance(action, Park):
            self._park(kernel, action)
        elif isinstance(action, GiveLots):
            give_lots(kernel, action.lot_bytes, self._lots)
        elif isinstance(action, DropCaches):
            self._cache_drops.begin(kernel, action.reason)
        elif isinstance(action, Trim):
            trim(kernel, action.keep_bytes, action.reason, now)
            keeps = bytes_in_words(action.keep_bytes)
            self._log.info("%s gives back host memory down to %s: %s", kernel.id, keeps, action.reason)
        elif isinstance(action, Resume):
            self._moves.resume(kernel, action.reserved_bytes, action.reason, action.cause, action.gpu)
        elif isinstance(action, RefusePark):
            status = Status.NO_HOST_ROOM if action.slug == "no-host-memory" else Status.REFUSED
            self._moves.refuse_park(kernel, status, action.slug, action.reason)
        elif isinstance(action, EndKernel):
            self._end(kernel, action, now)
        elif isinstance(action, GrantRoom):
            self._rooms.answer(kernel, action.key, now, reason=None)
        elif isinstance(action, DenyRoom):
            self._rooms.answer(kernel, action.key, now, reason=action.reason, cause=action.cause)

    def _park(self, kernel: KernelRecord, action: Park) -> None:
        if action.lot_bytes:
            give_lots(kernel, action.lot_bytes, self._lots)
        self._moves.park(
            kernel,
            action.reason,
            action.budget_bytes,
            to_context=action.to_context,
            preempts=action.preempts,
            cause=action.cause,
            for_kernel=action.for_kernel,
        )

    def _end(self, kernel: KernelRecord, action: EndKernel, now: float) -> None:
        ask_for_end(kernel, action.reason, action.for_kernel, now, self._log)
        words = f"is being shut down: {action.reason}."
        self._tell_notice(Notice("ended", "warning", words, kernel.id))
        self._observers.kernel_ending(kernel, action.cause)
