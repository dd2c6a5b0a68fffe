"""Whether there is host memory for the parks of one pass, and what others are asked to release for them; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property

from ....settings.policy import Settings
from ....units import bytes_in_words
from ...model.actions import Action, RefusePark
from ...model.snapshot import Kernel, Node
from ..resources.disk import DiskRoom
from ..resources.host_memory import MACHINE, HostRoom, Shortage
from ..resources.retained_copies import RetainedCopies


class HostMemory(Enum):
    """Whether there is host memory to park a kernel, or several together."""

    ENOUGH = "enough"  # or others release what is missing first, or a park is worth a try
    LATER = "later"  # when the kernels in transit have arrived
    SHORT = "short"


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
        self._refused: dict[str, RefusePark] = {}

    def memory_for(self, kernels: Sequence[Kernel], beside_bytes: int = 0) -> HostMemory:
        """Return whether the kernels could be parked together, and `beside_bytes` more taken on the machine."""
        if self.is_awaited and not all(kernel.park_requested for kernel in kernels):
            return HostMemory.LATER
        for to_disk in (False, True):  # moves under way take less time than the disk
            short = self.shortfall(kernels, beside_bytes, to_disk=to_disk)
            if not short:
                return HostMemory.ENOUGH
            if not self.room.without_passing(short):
                return HostMemory.LATER
        if len(kernels) == 1 and self._may_try(kernels[0]):
            return HostMemory.ENOUGH
        self.refuse(max(kernels, key=self.takes))
        return HostMemory.SHORT

    def shortfall(
        self,
        kernels: Sequence[Kernel],
        beside_bytes: int = 0,
        *,
        given_back: bool = True,
        to_disk: bool = True,
    ) -> Shortage:
        """Return the host memory that parking all the kernels probably lacks, by place; {} if none.

        Memory that kernels were told to release counts as there. With `given_back`, so does all that others retain, and
        with `to_disk` what can be spilled.
        """
        if self.room.suffices(kernels, beside_bytes):
            return {}
        wanted = self._wanted(kernels)
        wanted[MACHINE] = wanted.get(MACHINE, 0) + beside_bytes
        short = self.room.shortage(wanted, {})
        short = self.room.shortage(wanted, self.retained.coming) if short else short
        if not short or not given_back:
            return short
        short = self.retained.left(short, kernels, to_disk=to_disk)
        if short and to_disk and len(kernels) > 1 and self._can_follow(kernels):
            return next(filter(None, (self.shortfall([each], beside_bytes) for each in kernels)), {})
        return short

    def _can_follow(self, kernels: Sequence[Kernel]) -> bool:
        """Return whether they can be parked one after the other, each after the one before has gone to disk."""
        if not self._node.host.disk_limit_bytes:
            return False
        by_size = sorted(kernels, key=self.takes)
        return self.disk.has_room_for(by_size[:-1], self.takes)

    def takes(self, kernel: Kernel) -> int:
        """Return the new host memory that parking a kernel probably takes."""
        return self.room.needs(kernel).probable_bytes

    def lacks_room_for(self, kernels: Sequence[Kernel]) -> bool:
        """Return whether the kernels cannot be parked for lack of host memory, whatever retained copies are
        released.
        """
        return bool(self.shortfall(kernels)) and not any(
            not _is_known(kernel)
            and self.shortfall([kernel])
            and self.room.may_be_tried(kernel, self.room.needs(kernel))
            for kernel in kernels
        )

    def refusals(self) -> dict[str, RefusePark]:
        """Return the refusals of this pass, by kernel."""
        return dict(self._refused)

    def forget_refusals(self, but: Mapping[str, RefusePark]) -> None:
        """Restore the refusals to `but`: other kernels are parked instead, now or in a moment."""
        self._refused = dict(but)

    def refuse(self, kernel: Kernel) -> None:
        """Note that a kernel cannot be parked for lack of host memory, and why."""
        if kernel.id in self._refused:
            return
        refusal = self.room.refusal(kernel, self.room.needs(kernel))
        if self._node.host.disk_limit_bytes:
            left = bytes_in_words(self.disk.left_for(kernel))
            refusal = replace(refusal, reason=f"{refusal.reason}; {left} more may go to disk")
        self._refused[kernel.id] = refusal

    def must_wait(self, kernel: Kernel, *, to_disk: bool = True) -> bool:
        """Return whether others retain what a park lacks, or can put it on disk, and have not released it yet."""
        lacks = bool(self.room.shortage(self._wanted([kernel]), {}))
        return lacks and not self.shortfall([kernel], to_disk=to_disk)

    def _wanted(self, kernels: Iterable[Kernel]) -> dict[str, int]:
        """Return the new host memory that parking the kernels probably takes, by place."""
        wanted: dict[str, int] = {}
        for kernel in kernels:
            needs = self.room.needs(kernel)
            for place in self.room.places(kernel):
                size = needs.probable_bytes + (needs.lot_bytes if self.room.has_lots(place) else 0)
                wanted[place] = wanted.get(place, 0) + size
        return wanted

    def _may_try(self, kernel: Kernel) -> bool:
        """Return whether a park of unknown need is worth a try although it may find too little host memory."""
        is_known, is_late = kernel.host.park_takes_bytes is not None, kernel.host.retry_at <= self._now
        if kernel.park_requested is None and (is_known or not is_late):
            return False
        return kernel.host.obeys_budget and self.room.may_be_tried(kernel, self.room.needs(kernel))

    def reserve(self, kernel: Kernel) -> None:
        """Reserve the host memory that a kernel's park in a later pass takes."""
        needs = self.room.needs(kernel)
        self.room.take_lots(kernel, needs.lot_bytes)
        self.room.take(kernel, needs.probable_bytes)
        self.room.is_passing(kernel, needs.probable_bytes + needs.lot_bytes + kernel.host.retained_bytes)

    def make_room(self, short: Shortage) -> Sequence[Action]:
        """Return actions that have others release what a park lacks, and a little more."""
        margins = {place: self.room.margin(place) for place in short}
        return self.retained.trims(short, "room to free another kernel", margins)

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
        waiters = self._blocked_waiters() if self._node.host.disk_limit_bytes else ()
        to_disk = self.disk.takes(self._node.kernels, self._now, self._is_free, waiters)
        return RetainedCopies(self._node.kernels, self._now, self.room, self._is_free, to_disk)

    @cached_property
    def disk(self) -> DiskRoom:
        """Return what may still be written to disk."""
        return DiskRoom(self._node.kernels, self._node.host)


def _is_known(kernel: Kernel) -> bool:
    """Return whether an earlier park shows what parking the kernel takes, or it takes all that it has."""
    return (
        not kernel.host.obeys_budget
        or kernel.host.park_takes_bytes is not None
        or bool(kernel.host.park_short_bytes)
    )
