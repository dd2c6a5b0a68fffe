"""A stock of lots for one test, and what to look at in it."""

from __future__ import annotations

import asyncio
import logging
import os
import time

from fake_shim import MIB
from open_files import open_files

from jupyter_affinode.node.state.host.lots import Borrower, LotStock
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.node.system.peers import ProcessWatch
from jupyter_affinode.settings.policy import GIB, Settings

LOTS = Settings(lot_bytes=64 * MIB, host_reserve_bytes=0)
PLENTY = HostMemory(64 * GIB, 32 * GIB)
NONE_YET = {1: 0, 7: 0, 8: 0}  # the processes of these tests, by key: bytes in lots that they have mapped


def descriptors():
    """How many lots and processes this process has descriptors of; others come and go."""
    return open_files("/memfd:affinode-lot", "/affinode-lot", "anon_inode:[fscontext]", "anon_inode:[pidfd]")


def allocated(descriptor):
    """How much memory is behind a file."""
    return os.fstat(descriptor).st_blocks * 512


def watch_us(on_end):
    """The watch on a process that lives on."""
    return ProcessWatch(os.pidfd_open(os.getpid()), on_end)


def borrower(key, watch=watch_us, forget=None):
    """One of a user's processes."""
    return Borrower(key, watch, forget)


def cut(descriptor):
    """Whether a lot's memory has been taken back."""
    return os.fstat(descriptor).st_size == 0


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


async def filled(stock, settings=LOTS, host=PLENTY, mapped=NONE_YET, wanted=0, users=1):
    """Look until the stock is full."""
    while True:
        stock.adjust(settings, host, mapped, wanted, time.monotonic(), users)
        if stock._making is None:
            return
        await stock._making
