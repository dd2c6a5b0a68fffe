"""Lots: touched host memory of the controller's that is lent to processes which are about to be parked.

First touch is what makes a first park slow, and a process's own memory counts against its own limit. Lots are touched
here, in the background, and charged to the controller: where that runs for the whole machine, parked bytes are the
machine's and not the user's.

On one user's controller a lot that a process gives back (LOT_END) stays mapped and registered there, and is lent again,
to that process or another: so host memory moves between kernels without being touched or registered anew. On a
controller of all users it is freed: the next borrower could read what was in it, and the last one write into it.

A lot that a process has is truncated only when that process has given it back or has ended: truncation under a mapping
is a SIGBUS in the kernel, and the lot may hold the only copy of its GPU memory. A process that is silent, or that a
controller stops following, keeps its lots. A lot of a process that has ended is not lent again, since the GPU may still
be writing into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from ....settings.policy import GIB, MIB, Settings
from ....units import bytes_in_words
from ...policy.resources.host_memory import cgroup_reserve, with_margin
from ...system.host_memory import HostMemory, cgroup_memory, host_memory
from ...system.lot_memory import (
    LOT_NAME,
    STEP_BYTES,
    Lot,
    LotFailed,
    bytes_in_other_lots,
    inode_of,
    make_lot,
)
from ...system.peers import ProcessWatch

LEAST_BYTES, MOST_BYTES = 256 * MIB, 1 * GIB  # of one lot
PARTS = 16  # into so many lots a stock is divided, within these bounds
MOST_LOTS = 512  # about so many are made of all the machine's memory, where no setting bounds the stock
MOST_MAPPED, MAPPED_WHEN_SHORT = 8, 2  # processes that keep the same lot mapped
# What the driver takes beside a lot in each process that has it registered is a hundredth of it (seen with an H200).
REGISTERED_TAKES_PART = 100
AGAIN_AFTER_S = 5.0  # when one could not be made
FREED_WITHIN_S = 2.0  # the memory of a lot, once every process has unmapped it


PROMISE_LOOKS_S = 0.01  # apart at most, while a process waits for promised lots
PROMISED_AGAIN_S = 0.1  # when one could not be made


LENT_LATELY_S = 60.0
LENT_LATELY_PARTS = 3  # times as much as a process, or a user, may have is lent within that time
LENT_LATELY_BYTES = 1 * GIB  # … a user at least this much
FOUND_AGAIN_S = 10.0


UNWANTED_S = 60.0  # memory that no kernel is likely to need is freed after that time


@dataclass(eq=False)
class Stocked:
    """A lot with what is known of its use."""

    lot: Lot
    mapped_by: set[int] = field(default_factory=set)  # keys of processes that may have it mapped

    @property
    def bytes(self) -> int:
        """Return its size."""
        return self.lot.bytes


@dataclass(frozen=True)
class Borrower:
    """A process that lots are lent to."""

    key: int
    # makes the watch on it; OSError: its end cannot be seen
    watch: Callable[[Callable[[], None]], ProcessWatch]
    # tells it to unmap a lot that it gave back; None: it unmaps by itself
    forget: Callable[[Lot], None] | None = None
    lend: Callable[[int, Lot], None] = lambda number, lot: None  # tells it of one, and its number
    pid: int = 0  # of the process; 0: not known here
    user: str = ""
    most_bytes: int | None = None  # its GPU memory now, as NVML shows it


@dataclass
class Promise:
    """Lots that are reserved for a process and lent as they come."""

    borrower: Borrower
    left_bytes: int


@dataclass
class Holding:
    """The lots of one process, by the numbers that were told to it on one link."""

    borrower: Borrower
    lots: dict[int, Stocked] = field(default_factory=dict)
    last_number: int = 0
    watch: ProcessWatch | None = None  # of the process; None: it never got any
    earlier: list[Holding] = field(default_factory=list)  # on earlier links: it has forgotten the numbers
    most_bytes: int = 0  # the most GPU memory that NVML has shown for it

    @property
    def bytes(self) -> int:
        """Return the bytes of all its lots."""
        return sum(lot.bytes for lot in self.lots.values()) + sum(each.bytes for each in self.earlier)


class LotStock:
    """The stock: makes, lends and takes back lots, on the event loop, with one thread that touches and frees memory."""

    def __init__(
        self,
        log: logging.Logger,
        on_change: Callable[[], None],
        *,
        is_shared: bool = False,
        parks_take: Callable[[], int] = lambda: 0,
        make: Callable[[int, Callable[[int], bool]], Lot] | None = None,
        name: str | None = None,
    ):
        """Make an empty stock. `is_shared`: the controller serves all users, whose parked memory counts as theirs
        unless a setting gives the machine a part. `parks_take` returns what parks under way may still take by
        themselves. `name`: of the lots' files, which the next controller looks for.
        """
        self.ready: list[Stocked] = []
        self._is_shared = is_shared
        self._log = log
        self._on_change = on_change
        # A process can hold a whole huge page by a part of it, in a pipe, when it has given the lot back.
        self._name = name or f"{LOT_NAME}-{os.getpid()}"
        self._make_one = make or partial(make_lot, name=self._name, small_pages=is_shared)
        self._is_quick = True  # until a lot was of small pages
        self._holdings: dict[int, Holding] = {}
        self._left: list[Holding] = []  # of processes that have no link any more
        self._making: asyncio.Future[None] | None = None
        self._promises: dict[int, Promise] = {}
        self._keeping: asyncio.Future[None] | None = None
        self._freed = asyncio.Event()  # set when a lot was freed, while lots are promised
        self._parks_take = parks_take
        self._others_take_bytes = 0  # … while one is made, and what registering takes
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lots")
        self._making_bytes = self._ordered_bytes = 0
        self._again_at = self._promised_again_at = 0.0
        self._most_mapped = MOST_MAPPED
        # when, and bytes: the host may not show them yet
        self._freed_lately: deque[tuple[float, int]] = deque()
        self._wanted_at = 0.0  # when all that is ready was last likely to be needed
        self._reserve_bytes = 0
        self._part_bytes = 0  # of the stock, for each user; on a controller of all users
        self._lent_lately: deque[tuple[float, Borrower, int]] = deque()
        self._found_bytes: int | None = None  # lots of earlier controllers that processes still have
        self._found_at = 0.0
        self._is_closed = False

    @property
    def ready_bytes(self) -> int:
        """Return what can be lent."""
        return sum(lot.bytes for lot in self.ready)

    @property
    def making_bytes(self) -> int:
        """Return what the lot that is being made takes, of which a part is touched already."""
        return self._making_bytes if self._making is not None else 0

    @property
    def given_bytes(self) -> int:
        """Return what processes have from this stock."""
        return sum(each.bytes for each in (*self._holdings.values(), *self._left))

    def lent(self) -> dict[int, int]:
        """Return what each process has from this stock by its present link, on which it says what it gives back."""
        return {
            key: sum(lot.bytes for lot in holding.lots.values()) for key, holding in self._holdings.items()
        }

    def held_bytes(self, key: int) -> int:
        """Return what the process with that key has from this stock."""
        return self._holdings[key].bytes if key in self._holdings else 0

    def earlier_bytes(self, mapped: Mapping[int, int]) -> int:
        """Return the bytes of lots that earlier controllers lent. `mapped`: by process key, as the pages say; where the
        operating system shows more, that counts.
        """
        said = sum(max(size - self.held_bytes(key), 0) for key, size in mapped.items())
        return max(said, self._found_bytes or 0)

    async def _finds_earlier(self) -> bool:
        """Return whether the operating system shows lots of earlier controllers. Once there are none, none come."""
        now = time.monotonic()
        if self._found_bytes is None or (self._found_bytes and now - self._found_at >= FOUND_AGAIN_S):
            ours = {inode_of(stocked.lot) for stocked in self._all()}
            found = asyncio.get_running_loop().run_in_executor(
                self._thread, bytes_in_other_lots, self._name, ours
            )
            self._found_bytes, self._found_at = await found, now
            return bool(self._found_bytes)
        return False

    def adjust(
        self,
        settings: Settings,
        host: HostMemory,
        mapped: Mapping[int, int],
        wanted_bytes: int,
        now: float,
        users: int = 1,
    ) -> None:
        """Make the next lot if the stock is too small, free some if it is too large or memory is short.

        `mapped`: how much in lots each process shows. `wanted_bytes`: what parks that may come soon would take; it
        bounds the stock where no setting does. `users`: how many have kernels.
        """
        self._forget_gone(mapped)
        self._reserve_bytes = settings.host_reserve(host.total_bytes)
        left = host.available_bytes - self._reserve_bytes
        is_plenty = left > (self.ready_bytes + self.given_bytes) // 4
        self._most_mapped = MOST_MAPPED if is_plenty else MAPPED_WHEN_SHORT
        limit = self.limit_bytes(settings)
        if limit is None:
            wanted_bytes = max(wanted_bytes, self._ordered_bytes)
            size = small_lot_size(host.total_bytes) if wanted_bytes >= LEAST_BYTES else 0
            lacks = self._ordered_bytes - self.ready_bytes
            if lacks <= 0 and left >= self.ready_bytes + 2 * size:
                lacks = min(wanted_bytes - self.ready_bytes, size)
            spare = self._unwanted_bytes(wanted_bytes, now)
            self._ordered_bytes = 0
        else:
            size = lot_size(limit)
            self._part_bytes = limit // max(users, 1)
            spare = self.ready_bytes + self.given_bytes + self.earlier_bytes(mapped) - limit
            lacks = -spare
        # What registering takes comes late: where half of the margin is gone, all of it is made free again.
        margin, freed = with_margin(self._reserve_bytes) - self._reserve_bytes, self._freed_bytes()
        self._give_back(spare, margin - left - freed if left + freed < margin // 2 else 0)
        count = -(-lacks // size) if size and lacks >= min(size, LEAST_BYTES) else 0
        is_free = self._making is None and not self._promises
        if count > 0 and is_free and now >= self._again_at:
            self._making = asyncio.ensure_future(self._make(size, count))

    # ---- promises

    def promised(self) -> dict[int, int]:
        """Return what is still reserved for each process, by its key."""
        return {key: promise.left_bytes for key, promise in self._promises.items()}

    def promise(self, borrower: Borrower, size: int) -> None:
        """Reserve lots for a process and lend them as they come: lots that are given back, and new ones of free memory,
        whatever the bound.
        """
        if size <= 0 or self._is_closed:
            return self.end_promise(borrower.key)
        self._promises[borrower.key] = Promise(borrower, size)
        self._lend_promised()
        if self._promises and self._keeping is None:
            self._keeping = asyncio.ensure_future(self._keep_promises())

    def end_promise(self, key: int) -> None:
        """End the reservation of a process."""
        self._promises.pop(key, None)

    def _lend_promised(self) -> None:
        """Lend what is there, one lot to each process after the other: each waits only two seconds for its next lot
        (AFFINODE_STREAM_MS). A process that can be lent none loses its reservation.
        """
        while self.ready and self._promises:
            key, promise = next(iter(self._promises.items()))
            given = self.give(promise.borrower, 1)
            promise.left_bytes -= sum(lot.bytes for _, lot in given)
            is_promised = self._promises.pop(key, None) is promise
            if is_promised and given and promise.left_bytes > 0:
                self._promises[key] = promise

    async def _keep_promises(self) -> None:
        """Make lots for processes that wait for them, as memory comes free: of lots that are given back at once, of
        other memory soon, since the host notifies no program of that.
        """
        try:
            while self._promises and not self._is_closed:
                self._freed.clear()
                size = 0 if self._making is not None else self._promised_lot()
                if size:
                    self._making = asyncio.ensure_future(self._make(size, 1, is_promised=True))
                if self._making is not None:
                    await asyncio.wait([self._making])
                else:
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._freed.wait(), PROMISE_LOOKS_S)
        finally:
            self._keeping = None

    def _promised_lot(self) -> int:
        """Return the size of the next lot to make for a reservation; 0 if there is no memory for it yet."""
        if time.monotonic() < self._promised_again_at:
            return 0
        lacks = sum(promise.left_bytes for promise in self._promises.values())
        self._others_take_bytes = self._parks_take()
        most = min(LEAST_BYTES, -(-lacks // STEP_BYTES) * STEP_BYTES)
        size = max(min(self._left_bytes(), most), 0) // STEP_BYTES * STEP_BYTES
        if not size:
            self._others_take_bytes = 0
        return size

    def _registering_takes(self) -> int:
        """Return what the driver will take when the lots that there are have been registered by as many processes as
        keep them where memory is short. Lots for promises are made without regard to it: an exchange that is under way
        must not lack the last of them.
        """
        most = 1 if self._is_shared else MAPPED_WHEN_SHORT
        missing = sum(stocked.bytes * max(most - len(stocked.mapped_by), 0) for stocked in self._all())
        return missing // REGISTERED_TAKES_PART

    def _all(self) -> Iterator[Stocked]:
        """Yield what is ready, and what processes have."""
        yield from self.ready
        holdings = [*self._holdings.values(), *self._left]
        earlier = [each for holding in holdings for each in holding.earlier]
        for holding in (*holdings, *earlier):
            yield from holding.lots.values()

    def limit_bytes(self, settings: Settings) -> int | None:
        """Return the bound of the stock, lent lots included; None: what parks that may come soon would take."""
        return 0 if settings.lot_bytes is None and self._is_shared else settings.lot_bytes

    def makes_more(self, settings: Settings, now: float) -> bool:
        """Return whether lots are made for each park that needs them: of huge pages, as quickly as the process itself
        takes memory.
        """
        return self.limit_bytes(settings) is None and self._is_quick and now >= self._again_at

    def order(self, size: int) -> None:
        """Have the next look make lots until `size` bytes are ready: a park waits for them."""
        self._ordered_bytes = max(self._ordered_bytes, size)

    def _forget_gone(self, mapped: Mapping[int, int]) -> None:
        for key in self._promises.keys() - mapped.keys():
            self.end_promise(key)
        for key in self._holdings.keys() - mapped.keys():
            holding = self._holdings.pop(key)
            self._left += [holding, *holding.earlier]
            holding.earlier = []
        for holding in self._left:
            if not holding.lots and holding.watch is not None:
                holding.watch.close()
        self._left = [holding for holding in self._left if holding.lots]

    def _freed_bytes(self) -> int:
        """Return the bytes of lots that were freed a moment ago."""
        while self._freed_lately and time.monotonic() - self._freed_lately[0][0] > FREED_WITHIN_S:
            self._freed_lately.popleft()
        return sum(size for _, size in self._freed_lately)

    def _unwanted_bytes(self, wanted_bytes: int, now: float) -> int:
        """Return the part of the stock that has been more than was wanted for some time."""
        spare = self.ready_bytes - wanted_bytes
        if spare <= 0:
            self._wanted_at = now
        return spare if now - self._wanted_at >= UNWANTED_S else 0

    def _give_back(self, spare: int, short: int) -> None:
        """Free what is above the bound, and what the machine is short of; first what no process has mapped."""
        for stocked in sorted(self.ready, key=lambda each: len(each.mapped_by)):
            if spare > 0 or (short > 0 and not stocked.lot.is_huge):
                self._free(stocked)
                spare -= stocked.bytes
                short -= 0 if stocked.lot.is_huge else stocked.bytes

    def make_room(self, size: int, host: HostMemory) -> None:
        """Free unused lots, so that a park can take `size` bytes beside the reserve."""
        self._give_back(0, size - (host.available_bytes - with_margin(self._reserve_bytes)))

    def give(self, borrower: Borrower, size: int) -> list[tuple[int, Lot]]:
        """Lend lots of at least `size` bytes together, or all there are, first those that the process has mapped;
        return (number, lot) of each.

        A process whose end cannot be seen gets none.
        """
        given: list[tuple[int, Lot]] = []
        holding = self._holdings.setdefault(borrower.key, Holding(borrower))
        holding.borrower = borrower  # a process that has connected again is reached by its new link alone
        holding.most_bytes = max(holding.most_bytes, borrower.most_bytes or 0)
        if holding.watch is None:
            try:
                holding.watch = borrower.watch(lambda: self._ended(holding))
            except OSError as error:
                self._log.info("a process gets no lots, since its end cannot be seen: %s", error)
                return given
        for stocked in sorted(self.ready, key=lambda each: borrower.key not in each.mapped_by):
            if size <= 0 or not self._may_lend(borrower):
                break
            if self._is_shared:
                self._lent_lately.append((time.monotonic(), borrower, stocked.bytes))
            self.ready.remove(stocked)
            stocked.mapped_by.add(borrower.key)
            holding.last_number += 1
            holding.lots[holding.last_number] = stocked
            given.append((holding.last_number, stocked.lot))
            size -= stocked.bytes
            borrower.lend(holding.last_number, stocked.lot)
            self._forget_some(stocked, borrower.key)
        return given

    def _may_lend(self, borrower: Borrower) -> bool:
        """Return whether the process may have another lot.

        On a controller of all users, a process has no more than the GPU memory that NVML has shown for it, whatever
        links and pages it makes, and a user no more than an equal part of the stock. What comes back was touched in
        vain: so both have a few times as much in a minute.
        """
        if not self._is_shared or borrower.most_bytes is None:
            return True
        while self._lent_lately and time.monotonic() - self._lent_lately[0][0] > LENT_LATELY_S:
            self._lent_lately.popleft()
        holdings = [*self._holdings.values(), *self._left]
        most = max(each.most_bytes for each in holdings if _is_same(each.borrower, borrower))
        part = self._part_bytes
        bounds = [
            (most, LENT_LATELY_PARTS * most, _is_same),
            (
                part,
                max(LENT_LATELY_PARTS * part, LENT_LATELY_BYTES),
                lambda one, other: one.user == other.user,
            ),
        ]
        for bound, lately_bound, is_theirs in bounds:
            held = sum(each.bytes for each in holdings if is_theirs(each.borrower, borrower))
            lately = sum(size for _, to, size in self._lent_lately if is_theirs(to, borrower))
            if held >= bound or lately >= lately_bound:
                return False
        return True

    def _forget_some(self, stocked: Stocked, borrower_key: int) -> None:
        """Have processes unmap a lot that too many have mapped: each registration takes host memory, too."""
        others = sorted(stocked.mapped_by - {borrower_key})
        for key in others[: max(len(others) + 1 - self._most_mapped, 0)]:
            self._have_forgotten(stocked, key)

    def _have_forgotten(self, stocked: Stocked, key: int) -> None:
        stocked.mapped_by.discard(key)
        forget = self._holdings[key].borrower.forget if key in self._holdings else None
        if forget is not None:
            forget(stocked.lot)

    def take_back(self, key: int, number: int) -> None:
        """Take back a lot that its process reports as empty."""
        holding = self._holdings.get(key)
        stocked = holding.lots.pop(number, None) if holding is not None else None
        if holding is None or stocked is None:
            self._log.info("a process gave back lot %d, which it does not have", number)
            return
        if holding.borrower.forget is None:
            stocked.mapped_by.discard(key)
        if self._is_shared:
            self._free(stocked)
        else:
            self.ready.append(stocked)
            self._lend_promised()
        self._on_change()

    def follow(self, key: int, earlier_key: int) -> None:
        """Move the lots of `earlier_key` to `key`: the process has connected again and keeps what is in them.

        It has forgotten their numbers, so no message will say when they are empty. On one user's controller the process
        alone keeps them, and they count by its page, as those of an earlier controller do.
        """
        self.end_promise(earlier_key)
        before = self._holdings.pop(earlier_key, None)
        if before is None:
            return
        if self._is_shared:
            self._holdings.setdefault(key, Holding(before.borrower)).earlier += [before, *before.earlier]
            before.earlier = []
            return
        for stocked in before.lots.values():
            for other in sorted(stocked.mapped_by - {earlier_key}):
                self._have_forgotten(stocked, other)
            stocked.lot.let_go()
        if before.watch is not None:
            before.watch.close()

    def _ended(self, holding: Holding) -> None:
        """Free the lots of a process that has ended."""
        self.end_promise(holding.borrower.key)
        while holding.lots:
            self._free(holding.lots.popitem()[1])
        for stocked in self._all():
            stocked.mapped_by.discard(holding.borrower.key)
        self._on_change()

    def _free(self, stocked: Stocked) -> None:
        """Truncate a lot that no process has, on the thread: it may take a tenth of a second.

        Where it is still registered, its pages are free when the process has unmapped it.
        """
        if stocked in self.ready:
            self.ready.remove(stocked)
        if not stocked.lot.is_huge:
            self._freed_lately.append((time.monotonic(), stocked.bytes))
        for key in list(stocked.mapped_by):
            self._have_forgotten(stocked, key)
        freed = self._thread.submit(stocked.lot.revoke)
        if self._keeping is not None and not self._is_closed:
            loop = self._keeping.get_loop()

            def tell(_freed: Future[None]) -> None:
                with contextlib.suppress(RuntimeError):  # the controller has ended: its loop is closed
                    loop.call_soon_threadsafe(self._freed.set)

            freed.add_done_callback(tell)

    def close(self) -> None:
        """Free what was not lent, as this controller ends; the rest stays with its processes."""
        self._is_closed = True
        self._promises.clear()
        for followed in self._holdings.values():
            self._left += [followed, *followed.earlier]
        for holding in self._left:
            for stocked in holding.lots.values():
                stocked.lot.let_go()
            if holding.watch is not None:
                holding.watch.close()
        self._holdings, self._left = {}, []
        for stocked in list(self.ready):
            self._free(stocked)
        self._thread.shutdown(wait=False)

    async def _make(self, size: int, count: int, *, is_promised: bool = False) -> None:
        """Make `count` lots, one after the other; after a failure none is tried for some time."""
        loop = asyncio.get_running_loop()
        try:
            if self._is_shared and await self._finds_earlier():
                return  # the next look counts them
            for left in range(count, 0, -1):
                self._making_bytes = size * left
                if not is_promised:
                    self._others_take_bytes = self._registering_takes()
                lot = await loop.run_in_executor(self._thread, self._make_one, size, self._may_take)
                if self._is_closed:
                    return lot.revoke()
                self.ready.append(Stocked(lot))
                self._lend_promised()
                self._is_quick = lot.pages != "4 KiB"
                if not self._is_quick:
                    break
        except LotFailed as failed:
            self._pause(is_promised)
            self._log.info("no lot of %s was made: %s", bytes_in_words(size), failed)
        except Exception:  # else it would be tried again at once, and at once again
            self._pause(is_promised)
            self._log.exception("no lot of %s was made", bytes_in_words(size))
        finally:
            self._making, self._others_take_bytes = None, 0
            if not self._is_closed:
                self._on_change()

    def _pause(self, is_promised: bool) -> None:
        """Put the next try off: briefly for reserved lots, which a process waits two seconds for; longer for others."""
        now = time.monotonic()
        if is_promised:
            self._promised_again_at = now + PROMISED_AGAIN_S
        else:
            self._again_at = now + AGAIN_AFTER_S

    def _may_take(self, size: int) -> bool:
        """Return whether `size` bytes of host memory may be touched now; runs on the thread."""
        return not self._is_closed and self._left_bytes() >= size

    def _left_bytes(self) -> int:
        """Return how much host memory may be touched now; runs on any thread."""
        limit = cgroup_memory(os.getpid())
        left = host_memory().available_bytes - with_margin(self._reserve_bytes) - self._others_take_bytes
        if limit is not None:
            kept_free = cgroup_reserve(limit.limit_bytes, self._reserve_bytes)
            left = min(left, limit.headroom_bytes - with_margin(kept_free))
        return left


def _is_same(one: Borrower, other: Borrower) -> bool:
    """Return whether two links are of one process; of one user, where that cannot be seen."""
    return one.key == other.key or (one.pid == other.pid and (one.pid > 0 or one.user == other.user))


def lot_size(stock_bytes: int) -> int:
    """Return how large the lots of a stock of `limit` bytes are."""
    size = min(max(stock_bytes // PARTS, LEAST_BYTES), MOST_BYTES, stock_bytes)
    return size - size % STEP_BYTES


def small_lot_size(total_bytes: int) -> int:
    """Return how large each lot is where no setting bounds the stock: little is left over of the last that a park
    needs.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most_lots = min(MOST_LOTS, descriptors // 4)  # each takes two, and links and requests need some
    size = LEAST_BYTES
    while size * most_lots < total_bytes:
        size *= 2
    return size
