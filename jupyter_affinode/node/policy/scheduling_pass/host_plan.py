"""How the host memory for the parks of one pass is had; pure.

**The ladder.** What is free and in lots is used first. Next come retained copies of resident kernels, then the copy of
the waiter itself (reclaim/hand_over.py), then the disk: spills, then images. Memory of moves under way is waited for
before anything goes to the disk. `HostPlan.supply` says what each of these gives for what is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from ....settings.policy import Settings
from ....units import bytes_in_words
from ...model.actions import Action, RefusePark
from ...model.snapshot import Kernel, Node, Residency
from ..resources.disk import DiskRoom
from ..resources.host_memory import MACHINE, HostRoom, Shortage
from ..resources.retained_copies import RetainedCopies


class HostMemory(Enum):
    """Whether there is host memory to park a kernel, or several together."""

    ENOUGH = "enough"  # or others release what is missing first
    UNKNOWN = "unknown"  # nor what the park takes: it is worth a try
    LATER = "later"  # when the kernels in transit have arrived
    SHORT = "short"


class Supply(NamedTuple):
    """How the host memory that something takes can be had."""

    is_there: bool  # nothing need be released
    asks: Shortage  # what others are to release, beside what they were told to release already
    lacks: Shortage  # what is missing even then

    @property
    def is_coming(self) -> bool:
        """Return whether others release it, or have been told to."""
        return not (self.is_there or self.lacks)


THERE = Supply(True, {}, {})


class HostPlan:
    """The host memory that this pass leaves, and the kernels that it refused to park for lack of it."""

    def __init__(
        self,
        now: float,
        node: Node,
        settings: Settings,
        is_free: Callable[[Kernel], bool],
        blocked_waiters: Callable[[], Iterable[Kernel]],
    ):
        """Prepare for one pass. `is_free` returns whether nothing is decided for a kernel; `blocked_waiters` returns
        the parked waiters that have no room on the GPU now, the last of the queue first.
        """
        self._now = now
        self._node = node
        self._is_free = is_free
        self._blocked_waiters = blocked_waiters
        self.room = HostRoom(node.host, settings)
        self.is_awaited = False  # no more kernels are parked: a waiter needs memory of moves under way
        self.refused: dict[str, RefusePark] = {}  # by kernel

    def memory_for(self, kernels: Sequence[Kernel], beside_bytes: int = 0) -> HostMemory:
        """Return whether the kernels could be parked together, and `beside_bytes` more taken on the machine."""
        if self.is_awaited and not all(kernel.park_requested for kernel in kernels):
            return HostMemory.LATER
        for to_disk in (False, True):  # moves under way take less time than the disk
            lacks = self.for_parks(kernels, beside_bytes, to_disk=to_disk).lacks
            if not lacks:
                return HostMemory.ENOUGH
            if not self.room.without_passing(lacks):
                return HostMemory.LATER
        is_worth_a_try = len(kernels) == 1 and self._is_worth_a_try(kernels[0])
        return HostMemory.UNKNOWN if is_worth_a_try else HostMemory.SHORT

    def for_parks(self, kernels: Sequence[Kernel], beside_bytes: int = 0, *, to_disk: bool = True) -> Supply:
        """Return how the host memory can be had that parking all the kernels probably takes, and `beside_bytes` more on
        the machine. `to_disk`: others may be spilled for it.
        """
        if self.room.suffices(kernels, beside_bytes):
            return THERE
        wanted = {MACHINE: beside_bytes}
        for kernel in kernels:
            needs = self.room.needs(kernel)
            for place in self.room.places(kernel):
                size = needs.probable_bytes + (needs.lot_bytes if self.room.has_lots(place) else 0)
                wanted[place] = wanted.get(place, 0) + size
        found = self.supply(wanted, kernels, to_disk=to_disk)
        if found.lacks and to_disk and len(kernels) > 1 and self._can_follow(kernels):
            each = [self.for_parks([kernel], beside_bytes) for kernel in kernels]
            return next((one for one in each if one.lacks), each[0])
        return found

    def supply(
        self,
        wanted: Mapping[str, int],
        but: Sequence[Kernel],
        *,
        to_disk: bool = True,
        copies: RetainedCopies | None = None,
    ) -> Supply:
        """Return how the bytes `wanted` of each place can be had; the kernels in `but` release none. `copies`: what
        others can release, if it is not as now.
        """
        if not self.room.shortage(wanted, {}):
            return THERE
        copies = copies or self.retained
        asks = self.room.shortage(wanted, copies.coming)
        return Supply(False, asks, copies.left(asks, but, to_disk=to_disk) if asks else asks)

    def for_hand_over(self, waiter: Kernel, victims: Sequence[Kernel]) -> Supply:
        """Return how the host memory can be had that an exchange takes beside the waiter's own copy.

        Nothing is spilled for more than what the victims begin with.
        """
        charges = self.room.charges_of_hand_over(waiter, victims)
        to_disk = max(charges.values()) <= self.room.begins_with(victims)
        return self.supply(charges, [waiter, *victims], to_disk=to_disk)

    def may_hand_over_after_reading(self, waiter: Kernel, victims: Sequence[Kernel], size: int) -> bool:
        """Return whether the waiter could hand over if it had `size` bytes more in host memory, and the disk as much
        room more: with all that others release now, or when they have arrived.

        In their own cgroups the victims need what they begin with, and the waiter what it reads.
        """
        room, disk = self.room, self.disk.after_reading(waiter, size)
        use = replace(waiter.host, copy_bytes=waiter.host.copy_bytes + size)
        wanted = {**room.charges_of_hand_over(replace(waiter, host=use), victims)}
        to_disk = max(wanted.values()) <= room.begins_with(victims)
        for place in room.places(waiter):
            wanted[place] = wanted.get(place, 0) + size
        for victim in victims:
            for place in room.own_places(victim):
                wanted[place] = wanted.get(place, 0) + room.begins_with([victim])
        wanted[MACHINE] -= sum(
            disk.rest(kernel) - self.disk.rest(kernel)  # of what the disk moves now, more can go there then
            for kernel in self._node.kernels
            if kernel.is_moving and kernel.residency in (Residency.PARKED, Residency.QUEUED)
        )
        copies = self._copies(disk)
        lacks = self.supply(wanted, [waiter, *victims], to_disk=to_disk, copies=copies).lacks
        return not room.without_passing(lacks)

    def _can_follow(self, kernels: Sequence[Kernel]) -> bool:
        """Return whether they can be parked one after the other, each after the one before has gone to disk."""
        first = sorted(kernels, key=self.takes)[:-1]
        if not self._node.host.disk_limit_bytes and any(each.hibernates_after_s is None for each in first):
            return False
        return self.disk.has_room_for(first, self.takes, self._now)

    def takes(self, kernel: Kernel) -> int:
        """Return the new host memory that parking a kernel probably takes."""
        return self.room.needs(kernel).probable_bytes

    def lacks_room_for(self, kernels: Sequence[Kernel]) -> bool:
        """Return whether the kernels cannot be parked for lack of host memory, whatever others release."""
        return bool(self.for_parks(kernels).lacks) and not any(
            kernel.host.park_takes_bytes is None
            and self.room.may_be_tried(kernel)
            and self.for_parks([kernel]).lacks
            for kernel in kernels
        )

    def _is_worth_a_try(self, kernel: Kernel) -> bool:
        """Return whether a park of unknown need may be tried although it may find too little host memory."""
        is_known, is_late = kernel.host.park_takes_bytes is not None, kernel.host.retry_at <= self._now
        if kernel.park_requested is None and (is_known or not is_late):
            return False
        return self.room.may_be_tried(kernel)

    def refuse(self, kernels: Iterable[Kernel]) -> None:
        """Note that kernels cannot be parked for lack of host memory, and why."""
        for kernel in kernels:
            if kernel.id not in self.refused:
                refusal = self.room.refusal(kernel)
                if self._node.host.disk_limit_bytes:
                    left = bytes_in_words(self.disk.left_for(kernel))
                    refusal = replace(refusal, reason=f"{refusal.reason}; {left} more may go to disk")
                self.refused[kernel.id] = refusal

    def reserve(self, kernel: Kernel) -> None:
        """Reserve the host memory that a kernel's park in a later pass takes."""
        needs = self.room.needs(kernel)
        self.room.take_lots(kernel, needs.lot_bytes)
        self.room.take(kernel, needs.probable_bytes)
        self.room.count_passing(kernel, needs.probable_bytes + needs.lot_bytes + kernel.host.retained_bytes)

    def release(self, asks: Shortage) -> Sequence[Action]:
        """Return actions that have others release what is missing, and a little more."""
        margins = {place: self.room.margin(place) for place in asks}
        return self.retained.trims(asks, "room to free another kernel", margins)

    def relieve(self) -> Iterator[Action]:
        """Yield actions that release retained copies and spill parked memory where the machine or a cgroup is below its
        reserve.
        """
        if self._node.host.disk_limit_bytes:
            forgets = self.disk.drop_retained(self._is_free)
            if forgets is not None:
                yield forgets
        if self.room.pressure({}):
            yield from self.retained.trims(self.room.pressure(self.retained.coming), "host memory is short")

    def drop(self, kernel_id: str) -> None:
        """Note that something was decided for the kernel: it releases nothing more in this pass."""
        if "retained" in self.__dict__:
            self.retained.drop(kernel_id)

    @cached_property
    def retained(self) -> RetainedCopies:
        """Return what kernels can release; computed only where host memory is short."""
        return self._copies(self.disk)

    def _copies(self, disk: DiskRoom) -> RetainedCopies:
        kernels = self._node.kernels
        waiters = self._blocked_waiters() if self._node.host.disk_limit_bytes else ()
        spills = disk.takes(kernels, self._now, self._is_free, waiters)
        hibernates = disk.hibernates(kernels, self._now, self._is_free, spills)
        # those that give more than by a spill
        whole = {each: size for each, size in hibernates.items() if size > spills.get(each, 0)}
        to_disk = {**{each: size for each, size in spills.items() if each not in whole}, **whole}
        return RetainedCopies(kernels, self._now, self.room, self._is_free, to_disk, whole)

    @cached_property
    def disk(self) -> DiskRoom:
        """Return what may still be written to disk."""
        return DiskRoom(self._node.kernels, self._node.host)
