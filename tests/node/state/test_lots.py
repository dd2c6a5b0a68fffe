"""Lots: touched memory, lent to one user's processes, cut only where no process has it."""

from __future__ import annotations

import array
import asyncio
import fcntl
import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import pytest
from fake_shim import LOT, LOT_END, MIB, PARK, TRIMS, notify
from open_files import open_files

from jupyter_affinode.node.identity.access import OwnUserAccess
from jupyter_affinode.node.identity.rate_limits import Accounts
from jupyter_affinode.node.link.connection import SEND_QUEUE, Connection
from jupyter_affinode.node.protocol.wire import CommandKind
from jupyter_affinode.node.state import lots
from jupyter_affinode.node.state.lots import (
    AGAIN_AFTER_S,
    UNWANTED_S,
    Borrower,
    LotStock,
    lot_size,
    small_lot_size,
)
from jupyter_affinode.node.system import lot_memory
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.node.system.huge_tmpfs import NoHugeTmpfs
from jupyter_affinode.node.system.lot_memory import LotFailed, make_lot
from jupyter_affinode.node.system.peers import Peer, ProcessWatch
from jupyter_affinode.settings.policy import GIB, Settings

IDLE = {"park_when": "idle", "idle_timeout_s": 0.3}
LOTS = Settings(lot_bytes=64 * MIB, host_reserve_bytes=0)
PLENTY = HostMemory(64 * GIB, 32 * GIB)
NONE_YET = {1: 0, 7: 0, 8: 0}  # the processes of these tests, by key: bytes in lots that they have mapped


FREE_HUGE_BYTES = lot_memory.free_huge_bytes


@pytest.fixture(autouse=True)
def ordinary_pages(monkeypatch):
    """Whatever this machine has set aside: how many huge pages are behind a file is not shown."""
    monkeypatch.setattr(lot_memory, "free_huge_bytes", lambda: 0)


def descriptors():
    """How many lots and processes this process has descriptors of; others come and go."""
    return open_files("/memfd:affinode-lot", "/affinode-lot", "anon_inode:[fscontext]", "anon_inode:[pidfd]")


def allocated(descriptor):
    """How much memory is behind a file."""
    return os.fstat(descriptor).st_blocks * 512


@pytest.fixture
def memory_files(monkeypatch):
    """As where no tmpfs of huge pages can be had."""

    def refuse(size):
        raise NoHugeTmpfs("not in this test")

    monkeypatch.setattr(lot_memory, "open_huge_file", refuse)


# ---- one lot


def test_a_lot_is_touched_zeroed_and_cannot_be_grown_or_sealed_by_its_borrower(memory_files):
    lot = make_lot(64 * MIB, lambda size: True)
    assert (lot.bytes, allocated(lot.descriptor)) == (64 * MIB, 64 * MIB)
    with mmap.mmap(lot.descriptor, lot.bytes) as view:
        assert view[:] == bytes(lot.bytes)
    for forbidden in (
        lambda: os.ftruncate(lot.descriptor, 65 * MIB),
        lambda: fcntl.fcntl(lot.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK),
    ):
        with pytest.raises(PermissionError):
            forbidden()
    lot.revoke()


