"""Lots: lent to one user's processes, counted until those end, cut only where no process has them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from fake_shim import LOT, LOT_END, MIB, PARK, notify
from lot_stock import LOTS, NONE_YET, PLENTY, allocated, borrower, cut, filled, watch_us, with_stock
from waiting import until

from jupyter_affinode.node.policy.resources.host_memory import with_margin
from jupyter_affinode.node.state.host import lots
from jupyter_affinode.node.state.host.lots import AGAIN_AFTER_S, UNWANTED_S, lot_size, small_lot_size
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.node.system.lot_memory import LotFailed, make_lot
from jupyter_affinode.node.system.peers import ProcessWatch
from jupyter_affinode.settings.policy import GIB

pytestmark = pytest.mark.usefixtures("ordinary_pages")
IDLE = {"park_when": "idle", "idle_timeout_s": 0.3}


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


@with_stock()
async def test_the_stock_is_filled_up_to_its_bound_and_no_further(stock):
    await filled(stock)
    assert stock.ready_bytes == 64 * MIB
    stock.give(borrower(1), 1)
    await filled(stock)
    assert (stock.ready_bytes, stock.given_bytes) == (0, 64 * MIB)  # what is given counts


@pytest.mark.parametrize("is_shared, processes", [(False, 2), (True, 1)])
def test_what_registering_the_lots_will_take_is_left_free(monkeypatch, is_shared, processes):
    """Each process that keeps a lot registers it; a lot of a controller of all users is lent to one."""
    lot, left = 256 * MIB, GIB
    allowed = []

    def make(size, may_take):
        allowed.append(next(most for most in range(left, 0, -lot // 100) if may_take(most)))
        return replace(make_lot(32 * MIB, lambda size: True), bytes=size)  # little of it is there

    monkeypatch.setattr(lots, "host_memory", lambda: HostMemory(64 * GIB, left))
    monkeypatch.setattr(lots, "cgroup_memory", lambda pid: None)

    async def body(stock):
        await filled(stock, LOTS.changed(lot_bytes=lot))
        await filled(stock, LOTS.changed(lot_bytes=2 * lot))
        for key in range(1, processes + 1):  # a lot each, so that they lack as many registrations
            stock.give(borrower(key), 1)
        await filled(stock, LOTS.changed(lot_bytes=3 * lot))
        takes = lot // 100
        assert allowed == pytest.approx([left, left - processes * takes, left - processes * takes], abs=16)

    with_stock(is_shared=is_shared, make=make)(body)()


@with_stock()
async def test_a_process_that_has_ended_has_no_lot_mapped(stock):
    ends = []

    def watch(on_end):
        ends.append(on_end)
        return watch_us(on_end)

    await filled(stock)
    stock.give(borrower(1, watch, forget=lambda lot: None), 1)
    stock.take_back(1, 1)
    (stocked,) = stock.ready
    assert stocked.mapped_by == {1}
    ends[0]()
    assert stocked.mapped_by == set()


@with_stock()
async def test_lots_of_an_earlier_controller_count_too(stock):
    stock.adjust(LOTS, PLENTY, {1: 32 * MIB}, 0, time.monotonic())
    assert stock._making is None


@with_stock()
async def test_under_pressure_what_was_not_handed_out_is_given_back(stock):
    await filled(stock)
    stock.adjust(LOTS.changed(host_reserve_bytes=GIB), HostMemory(64 * GIB, GIB - MIB), {}, 0, 0.0)
    assert stock.ready_bytes == 0
    assert stock._making is None or not await stock._making


@with_stock()
async def test_where_half_of_the_margin_is_gone_all_of_it_is_made_free_again(stock):
    settings = LOTS.changed(lot_bytes=512 * MIB, host_reserve_bytes=GIB)
    margin = with_margin(GIB) - GIB
    await filled(stock, settings)
    assert stock.ready_bytes == 512 * MIB
    short = GIB + margin // 2 - 1
    # The last: the host does not show it yet.
    for available, ready in ((GIB + margin // 2, 512 * MIB), (short, 256 * MIB), (short, 256 * MIB)):
        stock.adjust(settings, HostMemory(64 * GIB, available), NONE_YET, 0, time.monotonic())
        assert stock.ready_bytes == ready
    if stock._making is not None:
        await stock._making


@with_stock()
async def test_a_smaller_bound_gives_back_what_is_over_it(stock):
    await filled(stock)
    stock.adjust(LOTS.changed(lot_bytes=0), PLENTY, {}, 0, time.monotonic())
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
    await until(lambda: cut(theirs))
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
    await until(lambda: cut(theirs))
    os.close(theirs)


@with_stock()
async def test_a_lot_that_is_lent_is_never_cut_for_want_of_room(stock):
    await filled(stock)
    ((_, lot),) = stock.give(borrower(7, forget=lambda lot: None), 10 * MIB)
    stock.make_room(64 * GIB, HostMemory(64 * GIB, 0))
    stock.adjust(LOTS.changed(lot_bytes=0, host_reserve_bytes=GIB), HostMemory(64 * GIB, 0), NONE_YET, 0, 1e9)
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
        stock.adjust(auto, PLENTY, NONE_YET, wanted, now + later)
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


@with_stock(is_shared=True)
async def test_links_of_one_process_share_a_bound_and_users_the_stock(stock):
    def link(key, pid, user="a", gpu=60 * MIB):
        return replace(borrower(key), pid=pid, user=user, most_bytes=gpu)

    async def lent(*links):
        await filled(stock, settings, mapped=dict.fromkeys(range(99), 0), users=2)
        return [sum(lot.bytes for _, lot in stock.give(each, GIB)) // MIB for each in links]

    settings = replace(LOTS, lot_bytes=512 * MIB)
    assert await lent(link(1, 10), link(2, 10), link(3, 10)) == [256, 0, 0]
    assert await lent(link(4, 11)) == [0]  # its user has half of the stock
    assert await lent(link(5, 12, "b")) == [256]
    stock.take_back(5, 1)
    assert await lent(link(6, 12, "b", 0)) == [0]  # lent a moment ago, four times what it has


@with_stock(is_shared=True)
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
async def test_lots_of_an_earlier_link_are_freed_when_their_process_unmaps_them(stock):
    """On a user's own controller: the process alone keeps them, and its page counts."""
    forgotten = []
    await filled(stock)
    stock.give(borrower(7, forget=forgotten.append), MIB)
    stock.take_back(7, 1)
    ((_, lot),) = stock.give(borrower(1), MIB)
    theirs = os.dup(lot.descriptor)
    os.pwrite(theirs, b"tensors", 0)
    stock.follow(8, 1)
    assert descriptors_of(theirs) == 1
    assert (forgotten, os.pread(theirs, 7, 0)) == ([lot], b"tensors")
    in_use = {7: 0, 8: 64 * MIB}
    assert (stock.given_bytes, stock.earlier_bytes(in_use)) == (0, 64 * MIB)
    await filled(stock, mapped=in_use)
    assert stock.ready_bytes == 0
    os.close(theirs)
    await filled(stock, mapped={7: 0, 8: 0})
    assert stock.ready_bytes == 64 * MIB


