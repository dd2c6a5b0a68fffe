"""The lots: a bounded stock of touched host memory that is handed to processes which are about to be parked.

First touch is what makes a first park slow, and a process's own memory counts against its own limit. Lots are
touched here, in the background, and charged to the controller: where that runs for the whole node, parked
bytes are the node's and not the user's.

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

from ...settings.policy import GIB, MIB, Settings
from ...units import bytes_in_words
from ..policy.host_memory import CGROUP_RESERVE, with_margin
from ..system.host_memory import HostMemory, cgroup_memory, host_memory
from ..system.lot_memory import STEP_BYTES, Lot, LotFailed, make_lot
from ..system.peers import ProcessWatch

LEAST_BYTES, MOST_BYTES = 256 * MIB, 1 * GIB  # of one lot
PARTS = 16  # into so many lots a stock is divided, within these bounds
AGAIN_AFTER_S = 5.0  # when one could not be made


Watcher = Callable[[Callable[[], None]], ProcessWatch]


@dataclass
class Holding:
    """What one process has, by the numbers that were told to it on one link."""

    lots: dict[int, Lot] = field(default_factory=dict)
    last_number: int = 0
    watch: ProcessWatch | None = None  # of the process; None: it never got any
    earlier: list[Holding] = field(default_factory=list)  # on earlier links: it has forgotten the numbers

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(lot.bytes for lot in self.lots.values()) + sum(each.bytes for each in self.earlier)


class LotStock:
    """Makes, hands out and takes back lots; on the event loop, with one thread that touches and frees memory."""

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
        self._left: list[Holding] = []  # of processes that have no link any more
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
        return sum(self.held().values()) + sum(holding.bytes for holding in self._left)

    def held(self) -> dict[int, int]:
        """What each process has from us, by its key."""
        return {key: self.held_bytes(key) for key in self._holdings}

    def held_bytes(self, key: int) -> int:
        """What the process with that key has from us."""
        return self._holdings[key].bytes if key in self._holdings else 0

    def elsewhere_bytes(self, mapped: Mapping[int, int]) -> int:
        """Of the lots that processes have mapped, by key, those that earlier controllers gave them."""
        return sum(max(size - self.held_bytes(key), 0) for key, size in mapped.items())

    def look(self, settings: Settings, host: HostMemory, mapped: Mapping[int, int], now: float) -> None:
        """Make the next lot if the stock is too small, give some back if it is too large or memory is short.

        `mapped`: how much in lots each process says it has. Called on every pass.
        """
        for key in self._holdings.keys() - mapped.keys():
            holding = self._holdings.pop(key)
            self._left += [holding, *holding.earlier]
            holding.earlier = []
        for holding in self._left:
            if not holding.lots and holding.watch is not None:
                holding.watch.close()
        self._left = [holding for holding in self._left if holding.lots]
        self._reserve_bytes = settings.host_reserve(host.total_bytes)
        short = self._reserve_bytes - host.available_bytes
        spare = self.ready_bytes + self.given_bytes + self.elsewhere_bytes(mapped) - settings.lot_bytes
        for lot in list(reversed(self.ready)):
            if spare > 0 or (short > 0 and not lot.is_huge):
                self.ready.remove(lot)
                self._free(lot)
                spare -= lot.bytes
                short -= 0 if lot.is_huge else lot.bytes
        size = lot_size(settings.lot_bytes)
        if size and spare + size <= 0 and self._making is None and now >= self._again_at:
            self._making = asyncio.ensure_future(self._make_one(size))

    def give(self, key: int, size: int, watcher: Watcher) -> list[tuple[int, Lot]]:
        """Lots of at least `size` bytes together, or all there are, for one process: (number, lot).

        `watcher` makes the watch on the process, whose end frees its lots wherever their descriptors are by then. One
        whose end cannot be seen gets none.
        """
        given: list[tuple[int, Lot]] = []
        holding = self._holdings.setdefault(key, Holding())
        if holding.watch is None:
            try:
                holding.watch = watcher(lambda: self._ended(holding))
            except OSError as error:
                self._log.info("a process gets no lots, since its end cannot be seen: %s", error)
                return given
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
        self._free(lot)
        self._on_change()

    def follow(self, key: int, earlier_key: int) -> None:
        """The process with `earlier_key` has connected again and is `key` now; it keeps what is in its lots."""
        before = self._holdings.pop(earlier_key, None)
        if before is not None:
            self._holdings.setdefault(key, Holding()).earlier += [before, *before.earlier]
            before.earlier = []

    def _ended(self, holding: Holding) -> None:
        """A process that has lots has ended."""
        while holding.lots:
            self._free(holding.lots.popitem()[1])
        self._on_change()

    def _free(self, lot: Lot) -> None:
        """On the thread: it takes some tenths of a second a GiB."""
        self._thread.submit(lot.revoke)

    def close(self) -> None:
        """This controller ends: what was not handed out is freed, the rest is its processes' own."""
        self._is_closed = True
        for followed in self._holdings.values():
            self._left += [followed, *followed.earlier]
        for holding in self._left:
            for lot in holding.lots.values():
                lot.let_go()
            if holding.watch is not None:
                holding.watch.close()
        self._holdings, self._left = {}, []
        while self.ready:
            self._free(self.ready.pop())
        self._thread.shutdown(wait=False)

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
