"""Passes leave the loop as much time as they take, and one that is due is not made twice."""

from __future__ import annotations

import asyncio
import time

from jupyter_affinode.node.pacing import Pacing

PASS_S = 0.02


def test_after_a_pass_all_else_has_as_much_time_as_it_took_however_much_news_there_is():
    began, lasted, gaps = [], [], []

    async def run() -> None:
        done = asyncio.Event()

        def make_pass() -> None:
            now = time.monotonic()
            if began:
                gaps.append(now - began[-1] - lasted[-1])
            pacing.begin(now)
            pacing.poke()  # its own actions are news
            time.sleep(PASS_S)
            lasted.append(time.monotonic() - now)
            began.append(now)
            pacing.end()
            pacing.poke()
            if len(began) == 6:
                done.set()

        pacing = Pacing(asyncio.get_running_loop(), make_pass)
        pacing.poke()
        await done.wait()

    asyncio.run(run())
    assert all(gap >= PASS_S - 0.002 for gap in gaps), gaps


def test_a_tick_makes_no_pass_where_one_is_due_anyway():
    passes = []

    async def run() -> None:
        def make_pass() -> None:
            pacing.begin(time.monotonic())
            passes.append(1)
            pacing.end()

        pacing = Pacing(asyncio.get_running_loop(), make_pass)
        pacing.poke()
        assert pacing.is_quiet(time.monotonic(), lambda now: (True, ()), waits=False)
        while not passes:
            await asyncio.sleep(0)

    asyncio.run(run())
    assert passes == [1]