def test_a_revoked_lot_is_empty_for_every_process_that_still_has_its_descriptor(memory_files):
    lot = make_lot(32 * MIB, lambda size: True)
    copy = os.dup(lot.descriptor)
    os.pwrite(copy, b"contents", 0)
    lot.revoke()
    assert (os.fstat(copy).st_size, allocated(copy)) == (0, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(copy, 4096)
    os.close(copy)


def test_a_process_that_uses_a_revoked_lot_gets_a_signal_and_no_memory():
    code = """
    import mmap, os
    from jupyter_affinode.node.system.lot_memory import make_lot
    lot = make_lot(32 << 20, lambda size: True)
    view = mmap.mmap(lot.descriptor, lot.bytes)
    lot.revoke()
    view[0] = 1
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=60, check=False)
    assert done.returncode == -signal.SIGBUS


def test_a_lot_that_meets_a_shortage_on_the_way_takes_nothing():
    before, asked = descriptors(), []

    def may_take(size):
        asked.append(size)
        return len(asked) < 3

    with pytest.raises(LotFailed, match="short"):
        make_lot(128 * MIB, may_take, threads=1)
    assert (asked, descriptors()) == ([32 * MIB] * 3, before)


def test_threads_ask_for_what_all_of_them_are_about_to_touch(monkeypatch):
    asked, third = [], threading.Event()

    def may_take(size):
        asked.append(size)
        if len(asked) == 3:
            third.set()
        return len(asked) < 3

    class SlowLibc:
        def madvise(self, *_):
            return 0 if third.wait(30) else -1

    monkeypatch.setattr(lot_memory, "_libc", SlowLibc())
    with pytest.raises(LotFailed, match="short"):
        make_lot(256 * MIB, may_take, threads=3)
    assert asked == [32 * MIB, 64 * MIB, 96 * MIB]


def test_several_threads_touch_every_page():
    before = descriptors()
    lot = make_lot(160 * MIB, lambda size: True, threads=3)
    assert allocated(lot.descriptor) == 160 * MIB
    lot.revoke()
    assert descriptors() == before


def test_before_linux_5_14_the_pages_are_written_instead(monkeypatch):
    class OldLibc:
        def madvise(self, *_):
            lot_memory.ctypes.set_errno(lot_memory.errno.EINVAL)
            return -1

    monkeypatch.setattr(lot_memory, "_libc", OldLibc())
    lot = make_lot(32 * MIB, lambda size: True)
    assert allocated(lot.descriptor) == 32 * MIB
    with mmap.mmap(lot.descriptor, lot.bytes) as view:
        assert view[:] == bytes(lot.bytes)
    lot.revoke()


def test_free_huge_pages_are_those_not_promised_yet(tmp_path):
    (tmp_path / "free_hugepages").write_text("100\n")
    (tmp_path / "resv_hugepages").write_text("60\n")
    assert FREE_HUGE_BYTES(tmp_path) == 80 * MIB
    assert FREE_HUGE_BYTES(tmp_path / "absent") == 0


@pytest.mark.skipif(FREE_HUGE_BYTES() < 32 * MIB, reason="no huge pages are set aside here")
def test_huge_pages_are_taken_where_there_are_enough(monkeypatch):
    monkeypatch.setattr(lot_memory, "free_huge_bytes", FREE_HUGE_BYTES)
    free = FREE_HUGE_BYTES()
    lot = make_lot(32 * MIB, lambda size: False)
    assert (lot.is_huge, os.fstat(lot.descriptor).st_blksize) == (True, 2 * MIB)
    assert free - FREE_HUGE_BYTES() == 32 * MIB
    copy = os.dup(lot.descriptor)
    lot.revoke()
    assert FREE_HUGE_BYTES() == free
    with pytest.raises(PermissionError):
        os.ftruncate(copy, 2 * MIB)
    os.close(copy)


# ---- the stock


@pytest.mark.parametrize(
    "stock, size",
    [
        (0, 0),
        (31 * MIB, 0),
        (100 * MIB, 96 * MIB),
        (GIB, 256 * MIB),
        (8 * GIB, 512 * MIB),
        (64 * GIB, GIB),
    ],
)
def test_a_stock_is_divided_into_lots_that_are_neither_tiny_nor_few(stock, size):
    assert lot_size(stock) == size


@pytest.mark.parametrize(
    "total, descriptors, size",
    [
        (64 * GIB, 4096, 256 * MIB),
        (126 * GIB, 4096, 256 * MIB),
        (126 * GIB, 1024, 512 * MIB),
        (2048 * GIB, 4096, 4 * GIB),
    ],
)
def test_lots_are_small_but_leave_the_controller_descriptors(monkeypatch, total, descriptors, size):
    monkeypatch.setattr(lots.resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert small_lot_size(total) == size


def watch_us(on_end):
    """The watch on a process that lives on."""
    return ProcessWatch(os.pidfd_open(os.getpid()), on_end)


def borrower(key, watch=watch_us, forget=None):
    """One of a user's processes."""
    return Borrower(key, watch, forget)


def cut(descriptor):
    """Whether a lot's memory has been taken back."""
    return os.fstat(descriptor).st_size == 0


async def becomes(condition):
    """Let the loop and the stock's thread run until it holds."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def with_stock(**options):
    """Run the test with a stock of its own, made with these options; afterwards no file is left open."""

    def decorate(test):
        async def run():
            stock = LotStock(logging.getLogger("test"), lambda: None, **options)
            try:
                await test(stock)
            finally:
                stock.close()
                stock._thread.shutdown()  # it may still free some

        def run_test():
            before = descriptors()
            asyncio.run(run())
            assert descriptors() == before

        return run_test

    return decorate


async def filled(stock, settings=LOTS, host=PLENTY, mapped=NONE_YET, wanted=0):
    """Look until the stock is full."""
    while True:
        stock.look(settings, host, mapped, wanted, time.monotonic())
        if stock._making is None:
            return
        await stock._making


@with_stock()
async def test_the_stock_is_filled_up_to_its_bound_and_no_further(stock):
    await filled(stock)
    assert stock.ready_bytes == 64 * MIB
    stock.give(borrower(1), 1)
    await filled(stock)
    assert (stock.ready_bytes, stock.given_bytes) == (0, 64 * MIB)  # what is given counts


@with_stock()
async def test_lots_of_an_earlier_controller_count_too(stock):
    stock.look(LOTS, PLENTY, {1: 32 * MIB}, 0, time.monotonic())
    assert stock._making is None


@with_stock()
async def test_under_pressure_what_was_not_handed_out_is_given_back(stock):
    await filled(stock)
    stock.look(LOTS.changed(host_reserve_bytes=GIB), HostMemory(64 * GIB, GIB - MIB), {}, 0, 0.0)
    assert stock.ready_bytes == 0
    assert stock._making is None or not await stock._making


@with_stock()
async def test_a_smaller_bound_gives_back_what_is_over_it(stock):
    await filled(stock)
    stock.look(LOTS.changed(lot_bytes=0), PLENTY, {}, 0, time.monotonic())
    assert stock.ready == []


@with_stock()
async def test_a_lot_that_comes_back_is_lent_again_on_a_users_own_controller(stock):
    await filled(stock)
    ((number, lot),) = stock.give(borrower(7), 10 * MIB)
    stock.take_back(7, number)
    ((again, same),) = stock.give(borrower(8), 10 * MIB)
    assert (again, same) == (1, lot) and not cut(lot.descriptor)


@with_stock(is_shared=True)
async def test_a_lot_that_comes_back_is_freed_on_a_controller_of_all_users_and_a_fresh_one_takes_its_place(
    stock,
):
    forgotten = []
    await filled(stock)
    ((number, lot),) = stock.give(borrower(7, forget=forgotten.append), 10 * MIB)
    theirs = os.dup(lot.descriptor)
    os.pwrite(theirs, b"secret", 0)
    stock.take_back(7, number)
    assert forgotten == [lot]
    await becomes(lambda: cut(theirs))
    await filled(stock)
    ((again, fresh),) = stock.give(borrower(8), 10 * MIB)
    assert (again, os.pread(fresh.descriptor, 6, 0)) == (1, bytes(6))
    os.close(theirs)


@with_stock()
async def test_a_process_gets_what_it_has_mapped_first(stock):
    await filled(stock, LOTS.changed(lot_bytes=512 * MIB))
    first, second = stock.give(borrower(7, forget=lambda lot: None), 512 * MIB)
    stock.give(borrower(8), MIB)
    stock.take_back(7, second[0])
    stock.take_back(7, first[0])
    stock.ready[0].mapped_by.clear()
    assert stock.give(borrower(7), MIB)[0][1] is first[1]


@with_stock()
async def test_a_lot_that_no_process_has_is_cut_for_want_of_room_and_unmapped(stock):
    forgotten = []
    await filled(stock)
    ((number, lot),) = stock.give(borrower(7, forget=forgotten.append), 10 * MIB)
    theirs = os.dup(lot.descriptor)
    stock.take_back(7, number)
    stock.make_room(MIB, PLENTY)
    assert forgotten == [] and not cut(theirs)
    stock.make_room(MIB, HostMemory(64 * GIB, 0))
    assert forgotten == [lot] and stock.ready_bytes == 0
    await becomes(lambda: cut(theirs))
    os.close(theirs)


@with_stock()
async def test_a_lot_that_is_lent_is_never_cut_for_want_of_room(stock):
    await filled(stock)
    ((_, lot),) = stock.give(borrower(7, forget=lambda lot: None), 10 * MIB)
    stock.make_room(64 * GIB, HostMemory(64 * GIB, 0))
    stock.look(LOTS.changed(lot_bytes=0, host_reserve_bytes=GIB), HostMemory(64 * GIB, 0), NONE_YET, 0, 1e9)
    assert stock.given_bytes == 64 * MIB and not cut(lot.descriptor)


@with_stock()
async def test_without_a_setting_the_stock_is_what_parks_may_soon_take_and_half_of_what_is_free(stock):
    auto = LOTS.changed(lot_bytes=None)
    for wanted, host, ready in (
        (255 * MIB, PLENTY, 0),  # less is not worth it
        (600 * MIB, HostMemory(64 * GIB, 700 * MIB), 256 * MIB),
        (600 * MIB, PLENTY, 512 * MIB),
    ):
        await filled(stock, auto, host, wanted=wanted)
        assert stock.ready_bytes == ready
    now = time.monotonic()
    for wanted, later, ready in (
        (256 * MIB, 0, 512 * MIB),
        (512 * MIB, UNWANTED_S - 1, 512 * MIB),
        (256 * MIB, 2 * UNWANTED_S - 2, 512 * MIB),
        (256 * MIB, 2 * UNWANTED_S, 256 * MIB),
    ):
        stock.look(auto, PLENTY, NONE_YET, wanted, now + later)
        assert stock.ready_bytes == ready


@with_stock()
async def test_a_process_can_give_back_only_what_it_has(stock):
    await filled(stock)
    ((number, lot),) = stock.give(borrower(1), MIB)
    for key, wrong in ((2, number), (1, number + 1)):
        stock.take_back(key, wrong)
    assert os.fstat(lot.descriptor).st_size == 64 * MIB
    stock.take_back(1, number)
    stock.take_back(1, number)
    assert stock.given_bytes == 0


@with_stock()
async def test_a_process_that_connects_again_keeps_its_lots_and_they_count(stock):
    await filled(stock)
    ((_, lot),) = stock.give(borrower(1), MIB)
    theirs = os.dup(lot.descriptor)
    stock.follow(2, 1)  # it said HELLO again, and has another key now
    for says in (64 * MIB, 0):  # whatever it says
        await filled(stock, mapped={2: says})
        assert (os.fstat(theirs).st_size, stock.held_bytes(2), stock.given_bytes) == (64 * MIB,) * 3
        assert stock.ready_bytes == 0
    os.close(theirs)


@with_stock()
async def test_lots_count_until_their_process_has_ended_and_are_cut_then(stock):
    """One that hung up, or was silent, may hold tensors in it; and more than it says."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    await filled(stock)
    ((_, lot),) = stock.give(
        borrower(1, watch=lambda on_end: ProcessWatch(os.pidfd_open(process.pid), on_end)), MIB
    )
    theirs = os.dup(lot.descriptor)
    await filled(stock, mapped={})  # it is not heard of any more
    assert (os.fstat(theirs).st_size, stock.given_bytes, stock.ready_bytes) == (64 * MIB, 64 * MIB, 0)
    process.communicate()
    await becomes(lambda: cut(theirs))
    await filled(stock, mapped={})
    assert (stock.given_bytes, stock.ready_bytes) == (0, 64 * MIB)
    os.close(theirs)


@with_stock()
async def test_a_process_whose_end_cannot_be_seen_gets_no_lots(stock):
    def cannot(on_end):
        raise ProcessLookupError("it has ended")

    await filled(stock)
    assert stock.give(borrower(1, watch=cannot), MIB) == []
    assert stock.ready_bytes == 64 * MIB


@with_stock()
async def test_a_controller_that_ends_leaves_processes_their_lots(stock):
    await filled(stock)
    ((_, lot),) = stock.give(borrower(1), MIB)
    theirs = os.dup(lot.descriptor)
    stock.close()
    assert os.fstat(theirs).st_size == 64 * MIB
    os.close(theirs)


@pytest.mark.parametrize(
    "error", [LotFailed("none today"), OSError(24, "Too many open files"), MemoryError()]
)
def test_a_lot_that_cannot_be_made_is_tried_again_later_only(error):
    tries = []

    def fail(size, may_take):
        tries.append(size)
        raise error

    async def body(stock):
        await filled(stock)
        assert len(tries) == 1
        stock.look(LOTS, PLENTY, {}, 0, time.monotonic())
        assert len(tries) == 1 and stock._making is None
        stock.look(LOTS, PLENTY, {}, 0, time.monotonic() + AGAIN_AFTER_S + 1)
        await stock._making
        assert len(tries) == 2

    with_stock(make=fail)(body)()


# ---- promises


def sent(lent):
    return lambda number, lot: lent.append((number, lot))


def promised_to(key, lent):
    """A process that is told of lots as they come."""
    return Borrower(key, watch_us, lambda lot: None, sent(lent))


@with_stock()
async def test_a_promise_is_kept_by_what_is_ready_what_comes_back_and_what_is_made(stock):
    lent = []
    await filled(stock, LOTS.changed(lot_bytes=512 * MIB))
    ((number, lot), _) = stock.give(borrower(8), 512 * MIB)
    stock.take_back(8, number)
    stock.promise(promised_to(7, lent), 544 * MIB)
    assert [each for _, each in lent] == [lot], "what was ready"
    stock.take_back(8, 2)
    assert len(lent) == 2, "at once, without a look at anything else"
    await becomes(lambda: len(lent) == 3)
    assert [each.bytes // MIB for _, each in lent] == [256, 256, 32]
    assert stock.promised() == {} and stock.held_bytes(7) == 544 * MIB


@with_stock(is_shared=True)
async def test_lots_are_made_for_a_promise_where_users_are_several_and_each_is_lent_once(stock):
    """No setting says that the controller has any: what is lent for a moment counts as the user's."""
    lent, others = [], []
    await filled(stock, LOTS.changed(lot_bytes=None))
    stock.promise(promised_to(7, lent), 64 * MIB)
    await becomes(lambda: lent)
    ((number, lot),) = lent
    theirs = os.dup(lot.descriptor)
    os.pwrite(theirs, b"secret", 0)
    stock.promise(promised_to(8, others), 64 * MIB)
    stock.take_back(7, number)
    await becomes(lambda: others and cut(theirs))
    ((_, fresh),) = others
    assert os.pread(fresh.descriptor, 6, 0) == bytes(6)
    assert stock.ready_bytes == 0
    os.close(theirs)


@with_stock()
async def test_a_promise_does_not_wait_for_the_pause_after_a_lot_that_was_not_made(stock):
    lent = []
    stock._left_bytes = lambda: 0
    await filled(stock)
    assert stock.ready_bytes == 0 and stock._again_at
    stock._left_bytes = lambda: GIB
    stock.promise(promised_to(7, lent), 64 * MIB)
    await becomes(lambda: lent)


@with_stock()
async def test_nothing_is_made_for_a_process_that_can_be_lent_nothing(stock):
    def no_watch(_on_end):
        raise OSError("its end cannot be seen")

    await filled(stock)
    stock.promise(replace(borrower(7), watch=no_watch), 512 * MIB)
    assert stock.promised() == {}


@with_stock()
async def test_no_more_is_lent_when_a_promise_has_ended(stock):
    lent = []
    await filled(stock)
    ((number, _),) = stock.give(borrower(8), MIB)
    stock._left_bytes = lambda: 0
    stock.promise(promised_to(7, lent), 128 * MIB)
    stock.end_promise(7)
    stock.take_back(8, number)
    assert lent == [] and stock.ready_bytes == 64 * MIB
    await becomes(lambda: stock._keeping is None)


@with_stock()
async def test_a_process_that_has_ended_or_connected_again_is_promised_nothing(stock):
    stock._left_bytes = lambda: 0
    for key in (1, 7, 8):
        stock.promise(promised_to(key, []), MIB)
    stock.follow(9, 7)
    stock.look(LOTS, PLENTY, {8: 0}, 0, time.monotonic())
    assert stock.promised() == {8: MIB}
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ends = Borrower(8, lambda on_end: ProcessWatch(os.pidfd_open(process.pid), on_end))
    stock.end_promise(8)
    del stock._left_bytes
    stock.promise(ends, 512 * MIB)
    await becomes(lambda: stock.held_bytes(8))
    stock._left_bytes = lambda: 0
    process.communicate()
    await becomes(lambda: stock.promised() == {})


def test_what_is_lent_never_comes_out_of_the_reserve_or_of_what_others_may_take(monkeypatch):
    """Memory comes free in steps, and no program is told of that."""
    lent, free, looks = [], [0], [0]
    reserve, spoken_for = 330 * MIB, 96 * MIB  # with the margin

    def look():
        looks[0] += 1
        return HostMemory(64 * GIB, free[0])

    def make(size, may_take):
        assert may_take(size)
        free[0] -= size
        assert free[0] >= reserve + spoken_for
        return make_lot(size, lambda size: True)

    monkeypatch.setattr(lots, "host_memory", look)
    monkeypatch.setattr(lots, "cgroup_memory", lambda pid: None)

    async def body(stock):
        settings = LOTS.changed(lot_bytes=None, host_reserve_bytes=320 * MIB)
        stock.look(settings, PLENTY, NONE_YET, 0, time.monotonic())
        stock.promise(promised_to(7, lent), 128 * MIB)
        for more, held in ((31, 0), (1, 32), (64, 96), (128, 128)):
            free[0] += more * MIB + (reserve + spoken_for if not held and not free[0] else 0)
            seen = looks[0]
            await becomes(
                lambda before=seen, least=held * MIB: (
                    not stock.promised() or (looks[0] > before + 2 and stock.held_bytes(7) >= least)
                )
            )
            assert stock.held_bytes(7) == held * MIB
        assert stock.promised() == {}

    with_stock(spoken_for=lambda: spoken_for, make=make)(body)()


# ---- over the link


def test_a_kernel_gets_lots_before_it_is_parked_and_gives_them_back(node, shim, wait_until):
    machine = node(lot_bytes=64 * MIB, **IDLE)
    wait_until(lambda: machine.node()["host"]["lots"]["ready_bytes"] == 64 * MIB)
    kernel = shim("k", resident=100 * MIB, flags=TRIMS)
    wait_until(lambda: kernel.heard.of(PARK))
    kinds = [command.kind for command in kernel.heard.commands]
    assert kinds.index(LOT) + 1 == kinds.index(PARK)
    (lot,) = kernel.heard.of(LOT)
    assert (lot.request, lot.argument) == (1, 64 * MIB)
    assert allocated(kernel.heard.lots[1]) == 64 * MIB
    lots = machine.node()["host"]["lots"]
    assert lots == {"limit_bytes": 64 * MIB, "ready_bytes": 0, "given_bytes": 64 * MIB}
    kernel.send(notify(LOT_END, number=1))
    wait_until(lambda: machine.node()["host"]["lots"]["ready_bytes"] == 64 * MIB)
    assert os.fstat(kernel.heard.lots[1]).st_size == 64 * MIB, "it is lent again to the same user"


def test_a_shim_that_knows_no_lots_gets_none(node, shim, wait_until):
    machine = node(lot_bytes=64 * MIB, **IDLE)
    wait_until(lambda: machine.node()["host"]["lots"]["ready_bytes"] == 64 * MIB)
    kernel = shim("k", resident=100 * MIB)
    wait_until(lambda: kernel.heard.of(PARK))
    assert kernel.heard.of(LOT) == [] and kernel.heard.of(PARK)[0].argument >> 8 == 0


def test_a_process_that_hangs_up_keeps_its_lots(node, shim, wait_until):
    machine = node(lot_bytes=64 * MIB, **IDLE)
    wait_until(lambda: machine.node()["host"]["lots"]["ready_bytes"] == 64 * MIB)
    kernel = shim("k", resident=100 * MIB, flags=TRIMS)
    wait_until(lambda: kernel.heard.lots and kernel.heard.of(PARK))
    theirs = os.dup(kernel.heard.lots[1])
    kernel._socket.shutdown(socket.SHUT_RDWR)
    again = shim("k", parked=100 * MIB, flags=TRIMS)
    again.page.lots = 64 * MIB
    again.page.write()
    wait_until(lambda: machine.node()["host"]["lots"]["given_bytes"] == 64 * MIB)
    assert (os.fstat(theirs).st_size, machine.node()["host"]["lots"]["ready_bytes"]) == (64 * MIB, 0)
    os.close(theirs)


def test_a_park_is_told_how_much_host_memory_it_may_take(node, shim, wait_until):
    machine = node(**IDLE)
    kernels = [shim("k", resident=size, flags=TRIMS) for size in (100 * MIB, 300 * MIB)]
    wait_until(lambda: all(kernel.heard.of(PARK) for kernel in kernels))
    host = machine.node()["host"]
    budgets = [kernel.heard.of(PARK)[0].argument >> 8 for kernel in kernels]
    assert 2.9 < budgets[1] / budgets[0] < 3.1
    assert 0.5 * host["available_bytes"] < sum(budgets) * MIB < 1.5 * host["available_bytes"]


# ---- descriptors on the link


class Listener:
    """No process."""

    def __getattr__(self, name):
        return lambda *_: None


def test_descriptors_reach_a_slow_reader_in_order_and_none_is_lost_or_left_open():
    """The controller may close its own right after the command: what waits has a copy."""

    async def body(ours, theirs):
        ending = []
        access = OwnUserAccess()
        connection = Connection(
            ours,
            access.recognise(ours, Peer(0, os.getuid())),
            Listener(),
            access=access,
            accounts=Accounts(access.limits),
            heartbeat_s=1.0,
            controller_version="test",
            on_end=lambda *ended: ending.append(ended),
        )
        for number in range(SEND_QUEUE):
            file = os.memfd_create(f"sent-lot-{number}")
            os.write(file, str(number).encode())
            connection.command(CommandKind.LOT, request=number, descriptor=file)
            os.close(file)
        assert connection._unsent, "the socket's own buffer is smaller than that"
        for number in range(SEND_QUEUE):
            _, ancillary = await receive(theirs)
            (file,) = array.array("i", ancillary[0][2])
            assert os.pread(file, 10, 0) == str(number).encode()
            os.close(file)
        file = os.memfd_create("sent-lot-never-read")
        for number in range(SEND_QUEUE):
            connection.command(CommandKind.LOT, request=number, descriptor=file)
        os.close(file)
        connection.end(connection_ending(), "the test is over")
        assert len(ending) == 1

    async def receive(connected):
        while True:
            try:
                data, ancillary, _, _ = connected.recvmsg(4096, socket.CMSG_SPACE(4))
                return data, ancillary
            except BlockingIOError:
                await asyncio.sleep(0.001)

    def connection_ending():
        from jupyter_affinode.node.link.connection import Ending

        return Ending.OURS

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setblocking(False)
    asyncio.run(body(ours, theirs))
    theirs.close()
    assert ours.fileno() == -1
    assert open_files("/memfd:sent-lot-") == 0
