"""Accepting connections: a pause while descriptors are short, and a line in which each place has its turn."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import resource
import socket
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

AGAIN_S = 1.0  # after there was no descriptor
SAID_EVERY_S = 60.0
CONNECTIONS_SHARE = 0.75  # of the descriptors: the controller's own work needs some, too
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
T = TypeVar("T")


class Accepting:
    """Hands over the connections to a listening socket until `stop`. Made and used on the event loop."""

    def __init__(
        self,
        listening: socket.socket,
        take: Callable[[Any, Any], None],
        log: logging.Logger,
        *,
        in_a_turn: int,
    ):
        """Begin. `take` gets each connected socket and its address, at most `in_a_turn` in a turn of the loop."""
        self._listening = listening
        self._take = take
        self._log = log
        self._in_a_turn = in_a_turn
        self._said_at = -math.inf
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listening, self._accept)

    def stop(self) -> None:
        """Accept nothing more, and close the socket."""
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def _accept(self) -> None:
        for _ in range(self._in_a_turn):
            try:
                connected, address = self._listening.accept()
            except OSError as error:
                if error.errno in SHORT:
                    self._pause(error.errno)
                return  # none waits, or its peer is gone: the loop calls again if another does
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if connected.fileno() >= CONNECTIONS_SHARE * most:  # numbers are given from the lowest on
                connected.close()
                return self._pause(errno.EMFILE)
            self._take(connected, address)

    def _pause(self, number: int) -> None:
        """Look again later: connections stay in line, and the loop would call at once without end."""
        now = time.monotonic()
        if now - self._said_at >= SAID_EVERY_S:
            self._said_at = now
            self._log.error("no connection can be accepted at present: %s", os.strerror(number))
        self._loop.remove_reader(self._listening)
        self._loop.call_later(AGAIN_S, self._again)

    def _again(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)


class Line(Generic[T]):
    """What waits to be served: one from each place at a time, so that many from one place do not delay the others."""

    def __init__(self, serve: Callable[[T], None], *, per_s: float | None = None, at_once: float = 1.0):
        """Prepare. At most `per_s` are served in a second, `at_once` of them at once; None: as many as come."""
        self._serve = serve
        self._per_s, self._at_once = per_s, at_once
        self._credit, self._at = at_once, time.monotonic()
        self._waiting: dict[Hashable, deque[T]] = {}
        self._handle: asyncio.Handle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, place: Hashable, waiter: T) -> None:
        """Have it served when it is its place's turn."""
        self._waiting.setdefault(place, deque()).append(waiter)
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def clear(self) -> list[T]:
        """Forget and return all that wait."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None
        waiters = [each for waiting in self._waiting.values() for each in waiting]
        self._waiting.clear()
        return waiters

    def _turn(self) -> None:
        """Serve one from each place, as far as the rate allows; the places that were not served are the first then."""
        loop = asyncio.get_running_loop()
        for place in list(self._waiting):
            if not self._may_serve():
                self._handle = loop.call_later(1 / self._per_s if self._per_s else 0, self._turn)
                return
            waiting = self._waiting.pop(place)
            waiter = waiting.popleft()
            if waiting:
                self._waiting[place] = waiting
            try:
                self._serve(waiter)
            except Exception as error:  # the others would wait for ever
                loop.call_exception_handler({"message": "serving a connection failed", "exception": error})
        self._handle = loop.call_soon(self._turn) if self._waiting else None

    def _may_serve(self) -> bool:
        if self._per_s is None:
            return True
        now = time.monotonic()
        self._credit = min(self._credit + (now - self._at) * self._per_s, self._at_once)
        self._at = now
        if self._credit < 1:
            return False
        self._credit -= 1
        return True
