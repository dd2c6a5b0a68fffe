"""Closes descriptors from peers on threads, so that a close that blocks delays only its sender.

A last close can block for as long as the sender of the descriptor likes: a TCP socket lingers over unsent data, a Unix
socket has such a one in its queue, a file system in user space does not answer FLUSH. The first two end at a signal;
the third is left to its thread, and others are served by another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

SCM_MAX_FD = 253  # the most descriptors of one message, net/scm.h
INTERRUPT_AFTER_S = 0.02
STUCK_AFTER_S = 1.0  # when even a signal does not end it
THREADS_MAX = 64
OWED_MAX = 1024  # more than one sender's processes have when they all end at once
INTERRUPT = signal.SIGURG  # ignored by default, so that it does no harm where nothing handles it


def let_closes_be_interrupted() -> None:
    """Make INTERRUPT end a system call that blocks; on the main thread."""
    signal.signal(INTERRUPT, lambda number, frame: None)


@dataclass(eq=False)
class _Thread:
    """One thread and its present system call, which began at `since`; None between two."""

    thread: threading.Thread
    since: float | None = None


class Closing:
    """Descriptors to be closed, by sender. Made and used on the event loop."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[Hashable, list[int]] = {}  # the sender that has waited longest first
        self._owed: Counter[Hashable] = Counter()  # those that wait and those that are being closed
        self._served: set[Hashable] = set()  # one thread each, so that a sender can block no more than one
        self._threads: list[_Thread] = []
        self._loop = asyncio.get_running_loop()
        self._interrupt_handle: asyncio.TimerHandle | None = None

    def close(self, sender: Hashable, descriptors: Iterable[int]) -> None:
        """Close descriptors that came from `sender`, soon; an error of one does not concern the others."""
        given = list(descriptors)
        if not given:
            return
        with self._changed:
            self._waiting.setdefault(sender, []).extend(given)
            self._owed[sender] += len(given)
            if not self._threads:
                self._start_thread()
            self._changed.notify()
        if self._interrupt_handle is None:
            self._interrupt_handle = self._loop.call_later(INTERRUPT_AFTER_S, self._interrupt_stuck)

    def __len__(self) -> int:
        """Return how many are not closed yet."""
        with self._changed:
            return sum(self._owed.values())

    def is_behind(self, sender: Hashable) -> bool:
        """Return whether so much of a sender's is not closed yet that no more should be taken from it."""
        return self._owed[sender] > OWED_MAX

    def stop(self) -> None:
        """Stop looking; what blocks ends with the process."""
        if self._interrupt_handle is not None:
            self._interrupt_handle.cancel()

    def _interrupt_stuck(self) -> None:
        """Interrupt what blocks; if everything does, start another thread for the other senders."""
        now = time.monotonic()
        with self._changed:
            blocked = [each for each in self._threads if each.since is not None]
            for each in blocked:
                if each.since is not None and now - each.since >= INTERRUPT_AFTER_S:
                    assert each.thread.ident is not None
                    signal.pthread_kill(each.thread.ident, INTERRUPT)
            stuck = [each for each in blocked if each.since is not None and now - each.since >= STUCK_AFTER_S]
            if self._waiting.keys() - self._served and len(stuck) == len(self._threads) < THREADS_MAX:
                self._start_thread()
            self._interrupt_handle = None
            if self._owed:
                self._interrupt_handle = self._loop.call_later(INTERRUPT_AFTER_S, self._interrupt_stuck)

    def _start_thread(self) -> None:
        started = _Thread(threading.Thread(target=lambda: self._work(started), name="closing", daemon=True))
        with contextlib.suppress(RuntimeError):  # there can be none now: the next look tries again
            started.thread.start()
            self._threads.append(started)

    def _work(self, thread: _Thread) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting.keys() - self._served)
                sender = next(each for each in self._waiting if each not in self._served)
                descriptors = self._waiting.pop(sender)
                self._served.add(sender)
            try:
                self._close(thread, descriptors)
            finally:
                with self._changed:
                    self._served.remove(sender)
                    self._owed[sender] -= len(descriptors)
                    if not self._owed[sender]:
                        del self._owed[sender]

    def _close(self, thread: _Thread, descriptors: list[int]) -> None:
        """Close each; the last reference to all of them is in a socket, so that one signal ends all that block."""
        with contextlib.ExitStack() as last:
            with contextlib.suppress(OSError):  # out of descriptors: each blocks by itself then
                inner, outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
                last.callback(self._call, thread, outer.close)
                last.callback(self._call, thread, inner.close)
                inner.setblocking(False)
                for at in range(0, len(descriptors), SCM_MAX_FD):
                    socket.send_fds(inner, [b"x"], descriptors[at : at + SCM_MAX_FD])
            for descriptor in descriptors:
                self._call(thread, os.close, descriptor)

    def _call(self, thread: _Thread, call: object, *arguments: object) -> None:
        thread.since = time.monotonic()
        with contextlib.suppress(OSError):
            call(*arguments)  # type: ignore[operator]
        thread.since = None
