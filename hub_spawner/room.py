"""Ask a machine's controller for room on the Hub's event loop; each failure is returned as an answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from jupyter_affinode import environment
from jupyter_affinode.client.api import ControllerClient, ControllerRefused, ControllerUnavailable

AT_ONCE = 8  # connections without an answer yet: the controller drops the oldest of too many, as in a flood
CANCELLED_AGAIN_S = 0.1
GRACE_S = 5.0  # how much later than its own time-out the controller's last word may come


T = TypeVar("T")
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


@dataclass(frozen=True)
class Answer:
    """How a request for room ended: `state` is "done", "refused", or "unanswered" (there is no controller)."""

    state: str
    text: str
    code: str = ""
    place: int | None = None


def controller_socket(named: str) -> Path:
    """Return the socket that the Hub asks: the named one, or the machine's, but never that of a user's own
    controller."""
    return Path(named or os.environ.get(environment.SOCKET) or environment.NODE_SOCKET)


async def ask_for_room(
    client: ControllerClient,
    size: int,
    *,
    user: str,
    priority: int,
    timeout_s: float,
    tell: Callable[[dict[str, Any]], None],
) -> Answer:
    """Wait until there is room for `size` bytes, or `timeout_s` are over; `tell` gets each line of the controller's.

    Cancelling it withdraws the request at once, as does the end of the Hub's process.
    """
    slots = _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))
    lines = client.room(size, user=user, priority=priority or None, timeout_s=timeout_s)
    deadline = time.monotonic() + timeout_s + GRACE_S
    line: dict[str, Any] = {}
    try:
        async with contextlib.aclosing(lines):
            async with slots:
                line = await _until(deadline, anext(lines))
            while line["state"] == "waiting":
                tell(line)
                line = await _until(deadline, anext(lines))
    except (ControllerUnavailable, ControllerRefused) as error:
        return Answer("unanswered", str(error))
    except StopAsyncIteration:
        return Answer("unanswered", "the GPU's controller ended")
    except asyncio.TimeoutError:  # the Hub would report it as its own start_timeout
        return Answer("unanswered", f"the controller at {client.socket} does not answer")
    return Answer(line["state"], line["text"], line["code"], line["place"])


async def _until(deadline: float, awaitable: Awaitable[T]) -> T:
    """Return the result of an awaitable by the deadline. Raises asyncio.TimeoutError, and CancelledError at once.

    Before Python 3.12 `asyncio.wait_for` may lose a cancellation that comes together with the result; the Hub gives a
    spawn one second to end.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({task}, timeout=max(deadline - time.monotonic(), 0.0))
        if task.done():
            return task.result()
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCELLED_AGAIN_S)
    raise asyncio.TimeoutError
