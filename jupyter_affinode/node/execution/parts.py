"""The parts of a controller that carry out what was begun."""

from __future__ import annotations

from dataclasses import dataclass

from ..state.host.lots import LotStock
from .allocations import Rooms
from .cache_drops import CacheDrops
from .moves import Moves
from .room_requests import RoomRequests
from .spills import Spills
from .user_requests import Wishes


@dataclass(frozen=True)
class Parts:
    """The parts that `Effects` starts and that `Shims` passes messages to."""

    moves: Moves
    cache_drops: CacheDrops
    spills: Spills
    wishes: Wishes
    rooms: Rooms
    lots: LotStock
    room_requests: RoomRequests
