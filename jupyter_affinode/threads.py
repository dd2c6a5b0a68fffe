"""Blocking work beside an event loop that may be stopped, closed or forked at any time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def on_own_thread(work: Callable[[], T], *, timeout_s: float | None) -> T:
    """Run `work` on a thread of its own and return its result; asyncio.TimeoutError after `timeout_s`, if one is given.

    For loops of other packages. jupyter_client keeps one loop for each thread that starts kernels, and a forked
    process uses its parent's again. `asyncio.to_thread` would use the loop's executor. A fork does not copy the
    executor's threads, so the child would wait for ever; and these threads keep the loop of an ended thread alive.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # a time-out does not cancel it: the thread goes on

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=run, name="affinode-work", daemon=True).start()
    return await asyncio.wait_for(asyncio.wrap_future(done), timeout_s)
