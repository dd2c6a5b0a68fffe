"""Whether there is host memory for the parks of one pass, and what others are asked to give back for them; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property

from ....settings.policy import Settings
from ...model.actions import Action, RefusePark
from ...model.snapshot import Kernel, Node
from ..resources.disk import DiskRoom
from ..resources.host_memory import MACHINE, HostRoom, Shortage
from ..resources.retained_copies import RetainedCopies


class HostMemory(Enum):
    """Whether there is host memory to park a kernel, or several together."""

    ENOUGH = "enough"  # or others give back what is missing first, or a park is worth a try
    LATER = "later"  # when the kernels that are on the move have arrived
    SHORT = "short"


class HostPlan:
    """What this pass leaves of host memory, and which kernels it refused to park for want of it."""

    def __init__(
        self,
        now: float,
        node: Node,
        settings: Settings,
        is_free: Callable[[Kernel], bool],
        blocked_waiters: Callable[[], Iterable[Kernel]],
    ):
        """`is_free` says whether nothing is decided for a kernel; `blocked_waiters`: the parked ones that wait and have
        no room on the GPU now, the last of the queue first.
        """
        self._now = now
        self._node = node
        self._is_free = is_free
        self._blocked_waiters = blocked_waiters
        self.room = HostRoom(node.host, settings)
        self.is_awaited = False  # no more kernels are parked: a waiter needs memory of moves under way
        self._refused: dict[str, RefusePark] = {}

    def memory_for(self, kernels: Sequence[Kernel], beside_bytes: int = 0) -> HostMemory:
        """Whether they could be parked, all of them, and `beside_bytes` more taken on the machine."""
        if self.is_awaited and not all(kernel.park_asked for kernel in kernels):
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
        """Return what parking them all probably lacks of host memory, by place, when what was asked back is there; with
        `given_back`, when all others have given back what they keep, too, and `to_disk` what can go there. {}: nothing.
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
        """Whether they can be parked one after the other, each when the one before has gone to disk."""
        if not self._node.host.disk_limit_bytes:
            return False
        by_size = sorted(kernels, key=self.takes)
        return self.disk.has_room_for(by_size[:-1], self.takes)

    def takes(self, kernel: Kernel) -> int:
        """What parking a kernel probably takes anew, in bytes."""
        return self.room.needs(kernel).probable_bytes

    def lacks_room_for(self, kernels: Sequence[Kernel]) -> bool:
        """Whether they cannot be parked for want of host memory, whatever retained copies are given back."""
        return bool(self.shortfall(kernels)) and not any(
            not _is_known(kernel)
            and self.shortfall([kernel])
            and self.room.may_be_tried(kernel, self.room.needs(kernel))
            for kernel in kernels
        )

    def refusals(self) -> dict[str, RefusePark]:
        """Return which kernels cannot be parked for want of host memory, and why, as far as they were looked at."""
        return dict(self._refused)

    def forget_refusals(self, but: Mapping[str, RefusePark]) -> None:
        """They did not matter: others yielded instead, or will in a moment."""
        self._refused = dict(but)

    def refuse(self, kernel: Kernel) -> None:
        """Note that a kernel cannot be parked for want of host memory, and why."""
        if kernel.id not in self._refused:
            self._refused[kernel.id] = self.room.refusal(kernel, self.room.needs(kernel))

    def must_wait(self, kernel: Kernel, *, to_disk: bool = True) -> bool:
        """Whether others have what a park lacks, or can put it on disk, and have not given it back yet."""
        lacks = bool(self.room.shortage(self._wanted([kernel]), {}))
        return lacks and not self.shortfall([kernel], to_disk=to_disk)

    def _wanted(self, kernels: Iterable[Kernel]) -> dict[str, int]:
        """What parking them probably takes anew, by place."""
        wanted: dict[str, int] = {}
        for kernel in kernels:
            needs = self.room.needs(kernel)
            for place in self.room.places(kernel):
                size = needs.probable_bytes + (needs.lot_bytes if self.room.has_lots(place) else 0)
                wanted[place] = wanted.get(place, 0) + size
        return wanted

    def _may_try(self, kernel: Kernel) -> bool:
        """Whether a park is worth a try that may find too little host memory: what it takes is not known."""
        is_known, is_late = kernel.host.park_takes_bytes is not None, kernel.host.retry_at <= self._now
        if kernel.park_asked is None and (is_known or not is_late):
            return False
        return kernel.host.is_frugal and self.room.may_be_tried(kernel, self.room.needs(kernel))

    def reserve(self, kernel: Kernel) -> None:
        """It is parked in a later pass: what that takes is its own."""
        needs = self.room.needs(kernel)
        self.room.take_lots(kernel, needs.lot_bytes)
        self.room.take(kernel, needs.probable_bytes)
        self.room.is_passing(kernel, needs.probable_bytes + needs.lot_bytes + kernel.host.kept_bytes)

    def make_room(self, short: Shortage) -> Sequence[Action]:
        """Ask others for what is short for a park, and a little more: return what they are told."""
        return self.retained.trims(self.room.with_cushion(short), "room to park another kernel")

    def relieve(self) -> Iterator[Action]:
        """Have retained copies given back, and parked memory put on disk, where the machine or a cgroup is under its
        reserve.
        """
        if self._node.host.disk_limit_bytes:
            forgets = self.disk.forget_kept(self._is_free)
            if forgets is not None:
                yield forgets
        if self.room.pressure({}):
            yield from self.retained.trims(self.room.pressure(self.retained.coming), "host memory is short")

    def drop(self, kernel_id: str) -> None:
        """Something was decided for the kernel: it gives nothing back in this pass."""
        if "retained" in self.__dict__:
            self.retained.drop(kernel_id)

    @cached_property
    def retained(self) -> RetainedCopies:
        """What kernels can give back; reckoned only where host memory is short."""
        waiters = self._blocked_waiters() if self._node.host.disk_limit_bytes else ()
        to_disk = self.disk.takes(self._node.kernels, self._now, self._is_free, waiters)
        return RetainedCopies(self._node.kernels, self._now, self.room, self._is_free, to_disk)

    @cached_property
    def disk(self) -> DiskRoom:
        """What may still be written to disk."""
        return DiskRoom(self._node.kernels, self._node.host)


def _is_known(kernel: Kernel) -> bool:
    """Whether what a park of the kernel takes is known from an earlier one, or it takes all there is."""
    return (
        not kernel.host.is_frugal
        or kernel.host.park_takes_bytes is not None
        or bool(kernel.host.park_short_bytes)
    )
