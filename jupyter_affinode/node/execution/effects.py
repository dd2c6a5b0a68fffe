"""Carries out the policy's actions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...units import bytes_in_words
from ..model.actions import (
    Action,
    DenyRoom,
    DropCaches,
    EndKernel,
    GiveLots,
    GrantRoom,
    Hibernate,
    MakeLots,
    Park,
    ReadBack,
    RefusePark,
    Resume,
    Share,
    Spill,
    Trim,
)
from ..model.reasons import NoticeKind, Refusal
from ..protocol.wire import Status
from ..state.host.host_lending import give_lots, give_lots_to_read, make_room_beside_lots, trim
from ..state.host.lots import LotStock
from ..state.observer import Observers
from ..state.records.kernel import KernelRecord
from ..state.records.ownership import entitlements_of
from ..state.registry import NodeState
from ..state.room_requests import RequestedRoom
from .allocations import Allocations
from .evictions import ask_for_end
from .hibernations import ask_to_hibernate
from .notices import Notice
from .operations import Operations
from .outcomes import waiter_fields
from .room_requests import RoomRequests
from .user_requests import UserRequests


@dataclass(frozen=True)
class Parts:
    """The parts that `Effects` starts and that `Shims` passes messages to."""

    operations: Operations
    user_requests: UserRequests
    allocations: Allocations
    lots: LotStock
    room_requests: RoomRequests


class Effects:
    """Begins each action; all of them end later, and the controller's parts are told."""

    def __init__(
        self,
        state: NodeState,
        log: logging.Logger,
        observers: Observers,
        tell_notice: Callable[[Notice], None],
        parts: Parts,
    ):
        self._state = state
        self._log = log
        self._observers = observers
        self._tell_notice = tell_notice
        self._parts = parts

    def carry_out(self, action: Action, now: float) -> None:
        """Begin one action, decided at `now` (monotonic seconds), on what is still known."""
        request = self._state.room_requests.get(action.kernel_id)
        if request is not None:
            return self._answer(request, action, now)
        kernel = self._state.kernels[action.kernel_id]
        if isinstance(action, Park):
            self._park(kernel, action)
        elif isinstance(action, GiveLots):
            give_lots(kernel, action.lot_bytes, self._parts.lots)
        elif isinstance(action, MakeLots):
            self._parts.lots.order(action.bytes)
        elif isinstance(action, Trim):
            trim(kernel, action.keep_bytes, action.reason, now)
            keeps = bytes_in_words(action.keep_bytes)
            self._log.info("%s gives back host memory down to %s: %s", kernel.id, keeps, action.reason)
        elif isinstance(action, Spill | DropCaches | Share):
            self._parts.operations.begin(kernel, action)
        elif isinstance(action, ReadBack):
            if action.lot_bytes:
                give_lots_to_read(kernel, action.lot_bytes, self._parts.lots)
            self._parts.operations.begin(kernel, action)
        elif isinstance(action, Hibernate):
            ask_to_hibernate(kernel, action.reason, now, self._log)
        elif isinstance(action, Resume):
            self._note_served(kernel, action.reserved_bytes, now)
            self._parts.operations.begin(kernel, action)
        elif isinstance(action, RefusePark):
            status = Status.NO_HOST_ROOM if action.slug == Refusal.NO_HOST_MEMORY else Status.REFUSED
            self._parts.operations.refuse_park(
                kernel, status, action.slug, action.reason, figures=action.figures
            )
        elif isinstance(action, EndKernel):
            self._end(kernel, action, now)
        elif isinstance(action, GrantRoom):
            self._note_served(kernel, [action.gpu], now)
            self._parts.allocations.answer(kernel, action.key, now, reason=None)
        elif isinstance(action, DenyRoom):
            self._parts.allocations.answer(kernel, action.key, now, reason=action.reason, cause=action.cause)

    def _answer(self, request: RequestedRoom, action: Action, now: float) -> None:
        """Answer a request for room that no kernel has made yet."""
        if isinstance(action, GrantRoom):
            self._note_served(request.record, [action.gpu], now)
        self._parts.room_requests.carry_out(request, action)

    def _note_served(self, kernel: KernelRecord, gpus: Iterable[str], now: float) -> None:
        priority = entitlements_of(kernel, self._state.settings).priority
        self._state.last_served.take(kernel.account.charged_user or "", priority, gpus, now)

    def _park(self, kernel: KernelRecord, action: Park) -> None:
        if action.lot_bytes:
            give_lots(kernel, action.lot_bytes, self._parts.lots)
        make_room_beside_lots(kernel, action.budget_bytes, self._parts.lots, self._state.host.memory)
        self._parts.room_requests.park_begins(kernel, action.for_kernel)
        self._parts.operations.begin(kernel, action)

    def _end(self, kernel: KernelRecord, action: EndKernel, now: float) -> None:
        ask_for_end(kernel, action.reason, action.for_kernel, now, self._log)
        words = f"is being shut down: {action.reason}."
        args = {"reason": action.cause, **waiter_fields(self._state, kernel, action.for_kernel)}
        self._tell_notice(Notice(NoticeKind.ENDED, "warning", words, kernel.id, args))
        self._observers.kernel_ending(kernel, action.cause)
