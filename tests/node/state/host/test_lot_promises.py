"""Lots that a process is promised: it is lent what is ready, what comes back, and what is made for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from fake_shim import MIB
from lot_stock import LOTS, NONE_YET, PLENTY, borrower, cut, filled, watch_us, with_stock
from waiting import until

from jupyter_affinode.node.policy.resources.host_memory import with_margin
from jupyter_affinode.node.state.host import lots
from jupyter_affinode.node.state.host.lots import Borrower
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.node.system.lot_memory import make_lot
from jupyter_affinode.node.system.peers import ProcessWatch
from jupyter_affinode.settings.policy import GIB

pytestmark = pytest.mark.usefixtures("ordinary_pages")


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
    await until(lambda: len(lent) == 3)
    assert [each.bytes // MIB for _, each in lent] == [256, 256, 32]
    assert stock.promised() == {} and stock.held_bytes(7) == 544 * MIB


@with_stock()
async def test_processes_that_were_promised_lots_get_one_each_in_turn(stock):
    got = []
    stock._left_bytes = lambda: 0
    for key in (7, 8):
        stock.promise(Borrower(key, watch_us, None, lambda *_, key=key: got.append(key)), 192 * MIB)
    stock._left_bytes = lambda: 64 * MIB
    await until(lambda: not stock.promised())
    assert got == [7, 8, 7, 8, 7, 8]


@with_stock(is_shared=True)
async def test_lots_are_made_for_a_promise_where_users_are_several_and_each_is_lent_once(stock):
    """No setting says that the controller has any: what is lent for a moment counts as the user's."""
    lent, others = [], []
    await filled(stock, LOTS.changed(lot_bytes=None))
    stock.promise(promised_to(7, lent), 64 * MIB)
    await until(lambda: lent)
    ((number, lot),) = lent
    theirs = os.dup(lot.descriptor)
    os.pwrite(theirs, b"secret", 0)
    stock.promise(promised_to(8, others), 64 * MIB)
    stock.take_back(7, number)
    await until(lambda: others and cut(theirs))
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
    await until(lambda: lent)


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
    await until(lambda: stock._keeping is None)


@with_stock()
async def test_a_process_that_has_ended_or_connected_again_is_promised_nothing(stock):
    stock._left_bytes = lambda: 0
    for key in (1, 7, 8):
        stock.promise(promised_to(key, []), MIB)
    stock.follow(9, 7)
    stock.adjust(LOTS, PLENTY, {8: 0}, 0, time.monotonic())
    assert stock.promised() == {8: MIB}
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ends = Borrower(8, lambda on_end: ProcessWatch(os.pidfd_open(process.pid), on_end))
    stock.end_promise(8)
    del stock._left_bytes
    stock.promise(ends, 512 * MIB)
    await until(lambda: stock.held_bytes(8))
    stock._left_bytes = lambda: 0
    process.communicate()
    await until(lambda: stock.promised() == {})


def test_what_is_lent_never_comes_out_of_the_reserve_or_of_what_others_may_take(monkeypatch):
    """Memory comes free in steps, and no program is told of that."""
    lent, free, looks = [], [0], [0]
    reserve, parks_take = with_margin(320 * MIB), 96 * MIB

    def look():
        looks[0] += 1
        return HostMemory(64 * GIB, free[0])

    def make(size, may_take):
        assert may_take(size)
        free[0] -= size
        assert free[0] >= reserve + parks_take
        return make_lot(size, lambda size: True)

    monkeypatch.setattr(lots, "host_memory", look)
    monkeypatch.setattr(lots, "cgroup_memory", lambda pid: None)

    async def body(stock):
        settings = LOTS.changed(lot_bytes=None, host_reserve_bytes=320 * MIB)
        stock.adjust(settings, PLENTY, NONE_YET, 0, time.monotonic())
        stock.promise(promised_to(7, lent), 128 * MIB)
        for more, held in ((31, 0), (1, 32), (64, 96), (128, 128)):
            free[0] += more * MIB + (reserve + parks_take if not held and not free[0] else 0)
            seen = looks[0]
            await until(
                lambda before=seen, least=held * MIB: (
                    not stock.promised() or (looks[0] > before + 2 and stock.held_bytes(7) >= least)
                )
            )
            assert stock.held_bytes(7) == held * MIB
        assert stock.promised() == {}

    with_stock(parks_take=lambda: parks_take, make=make)(body)()
