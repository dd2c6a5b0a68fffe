"""The lots: a bounded stock of touched host memory that is handed to processes which are about to be parked.

First touch is what makes a first park slow, and a process's own memory counts against its own limit. Lots are
touched here, in the background, and charged to the controller: where that runs for the whole node, parked
bytes are the node's and not the person's.

A lot that a process was sent is truncated only when that process says that it has unmapped it (LOT_END), or has
ended: a cut under a mapping is a SIGBUS in the kernel, and the lot may hold the only copy of its GPU memory. A
process that is silent, or that a controller stops following, keeps its lots.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from .host import HostMemory, cgroup_memory, host_memory
from .host_room import CGROUP_RESERVE, with_margin
from .lot_memory import STEP_BYTES, Lot, LotFailed, make_lot
from .settings import GIB, MIB, Settings
from .words import bytes_in_words

LEAST_BYTES, MOST_BYTES = 256 * MIB, 1 * GIB  # of one lot
PARTS = 16  # into so many lots a stock is divided, within these bounds
AGAIN_AFTER_S = 5.0  # when one could not be made


@dataclass
class Holding:
    """What one process has, by the numbers that were told to it."""

    lots: dict[int, Lot] = field(default_factory=dict)
    last_number: int = 0


class LotStock:
    """Makes, hands out and takes back lots; on the event loop, with one thread that touches memory."""

    def __init__(
        self,
        log: logging.Logger,
        on_change: Callable[[], None],
        make: Callable[[int, Callable[[int], bool]], Lot] = make_lot,
    ):
        self.ready: list[Lot] = []
        self._log = log
        self._on_change = on_change
        self._make = make
        self._holdings: dict[int, Holding] = {}
        self._making: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lots")
        self._again_at = 0.0
        self._reserve_bytes = 0
        self._is_closed = False

    @property
    def ready_bytes(self) -> int:
        """What can be handed out."""
        return sum(lot.bytes for lot in self.ready)

    @property
    def given_bytes(self) -> int:
        """What processes have from us."""
        return sum(self.held().values())

    def held(self) -> dict[int, int]:
        """What each process has from us, by its key."""
        return {key: self.held_bytes(key) for key in self._holdings}

    def held_bytes(self, key: int) -> int:
        """What the process with that key has from us."""
        return sum(lot.bytes for lot in self._holdings[key].lots.values()) if key in self._holdings else 0

    def elsewhere_bytes(self, mapped: Mapping[int, int]) -> int:
        """Of the lots that processes have mapped, by key, those that earlier controllers gave them."""
        return sum(max(size - self.held_bytes(key), 0) for key, size in mapped.items())

    def look(self, settings: Settings, host: HostMemory, mapped: Mapping[int, int], now: float) -> None:
        """Make the next lot if the stock is too small, give some back if it is too large or memory is short.

        `mapped`: how much in lots each process says it has. Called on every pass.
        """
        for key in self._holdings.keys() - mapped.keys():
            self.forget(key, has_ended=False)
        self._reserve_bytes = settings.host_reserve(host.total_bytes)
        short = self._reserve_bytes - host.available_bytes
        spare = self.ready_bytes + self.given_bytes + self.elsewhere_bytes(mapped) - settings.lot_bytes
        for lot in list(reversed(self.ready)):
            if spare > 0 or (short > 0 and not lot.is_huge):
                self.ready.remove(lot)
                lot.revoke()
                spare -= lot.bytes
                short -= 0 if lot.is_huge else lot.bytes
        size = lot_size(settings.lot_bytes)
        if size and spare + size <= 0 and self._making is None and now >= self._again_at:
            self._making = asyncio.ensure_future(self._make_one(size))

    def give(self, key: int, size: int) -> list[tuple[int, Lot]]:
        """Lots of at least `size` bytes together, or all there are, for one process: (number, lot)."""
        given = []
        holding = self._holdings.setdefault(key, Holding())
        while size > 0 and self.ready:
            lot = self.ready.pop(0)
            holding.last_number += 1
            holding.lots[holding.last_number] = lot
            given.append((holding.last_number, lot))
            size -= lot.bytes
        return given

    def take_back(self, key: int, number: int) -> None:
        """The process says that nothing is in a lot any more: it is freed, and not used again."""
        holding = self._holdings.get(key)
        lot = holding.lots.pop(number, None) if holding is not None else None
        if lot is None:
            self._log.info("a process gave back lot %d, which it does not have", number)
            return
        lot.revoke()
        self._on_change()

    def forget(self, key: int, *, has_ended: bool) -> None:
        """The process is not ours to follow any more. One that lives on may have contents in its lots."""
        for lot in self._holdings.pop(key, Holding()).lots.values():
            if has_ended:
                lot.revoke()
            else:
                lot.let_go()

    def close(self) -> None:
        """This controller ends: what was not handed out is freed, the rest is its processes' own."""
        self._is_closed = True
        for key in list(self._holdings):
            self.forget(key, has_ended=False)
        while self.ready:
            self.ready.pop().revoke()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _make_one(self, size: int) -> None:
        try:
            lot = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._make, size, self._may_take
            )
        except LotFailed as failed:
            self._again_at = time.monotonic() + AGAIN_AFTER_S
            self._log.info("no lot of %s was made: %s", bytes_in_words(size), failed)
        except Exception:  # else it would be tried again at once, and at once again
            self._again_at = time.monotonic() + AGAIN_AFTER_S
            self._log.exception("no lot of %s was made", bytes_in_words(size))
        else:
            if self._is_closed:
                lot.revoke()
            else:
                self.ready.append(lot)
        finally:
            self._making = None
            if not self._is_closed:
                self._on_change()

    def _may_take(self, size: int) -> bool:
        """Whether that much host memory may be touched now; on the thread."""
        if self._is_closed:
            return False
        limit = cgroup_memory(os.getpid())
        left = host_memory().available_bytes - with_margin(self._reserve_bytes)
        if limit is not None:
            kept_free = min(limit.limit_bytes // CGROUP_RESERVE, self._reserve_bytes)
            left = min(left, limit.headroom_bytes - with_margin(kept_free))
        return left >= size


def lot_size(stock_bytes: int) -> int:
    """How large each lot of a stock is; 0 if the stock is too small for one."""
    size = min(max(stock_bytes // PARTS, LEAST_BYTES), MOST_BYTES, stock_bytes)
    return size - size % STEP_BYTES
