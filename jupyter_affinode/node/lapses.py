"""Whose parks came to nothing while somebody waited: such people's kernels are asked last for a while.

A victim is chosen by what pages say, and anybody can write a page: hundreds of processes of one person may look
like the best that there is, and never finish their parks, or refuse them. Asked one after the other, each would keep
a waiter waiting. So each lapse puts all kernels of its person behind everybody else's, for a minute at first and for
twice as long after each further one; once that is over, a lapse is forgotten every ten minutes.

A lapse is a park that failed, that nobody answered, that lasts far longer than it should (lateness.py), whatever
comes of it, or after which NVML shows as much in use as before (lapse_watch.py). That a kernel is at work again, has
nothing to move or finds no host memory is an honest answer, given soon and now and then; one that comes late, or one
after the other with hardly a park between, is not.

To be behind is no gain but that of being parked later, which whoever refuses parks has anyway; the log names them.
And whoever makes other people's parks fail only has their own kernels asked first.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S, LAST_S = 60.0, 3600.0
FORGOTTEN_S = 600.0
ANSWER_S = 10.0  # an honest reason not to be parked is known by then
EXCUSES_MAX = 8  # more than were made good by parks


@dataclass
class _Person:
    lapses: float = 0.0
    at: float = 0.0  # of the last one
    until: float = 0.0
    excuses: int = 0
    excused_at: float = 0.0  # the last time


class Lapses:
    """By person; the state's. All times are monotonic seconds. None is the one user of a controller of their own,
    before whom there is nobody.
    """

    def __init__(self) -> None:
        self._people: dict[str, _Person] = {}

    def behind_until(self, who: str | None) -> float:
        """Until when others' kernels are asked first."""
        person = None if who is None else self._people.get(who)
        return 0.0 if person is None else person.until

    def failed(self, who: str | None, began: float, now: float) -> bool:
        """A park that began then is a lapse; whether it counts. One that began before the last one does not: several
        asked together may have failed for one cause.
        """
        if who is None:
            return False
        person = self._person(who, now)
        if began < person.at:
            return False
        person.lapses += 1
        person.at, person.excuses = now, 0
        person.until = now + min(FIRST_S * 2 ** (min(person.lapses, 30) - 1), LAST_S)
        return True

    def excused(self, who: str | None, began: float, now: float) -> bool:
        """A park came to nothing for an honest reason, by its own word; whether it counts as a lapse all the same."""
        if who is None:
            return False
        person = self._person(who, now)
        person.excuses, person.excused_at = person.excuses + 1, now
        return (now - began > ANSWER_S or person.excuses > EXCUSES_MAX) and self.failed(who, began, now)

    def delivered(self, who: str | None) -> None:
        """A park was done."""
        person = None if who is None else self._people.get(who)
        if person is not None:
            person.excuses = max(person.excuses - 1, 0)

    def _person(self, who: str, now: float) -> _Person:
        for each in list(self._people):
            person = self._people[each]
            if now > person.until:
                person.lapses = max(person.lapses - (now - person.until) / FORGOTTEN_S, 0.0)
                person.until = now
            if now - person.excused_at > FORGOTTEN_S:
                person.excuses = 0
            if not person.lapses and not person.excuses:
                del self._people[each]
        return self._people.setdefault(who, _Person())
