"""What a server would see to, for kernels that no server has: their user's quota, and what their Hub says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

from ..threads import on_own_thread
from ..units import bytes_in_words
from .at_hub import ASK_EVERY_S, DENIALS, AtHub
from .kept_kernel import KeptKernel
from .processes import resident_bytes


class Oversight:
    """Ends kept kernels that are too many, or whose user a Hub does not know any more, and renews their grants."""

    def __init__(self, kernels: Callable[[], Iterable[KeptKernel]], log: logging.Logger):
        """`kernels` returns all that the keeper knows."""
        self._kernels = kernels
        self._log = log
        self._denials: dict[AtHub, int] = {}  # how often in a row a Hub did not know a user

    async def look(self) -> None:
        """See to all kept kernels once."""
        self.hold_to_quota()
        places = {kernel.at_hub for kernel in self._kept() if kernel.at_hub is not None}
        self._denials = {place: self._denials.get(place, 0) for place in places}
        for place in places:
            await self._ask_hub(place)

    async def _ask_hub(self, place: AtHub) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            is_known = await on_own_thread(place.said_of_user, timeout_s=ASK_EVERY_S)
            if is_known is not None:
                self._denials[place] = 0 if is_known else self._denials[place] + 1
        if self._denials[place] >= DENIALS:
            for kernel in self._kept():
                if kernel.at_hub == place:
                    kernel.begin_end(f"its Hub knows no user {place.user} with its server's token any more")
            return
        try:
            await on_own_thread(place.renew_grant, timeout_s=ASK_EVERY_S)
        except (OSError, ValueError, LookupError, TypeError, asyncio.TimeoutError) as error:
            self._log.warning("the grant of %s was not renewed, trying again: %s", place.user, error)

    def _kept(self) -> list[KeptKernel]:
        return [kernel for kernel in self._kernels() if kernel.is_kept and kernel.dying is None]

    def hold_to_quota(self) -> None:
        """End kept kernels beyond what the user may have: first those that have said nothing for longest."""
        kept = [
            kernel for kernel in self._kept() if not kernel.record.warm
        ]  # these have a bound of their own
        kept.sort(key=lambda kernel: (bool(kernel.open_cells), kernel.heard_at))
        most = min((kernel.record.most_kernels for kernel in kept if kernel.record.most_kernels), default=0)
        most_bytes = min((kernel.record.most_bytes for kernel in kept if kernel.record.most_bytes), default=0)
        while most and len(kept) > most:
            kept.pop(0).begin_end(f"its user may have {most} kept kernels")
        if not most_bytes:
            return
        sizes = resident_bytes(kernel.record.process.pid for kernel in kept)
        while kept and sum(sizes.get(kernel.record.process.pid, 0) for kernel in kept) > most_bytes:
            kept.pop(0).begin_end(f"its user's kept kernels may have {bytes_in_words(most_bytes)}")
