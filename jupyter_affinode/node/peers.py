"""Who is at the other end of a Unix socket, whether that process lives, and a log line for who is dropped."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

CREDENTIALS = struct.Struct("=iII")
DROP_LINES_PER_MINUTE = 60


@dataclass(frozen=True)
class Peer:
    """The process that connected, as the kernel of the operating system says (SO_PEERCRED)."""

    pid: int  # 0 in another pid namespace
    uid: int

    @property
    def is_allowed(self) -> bool:
        """Whether it is of our own user, or root."""
        return self.uid in (os.getuid(), 0)


def peer_of(connected: socket.socket) -> Peer:
    """The peer of a connected Unix socket."""
    pid, uid, _ = CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    )
    return Peer(pid, uid)


class ProcessWatch:
    """Calls back once when a process ends, by pidfd; `closed` without a call if it could not be watched."""

    def __init__(self, pid: int, on_end: Callable[[], None]):
        """Raises ProcessLookupError if there is no such process (any more)."""
        self._descriptor = os.pidfd_open(pid)
        self._on_end = on_end
        asyncio.get_running_loop().add_reader(self._descriptor, self._ended)

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _ended(self) -> None:
        self.close()
        self._on_end()


class DropLog:
    """Counts the peers that were dropped and logs one line for each, a bounded number a minute."""

    def __init__(self, log: logging.Logger, lines_per_minute: int = DROP_LINES_PER_MINUTE):
        self.dropped = 0
        self._log = log
        self._limit = lines_per_minute
        self._minute = 0.0
        self._lines = 0

    def drop(self, what: str, why: str) -> None:
        """Record that `what` (a peer, in words) was dropped."""
        self.dropped += 1
        now = time.monotonic()
        if now - self._minute >= 60:
            if self._lines > self._limit:
                self._log.warning("%d more peers were dropped within a minute", self._lines - self._limit)
            self._minute, self._lines = now, 0
        self._lines += 1
        if self._lines <= self._limit:
            self._log.warning("dropped %s: %s", what, why)
