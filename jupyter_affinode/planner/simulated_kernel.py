"""A kernel of the replay as the policy sees it."""

from __future__ import annotations

from collections.abc import Sequence

from ..node.model.backoff import Backoff
from ..node.model.snapshot import HostUse, Kernel, Residency, RoomRequest
from .machine import RESUME_SPARE_BYTES
from .simulation import Guest


class Sharer:
    """One guest's kernel; what `decide` is shown of it is made anew only when something changed.

    Sizes in bytes; `held` is its movable memory wherever it is, `kept` host memory that it has from its last park.
    `leaves`: parked, it takes its CUDA context along, and may come back on any of `gpus`; `changes`: what part of
    its memory does between two parks.
    """

    def __init__(
        self,
        guest: Guest,
        gpu: str,
        context_bytes: int,
        *,
        leaves: bool,
        changes: float,
        gpus: Sequence[str] = (),
    ):
        self.guest = guest
        self.id = f"{guest.number:06d}-{guest.session.id}"
        self.gpu = gpu
        self.context_bytes = context_bytes
        self.leaves = leaves
        self.gpus = gpus
        self.changes = changes
        self.priority = 0  # by the settings for users; their names are the persons'
        self.is_opted_out = False
        self.has_context = False
        self.left_gpu = False  # parked at context depth
        self.residency = Residency.NONE
        self.held = 0
        self.kept = 0
        self.kept_since = 0.0
        self.has_parked = False
        self.park_budget: int | None = None
        self.park_short = 0
        self.room: RoomRequest | None = None
        self.wants_since: float | None = None
        self.preempted_s: float | None = None  # what is left of a cell that was interrupted
        self.last_activity = 0.0
        self.computes_since: float | None = None
        self.started_at = 0.0
        self.resident_since = 0.0
        self.park_backoff = Backoff(self.id)
        self.host_backoff = Backoff()
        self.resume_backoff = Backoff()

    @property
    def on_gpu(self) -> int:
        """What of its memory takes room on its GPU now; a resuming one has its room reserved."""
        away = (Residency.NONE, Residency.PARKED, Residency.QUEUED)
        return 0 if self.residency in away else self.held

    @property
    def context_on_gpu(self) -> int:
        """Its CUDA context, unless it has none or took it along."""
        return self.context_bytes if self.has_context and not self.left_gpu else 0

    @property
    def on_host(self) -> int:
        """What of host memory is its own: a copy, or what it keeps for the next."""
        away = (Residency.PARKED, Residency.QUEUED, Residency.RESUMING)
        return max(self.held, self.kept) if self.residency in away else self.kept

    def way_back(self) -> dict[str, int]:
        """What coming back takes beside its memory."""
        return {self.gpu: self.context_bytes + RESUME_SPARE_BYTES} if self.left_gpu else {}

    def _elsewhere(self) -> tuple[str, ...]:
        if not self.left_gpu or self.wants_since is None:
            return ()
        return tuple(uuid for uuid in self.gpus if uuid != self.gpu)

    def seen(self, now: float) -> Kernel:
        """For the snapshot. While it computes its last activity is `now`."""
        is_away = self.residency in (Residency.PARKED, Residency.QUEUED, Residency.RESUMING)
        is_moving = self.residency in (Residency.PARKING, Residency.RESUMING)
        computes = self.computes_since is not None
        return Kernel(
            id=self.id,
            residency=self.residency if self.residency is not Residency.NONE else Residency.RESIDENT,
            resident_bytes={self.gpu: 0 if is_away else self.held},
            parked_bytes={self.gpu: self.held if is_away else 0},
            context_bytes=self.way_back(),
            may_leave=self.leaves,
            elsewhere=self._elsewhere(),
            leaves_bytes={self.gpu: self.context_on_gpu} if self.leaves else {},
            fixed_bytes={self.gpu: 0 if self.leaves else self.context_on_gpu},
            last_activity=now if computes else self.last_activity,
            calls_in_flight=int(computes),
            cell_open=self.guest.cell_is_open,
            is_moving=is_moving,
            wants_since=self.wants_since,
            rooms=() if self.room is None else (self.room,),
            retry_at=self.park_backoff.retry_at,
            retry_pause_s=self.park_backoff.pause_s,
            resume_retry_at=self.resume_backoff.retry_at,
            host=HostUse(
                is_frugal=True,
                kept_bytes=0 if is_away else self.kept,
                trimmable_bytes=self.kept if self.residency is Residency.RESIDENT else 0,
                kept_since=self.kept_since,
                park_takes_bytes=self.held if self.has_parked else None,
                park_short_bytes=self.park_short,
                budget_bytes=self.park_budget if is_moving else None,
                retry_at=self.host_backoff.retry_at,
            ),
            user=self.guest.session.person,
            priority=self.priority,
            is_opted_out=self.is_opted_out,
            resident_since=self.resident_since,
            started_at=self.started_at,
            can_be_ended=True,
            park_copies_bytes=int(self.held * self.changes) if self.has_parked else None,
            resume_copies_bytes=self.held,
        )
