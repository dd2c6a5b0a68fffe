"""Moves that kept other users waiting in vain: parks that came to nothing, and reserved room that was not taken. Both
count against the kernel's user (`UserBackOff`) and are logged.

A victim is chosen by what NVML bears out, and still may never free it. So each failure deprioritizes all kernels of its
user behind other users', for ten seconds at first. A park has failed if it was refused for whatever
reason, was not answered, lasts far longer than it should (`eviction_cost.is_late`) however it ends, or if NVML shows as
much memory in use afterwards as before. A kernel that computes again is an honest reason, and the pause is short enough
for it.

The only gain of being deprioritized is that other users' kernels are parked first, and a kernel that refuses parks has
that gain anyway. A user that makes other users' parks fail only has its own kernels parked first.

While room is reserved, others wait for it, and kernels that were parked for a waiter of another user wait afterwards.
So the kernels of a user that did not take it, or did not use what others made way for, get no room for a second, and
twice as long each time. A user with many processes that never take what they ask for keeps others waiting for seconds
now and then; an honest kernel that was stopped at a bad moment hardly notices.
"""

from __future__ import annotations

import logging
import time

from ...settings.policy import GIB, MIB
from ...units import duration_in_words
from ..model.snapshot import Node
from ..policy.victims.eviction_cost import is_late
from ..protocol.wire import Status
from ..state.gpus.gpu_processes import used_by
from ..state.gpus.reservations import RETRY_TAKES_S, TAKEN_PART, Reserved
from ..state.records.kernel import KernelRecord, MadeWay
from ..state.records.operations import Claimed, ParkMove, ResumeMove
from ..state.registry import NodeState

# a computing process is parked at its next call, and waits for the GPU (shim/src/mover/park.c)
PREEMPTS_WITHIN_S = 4.0
SHOWN_AFTER_S = 0.5  # NVML's figures show what a park freed after that
# Smaller parks are not checked: other programs' memory changes by as much; where NVML names pids, the kernel's own.
LEAST_BYTES, LEAST_NAMED_BYTES = 1 * GIB, 16 * MIB
PROMPT_S = 1.0  # a resume that fails sooner keeps hardly anything from others
HOLLOW_PART = 0.75  # of what was to become free: if so much is still in use, the kernel did not have it


NOT_USED = "did not use the room that other users' kernels made for it"
NOT_TAKEN = "did not take the GPU memory that was reserved for it"


