"""Asks the machine's controller for room on the Hub's event loop; what goes wrong is an answer, never an error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_affinode import environment
from jupyter_affinode.client.api import ControllerClient, ControllerRefused, ControllerUnavailable

GRACE_S = 5.0  # how much later than its own time-out the controller's last word may come


@dataclass(frozen=True)
class Answer:
    """How a request for room ended: `state` is "done", "refused", or "unanswered" (there is no controller)."""

    state: str
    text: str
    code: str = ""
    place: int | None = None


def controller_socket(named: str) -> Path:
    """Return the socket that the Hub asks: the one that is named, or the machine's; never that of a user's own."""
    return Path(named or os.environ.get(environment.SOCKET) or environment.NODE_SOCKET)


async def ask_for_room(
    socket: Path,
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
    lines = ControllerClient(socket).room(size, user=user, priority=priority or None, timeout_s=timeout_s)
    deadline = time.monotonic() + timeout_s + GRACE_S
    line: dict[str, Any] = {}
    try:
        async with contextlib.aclosing(lines):
            while line.get("state", "waiting") == "waiting":
                line = await asyncio.wait_for(anext(lines), max(deadline - time.monotonic(), 0.0))
                if line["state"] == "waiting":
                    tell(line)
    except (ControllerUnavailable, ControllerRefused) as error:
        return Answer("unanswered", str(error))
    except StopAsyncIteration:
        return Answer("unanswered", "the GPU's controller ended")
    except asyncio.TimeoutError:  # the Hub would report it as its own start_timeout
        return Answer("unanswered", f"the controller at {socket} does not answer")
    return Answer(line["state"], line["text"], line["code"], line["place"])
