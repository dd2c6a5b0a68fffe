"""One pass of the policy: what it has decided so far, and what room that leaves; pure.

Resources are GPUs, by UUID, and the limits of users and groups (memory_limits.py). Everything that looks at all
kernels does so once a pass: a machine may have a thousand of them, and hundreds in its queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from .actions import Action, Cause, DropCaches, GiveLots, Park, RefusePark
from .candidates import Candidates
from .host_room import HostRoom, Keepers, Shortage
from .memory_limits import Limits
from .settings import Settings
from .snapshot import Kernel, Node, Residency
from .victims import park_s
from .waiting import waiters

# A park is late after so many times its expected duration, and some seconds in which its processes may begin and agree.
# What moves took before is a mean, and a machine whose memory or link is busy takes a few times as long. But one
# that never ends would keep all others on the GPU, and whoever waits for room would wait for it alone.
LATE_TIMES, LATE_S = 4.0, 10.0


class Plan:
    """What this pass has decided so far, and what room that leaves."""

    def __init__(self, now: float, node: Node, settings: Settings):
        self.now = now
        self.node = node
        self.settings = settings
        self.actions: list[Action] = []
        self.queue = waiters(node, settings)
        self.limits = Limits(node, settings)
        self.room = {uuid: gpu.free_bytes for uuid, gpu in node.gpus.items()}
        for reservation in node.reservations:
            self.room[reservation.gpu] = self.room.get(reservation.gpu, 0) - reservation.bytes
        self.room.update(self.limits.room)
        self.incoming = dict.fromkeys(self.room, 0)  # will be free when what is under way is done
        self.candidates = Candidates(now, node, settings, self.queue, self.limits, self.is_free)
        self._host = HostRoom(node.host, settings)
        self._taken: set[str] = set()
        for kernel in node.kernels:
            if kernel.residency is Residency.PARKING or (
                kernel.is_moving and kernel.residency is Residency.RESIDENT
            ):
                if self._is_late(kernel):
                    self._host.expect(kernel, kernel.host.budget_bytes)
                else:
                    self._expect(kernel, kernel.host.budget_bytes)
            elif kernel.is_ending:
                self.expect_end(kernel)

    def _is_late(self, kernel: Kernel) -> bool:
        """Whether a park has lasted for so long that others should not wait for what it gives back."""
        if kernel.yields_since is None:
            return False
        expected = park_s(kernel, self.node.speeds)
        return self.now - kernel.yields_since > LATE_TIMES * expected + LATE_S

    def is_free(self, kernel: Kernel) -> bool:
        """Whether nothing is under way or decided for the kernel."""
        return not (kernel.is_moving or kernel.is_ending or kernel.id in self._taken)

    def act(self, action: Action) -> None:
        """Decide on an action."""
        self._taken.add(action.kernel_id)
        self.actions.append(action)
        if "_keepers" in self.__dict__:
            self._keepers.drop(action.kernel_id)

    # ---- room

    def fits(self, needs: Mapping[str, int], margin: int) -> bool:
        """Whether there is room for `needs` now, and on the GPUs `margin` beside it."""
        room, limits = self.room, self.limits.caps
        for resource, need in needs.items():
            if need and room.get(resource, 0) < (need if resource in limits else need + margin):
                return False
        return True

    def shortage(self, needs: Mapping[str, int]) -> dict[str, int]:
        """What is missing for `needs` by resource even when everything under way is done."""
        short = {}
        for resource, need in needs.items():
            margin = 0 if resource in self.limits.caps else self.settings.margin_bytes
            missing = need + margin - self.room.get(resource, 0) - self.incoming.get(resource, 0)
            if need and missing > 0:
                short[resource] = missing
        return short

    def take_room(self, needs: Mapping[str, int]) -> None:
        """Use up room."""
        room = self.room
        for resource, need in needs.items():
            room[resource] = room.get(resource, 0) - need

    def expect_end(self, kernel: Kernel) -> None:
        """All that a kernel has on GPUs will be free."""
        for part in (self.limits.frees(kernel), kernel.fixed_bytes):
            for resource, size in part.items():
                self.incoming[resource] = self.incoming.get(resource, 0) + size

    # ---- who could yield

    @cached_property
    def out_of_reach(self) -> dict[str, int]:
        """What kernels have on each GPU that cannot be told to yield at the moment: stopped, or without a link."""
        total: dict[str, int] = {}
        for kernel in self.node.kernels:
            if kernel.is_out_of_reach and not kernel.is_parkable:
                for uuid, size in kernel.resident_bytes.items():
                    total[uuid] = total.get(uuid, 0) + size
        return total

    @cached_property
    def reserved(self) -> dict[tuple[str, str], int]:
        """What is reserved by kernel and GPU."""
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
        """Decide to park a kernel if host memory allows, by way of what its frameworks drop. False if not: it
        was refused, or others were asked to give back what they keep and it is looked at again when they have.
        """
        is_between_cells = not kernel.cell_open or kernel.park_asked is not None  # %gpu_park is a cell itself
        if self.settings.drop_caches_before_park and kernel.can_drop_caches and is_between_cells:
            self.act(DropCaches(kernel.id, reason))
            return True
        needs = self._host.needs(kernel)
        short = self._host.shortage(kernel, needs)
        if short is not None and self._trim(short, "room to park another kernel", kernel):
            return False
        refusal = self._host.refusal(kernel, needs)
        if refusal is not None:
            self.act(RefusePark(kernel.id, "no-host-memory", refusal))
            return False
        budget = self._host.budget(kernel)
        self.act(
            Park(
                kernel.id,
                reason,
                budget,
                needs.lot_bytes,
                kernel.may_leave and not preempts,
                preempts,
                cause,
                for_kernel,
            )
        )
        self._expect(kernel, budget if kernel.host.is_frugal else None, needs.lot_bytes)
        return True

    def host_lacks_room_for(self, kernel: Kernel) -> bool:
        """Whether the kernel cannot be parked for want of host memory, whoever gives back what they keep."""
        needs = self._host.needs(kernel)
        short = self._host.shortage(kernel, needs)
        if short is None or self._host.refusal(kernel, needs) is None:
            return False
        left = self._keepers.left(short, kernel)
        return max(left.host_bytes, left.cgroup_bytes) > 0 and not self._keepers.suffice(left, kernel)

    def give_lots(self, kernel: Kernel) -> None:
        """Decide to hand a kernel what of the lots its park can use."""
        size = self._host.needs(kernel).lot_bytes
        if size:
            self._host.take_lots(size)
            self.act(GiveLots(kernel.id, size))

    def relieve(self) -> None:
        """Have kept host memory given back where the machine or a cgroup is under its reserve."""
        for short in self._host.pressure():
            self._trim(short, "host memory is short", None)

    @cached_property
    def _keepers(self) -> Keepers:
        return Keepers(self.node.kernels, self.now, self.is_free)

    def _trim(self, short: Shortage, reason: str, kernel: Kernel | None) -> bool:
        """Ask others to give back what is short; whether that is under way. For a kernel: all, or nothing."""
        left = self._keepers.left(short, kernel)
        if left.host_bytes <= 0 and left.cgroup_bytes <= 0:
            return True
        chosen = self._keepers.trims(left, reason, kernel)
        for action in chosen:
            self.act(action)
        return bool(chosen)

    def _expect(self, kernel: Kernel, budget: int | None, lots: int = 0) -> None:
        """A kernel's memory is on its way from the GPU to the host."""
        for resource, size in self.limits.frees(kernel).items():
            self.incoming[resource] = self.incoming.get(resource, 0) + size
        self._host.expect(kernel, budget, lots)
