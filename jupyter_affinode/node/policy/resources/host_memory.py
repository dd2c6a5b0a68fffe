"""Host memory in one pass of the policy: what a park may take, and whether that is available; pure.

**Places.** The machine is one place that memory is taken from, and every cgroup with a limit above a kernel is another:
a park needs its memory in all of its kernel's places.

What a park takes is not known before it is tried: chunks of zeros take nothing, and what a kernel retains from its last
park is there already. So a shim gets a budget, stops there, and reports what it would have taken.

**Progress.** Retained copies of resident kernels are released before a park is refused (retained_copies.py). So a park
is possible as long as its need is within free and retained memory. It waits for what others were asked to release, and
that is reserved for it: a later park of the pass cannot take it.

Where parked memory may be spilled (disk.py), that counts as what others release, after all retained copies.

**The margin.** A park takes seconds, and its budget was computed before it: what other programs take meanwhile would
come out of the reserve if budgets went up to it, and what the driver keeps beside the memory that a parked kernel
registers. So budgets end above the reserve by a sixteenth part of it. (Ten kernels of 20 GiB on a machine of 126 GiB
were below a reserve of 12.6 GiB in one of 1,660 looks without it, by 20 MiB, and in two of 1,647 with it once parked
kernels registered all of their memory. A tenth part changed nothing. With what state/host/lots.py does about it, none
of 6,342 looks found less.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ....settings.policy import MIB, Settings
from ....units import bytes_in_words
from ...model.actions import RefusePark
from ...model.reasons import Refusal
from ...model.snapshot import SLAB_BYTES, SLACK_BYTES, Host, Kernel

# the least for a park of unknown need, and the least that a kernel is asked to release
LEAST_BYTES = 256 * MIB
CGROUP_RESERVE = 10  # a 10th part of a cgroup's limit stays free, or the reserve if that is less
MARGIN_PART = 16  # parks leave a 16th part of a reserve free beside it, and ask for that much more
MACHINE = ""  # the place that is no cgroup
# A move that hands over begins with 256 MiB (shim/src/protocol.h). It needs somewhat more: a lot of that size comes
# back only when nothing is left in it, and the waiter may get no further without the room that the victim has yet.
HANDED_AT_ONCE_BYTES = 320 * MIB

Shortage = dict[str, int]  # by place, what is missing there; {}: nothing is


def cgroup_reserve(limit_bytes: int, reserve_bytes: int) -> int:
    """Return the reserve below a cgroup's limit; `reserve_bytes`: the machine's."""
    return min(limit_bytes // CGROUP_RESERVE, reserve_bytes)


def with_margin(reserve_bytes: int) -> int:
    """Return the bytes that parks leave free of a place with that reserve."""
    return reserve_bytes + reserve_bytes // MARGIN_PART


def _in_slabs(size: int) -> int:
    """Return the bytes of whole slabs that shims take for `size`."""
    return -(-size // SLAB_BYTES) * SLAB_BYTES


def begins_with(size: int) -> int:
    """Return how much host memory a park of `size` bytes must find at once in an exchange that hands over."""
    return min(HANDED_AT_ONCE_BYTES, size)


class Needs(NamedTuple):
    """What a park takes of host memory beside what its kernel retains there already."""

    lot_bytes: int  # of the lots; the rest anew
    least_bytes: int  # with less it cannot end well, or is not worth a try
    probable_bytes: int  # by all that is known: by its last one, or all that the kernel has
    makes_bytes: int = 0  # what could be in lots if there were more


class HostRoom:
    """The host memory that the decisions of this pass leave."""

    def __init__(self, host: Host, settings: Settings):
        self._host = host
        self.reserve_bytes = settings.host_reserve(host.total_bytes)
        self._lots = host.lot_bytes
        self._left = {MACHINE: host.available_bytes - with_margin(self.reserve_bytes)}
        for cgroup, headroom in host.headroom_bytes.items():
            self._left[cgroup] = headroom - with_margin(self._cgroup_reserve(cgroup))
        for place in filter(self.has_lots, self._left):
            self._left[place] += host.lot_bytes  # which are freed where no kernel takes them
        self._has_lots = host.lot_bytes > 0 or host.makes_lots
        self._lot_places = list(filter(self.has_lots, self._left))
        self._needs: dict[str, Needs] = {}  # by kernel, where there are no lots
        self._places: dict[tuple[str, ...], list[str]] = {}  # by cgroups: kernels share theirs
        self._passing: dict[str, int] = {}  # what others may have of kernels in a while, by kernel
        self._passes: dict[str, int] = {}  # … and in all, by place

    def has_lots(self, place: str) -> bool:
        """Return whether lots take memory of that place: they are the controller's."""
        return place == MACHINE or place in self._host.lot_cgroups

    def leaves(self, kernel: Kernel, size: int) -> bool:
        """Return whether there are `size` bytes for the kernel beyond what has been decided."""
        return self._left_for(kernel) >= size

    def places(self, kernel: Kernel) -> Sequence[str]:
        """Return the places where a park of the kernel takes memory, the machine last."""
        places = self._places.get(kernel.cgroups)
        if places is None:
            places = [*(cgroup for cgroup in kernel.cgroups if cgroup in self._left), MACHINE]
            self._places[kernel.cgroups] = places
        return places

    def expect(self, kernel: Kernel, budget_bytes: int | None, lot_bytes: int = 0) -> int:
        """Count on a park of the kernel that uses up its budget; return the bytes that it takes."""
        self.take_lots(kernel, lot_bytes)
        for place in self._lot_places if kernel.host.awaits_bytes else ():
            self._left[place] -= kernel.host.awaits_bytes
        takes = kernel.takes_within(budget_bytes, lot_bytes) + kernel.context_copy_bytes
        self.take(kernel, takes)
        return takes

    def count_passing(self, kernel: Kernel, size: int) -> None:
        """Count `size` bytes of a kernel as in transit: they make room for a waiter, or can be released afterwards."""
        more = size - self._passing.get(kernel.id, 0)
        if more > 0:
            self._passing[kernel.id] = size
            for place in self.places(kernel):
                self._passes[place] = self._passes.get(place, 0) + more

    def take(self, kernel: Kernel, size: int) -> None:
        """Reserve `size` bytes for the kernel, free already or still to be released by others."""
        for place in self.places(kernel):
            self._left[place] -= size

    def budget(self, kernel: Kernel) -> int:
        """Return the new host memory that a park of the kernel may take, beside lots and the driver's own copy."""
        return max(self._left_for(kernel, self._lots) - kernel.context_copy_bytes, 0)

    def takes_back(self, kernel: Kernel, size: int) -> tuple[int, int]:
        """Return how much of `size` bytes the kernel can read from disk now, in whole slabs, and how much of that into
        lots: on one user's own controller alone, since no figure of a GPU confirms what a kernel has on disk.
        """
        lots = min(size, self._lots) if self._host.makes_lots else 0
        anew = max(self._left_for(kernel, self._lots), 0) // SLAB_BYTES * SLAB_BYTES
        return min(size, lots + anew), lots

    def own_places(self, kernel: Kernel) -> Sequence[str]:
        """Return the cgroups in which its memory counts, but no lots."""
        return [place for place in self.places(kernel) if not self.has_lots(place)]

    def take_lots(self, kernel: Kernel, size: int) -> None:
        """Count `size` bytes of lots as lent to the kernel."""
        for place in self._lot_places:
            self._left[place] -= size
        self._lots -= size

    def hand_over(self, waiter: Kernel, kernels: Sequence[Kernel]) -> Sequence[tuple[int, int]] | None:
        """Reserve what the victims of an exchange need beyond what the waiter hands over; return each one's (budget,
        lots) at once, or None if it is not enough. The rest they get as lots.

        Where lots are made as quickly as a process takes memory, a victim takes by itself only what it begins with:
        more would be touched before the exchange begins, unmapped at its resume, and touched anew for the next victims.
        """
        takes = {each.id: _takes(self.needs(each)) for each in kernels}
        at_once, charges = self.begins_with(kernels), self.charges_of_hand_over(waiter, kernels)
        if self.shortage(charges, {}):
            return None
        shares, lots = [], self._lots
        left = min(self._left[place] for place in self._lot_places)
        for each in kernels:
            size = takes[each.id]
            at_once -= begins_with(size)
            most = min(left - at_once, size)  # the others begin, too
            lent = min(self.needs(each).lot_bytes, lots, most)
            budget = max(min(most - lent, self._left_for(each), left - lots), 0)
            if self._host.makes_lots:
                budget = min(budget, max(begins_with(size) - lent, 0))
            if lent + budget < begins_with(size):
                return None
            shares.append((budget, lent))
            left, lots = left - lent - budget, lots - lent
        # Victims may take all that they are granted before the waiter gives any.
        granted = sum(budget + lent for budget, lent in shares)
        self.charge({place: max(size, granted) for place, size in charges.items()})
        for each, (budget, _) in zip(kernels, shares, strict=True):
            for place in self.places(each):
                if place not in charges:
                    self._left[place] -= budget
        self._lots = lots
        return shares

    def charges_of_hand_over(self, waiter: Kernel, kernels: Sequence[Kernel]) -> Mapping[str, int]:
        """Return what `kernels` take in an exchange beyond what the waiter hands over, by place: at least what they
        begin with.
        """
        at_once, total = self.begins_with(kernels), sum(_takes(self.needs(each)) for each in kernels)
        return {place: max(total - self._gives(waiter, place), at_once) for place in self._lot_places}

    def lacks_to_hand_over(self, waiter: Kernel, kernels: Sequence[Kernel]) -> int:
        """Return how much more of the waiter must be in host memory, so that `kernels` take no more beyond it than they
        begin with.
        """
        lacks = max(self.charges_of_hand_over(waiter, kernels).values(), default=0) - self.begins_with(
            kernels
        )
        return _in_slabs(lacks)

    def begins_with(self, kernels: Iterable[Kernel]) -> int:
        """Return the host memory that all of them need at once in an exchange that hands over."""
        return sum(begins_with(_takes(self.needs(each))) for each in kernels)

    def charge(self, charges: Mapping[str, int]) -> None:
        """Reserve the bytes of each place."""
        for place, size in charges.items():
            self._left[place] -= size

    def _gives(self, waiter: Kernel, place: str) -> int:
        """Return the bytes of a place that the waiter hands over."""
        is_inside = place in self.places(waiter)
        return waiter.host.copy_bytes if is_inside else min(waiter.host.copy_bytes, waiter.host.lot_bytes)

    def suffices(self, kernels: Iterable[Kernel], beside_bytes: int = 0) -> bool:
        """Return whether there is room for all memory of the kernels, whatever parks take of it, and `beside_bytes`
        more.

        Mostly there is, and nothing else need be computed.
        """
        left = self._left[MACHINE] - beside_bytes
        for kernel in kernels:
            most = kernel.movable_bytes + SLACK_BYTES + kernel.context_copy_bytes
            left = min(left, self._left_for(kernel)) - most
        return left >= 0

    def lots_for(self, kernel: Kernel) -> int:
        """Return the bytes of lots that a park of the kernel can use."""
        return self.needs(kernel).lot_bytes

    def needs(self, kernel: Kernel) -> Needs:
        """Return what a park of the kernel takes of new host memory and of lots."""
        if self._has_lots:  # fewer with each kernel that gets some
            return self._reckon(kernel)
        needs = self._needs.get(kernel.id)
        if needs is None:
            needs = self._needs[kernel.id] = self._reckon(kernel)
        return needs

    def _reckon(self, kernel: Kernel) -> Needs:
        probable, image = kernel.takes_bytes, kernel.context_copy_bytes
        least = max(kernel.short_bytes, min(probable, LEAST_BYTES))
        lots = makes = 0
        if self._lots or self._host.makes_lots:
            makes = probable
            if self._host.makes_lots and makes:
                # A kernel that lacks less than a lot takes memory of its own, unless that is short.
                anew = _in_slabs(makes) + SLACK_BYTES
                takes_anew = makes < LEAST_BYTES and anew <= self._left_for(kernel, self._lots)
                makes = 0 if takes_anew else makes + SLACK_BYTES
            lots = min(makes, self._lots)
            makes -= lots
        least, probable = _in_slabs(max(least - lots, 0)), _in_slabs(max(probable - lots, 0))
        return Needs(lots, least + image, probable + image, makes)

    def lots_to_make(self, kernel: Kernel) -> int:
        """Return how large the stock of lots should be before a park of the kernel; 0 if more lots do not help.

        Memory of lots is taken once, and then goes from one kernel to the next.
        """
        needs = self.needs(kernel)
        if not self._host.makes_lots or needs.makes_bytes < LEAST_BYTES:
            return 0
        beside = needs.lot_bytes + needs.makes_bytes + kernel.context_copy_bytes
        return self._lots + needs.makes_bytes if self._left_for(kernel, beside) >= 0 else 0

    def may_be_tried(self, kernel: Kernel) -> bool:
        """Return whether the least host memory that could do for a park of the kernel is there, lots included."""
        needs = self.needs(kernel)
        takes_none = not (needs.least_bytes or needs.lot_bytes)
        return takes_none or needs.least_bytes <= self._left_for(kernel, needs.lot_bytes)

    def _left_for(self, kernel: Kernel, lot_bytes: int = 0) -> int:
        """Return what is left beside `lot_bytes` of lots in the kernel's tightest place."""
        return min(
            [
                self._left[place] - (lot_bytes if lot_bytes and self.has_lots(place) else 0)
                for place in self.places(kernel)
            ]
        )

    def refusal(self, kernel: Kernel) -> RefusePark:
        """Return why the kernel cannot be parked, in words and figures."""
        needs = self.needs(kernel)
        is_known = kernel.host.park_takes_bytes is not None
        anew = needs.probable_bytes if is_known else needs.least_bytes

        def spare_bytes(place: str) -> int:
            return self._left[place] - (needs.lot_bytes if self.has_lots(place) else 0)

        place = min(self.places(kernel), key=spare_bytes)
        left = max(self._left[place], 0)
        anew += needs.lot_bytes if self.has_lots(place) else 0  # which are counted as left, too
        words = f"freeing it needs {bytes_in_words(anew)} of host memory and "
        if place == MACHINE:
            reserve = bytes_in_words(with_margin(self.reserve_bytes))
            words += f"{bytes_in_words(left)} are free beyond the reserve of {reserve}"
        else:
            words += f"the kernel's own limit (cgroup) leaves {bytes_in_words(left)}"
        figures = {"bytes": anew, "free_bytes": left}
        return RefusePark(kernel.id, Refusal.NO_HOST_MEMORY, words, figures)

    def shortage(self, wanted: Mapping[str, int], coming: Mapping[str, int]) -> Shortage:
        """Return what is missing by place even when what is `coming` is there; {} if nothing."""
        short = {}
        for place, size in wanted.items():
            lacks = size - self._left[place]
            if size > 0 and lacks > 0:
                lacks -= coming.get(place, 0)
                if lacks > 0:
                    short[place] = lacks
        return short

    def without_passing(self, short: Shortage) -> Shortage:
        """Return what is still short when kernels in transit have arrived and released what they can."""
        left = {place: size - self._passes.get(place, 0) for place, size in short.items()}
        return {place: size for place, size in left.items() if size > 0}

    def margin(self, place: str) -> int:
        """Return how much more others are asked to release of a place than a park lacks there."""
        reserve = self._cgroup_reserve(place) if place != MACHINE else self.reserve_bytes
        return reserve // MARGIN_PART

    def pressure(self, coming: Mapping[str, int]) -> Shortage:
        """Return what the machine and each cgroup lack for their reserves, whatever is decided."""
        lacks = {MACHINE: self.reserve_bytes - self._host.available_bytes}
        for cgroup, headroom in self._host.headroom_bytes.items():
            lacks[cgroup] = self._cgroup_reserve(cgroup) - headroom
        return {
            place: size - coming.get(place, 0) for place, size in lacks.items() if size > coming.get(place, 0)
        }

    def _cgroup_reserve(self, cgroup: str) -> int:
        return cgroup_reserve(self._host.limit_bytes.get(cgroup, 0), self.reserve_bytes)


def _takes(needs: Needs) -> int:
    return needs.probable_bytes + needs.lot_bytes