class FailedParks:
    """Fills the state's back-off of users whose parks failed, for `Moves`."""

    def __init__(self, state: NodeState, log: logging.Logger):
        self._state = state
        self._log = log
        self._parked: list[tuple[ParkMove, float]] = []  # parked as their shims report, and when

    def park_begins(self, park: ParkMove) -> None:
        """Note by GPU what the kernel claims to have, and what NVML shows of it by its pids; where it names none, how
        much memory in use belongs to no kernel.
        """
        kernel = park.kernel
        if park.is_asked or kernel.account.charged_user is None:
            return
        sizes = {uuid: gpu.resident_bytes for uuid, gpu in kernel.by_gpu().items()}
        pids = frozenset(process.pid for process in kernel.processes.values())
        claims = {}
        for uuid, gpu in self._state.gpus.measured.items():
            size, named = min(sizes.get(uuid, 0), gpu.used_bytes), used_by(gpu, pids)
            if named is not None and min(size, named) >= LEAST_NAMED_BYTES:
                claims[uuid] = Claimed(min(size, named), named, pids)
            elif named is None and size >= LEAST_BYTES and park.action.for_kernel is not None:
                claims[uuid] = Claimed(size, self._unmanaged(uuid), None)
        park.claims = claims

    def count_late(self, node: Node, now: float) -> None:
        """Count the parks that last so long that other kernels are parked too, and those that freed nothing."""
        self._find_hollow()
        for seen in node.kernels:
            if not seen.is_moving or seen.moves_since is None:
                continue  # nearly all
            kernel = self._state.kernels.get(seen.id)
            park = None if kernel is None else kernel.park
            if park is None or park.action.for_kernel is None or park.is_late:
                continue
            if park.in_part or park.is_prepared or park.is_called_off:
                continue  # it waits for others that prepare, or waited for them
            if is_late(now - (PREEMPTS_WITHIN_S if park.action.preempts else 0.0), seen, node.speeds):
                park.is_late = True
                self._count(park, "it lasts too long", now)

    def park_ended(self, park: ParkMove, failed: tuple[Status, str] | None) -> None:
        """Take note of an ended park; `failed`: why it came to nothing."""
        if park.is_late or not park.kernel.processes:
            return
        now = time.monotonic()
        if failed is not None:
            if park.action.for_kernel is not None:
                self._count(park, failed[1], now)
        elif park.claims:
            self._parked.append((park, now))

    def _find_hollow(self) -> None:
        """Check by the first figures that can show it whether parked memory has become free."""
        sample = self._state.gpus.sample
        for each in self._parked[:]:
            park, parked_at = each
            if sample is not None and sample.began <= parked_at + SHOWN_AFTER_S:
                continue
            self._parked.remove(each)
            if sample is not None and self._is_hollow(park, parked_at):
                park.is_hollow = True
                self._count(park, "its memory is not free", sample.began)

    def _is_hollow(self, park: ParkMove, parked_at: float) -> bool:
        """Return whether the kernel's processes still have what the park was to free, by their pids. Where NVML names
        none: whether unmanaged memory has grown by that, less what others were granted.

        A program without a shim that took as much in the same second is mistaken for it then; that does little harm.
        """
        kernel = park.kernel
        was_moved = kernel.move is not None or kernel.last_move.ended_at > parked_at
        measured = self._state.gpus.measured
        for uuid in park.claims.keys() & measured.keys():
            claimed = park.claims[uuid]
            if claimed.pids is None:
                given = sum(entry.bytes for entry in self._state.reservations.entries if entry.gpu == uuid)
                stays = self._unmanaged(uuid) - claimed.before_bytes - given
            elif was_moved:
                continue
            else:
                has = used_by(measured[uuid], claimed.pids) or 0
                stays = claimed.bytes - (claimed.before_bytes - has)
            if stays >= HOLLOW_PART * claimed.bytes:
                return True
        return False

    def _unmanaged(self, uuid: str) -> int:
        """Return the bytes in use on a GPU that are none of our kernels', by their pages; negative where they claim
        more.
        """
        gpus = self._state.gpus
        return gpus.measured[uuid].used_bytes - gpus.managed_bytes(uuid)

    def _count(self, park: ParkMove, why: str, now: float) -> None:
        user = park.kernel.account.charged_user
        if self._state.failed_parks.failed(user, park.began, now):
            lasts = duration_in_words(self._state.failed_parks.until(user) - now)
            self._log.warning(
                "a park of %s came to nothing (%s): for %s other users' kernels are asked first",
                park.kernel.id,
                why,
                lasts,
            )


