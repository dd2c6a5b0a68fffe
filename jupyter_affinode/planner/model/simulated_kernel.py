"""A kernel of the replay, and its part of the snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...node.model.backoff import Backoff
from ...node.model.snapshot import HostUse, Kernel, Residency, RoomRequest
from .machine import RESUME_SPARE_BYTES
from .simulation import LiveSession

if TYPE_CHECKING:
    from .exchanges import Exchange

AWAY = (Residency.PARKED, Residency.QUEUED, Residency.RESUMING)


class SimulatedKernel:
    """A live session's kernel; its part of the snapshot is made anew only when something changed.

    Sizes in bytes; `held` is its movable memory on each of the GPUs `on`, wherever that memory is now, and `kept` the
    host memory that it retains from its last park. `leaves`: its CUDA context is parked too, and it may resume on any
    of `gpus`.
    """

    def __init__(
        self,
        live: LiveSession,
        on: tuple[str, ...],
        context_bytes: int,
        *,
        leaves: bool,
        gpus: Sequence[str] = (),
    ):
        self.live = live
        self.id = f"{live.number:06d}-{live.session.id}"
        self.on = on
        self.context_bytes = context_bytes
        self.leaves = leaves
        self.gpus = gpus
        self.spare_bytes = RESUME_SPARE_BYTES
        self.user = live.session.user
        self.priority = 0  # by the settings for users
        self.is_opted_out = False
        self.has_context = False
        self.left_gpu = False  # parked at context depth
        self.residency = Residency.NONE
        self.held = 0
        self.retained = 0
        self.retained_since = 0.0
        self.trimming = 0  # of that, what it was asked to release
        self.on_disk = 0  # of a parked one's memory
        self.spilling = 0  # … what is being written there
        self.reading = 0  # … what is being read back into host memory
        self.hibernates_after_s: float | None = None
        self.goes_into_image = False  # what is being written
        self.awake_since = self.parked_since = 0.0
        self.disk_return_s = 0.0
        self.may_exchange = False
        self.exchange: Exchange | None = None  # the one that it is in
        self.has_parked = False
        self.park_budget: int | None = None
        self.park_short = 0
        self.room: RoomRequest | None = None
        self.wants_since: float | None = None
        self.moves_since: float | None = None
        self.parks_s = 0.0  # how long its park takes
        self.preempted_s: float | None = None  # what is left of a cell that was interrupted
        self.last_activity = 0.0
        self.computes_since: float | None = None
        self.started_at = 0.0
        self.resident_since = 0.0
        self.park_backoff = Backoff(self.id)
        self.host_backoff = Backoff()
        self.resume_backoff = Backoff()

    @property
    def movable(self) -> int:
        """Return its movable memory of all GPUs."""
        return self.held * len(self.on)

    @property
    def on_gpu(self) -> int:
        """Return what of its memory takes room on each of its GPUs now; a resuming one has its room reserved."""
        away = (Residency.NONE, Residency.PARKED, Residency.QUEUED, Residency.HIBERNATED)
        return 0 if self.residency in away else self.held

    @property
    def context_on_gpu(self) -> int:
        """Return the size of its CUDA context on the GPU; 0 if it has none there."""
        return self.context_bytes if self.has_context and not self.left_gpu else 0

    @property
    def on_host(self) -> int:
        """Return its host memory: a copy, or what it retains for the next; and its context's, if that is parked."""
        if self.residency is Residency.HIBERNATED:
            return 0
        image = self.context_bytes if self.left_gpu else 0
        away = max(self.movable, self.retained) - self.on_disk + self.reading
        copy = away if self.residency in AWAY else self.retained
        if self.exchange is not None and self is self.exchange.waiter:
            copy = max(copy - self.exchange.handed_bytes, 0)
        return copy + image

    def resume_bytes(self) -> int:
        """Return what resuming takes on each of its GPUs."""
        return self.held + self._context_back()

    def reserved_bytes(self) -> int:
        """Return what is reserved of each GPU for its resume, beside what victims free meanwhile."""
        if self.residency is not Residency.RESUMING:
            return 0
        leave = sum(each.held for each in self.exchange.victims) if self.exchange is not None else 0
        return max(self.resume_bytes() - leave, 0)

    def _context_back(self) -> int:
        return self.context_bytes + self.spare_bytes if self.left_gpu else 0

    def _migration_targets(self) -> tuple[str, ...]:
        if not self.left_gpu or self.wants_since is None:
            return ()
        return tuple(uuid for uuid in self.gpus if uuid not in self.on)

    def _each(self, size: int) -> dict[str, int]:
        return dict.fromkeys(self.on, size)

    def seen(self, now: float) -> Kernel:
        """Return the kernel for the snapshot. While it computes its last activity is `now`."""
        is_away = self.residency in AWAY
        is_moving = self.residency in (Residency.PARKING, Residency.RESUMING)
        computes = self.computes_since is not None
        back = self._context_back()
        return Kernel(
            id=self.id,
            residency=self.residency if self.residency is not Residency.NONE else Residency.RESIDENT,
            resident_bytes=self._each(0 if is_away else self.held),
            parked_bytes=self._each(self.held if is_away else 0),
            context_bytes=self._each(back) if back else {},
            may_park_context=self.leaves,
            migration_targets=self._migration_targets(),
            context_frees_bytes=self._each(self.context_on_gpu) if self.leaves else {},
            unmovable_bytes=self._each(0 if self.leaves else self.context_on_gpu),
            last_activity=now if computes else self.last_activity,
            calls_in_flight=int(computes),
            cell_open=self.live.cell_is_open,
            is_moving=is_moving or self.spilling > 0 or self.reading > 0,
            moves_since=self.moves_since if is_moving else None,
            wants_since=self.wants_since,
            rooms=() if self.room is None else (self.room,),
            retry_at=self.park_backoff.retry_at,
            retry_pause_s=self.park_backoff.pause_s,
            resume_retry_at=self.resume_backoff.retry_at,
            host=HostUse(
                retained_bytes=0 if is_away else self.retained,
                trimmable_bytes=self.retained - self.trimming if self.residency is Residency.RESIDENT else 0,
                trimming_bytes=self.trimming,
                retained_since=self.retained_since,
                park_takes_bytes=self.movable if self.has_parked else None,
                park_short_bytes=self.park_short,
                budget_bytes=self.park_budget if is_moving else None,
                retry_at=self.host_backoff.retry_at,
                copy_bytes=self.on_host if is_away else 0,
                spillable_bytes=self.movable - self.on_disk if is_away else 0,
                spilling_bytes=self.spilling,
                disk_bytes=self.on_disk,
                readable_bytes=self.on_disk if is_away else 0,
            ),
            user=self.user,
            priority=self.priority,
            is_opted_out=self.is_opted_out,
            may_be_preempted=len(self.on) == 1,
            may_resume_in_parts=self.may_exchange,
            may_hand_over=self.may_exchange,
            resident_since=self.resident_since,
            started_at=self.started_at,
            can_be_ended=True,
            park_copies_bytes=self.movable if self.has_parked else None,
            resume_copies_bytes=self.movable,
            disk_return_s=self.disk_return_s,
            hibernates_after_s=None if self.goes_into_image else self.hibernates_after_s,
            awake_since=self.awake_since,
            parked_since=self.parked_since,
        )
