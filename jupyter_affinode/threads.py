"""Work beside an event loop that may be stopped, closed or forked at any time, and how it is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

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


async def joined(work: Awaitable[T]) -> T:
    """Wait for work that goes on when it is cancelled, as a thread's, also where the caller is cancelled meanwhile.

    Else it would go on beside what the next work does, and remove what that has made.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise


async def ended(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task, and return once it has ended.

    Before Python 3.12 `asyncio.wait_for` swallows a cancellation that comes together with what it waits for.
    """
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
