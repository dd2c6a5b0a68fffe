"""Connections that have not said yet whose they are: how many there may be, and which one makes room for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from ..system.peers import Place
from .rate_limits import Limits

T = TypeVar("T")


def one_too_many(unidentified: Mapping[T, Place], newcomer: Place, limits: Limits) -> T | None:
    """Return which of them (oldest first) is to go before one from `newcomer` may come; None while there is room.

    Of too many in one place the oldest, which had the longest time to say something.
    """
    neighbours = [connection for connection, place in unidentified.items() if place == newcomer]
    if len(neighbours) >= limits.unidentified:
        return neighbours[0]
    return the_fullest(unidentified) if len(unidentified) >= limits.unidentified_everyone else None


def the_fullest(unidentified: Mapping[T, Place]) -> T | None:
    """The oldest of the user who has the most, in that user's fullest place: a user who makes places by the dozen
    (cgroups, namespaces of their own) drives out only their own.
    """
    left = list(unidentified.items())
    for parts in range(1, len(Place._fields) + 1):
        counts = Counter(place[:parts] for _, place in left)
        fullest = counts.most_common(1)[0][0] if counts else ()
        left = [each for each in left if each[1][:parts] == fullest]
    return left[0][0] if left else None
