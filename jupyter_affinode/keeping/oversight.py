"""What a server would see to, for kernels that no server has: their user's quota, and what their Hub says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from ..threads import on_own_thread
from ..units import bytes_in_words
from .at_hub import ASK_EVERY_S, DENIALS, AtHub
from .life import Life
from .processes import resident_bytes


class Oversight:
    """Ends kept kernels that are too many, or whose user a Hub does not know any more, and renews their grants."""

    def __init__(self, lives: Iterable[Life], log: logging.Logger):
        """`lives`: of all kernels that the keeper knows."""
        self._lives = lives
        self._log = log
        self._denials: dict[AtHub, int] = {}  # how often in a row a Hub did not know a user

    async def look(self) -> None:
        """See to all kept kernels once."""
        self.hold_to_quota()
        places = {life.at_hub for life in self._kept() if life.at_hub is not None}
        self._denials = {place: self._denials.get(place, 0) for place in places}
        for place in places:
            await self._ask_hub(place)

    async def _ask_hub(self, place: AtHub) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            is_known = await on_own_thread(place.said_of_user, timeout_s=ASK_EVERY_S)
            if is_known is not None:
                self._denials[place] = 0 if is_known else self._denials[place] + 1
        if self._denials[place] >= DENIALS:
            for life in self._kept():
                if life.at_hub == place:
                    life.begin_end(f"its Hub knows no user {place.user} with its server's token any more")
            return
        try:
            await on_own_thread(place.renew_grant, timeout_s=ASK_EVERY_S)
        except (OSError, ValueError, LookupError, TypeError, asyncio.TimeoutError) as error:
            self._log.warning("the grant of %s was not renewed, trying again: %s", place.user, error)

    def _kept(self) -> list[Life]:
        return [life for life in self._lives if life.is_kept]

    def hold_to_quota(self) -> dict[str, str]:
        """End kept kernels beyond what the user may have: first those that have said nothing for longest.

        Return why, by the kernels' ids.
        """
        kept = sorted(
            # Warm ones have a bound of their own.
            (
                (life, life.kernel)
                for life in self._kept()
                if life.kernel is not None and not life.record.warm
            ),
            key=lambda each: (bool(each[1].open_cells), each[1].heard_at),
        )
        ended: dict[str, str] = {}
        most = min((life.record.most_kernels for life, _ in kept if life.record.most_kernels), default=0)
        most_bytes = min((life.record.most_bytes for life, _ in kept if life.record.most_bytes), default=0)
        while most and len(kept) > most:
            _end(kept.pop(0)[0], f"its user may have {most} kept kernels", ended)
        if not most_bytes:
            return ended
        sizes = resident_bytes(life.record.process.pid for life, _ in kept)
        while kept and sum(sizes.get(life.record.process.pid, 0) for life, _ in kept) > most_bytes:
            _end(kept.pop(0)[0], f"its user's kept kernels may have {bytes_in_words(most_bytes)}", ended)
        return ended


def _end(life: Life, why: str, ended: dict[str, str]) -> None:
    ended[life.id] = why
    life.begin_end(why)
