"""Operations under way: parks, resumes, exchanges, spills, reads from disk, cache drops, sharing; one for each kernel.

The policy decides; this begins its actions, passes on what the shims say, decides between COMMIT and ABORT, and ends
what is over. What a kind does at each of these steps is in its own module (kind.py).

An operation in two steps is committed once all its participants are prepared, and aborted at the first obstacle
("Prepared moves" in shim/src/protocol.h). A prepared participant has given nothing up, so until then an abort costs
nothing. That is so at both levels: the participants of a move are the processes of a kernel, those of an exchange the
parks of several kernels. A part of an exchange that is prepared waits for that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from ..model.actions import DropCaches, Park, ReadBack, Resume, Share, Spill
from ..model.snapshot import Node
from ..protocol.wire import Reply, Status
from ..state.observer import Observer
from ..state.records.kernel import KernelRecord
from ..state.records.operations import (
    CacheDrop,
    DiskTransfer,
    Exchange,
    Operation,
    ParkMove,
    Phase,
    ResumeMove,
    Sharing,
)
from ..state.records.process import Process
from ..state.registry import NodeState
from .cache_drops import CacheDrops
from .disk_transfers import DiskTransfers, Done
from .exchanges import Exchanges
from .failed_moves import FailedParks, UnusedRoom
from .kind import Kind, Surroundings
from .moves import USED_MEANWHILE, Moves
from .outcomes import Outcomes
from .sharing import SharingOperations


class Operations:
    """Begins, advances and ends operations."""

    def __init__(
        self,
        state: NodeState,
        log: logging.Logger,
        observer: Observer,
        on_change: Callable[[], None] = lambda: None,
        promise: Callable[[Process, int], None] = lambda process, size: None,
    ):
        """Prepare. `on_change` is called when an operation ended."""
        self._state = state
        self._on_change = on_change
        self._failed_parks, self._unused_room = FailedParks(state, log), UnusedRoom(state, log)
        around = Surroundings(state, log, observer, self._failed_parks, self._unused_room, promise)
        outcomes = Outcomes(around)
        self._moves, self._transfers, self._drops = (
            Moves(around, outcomes),
            DiskTransfers(around),
            CacheDrops(around),
        )
        self._sharing = SharingOperations(around)
        self._kinds: dict[type[Operation], Kind[Any]] = {
            ParkMove: self._moves,
            ResumeMove: self._moves,
            Exchange: Exchanges(around, self._moves),
            DiskTransfer: self._transfers,
            CacheDrop: self._drops,
            Sharing: self._sharing,
        }
        self.refuse_park = outcomes.refuse_park

    def begin(
        self, kernel: KernelRecord, action: Park | Resume | Spill | ReadBack | DropCaches | Share
    ) -> None:
        """Begin what was decided. An exchange that waits for this kernel is called off by that."""
        if isinstance(action, Park):
            self._moves.park(kernel, action)
        elif isinstance(action, Resume):
            self._moves.resume(kernel, action)
        elif isinstance(action, DropCaches):
            self._drops.begin(kernel, action)
        elif isinstance(action, Share):
            self._sharing.begin(kernel)
        else:
            self._transfers.begin(kernel, action)
        self._go_on(kernel)

    def hibernate(self, kernel: KernelRecord, folder: str) -> Done:
        """Have a kernel that is parked, or uses no GPU, write all to the image in `folder`; a future of the outcome."""
        if isinstance(kernel.operation, Sharing):
            return self._hibernate_after(kernel.operation, folder)
        done = self._transfers.hibernate(kernel, folder)
        self._go_on(kernel)
        return done

    def _hibernate_after(self, sharing: Sharing, folder: str) -> Done:
        done: Done = asyncio.get_running_loop().create_future()

        def pass_on(begun: Done) -> None:
            if not done.done():
                done.set_result(begun.result())

        sharing.then = lambda: self.hibernate(sharing.kernel, folder).add_done_callback(pass_on)
        self._sharing.stop(sharing)
        return done

    def take_reply(self, process: Process, reply: Reply) -> None:
        """Take a shim's reply; a reply to anything but the command under way is ignored."""
        kernel = self._state.kernels[process.kernel_id]
        operation = kernel.operation
        told = None if operation is None else operation.participants.get(process.key)
        if operation is None or told is None or not told.is_awaited:
            return
        if (told.epoch, operation.command) != (reply.epoch, reply.command):
            return
        if reply.status is not Status.PREPARED:
            told.reply = reply
            self._kinds[type(operation)].take_reply(operation, process, reply)
        elif operation.phase is Phase.PREPARING:
            told.is_prepared, told.lacks_bytes = True, reply.bytes
        self._go_on(kernel)

    def process_came(self, process: Process) -> None:
        """Check the kernel's operation after a process said HELLO: an undecided park would leave the process out."""
        self._go_on(self._state.kernels[process.kernel_id])

    def process_wants(self, process: Process) -> None:
        """Abort an undecided park of which a call waits at the gate: the call is let through, and no process parks."""
        kernel = self._state.kernels[process.kernel_id]
        park = kernel.operation
        told = park.participants.get(process.key) if isinstance(park, ParkMove) else None
        if isinstance(park, ParkMove) and told is not None and told.epoch is not None:
            self._moves.abort(park, USED_MEANWHILE)
            self._go_on(kernel)

    def process_gone(self, process: Process, kernel: KernelRecord) -> None:
        """Stop waiting for the reply of a process to a move: it ended or fell silent."""
        told = None if kernel.move is None else kernel.move.participants.get(process.key)
        if told is not None and told.is_awaited:
            told.is_lost = True
        self._go_on(kernel)

    def expire(self, now: float) -> None:
        """End operations that no shim will answer any more, and those that are not wanted any more."""
        for kernel in list(self._state.kernels.values()):
            if kernel.operation is not None:
                self._kinds[type(kernel.operation)].expire(kernel.operation, now)
                self._go_on(kernel)

    def count_broken_promises(self, node: Node, now: float) -> None:
        """Count the parks that last too long and the room that is not taken; `node` is the last snapshot."""
        self._failed_parks.count_late(node, now)
        self._unused_room.count_unused(now)

    def _go_on(self, kernel: KernelRecord) -> None:
        """Decide on the kernel's operation if that is due, and end it if it is over."""
        if kernel.operation is not None:
            if kernel.operation.phase is Phase.PREPARING:
                self._state.refresh(time.monotonic())
            self._advance(kernel.operation)

    def _advance(self, operation: Operation) -> None:
        kind, kernel, whole = self._kinds[type(operation)], operation.kernel, operation.exchange
        if operation.phase is Phase.PREPARING:
            failure = kind.obstacle(operation)
            if failure is not None:
                kind.abort(operation, failure)
            elif operation.is_prepared and whole is None:
                kind.commit(operation)
        if whole is not None and whole.phase is Phase.PREPARING:
            self._advance(whole)
        if kernel.operation is operation and operation.is_over:
            kernel.operation = None
            kind.end(operation)
            if whole is not None and whole.phase is Phase.PREPARING:
                self._advance(whole)
            self._on_change()
        if kernel.operation is not None and kernel.operation is not operation:
            self._advance(kernel.operation)  # it followed
