"""Requests for room on a GPU ahead of need: for a server that is about to start, say.

To the policy each is one more kernel that waits for its first allocation. It reserves nothing: once there is room, it
is forgotten.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from ...settings.policy import Settings
from ..model.snapshot import Gpu, Kernel, Reservation, Residency, RoomRequest
from .records.kernel import KernelRecord
from .records.ownership import entitlements_of

# Before the number in its id; no kernel's id has such a character.
PREFIX = "\0room "


@dataclass
class RequestedRoom:
    """One user's request, from its arrival until it is answered or withdrawn."""

    record: KernelRecord  # of no kernel: has the user and the user's entitlements
    bytes: int
    since: float
    gpus: list[str]  # the possible GPUs, the best first; too small ones are taken out
    number: int
    gpu: str = ""  # the one of these that the policy was last asked about
    parked: dict[str, int] = field(default_factory=dict)  # bytes by kernel that was parked for it
    others_made_way: bool = False  # whether any of these was another user's
    state: str = "waiting"  # or "done", "refused"
    code: str = ""  # of a refusal, for programs
    text: str = ""
    line: dict[str, Any] = field(default_factory=dict)  # what was told last
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> str:
        """Return the id that the policy knows it by."""
        return self.record.id

    def end(self, state: str, text: str, code: str = "") -> None:
        """Answer the request, unless it is answered."""
        if self.state == "waiting":
            self.state, self.text, self.code = state, text, code
            self.news.set()

    def picture(
        self,
        gpus: dict[str, Gpu],
        reservations: list[Reservation],
        settings: Settings,
        *,
        served_after: float,
    ) -> Kernel:
        """Return it for the snapshot: on a GPU that has the room now, else on the likeliest one."""
        entitlements = entitlements_of(self.record, settings)
        free = {uuid: gpu.free_bytes for uuid, gpu in gpus.items()}
        for reserved in reservations:
            free[reserved.gpu] = free.get(reserved.gpu, 0) - reserved.bytes
        needs = self.bytes + settings.margin_bytes
        self.gpu = next((uuid for uuid in self.gpus if free.get(uuid, 0) >= needs), self.gpus[0])
        return Kernel(
            self.id,
            Residency.NONE,
            rooms=(RoomRequest((-self.number, 0), self.gpu, self.bytes, self.since, is_for_start=True),),
            user=entitlements.user,
            charged_user=self.record.account.charged_user or "",
            groups=entitlements.groups,
            limit_bytes=entitlements.limit_bytes,
            priority=entitlements.priority,
            served_after=served_after,
        )
