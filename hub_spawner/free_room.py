"""Free room at a glance: one line such as "GPU: 3 of 8 with room for 20 GiB; 2 waiting".

For the page on which a user chooses a server. It tells totals only, nothing about other users.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from jupyter_affinode.units import bytes_in_words

from .nodes import NodePicture, Nodes

ANSWER_WITHIN_S = 1.0  # the user's page waits for it


@dataclass(frozen=True)
class FreeRoom:
    """Totals of all machines that answered. `rooms`: what each GPU could take, in bytes, the most first."""

    rooms: tuple[int, ...]
    waiting: int
    is_simulated: bool

    def count(self, size: int) -> int:
        """Return how many GPUs have room for `size` bytes."""
        return sum(room >= size for room in self.rooms)

    def text(self, size: int) -> str:
        """Return the line; `size` 0: no size is known. "" where nothing is known about any GPU."""
        if not self.rooms:
            return ""
        if size:
            line = f"GPU: {self.count(size)} of {len(self.rooms)} with room for {bytes_in_words(size)}"
        else:
            line = f"GPU: room for {bytes_in_words(self.rooms[0])}"
            line += f" on one of {len(self.rooms)}" if len(self.rooms) > 1 else ""
        line += f"; {self.waiting} waiting" if self.waiting else ""
        return line + (" (simulated)" if self.is_simulated else "")


def free_room(pictures: Iterable[NodePicture]) -> FreeRoom:
    """Return the totals: free memory, and what kernels that are idle long enough would give back.

    Machines whose answer has an unexpected shape are left out.
    """
    rooms: list[int] = []
    waiting, is_simulated = 0, False
    for picture in pictures:
        if picture.node is None:
            continue
        try:
            found, queue = _rooms(picture), len(picture.node["queue"])
            is_simulated = is_simulated or bool(picture.node["simulated"])
        except Exception:  # it may have any shape
            logging.getLogger(__name__).exception("the answer of %s has an unexpected shape", picture.name)
            continue
        rooms += found
        waiting += queue
    return FreeRoom(tuple(sorted(rooms, reverse=True)), waiting, is_simulated)


async def free_room_line(nodes: Nodes, size: int) -> str:
    """Return the line for `size` bytes on all `nodes`, "" if it cannot be told at once; never raises."""
    try:
        return free_room(await nodes.read(ANSWER_WITHIN_S)).text(size)
    except Exception:  # for example an answer of another version: the page matters more than this line
        logging.getLogger(__name__).exception("free room cannot be told")
        return ""


def as_html(line: str, name: str = "free-room") -> str:
    """Return the line as HTML for an options form; "" stays "". `name`: of its class, for a site's style sheet."""
    return f'<p class="affinode-{name}">{escape(line)}</p>\n' if line else ""


def _rooms(picture: NodePicture) -> list[int]:
    assert picture.node is not None
    host = picture.node["host"]
    parkable = max(host["available_bytes"] - host["reserve_bytes"], 0)
    idle: dict[str, int] = {}
    for kernel in picture.kernels:
        if kernel["residency"] == "resident" and kernel["eligible"]:
            for use in kernel["gpus"]:
                idle[use["uuid"]] = idle.get(use["uuid"], 0) + use["resident_bytes"]
    return [
        int(gpu["free_bytes"]) + min(idle.get(gpu["uuid"], 0), parkable)
        for gpu in picture.node["gpus"]
        if gpu["free_bytes"] is not None  # null without NVML
    ]
