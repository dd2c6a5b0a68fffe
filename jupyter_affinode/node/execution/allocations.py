"""Allocations that found a full GPU and wait for room: shims' requests and the answers."""

from __future__ import annotations

import logging

from ...units import bytes_in_words
from ..model.reasons import Cause
from ..protocol.wire import CommandKind, Notify, NotifyKind
from ..state.observer import Observer, RoomAnswered
from ..state.records.kernel import KernelRecord
from ..state.records.process import Process, WaitingAllocation, read_pages
from ..state.registry import NodeState

ALLOCATIONS_MAX = 256  # a shim asks for 64 at once
ALLOCATIONS_OF_A_USER_MAX = 1024  # each is looked at in every pass


class Allocations:
    """Takes the shims' requests for room and carries out the decisions about them."""

    def __init__(self, state: NodeState, log: logging.Logger, observer: Observer):
        """Prepare; `observer` is told of every answer."""
        self._state = state
        self._log = log
        self._observer = observer

    def take_notify(self, process: Process, message: Notify, now: float) -> bool:
        """Take a shim's ROOM or ROOM_END; return whether new figures of the GPUs should be read."""
        if message.kind is NotifyKind.ROOM:
            self._take_room(process, message, now)
        elif message.kind is NotifyKind.ROOM_END:
            ended = process.allocations.get(message.number)
            if ended is not None and ended.granted_at is None:
                del process.allocations[message.number]
            self._state.reservations.finish_grant((process.key, message.number), now, failed=False)
        return message.kind in (NotifyKind.ROOM, NotifyKind.ROOM_END)

    def answer(
        self,
        kernel: KernelRecord,
        key: tuple[int, int],
        now: float,
        *,
        reason: str | None,
        cause: Cause = Cause.OTHER,
    ) -> None:
        """Let an allocation be tried again, or fail with `reason`."""
        process, number = kernel.processes[key[0]], key[1]
        room = process.allocations[number]
        granted = reason is None
        size = bytes_in_words(room.bytes)
        if granted:
            room.granted_at = now
            self._state.reservations.grant(kernel.id, room.gpu, room.bytes, key, now)
            self._log.info("grant %s to %s", size, kernel.id)
        else:
            del process.allocations[number]
            self._log.info("deny %s to %s: %s", size, kernel.id, reason)
        waited = now - room.since
        self._observer.room_answered(kernel, RoomAnswered(granted, room.gpu, room.bytes, waited, cause))
        if process.connection is not None:
            process.connection.command(
                CommandKind.ROOM, request=number, argument=int(granted), reason=reason or ""
            )

    def _take_room(self, process: Process, message: Notify, now: float) -> None:
        """Record an allocation that found a full GPU."""
        kernel = self._state.kernels[process.kernel_id]
        read_pages((process,), self._state.gpus.sizes, now)  # not all of its kernel's: a user may ask often
        if message.gpu_uuid not in self._state.gpus.uuids and not self._state.gpus.measured:
            self._state.refresh(now)  # its first memory there, perhaps; NVML would know the GPU
        known = message.gpu_uuid in self._state.gpus.uuids
        is_full = (
            len(process.allocations) >= ALLOCATIONS_MAX
            or self._count_of(kernel.account.charged_user) >= ALLOCATIONS_OF_A_USER_MAX
        )
        if (not known or is_full) and process.connection is not None:
            self._log.info("deny room to %s: %s", kernel.id, "too many requests" if known else "unknown GPU")
            process.connection.command(CommandKind.ROOM, request=message.number, argument=0)
            return
        room = WaitingAllocation(message.gpu_uuid, message.bytes, now)
        granted = [number for number, old in process.allocations.items() if old.granted_at is not None]
        failed_again = _remember(process, kernel, message.number, room, is_locked=message.is_locked)
        if failed_again:
            self._log.info("%s: an allocation failed although it was granted room", kernel.id)
        if failed_again or message.is_locked:
            for number in granted:
                self._state.reservations.finish_grant((process.key, number), now, failed=True)
        if not message.is_locked:
            self._state.gpus.take_failure(message.gpu_uuid, message.bytes, again=failed_again)
        self._log.info("%s waits for %s of room", kernel.id, bytes_in_words(message.bytes))

    def _count_of(self, charged_user: str | None) -> int:
        """Return how many allocations of one user wait for room."""
        kernels = (
            kernel for kernel in self._state.kernels.values() if kernel.account.charged_user == charged_user
        )
        return sum(len(process.allocations) for kernel in kernels for process in kernel.processes.values())


def _remember(
    process: Process, kernel: KernelRecord, number: int, room: WaitingAllocation, *, is_locked: bool
) -> bool:
    """Record an allocation that waits for room; return whether it failed although it was granted room before.

    Such an allocation keeps its place. A shim numbers each try anew, so it is recognised by its size and time.
    While a process's context comes back it has the GPU's lock, and others take no room that it may need
    (shim/src/context_depth/allocation_guard.c): `is_locked`, and their failure proves nothing.
    """
    failed = None
    for old_number, old in list(process.allocations.items()):
        if old.granted_at is None or old.gpu != room.gpu:
            continue
        grown = process.bytes_on(old.gpu) > old.resident_before
        if old.bytes == room.bytes and not grown and room.since - old.granted_at < 2.0:
            failed = old
        del process.allocations[old_number]
    room.resident_before = process.bytes_on(room.gpu)
    process.allocations[number] = room
    if failed is None:
        kernel.failures.room.succeed()
        return False
    if not is_locked:
        kernel.failures.room.fail(room.since)
    room.since = failed.since
    return not is_locked
