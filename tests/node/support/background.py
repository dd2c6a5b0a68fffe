"""Calls that wait, on a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_background(function: Callable[..., Any], *arguments: Any) -> threading.Thread:
    """Run something that waits; `result_of` has what it returned."""
    thread = threading.Thread(target=lambda: setattr(thread, "result", function(*arguments)), daemon=True)
    thread.start()
    return thread


def result_of(thread: Any) -> Any:
    """Wait for its end; what it returned."""
    thread.join(timeout=60)
    assert not thread.is_alive()
    return thread.result
