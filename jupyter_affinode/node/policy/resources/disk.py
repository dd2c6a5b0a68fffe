"""The disk in one pass of the policy: which parked kernels' contents go there when host memory is short; pure.

Victims are parked kernels that no call, cell or user wants back, the least recently used first. Where they are not
enough, kernels that wait for the GPU are next, the last in the queue first: else a host full of waiters' memory would
keep each of them from the GPU, since no kernel there could be parked for them.

All kernels together have a limit, and each user an equal part of it: a user's kernels cannot fill it so that no
other's could make room. What may be written in a day is bounded, since flash wears out.

What a resident kernel keeps on disk from its last way back spares the next spill what has not changed. It counts, and
goes first when the disk is nearly as full as it may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...model.actions import Spill
from ...model.snapshot import Host, Kernel, Residency

LEAST_BYTES = 32 << 20  # less, unless it is all, is not worth a command: host memory is given back by slabs
FULL_PART = 0.75  # of a limit: from there on what resident kernels keep is forgotten


class DiskRoom:
    """What may still be written."""

    def __init__(self, kernels: Sequence[Kernel], host: Host):
        self._limit_bytes = host.disk_limit_bytes
        self._used: dict[str, int] = {}  # by user
        self._kept = [kernel for kernel in kernels if kernel.host.disk_kept_bytes]
        payers = {kernel.payer for kernel in kernels}
        self.part_bytes = host.disk_limit_bytes // max(len(payers), 1)
        for kernel in kernels:
            size = kernel.host.disk_bytes + kernel.host.spilling_bytes
            self._used[kernel.payer] = self._used.get(kernel.payer, 0) + size
        # A page may say what it likes: it counts no more against others than what its user may have.
        self._in_all = sum(min(size, self.part_bytes) for size in self._used.values())
        self._left_bytes = max(min(host.disk_limit_bytes - self._in_all, host.disk_writable_bytes), 0)

    def takes(
        self,
        kernels: Iterable[Kernel],
        now: float,
        is_free: Callable[[Kernel], bool],
        waiters: Iterable[Kernel] = (),
    ) -> Mapping[str, int]:
        """Return how much of each kernel could go to disk now, by kernel: the least recently used first, last of them
        those that are expected to be used soon, and then the `waiters` in that order.
        """
        if not self._left_bytes:
            return {}
        ready = sorted(
            (kernel for kernel in kernels if _is_unwanted(kernel)),
            key=lambda each: (each.expected_until > now, each.last_activity, each.id),
        )
        ready += [kernel for kernel in waiters if kernel.residency is Residency.QUEUED]
        found: dict[str, int] = {}
        used, left = dict(self._used), self._left_bytes
        for kernel in ready:
            spillable = kernel.host.spillable_bytes
            if not spillable or kernel.id in found or not is_free(kernel):
                continue
            part = self.part_bytes - used.get(kernel.payer, 0)
            size = min(spillable, left, part)
            if size >= min(spillable, LEAST_BYTES):
                found[kernel.id] = size
                used[kernel.payer] = used.get(kernel.payer, 0) + size
                left -= size
        return found

    def rest(self, kernel: Kernel) -> int:
        """Return what more of a kernel could go to disk when what is under way has."""
        part_left = self.part_bytes - self._used.get(kernel.payer, 0)
        rest = kernel.host.spillable_bytes - kernel.host.spilling_bytes
        return max(min(rest, self._left_bytes, part_left), 0)

    def has_room_for(self, kernels: Iterable[Kernel], takes: Callable[[Kernel], int]) -> bool:
        """Return whether what parking the kernels takes of host memory could all go to disk."""
        used, left = dict(self._used), self._left_bytes
        for kernel in kernels:
            used[kernel.payer] = used.get(kernel.payer, 0) + takes(kernel)
            left -= takes(kernel)
            if left < 0 or used[kernel.payer] > self.part_bytes:
                return False
        return True

    def forget_kept(self, is_free: Callable[[Kernel], bool]) -> Spill | None:
        """Have the resident kernel that keeps most forget it, where the disk is nearly as full as it may be."""
        is_full = self._in_all > FULL_PART * self._limit_bytes
        for kernel in sorted(self._kept, key=lambda each: (-each.host.disk_kept_bytes, each.id)):
            full_for_user = self._used[kernel.payer] > FULL_PART * self.part_bytes
            if (is_full or full_for_user) and is_free(kernel):
                return Spill(kernel.id, 0, "the disk is needed for others")
        return None


def _is_unwanted(kernel: Kernel) -> bool:
    """Whether it is parked and is not about to be resumed, as far as anything says so."""
    return kernel.residency is Residency.PARKED and kernel.wants_since is None and not kernel.is_dying