@with_stock()
async def test_a_process_that_connects_again_hears_on_its_new_link_what_to_unmap(stock):
    before, heard = [], []
    await filled(stock)
    stock.give(borrower(1, forget=before.append), MIB)
    stock.take_back(1, 1)
    stock.follow(2, 1)
    ((number, lot),) = stock.give(borrower(2, forget=heard.append), MIB)
    stock.take_back(2, number)
    stock.make_room(MIB, HostMemory(64 * GIB, 0))
    assert (before, heard) == ([], [lot])


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
    await until(lambda: cut(theirs))
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
        stock.adjust(LOTS, PLENTY, {}, 0, time.monotonic())
        assert len(tries) == 1 and stock._making is None
        stock.adjust(LOTS, PLENTY, {}, 0, time.monotonic() + AGAIN_AFTER_S + 1)
        await stock._making
        assert len(tries) == 2

    with_stock(make=fail)(body)()


def descriptors_of(descriptor):
    """How many descriptors this process has of a file."""
    file, found = os.fstat(descriptor), 0
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            found += os.path.samestat(os.fstat(number), file)
    return found


# ---- over the link


def test_a_kernel_gets_lots_before_it_is_parked_and_gives_them_back(node, shim, wait_until):
    machine = node(lot_bytes=64 * MIB, **IDLE)
    wait_until(lambda: machine.node()["host"]["lots"]["ready_bytes"] == 64 * MIB)
    kernel = shim("k", resident=100 * MIB)
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


def test_a_process_that_hangs_up_keeps_its_lots(node, shim, wait_until):
    machine = node(lot_bytes=64 * MIB, **IDLE)
    wait_until(lambda: machine.node()["host"]["lots"]["ready_bytes"] == 64 * MIB)
    kernel = shim("k", resident=100 * MIB)
    wait_until(lambda: kernel.heard.lots and kernel.heard.of(PARK))
    theirs = os.dup(kernel.heard.lots[1])
    kernel._socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: not machine.kernel("k")["tracked"])
    kernel.page.lots = 64 * MIB
    shim("k", page=kernel.page)
    wait_until(lambda: machine.node()["host"]["lots"]["given_bytes"] == 64 * MIB)
    assert (os.fstat(theirs).st_size, machine.node()["host"]["lots"]["ready_bytes"]) == (64 * MIB, 0)
    os.close(theirs)


def test_a_park_is_told_how_much_host_memory_it_may_take(node, shim, wait_until):
    machine = node(**{**IDLE, "park_when": "needed"})
    kernels = [shim("k", resident=size) for size in (100 * MIB, 300 * MIB)]
    machine.ask("PATCH", "/policy", {"park_when": "idle"})  # else the first could be parked alone
    wait_until(lambda: all(kernel.heard.of(PARK) for kernel in kernels))
    host = machine.node()["host"]
    budgets = [kernel.heard.of(PARK)[0].argument >> 8 for kernel in kernels]
    assert 2.9 < budgets[1] / budgets[0] < 3.1
    assert 0.5 * host["available_bytes"] < sum(budgets) * MIB < 1.5 * host["available_bytes"]
