"""Names of users and groups, which a directory server may have to be asked for: on a thread, and never waited for long.

A server that does not answer delays a lookup for many seconds, and all kernels would wait for it.
"""

from __future__ import annotations

import grp
import os
import pwd
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

WAIT_S = 0.2  # for the first answer about a user, while the directory is not known to be slow
REMEMBERED = 4096
GROUPS_LAST_S = 300.0  # a user's groups are looked up again after that
NAMES_LAST_S = 3600.0
FAILED_LASTS_S = 30.0  # the server may be back by then, or the account made

Key = TypeVar("Key", int, str)
Value = TypeVar("Value")


class Directory(Generic[Key, Value]):
    """Answers with what was found last, and looks again in the background when that is old."""

    def __init__(self, find: Callable[[Key], Value], unknown: Callable[[Key], Value], lasts_s: float):
        """Prepare. `find` blocks; `unknown` is the answer until it has returned."""
        self._find: Callable[[Key], Value] = find
        self._unknown: Callable[[Key], Value] = unknown
        self._lasts_s = lasts_s
        self._found: OrderedDict[Key, tuple[Value, float]] = OrderedDict()  # and until when it is not old
        self._lock = threading.Lock()
        self._asked: dict[Key, threading.Event] = {}
        self._orders: queue.SimpleQueue[Key] = queue.SimpleQueue()
        self._is_slow = False
        self._thread: threading.Thread | None = None

    def __call__(self, key: Key) -> Value:
        """Return what is known, after a short wait at the most."""
        with self._lock:
            known = self._found.get(key)
            if known is not None and time.monotonic() < known[1]:
                return known[0]
            done = self._ask(key)
        if known is not None:
            return known[0]
        if not self._is_slow:
            self._is_slow = not done.wait(WAIT_S)
        with self._lock:
            known = self._found.get(key)
        return self._unknown(key) if known is None else known[0]

    def _ask(self, key: Key) -> threading.Event:
        done = self._asked.get(key)
        if done is None:
            done = self._asked[key] = threading.Event()
            self._orders.put(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="affinode-directory", daemon=True)
                self._thread.start()
        return done

    def _work(self) -> None:
        """Look names up; runs on the thread."""
        while True:
            key, lasts_s = self._orders.get(), self._lasts_s
            try:
                value = self._find(key)
            except Exception:
                # a server that is down knows no user either: what was known is good until the next lookup
                with self._lock:
                    known = self._found.get(key)
                value = self._unknown(key) if known is None else known[0]
                lasts_s = min(lasts_s, FAILED_LASTS_S)
            with self._lock:
                self._found[key] = value, time.monotonic() + lasts_s
                self._found.move_to_end(key)
                if len(self._found) > REMEMBERED:
                    self._found.popitem(last=False)
                self._asked.pop(key).set()
                self._is_slow = bool(self._asked)


def _groups_of(user: str) -> tuple[str, ...]:
    ids = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    return tuple(name for name in map(_group_name, ids) if name is not None)


def _group_name(gid: int) -> str | None:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return None


groups_of: Directory[str, tuple[str, ...]] = Directory(_groups_of, lambda user: (), GROUPS_LAST_S)
uid_of: Directory[str, int | None] = Directory(
    lambda name: pwd.getpwnam(name).pw_uid, lambda name: None, NAMES_LAST_S
)
name_of: Directory[int, str] = Directory(lambda uid: pwd.getpwuid(uid).pw_name, str, NAMES_LAST_S)
