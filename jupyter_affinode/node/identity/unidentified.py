"""Connections that have not identified their user yet: how many there may be, and which one is closed for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from ..system.peers import Place
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


def oldest_of_largest_user(unidentified: Mapping[T, Place]) -> T | None:
    """Return the oldest connection of the user who has the most, in that user's fullest place.

    A user who makes places by the dozen (cgroups, own namespaces) displaces only their own connections.
    """
    left = list(unidentified.items())
    for parts in range(1, len(Place._fields) + 1):
        counts = Counter(place[:parts] for _, place in left)
        fullest = counts.most_common(1)[0][0] if counts else ()
        left = [each for each in left if each[1][:parts] == fullest]
    return left[0][0] if left else None
