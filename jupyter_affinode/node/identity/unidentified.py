"""Connections that have not identified their user yet: how many there may be, and which one is closed for another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ..system.peers import Place, oldest_of_largest_user
from .rate_limits import Limits

T = TypeVar("T")


def one_too_many(unidentified: Mapping[T, Place], newcomer: Place, limits: Limits) -> T | None:
    """Return the connection to close before one from `newcomer` may come (oldest first); None while there is room.

    If one place has too many, that is its oldest, which had the longest time to identify itself.
    """
    same_place = [connection for connection, place in unidentified.items() if place == newcomer]
    if len(same_place) >= limits.unidentified:
        return same_place[0]
    return oldest_of_largest_user(unidentified) if len(unidentified) >= limits.unidentified_everyone else None
