"""Waiting until a condition holds, in tests and scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
# What was waited for: words, or a function that is called when they are needed.
Message = "str | Callable[[], object]"


class NotInTime(AssertionError):
    """What was waited for did not come."""


def wait_until(
    condition: Callable[[], T], timeout: float = 120, message: Message = "", longest_pause_s: float = 0.1
) -> T:
    """Return the condition's first true value. Raises NotInTime after `timeout` seconds."""
    for pause_s in _pauses(timeout, longest_pause_s):
        if value := condition():
            return value
        time.sleep(pause_s)
    _give_up(condition, timeout, message, value)


async def until(condition: Callable[[], T], timeout: float = 120, message: Message = "") -> T:
    """Return the condition's first true value; the event loop runs meanwhile. Raises NotInTime."""
    for pause_s in _pauses(timeout, 0.02):
        if value := condition():
            return value
        await asyncio.sleep(pause_s)
    _give_up(condition, timeout, message, value)


def _pauses(timeout: float, longest_s: float) -> Iterator[float]:
    """Yield the pause after each look. One look comes after the end, since the process may have been stopped."""
    end, pause_s, is_over = time.monotonic() + timeout, min(0.005, longest_s), False
    while not is_over:
        is_over = time.monotonic() > end
        yield pause_s
        pause_s = min(pause_s * 1.5, longest_s)


def _give_up(condition: Callable[[], Any], timeout: float, message: Message, value: object) -> NoReturn:
    words = message() if callable(message) else message
    raise NotInTime(f"not within {timeout:g} s: {words or condition}; the last value was {value!r}")