class UnusedRoom:
    """Fills the state's back-off of users that do not take their room, for `Moves`."""

    def __init__(self, state: NodeState, log: logging.Logger):
        self._state = state
        self._log = log

    def park_begins(self, victim: KernelRecord, for_kernel: str | None, now: float) -> None:
        """Note for which kernel another user's is parked: it has to use the room, or its user's kernels wait."""
        victim.made_way = None  # it had room, and gives it back
        waiter = self._state.kernels.get(for_kernel or "")
        if waiter is None or waiter.account.charged_user == victim.account.charged_user:
            return
        if waiter.made_way is None:
            rooms = _waiting_rooms(waiter)
            asked = sum(rooms.values()) or sum(gpu.parked_bytes for gpu in waiter.by_gpu().values())
            before = _borne_out_bytes(waiter) or 0
            waiter.made_way = MadeWay(now, asked, before, frozenset(rooms), waiter.wants_since)

    def count_unused(self, now: float) -> None:
        """Count the expired reservations, and what other users' kernels made way for in vain."""
        for kernel in self._state.kernels.values():
            if kernel.made_way is not None:
                self._check_use(kernel, kernel.made_way, now)
        expired, self._state.reservations.expired = self._state.reservations.expired, []
        for entry in expired:
            expecting = self._state.kernels.get(entry.kernel_id)
            if expecting is None:
                continue
            resume = expecting.operation
            if entry.room is None and isinstance(resume, ResumeMove):
                resume.is_given_up = True
                resume.has_begun |= entry.is_verified
            if not entry.is_verified:
                self._count(expecting, NOT_TAKEN, entry.began, now)

    def _check_use(self, kernel: KernelRecord, made_way: MadeWay, now: float) -> None:
        """Count room that a kernel does not wait for any more and has not used, by figures of NVML from after that."""
        seen = _borne_out_bytes(kernel)
        is_used = seen is not None and seen - made_way.before_bytes >= TAKEN_PART * made_way.asked_bytes
        if is_used or self._state.gpus.sample is None:
            kernel.made_way = None
        elif self._is_coming(kernel, made_way):
            made_way.ended_at = None
        else:
            made_way.ended_at = now if made_way.ended_at is None else made_way.ended_at
            is_seen = self._state.gpus.sample.began > made_way.ended_at + RETRY_TAKES_S
            if is_seen or not kernel.processes:
                kernel.made_way = None
                if seen is not None:
                    self._count(kernel, NOT_USED, made_way.began, now)

    def _is_coming(self, kernel: KernelRecord, made_way: MadeWay) -> bool:
        """Return whether a kernel still waits for what others made way for, or may be about to use it."""
        if made_way.rooms:
            reserved = {entry.room for entry in self._state.reservations.entries}
            return bool(made_way.rooms & (_waiting_rooms(kernel).keys() | reserved))
        resumes = any(
            entry.kernel_id == kernel.id and entry.room is None for entry in self._state.reservations.entries
        )
        is_waiting = kernel.wants_since is not None and kernel.wants_since == made_way.wants_since
        return is_waiting or kernel.move is not None or resumes

    def resume_failed(self, kernel: KernelRecord, reserved: list[Reserved], now: float) -> None:
        """Count a failed resume, unless it failed at once or had taken its room."""
        is_unused = reserved and not any(entry.is_verified for entry in reserved)
        if is_unused and now - reserved[0].began > PROMPT_S:
            self._count(kernel, NOT_TAKEN, reserved[0].began, now)

    def was_left(self, kernel: KernelRecord, began: float) -> None:
        """Count a waiter that went while others prepared to leave the GPU for it."""
        self._count(kernel, "went while others left the GPU for it", began, time.monotonic())

    def _count(self, kernel: KernelRecord, what: str, began: float, now: float) -> None:
        if self._state.unused_room.failed(kernel.account.charged_user, began, now):
            self._log.warning(
                "%s %s: its user's kernels are given no room for %s",
                kernel.id,
                what,
                duration_in_words(self._state.unused_room.until(kernel.account.charged_user) - now),
            )


def _waiting_rooms(kernel: KernelRecord) -> dict[tuple[int, int], int]:
    """Return the bytes of the kernel's allocations that wait for room, by process and number."""
    return {
        (process.key, number): room.bytes
        for process in kernel.processes.values()
        for number, room in process.allocations.items()
        if room.granted_at is None
    }


def _borne_out_bytes(kernel: KernelRecord) -> int | None:
    """Return what NVML bears out of a kernel's memory on all GPUs; None: not known."""
    sums = [process.borne_out for process in kernel.processes.values()]
    return None if None in sums else sum(sum(each.values()) for each in sums if each is not None)
