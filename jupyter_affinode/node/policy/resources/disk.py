"""The disk in one pass of the policy: which parked kernels go there when host memory is short; pure.

Victims are parked kernels that no call, cell or user request wants resumed, the least recently used first. Next come
kernels that wait for the GPU, the last in the queue first: else waiters' copies could fill the host, and no kernel on
the GPU could be parked for them.

All kernels together have a limit, and each user an equal part of it, so that no user's kernels fill the disk for the
others. What may be written in a day is bounded, since flash wears out. As long as all users together have written less
than that, each may write; after that, each up to an equal part. So what one user's kernels write, or say that they
wrote, takes no other user's part away.

What cannot be spilled may be had by hibernating kernels, the least recently used first: each whole. Where images go,
and how much of them there may be, their servers know; the bytes of a day are counted together.

A resident kernel's retained copy on disk spares the next spill what has not changed. It counts, and is dropped first
when the disk is nearly full.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from ...model.actions import Spill
from ...model.snapshot import Host, Kernel, Residency

LEAST_BYTES = 32 << 20  # a smaller part is not worth a command: host memory is released by slabs
NO_BYTES: Mapping[str, int] = {}
MAY_EVER = attrgetter(
    "hibernates_after_s"
)  # by `filter`, since mostly no kernel may: it takes no step for each
LEAST_AWAKE_S = 300.0  # a kernel that was woken, or started, is not hibernated for others before
FULL_PART = 0.75  # of a limit: from there on retained copies are dropped


class DiskRoom:
    """The room on disk that this pass leaves."""

    def __init__(self, kernels: Sequence[Kernel], host: Host):
        self._kernels, self._limit_bytes = kernels, host.disk_limit_bytes
        self._used: dict[str, int] = {}  # by user
        self._retained = [kernel for kernel in kernels if kernel.host.disk_retained_bytes]
        charged_users = {kernel.charged_user for kernel in kernels}
        users = max(len(charged_users), 1)
        self.part_bytes = host.disk_limit_bytes // users
        self._daily_bytes, self._daily_part_bytes = host.disk_daily_bytes, host.disk_daily_bytes // users
        self._written = dict(host.disk_written_bytes)  # in these 24 hours, by user
        self._written_in_all = sum(self._written.values())
        for kernel in kernels:
            size = kernel.host.disk_bytes + kernel.host.spilling_bytes
            self._used[kernel.charged_user] = self._used.get(kernel.charged_user, 0) + size
        # A page may claim anything: what counts against other users is limited to the user's part.
        self._in_all = sum(min(size, self.part_bytes) for size in self._used.values())
        self._left_bytes = min(host.disk_limit_bytes - self._in_all, host.disk_free_bytes)

    def takes(
        self,
        kernels: Iterable[Kernel],
        now: float,
        is_free: Callable[[Kernel], bool],
        waiters: Iterable[Kernel] = (),
    ) -> Mapping[str, int]:
        """Return how many bytes of each kernel could be spilled now, in this order: the least recently used first,
        kernels with an expected use last, then the `waiters`.
        """
        if self._left_bytes <= 0:
            return {}
        ready = sorted(
            (kernel for kernel in kernels if _is_unwanted(kernel)),
            key=lambda each: (each.expected_until > now, each.last_activity, each.id),
        )
        ready += [kernel for kernel in waiters if kernel.residency is Residency.QUEUED]
        found: dict[str, int] = {}
        room = self._copy()
        for kernel in ready:
            spillable = kernel.host.spillable_bytes
            if spillable and kernel.id not in found and is_free(kernel):
                size = min(spillable, room.left_for(kernel))
                if size >= min(spillable, LEAST_BYTES):
                    found[kernel.id] = size
                    room._write(kernel, size)
        return found

    def hibernates(
        self,
        kernels: Iterable[Kernel],
        now: float,
        is_free: Callable[[Kernel], bool],
        written: Mapping[str, int] = NO_BYTES,
        least_awake_s: float = LEAST_AWAKE_S,
    ) -> Mapping[str, int]:
        """Return which kernels could hibernate now, in this order, and the host memory that each gives back then.

        `written`: what kernels write beside that, by their ids.
        """
        room, found = self._copy(), dict[str, int]()
        ready = [
            each
            for each in filter(MAY_EVER, kernels)
            if may_hibernate(each, now, least_awake_s) and is_free(each)
        ]
        for kernel in self._kernels if written and ready else ():
            room._count_written(kernel.charged_user, written.get(kernel.id, 0))
        for kernel in sorted(ready, key=lambda each: (each.last_activity, each.id)):
            size = sum(kernel.parked_bytes.values())
            if size <= room._daily_left_for(kernel.charged_user):
                room._count_written(kernel.charged_user, size)
                found[kernel.id] = kernel.host.spillable_bytes
        return found

    def after_reading(self, kernel: Kernel, size: int) -> DiskRoom:
        """Return the room once `size` bytes of a kernel have been read back."""
        room = self._copy()
        room._used[kernel.charged_user] -= size
        room._left_bytes += size
        return room

    def rest(self, kernel: Kernel) -> int:
        """Return how many more bytes of a kernel could be spilled when the spill under way is done."""
        rest = kernel.host.spillable_bytes - kernel.host.spilling_bytes
        return max(min(rest, self.left_for(kernel)), 0)

    def left_for(self, kernel: Kernel) -> int:
        """Return how much more of the kernel's user may be written to disk now."""
        part = self.part_bytes - self._used.get(kernel.charged_user, 0)
        return max(min(self._left_bytes, part, self._daily_left_for(kernel.charged_user)), 0)

    def has_room_for(self, kernels: Iterable[Kernel], takes: Callable[[Kernel], int], now: float) -> bool:
        """Return whether what parking the kernels takes of host memory could all go to disk."""
        room = self._copy()
        for kernel in kernels:
            size, whole = takes(kernel), sum(kernel.resident_bytes.values())
            if size <= room.left_for(kernel):
                room._write(kernel, size)
            elif may_hibernate(
                replace(kernel, residency=Residency.PARKED), now
            ) and whole <= room._daily_left_for(kernel.charged_user):
                room._count_written(kernel.charged_user, whole)
            else:
                return False
        return True

    def drop_retained(self, is_free: Callable[[Kernel], bool]) -> Spill | None:
        """Return a `Spill` that drops the largest retained copy on disk, where the disk is nearly full; else None."""
        is_full = self._in_all > FULL_PART * self._limit_bytes
        for kernel in sorted(self._retained, key=lambda each: (-each.host.disk_retained_bytes, each.id)):
            full_for_user = self._used[kernel.charged_user] > FULL_PART * self.part_bytes
            if (is_full or full_for_user) and is_free(kernel):
                return Spill(kernel.id, 0, "the disk is needed for others")
        return None

    def _copy(self) -> DiskRoom:
        room = copy.copy(self)
        room._used, room._written = dict(self._used), dict(self._written)
        return room

    def _write(self, kernel: Kernel, size: int) -> None:
        """Count `size` bytes of a kernel as written."""
        self._used[kernel.charged_user] = self._used.get(kernel.charged_user, 0) + size
        self._left_bytes -= size
        self._count_written(kernel.charged_user, size)

    def _daily_left_for(self, user: str) -> int:
        """Return how much more of the user may be written in these 24 hours."""
        own = self._daily_part_bytes - self._written.get(user, 0)
        return max(self._daily_bytes - self._written_in_all, own, 0)

    def _count_written(self, user: str, size: int) -> None:
        """Count `size` bytes as written in these 24 hours, on the disk or in an image."""
        self._written[user] = self._written.get(user, 0) + size
        self._written_in_all += size


def may_hibernate(kernel: Kernel, now: float, least_awake_s: float = LEAST_AWAKE_S) -> bool:
    """Return whether a kernel may be put into an image now: its owner lets it, it is parked, and nothing asks for it.

    Not for others if it was woken, or started, a moment ago, so that no kernel goes and comes all the time.
    """
    return (
        kernel.hibernates_after_s is not None
        and _is_unwanted(kernel)
        and not (kernel.cell_open or kernel.left_bytes or kernel.is_opted_out or kernel.is_held(now))
        and kernel.expected_until <= now
        and now - kernel.awake_since >= least_awake_s
    )


def _is_unwanted(kernel: Kernel) -> bool:
    """Return whether the kernel is parked and nothing asks for its resume."""
    return kernel.residency is Residency.PARKED and kernel.wants_since is None and not kernel.is_dying
