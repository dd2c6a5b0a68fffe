"""Requests for room on a GPU ahead of need: for a server that is about to start, say.

To the policy each is one more kernel that waits for its first allocation. It reserves nothing: once there is room, it
is forgotten.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from .records.kernel import KernelRecord

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
