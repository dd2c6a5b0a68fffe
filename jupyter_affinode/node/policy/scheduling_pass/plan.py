"""One pass of the policy: its decisions so far, and the room that they leave; pure.

Resources are GPUs, by UUID, and the quotas of users and groups (resources/quotas.py). Whatever looks at all kernels
does so once a pass: a machine may have a thousand of them, and hundreds in its queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ....settings.policy import Settings
from ...model.actions import Action, DropCaches, GiveLots, MakeLots, Park, ReadBack, Resume
from ...model.reasons import Cause
from ...model.snapshot import Kernel, Node, Residency, ServedKey
from ..queue import AWAY, served_keys, waiters
from ..resources.host_memory import LEAST_BYTES, Shortage
from ..resources.quotas import Limits
from ..victims.candidates import Candidates
from ..victims.eviction_cost import is_late
from .compute_slots import ComputeSlots
from .host_plan import HostMemory, HostPlan

# A waiter that is being read back does not keep its place: those behind it may be served meanwhile.
READ_AT_ONCE_BYTES = 2 << 30
ON_THE_MOVE = (Residency.PARKING, Residency.RESUMING)


class Plan:
    """The decisions of this pass so far, and the room that they leave."""

    def __init__(self, now: float, node: Node, settings: Settings):
        self.now = now
        self.node = node
        self.settings = settings
        self.actions: list[Action] = []
        self.queue = waiters(node, settings)
        self.served: Counter[ServedKey] = Counter()  # how often this pass served each user
        self.limits = Limits(node, settings)
        self.room = {uuid: gpu.free_bytes for uuid, gpu in node.gpus.items()}
        for reservation in node.reservations:
            self.room[reservation.gpu] = self.room.get(reservation.gpu, 0) - reservation.bytes
        self.room.update(self.limits.room)
        self.incoming = dict.fromkeys(self.room, 0)  # free when everything under way is done, but for …
        self.doubtful: dict[str, int] = {}  # … what demoted users' parks free: no waiter waits for these
        self._on_the_move: set[str] = set()  # resources whose memory is on its way to or from the host
        self.slots = ComputeSlots(now, node, settings)
        self.candidates = Candidates(now, node, settings, self.queue, self.limits, self.is_free)
        self.host = HostPlan(now, node, settings, self.is_free, self._blocked_waiters)
        self._taken: set[str] = set()
        self.barred: set[str] = set()  # waiters that lack host memory which no kernel can release
        under_way = [
            kernel
            for kernel in node.kernels
            if kernel.is_moving or kernel.is_ending or kernel.residency in ON_THE_MOVE
        ]
        for kernel in under_way:
            if self._is_parking(kernel):
                self._count_park(kernel.rest if kernel.left_bytes else kernel)
            elif kernel.residency is Residency.RESUMING and not is_late(now, kernel, node.speeds):
                self._note_resuming(kernel)
            elif kernel.is_ending:
                self.expect_end(kernel)
            elif kernel.residency in AWAY:  # it is being written to disk or read, or that has just ended
                self.host.room.take(kernel, kernel.host.reading_bytes)
                self.host.room.count_passing(kernel, self.host.disk.rest(kernel))

    def _is_parking(self, kernel: Kernel) -> bool:
        """Return whether the kernel's GPU memory is on its way to the host, or about to be."""
        if kernel.left_bytes:
            return kernel.moves_since is not None and kernel.id not in self._has_reserved
        if (
            kernel.residency is Residency.QUEUED
        ):  # a part of it waits; a kernel that is about to resume has its room reserved
            return kernel.is_moving and kernel.movable_bytes > 0 and kernel.id not in self._has_reserved
        return kernel.residency is Residency.PARKING or (
            kernel.is_moving and kernel.residency is Residency.RESIDENT
        )

    @cached_property
    def _has_reserved(self) -> frozenset[str]:
        return frozenset(reserved.kernel_id for reserved in self.node.reservations)

    def is_settled(self, resources: Iterable[str]) -> bool:
        """Return whether no kernel is moving to or from those GPUs, nor has just done so.

        Only then do their figures tell how much room there is: memory in transit is counted twice, as used and as
        reserved.
        """
        return self._on_the_move.isdisjoint(resources) and not self.is_outdated(resources)

    def is_outdated(self, resources: Iterable[str]) -> bool:
        """Return whether a newer figure of one of those GPUs comes in a moment."""
        gpus = self.node.gpus
        return any(gpus[each].is_outdated for each in resources if each in gpus)

    def _count_park(self, kernel: Kernel) -> None:
        """Count the room that a park under way makes on the GPU and takes in the host."""
        if is_late(self.now, kernel, self.node.speeds):
            if kernel.demoted_until <= self.now:  # else the budget reserved for it keeps others on the GPU
                self.host.room.expect(kernel, kernel.host.budget_bytes)
        else:
            size = self._expect(kernel, kernel.host.budget_bytes)
            # The driver may have taken its part already; to count it twice here only means to look again later.
            size += kernel.host.retained_bytes + kernel.context_copy_bytes
            self._passes(kernel, max(size, kernel.movable_bytes))

    def is_free(self, kernel: Kernel) -> bool:
        """Return whether nothing is under way or decided for the kernel."""
        return not (kernel.is_moving or kernel.is_ending or kernel.id in self._taken)

    def act(self, action: Action) -> None:
        """Add an action to the decisions."""
        self._taken.add(action.kernel_id)
        self.actions.append(action)
        self.host.drop(action.kernel_id)

    def exchange(self, waiter: Kernel, first: int) -> None:
        """Turn the parks from action number `first` on into an exchange with the waiter."""
        parks = [action for action in self.actions[first:] if isinstance(action, Park)]
        self.actions[first:] = [replace(park, exchanges=True) for park in parks]
        self._decided_with_others(waiter)

    def hand_over(self, waiter: Kernel, kernels: Sequence[Kernel], reason: str) -> bool:
        """Decide an exchange in which the waiter hands its host memory over to `kernels`; `reason`: of their parks.

        If some host memory is missing, others are asked to release it first. Return False if that is not enough either.
        """
        first = [kernel for kernel in kernels if self._drops_caches(kernel, reason)]
        if first:
            return True
        shares = self.host.room.hand_over(waiter, kernels)
        if shares is None:
            found = self.host.for_hand_over(waiter, kernels)
            if not found.is_coming:
                return False
            for kernel in (waiter, *kernels):
                self.host.room.count_passing(kernel, kernel.movable_bytes)
            self._await([waiter, *kernels], found.asks)
            self.host.room.charge(self.host.room.charges_of_hand_over(waiter, kernels))
            return True
        for kernel, (budget, lots) in zip(kernels, shares, strict=True):
            told = Park(kernel.id, reason, budget, lots, cause=Cause.ROOM, for_kernel=waiter.id)
            self.act(replace(told, exchanges=True, hands_over=True))
            self._expect_room(kernel)
            self.host.room.count_passing(kernel, kernel.movable_bytes)
        self._decided_with_others(waiter)
        return True

    def read_back(self, waiter: Kernel, victims: Sequence[Kernel], size: int) -> bool:
        """Have as much of `size` bytes of the waiter read from disk as there is host memory for, and others release
        what is missing; return whether any of that goes on.
        """
        host, kernels = self.host.room, [waiter, *victims]
        wanted = dict.fromkeys(host.places(waiter), size)
        found = self.host.supply(wanted, kernels)
        there, lots = host.takes_back(waiter, min(size, READ_AT_ONCE_BYTES))
        reads = there >= min(size, LEAST_BYTES)
        if not reads and host.without_passing(found.lacks) == host.shortage(wanted, {}):
            return False
        self._await(kernels, found.asks)
        if reads:
            self.act(ReadBack(waiter.id, there, "to change places with another kernel", lots))
            host.take_lots(waiter, lots)
            host.take(waiter, there - lots)
        return True

    def _await(self, kernels: Iterable[Kernel], asks: Shortage) -> None:
        """Note that a later pass moves the kernels, when others have released the host memory that is missing."""
        for kernel in kernels:
            self._decided_with_others(kernel)
        for action in self.host.release(asks):
            self.act(action)

    def _decided_with_others(self, kernel: Kernel) -> None:
        """Note that the decision for the kernel is part of what is decided for others."""
        self._taken.add(kernel.id)
        self.host.drop(kernel.id)

    def resume(
        self,
        kernel: Kernel,
        needs: Mapping[str, int],
        reason: str,
        cause: Cause,
        *,
        migration: Mapping[str, int] | None = None,
    ) -> None:
        """Decide to resume a kernel, which takes `needs`. `migration`: the bytes on the one other GPU that it migrates
        to.
        """
        gpu = next(iter(migration)) if migration else None
        self.act(Resume(kernel.id, migration or kernel.resume_bytes, reason, cause, gpu))
        self._note_resuming(kernel)
        self.take_room(needs)
        self.slots.take(kernel, migration or kernel.resume_bytes)
        self.served.update(served_keys(kernel, migration or kernel.resume_bytes))

    # ---- room

    def fits(self, needs: Mapping[str, int], margin: int) -> bool:
        """Return whether there is room for `needs` now, with `margin` beside it on GPUs."""
        room, limits = self.room, self.limits.caps
        for resource, need in needs.items():
            if need and room.get(resource, 0) < (need if resource in limits else need + margin):
                return False
        return True

    def will_fit(self, needs: Mapping[str, int], *, with_doubtful: bool = False) -> bool:
        """Return whether there is room for `needs` when everything under way is done, without a margin."""
        room, incoming = self.room, self.incoming
        doubtful = self.doubtful if with_doubtful else {}
        return all(
            size <= room.get(key, 0) + incoming.get(key, 0) + doubtful.get(key, 0)
            for key, size in needs.items()
            if size
        )

    def shortage(self, needs: Mapping[str, int]) -> dict[str, int]:
        """Return what is missing for `needs` by resource even when everything under way is done."""
        short = {}
        for resource, need in needs.items():
            margin = 0 if resource in self.limits.caps else self.settings.margin_bytes
            missing = need + margin - self.room.get(resource, 0) - self.incoming.get(resource, 0)
            if need and missing > 0:
                short[resource] = missing
        return short

    def is_asked_of_demoted(self, missing: Mapping[str, int]) -> bool:
        """Return whether the parks of demoted users that are under way would free what is missing: no other of theirs
        is asked then.
        """
        return all(size <= self.doubtful.get(resource, 0) for resource, size in missing.items())

    def take_room(self, needs: Mapping[str, int]) -> None:
        """Use up room."""
        room = self.room
        for resource, need in needs.items():
            room[resource] = room.get(resource, 0) - need

    def expect_end(self, kernel: Kernel) -> None:
        """Count on all that an ending kernel has on GPUs."""
        for part in (self.limits.frees(kernel), kernel.unmovable_bytes):
            for resource, size in part.items():
                self.incoming[resource] = self.incoming.get(resource, 0) + size

    # ---- which kernels could be parked

    @cached_property
    def unused(self) -> Mapping[str, int]:
        """Return the bytes of each GPU that no kernel has, or perhaps no longer has."""
        return {uuid: gpu.free_bytes + gpu.uncertain_bytes for uuid, gpu in self.node.gpus.items()}

    @cached_property
    def out_of_reach(self) -> dict[str, int]:
        """Return the bytes on each GPU of kernels that cannot be told to park at the moment.

        Their processes are stopped or without a link, or a long resume is under way, and pages show only afterwards
        what that took.
        """
        total: dict[str, int] = {}
        for kernel in self.node.kernels:
            may_return = kernel.is_out_of_reach and not kernel.is_parkable
            for uuid, size in (kernel.resident_bytes if may_return else {}).items():
                total[uuid] = total.get(uuid, 0) + size
            for uuid, size in (kernel.parked_bytes if kernel.is_slow else {}).items():
                total[uuid] = total.get(uuid, 0) + size
        return total

    @cached_property
    def reserved(self) -> dict[tuple[str, str], int]:
        """Return the reserved bytes by kernel and GPU."""
        total: dict[tuple[str, str], int] = {}
        for reserved in self.node.reservations:
            place = reserved.kernel_id, reserved.gpu
            total[place] = total.get(place, 0) + reserved.bytes
        return total

    # ---- parking, and the host's memory

    def park(
        self,
        kernel: Kernel,
        reason: str,
        cause: Cause,
        *,
        for_kernel: str | None = None,
        preempts: bool = False,
    ) -> bool:
        """Decide to park a kernel if host memory allows it; return whether it will be parked.

        Its frameworks may be told to drop caches first, or others to release host memory. Then a later pass parks it.
        """
        if self._drops_caches(kernel, reason):
            return True
        host = self.host.room
        if self.host.is_awaited or not host.suffices([kernel]):
            found = self.host.memory_for([kernel])
            if found is HostMemory.SHORT:
                self.host.refuse([kernel])
            if found in (HostMemory.SHORT, HostMemory.LATER):
                return False
            if self.make_host_memory_ready(kernel):
                return True
        stock = host.lots_to_make(kernel)
        if stock:
            self.host.reserve(kernel)
            self.act(MakeLots(kernel.id, stock))
            return True
        budget, lots = host.budget(kernel), host.lots_for(kernel)
        to_context = kernel.may_park_context and not preempts
        self.act(Park(kernel.id, reason, budget, lots, to_context, preempts, cause, for_kernel))
        size = self._expect(kernel, budget, lots)
        self._passes(kernel, size + kernel.host.retained_bytes)
        return True

    def make_host_memory_ready(self, kernel: Kernel, *, to_disk: bool = True) -> bool:
        """Have others release or spill the host memory that a park lacks, if they can; return whether they do."""
        found = self.host.for_parks([kernel], to_disk=to_disk)
        if not found.is_coming:
            return False
        self._await([kernel], found.asks)
        self.host.reserve(kernel)
        return True

    def _drops_caches(self, kernel: Kernel, reason: str) -> bool:
        """Have its frameworks drop their caches if that comes before a park; return whether they were told to."""
        # %gpu_park is a cell itself
        is_between_cells = not kernel.cell_open or kernel.park_requested is not None
        if self.settings.drop_caches_before_park and kernel.can_drop_caches and is_between_cells:
            self.act(DropCaches(kernel.id, reason))
            return True
        return False

    def say_refusals(self) -> None:
        """Tell the kernels that should have been parked why they are not."""
        refused = self.host.refused
        for kernel in self.node.kernels if refused else ():
            refusal = refused.get(kernel.id)
            is_time = kernel.park_requested is not None or kernel.host.retry_at <= self.now
            if refusal is not None and is_time and self.is_free(kernel):
                self.act(refusal)

    def give_lots(self, kernel: Kernel) -> None:
        """Decide to lend a kernel lots for its whole park ahead of time, if another kernel could have as much."""
        needs = self.host.room.needs(kernel)
        size = needs.lot_bytes
        if size and not needs.probable_bytes and self.host.room.leaves(kernel, 2 * size):
            self.host.room.take_lots(kernel, size)
            self.act(GiveLots(kernel.id, size))

    def _blocked_waiters(self) -> list[Kernel]:
        """Return the parked waiters that have no room now, the last of the queue first."""
        return [
            waiter.kernel
            for waiter in reversed(self.queue)
            if waiter.room is None and not self.fits(waiter.needs, self.settings.margin_bytes)
        ]

    def _expect(self, kernel: Kernel, budget: int | None, lots: int = 0) -> int:
        """Count on a kernel's memory moving to the host; return the host memory that it takes."""
        self._expect_room(kernel)
        return self.host.room.expect(kernel, budget, lots)

    def _expect_room(self, kernel: Kernel) -> None:
        """Count on what a kernel has on GPUs, unless parks of its user came to nothing: then no waiter waits for it."""
        is_doubtful = kernel.demoted_until > self.now
        coming = self.doubtful if is_doubtful else self.incoming
        for resource, size in self.limits.frees(kernel).items():
            coming[resource] = coming.get(resource, 0) + size
            if size and not is_doubtful:
                self._on_the_move.add(resource)

    def _passes(self, kernel: Kernel, size: int) -> None:
        """Count `size` bytes of host memory of a kernel that is being parked as memory that it can release later."""
        if kernel.demoted_until <= self.now:
            self.host.room.count_passing(kernel, size)

    def _note_resuming(self, kernel: Kernel) -> None:
        """Note that a kernel is being resumed; the copy that it leaves in the host can be released then.

        All of its memory may be on the GPU already and only the shim's answer is missing: no figure shows all of it
        yet.
        """
        for part in (kernel.resume_bytes, kernel.resident_bytes):
            self._on_the_move.update(uuid for uuid, size in part.items() if size)
        self.host.room.count_passing(kernel, sum(kernel.resume_bytes.values()))
