"""The process at the other end of a Unix socket: who it is, whether it lives, and a log line if it is dropped."""

from __future__ import annotations

import array
import asyncio
import errno
import logging
import os
import select
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STARTED = 22 - 3  # proc_pid_stat(5): the 22nd field; the first two end with the last parenthesis
CREDENTIALS = struct.Struct("=iII")
SO_PEERGROUPS = 59  # Linux 4.13; not in Python's socket module
SO_PEERPIDFD = 77  # Linux 6.5
GROUPS_MAX = 256  # the most that Python's getsockopt takes
DROP_LINES_PER_MINUTE = 60
PLACE_LASTS_S = 1.0
PLACES_REMEMBERED = 4096
T = TypeVar("T")


@dataclass(frozen=True)
class Peer:
    """The process that connected, as the operating system reports it (SO_PEERCRED).

    Fixed when it connected: it may have passed the socket to another process since.
    """

    pid: int  # 0 in a pid namespace that is not below ours
    uid: int
    gid: int = -1

    @property
    def is_own_user(self) -> bool:
        """Return whether it is of our own user, or root."""
        return self.uid in (os.getuid(), 0)


def peer_of(connected: socket.socket) -> Peer:
    """Return the peer of a connected Unix socket."""
    return Peer(
        *CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    )


def groups_of(connected: socket.socket, peer: Peer) -> frozenset[int]:
    """Return the groups that the peer was in when it connected; its first alone if the system does not tell, or they
    are too many.
    """
    try:
        raw = connected.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_MAX * 4)
    except OSError:
        raw = b""
    return frozenset([peer.gid, *array.array("I", raw)])


def pidfd_of(connected: socket.socket, peer: Peer) -> int:
    """Return a pidfd of the process that connected. Raises OSError if it has ended, or cannot be seen."""
    try:
        return int(struct.unpack("=i", connected.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))[0])
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT or peer.pid <= 0:
            raise
    return os.pidfd_open(peer.pid)  # an older Linux: for a moment the number could change hands


def is_beside_us(connected: socket.socket, peer: Peer) -> bool:
    """Return whether the peer lives in our own pid namespace: in no container, or in the same one.

    Its pid alone proves nothing, since it may be another's by now. False if the system cannot tell.
    """
    if peer.pid <= 0:
        return False
    try:
        descriptor = pidfd_of(connected, peer)
    except OSError:
        return False
    try:
        levels = _status_of(peer.pid).get("NSpid", "").split()
        return levels == [str(peer.pid)] and _lives(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)


class Place(NamedTuple):
    """Where a peer runs, as far as that can be seen: it tells containers of one user id apart. The parts are in the
    order in which it becomes easier to have several.
    """

    uid: int
    cgroup: str = ""
    namespace: str = ""  # of process ids


def oldest_of_largest_user(connections: Mapping[T, tuple[object, ...]]) -> T | None:
    """Return the oldest connection of the user who has the most, in that user's fullest place.

    A user who makes places by the dozen (cgroups, own namespaces) displaces only their own connections. Places are
    `Place`s or other tuples, whose parts are in the same order.
    """
    left = list(connections.items())
    for parts in range(1, 1 + max((len(place) for _, place in left), default=0)):
        counts = Counter(place[:parts] for _, place in left)
        fullest = counts.most_common(1)[0][0]
        left = [each for each in left if each[1][:parts] == fullest]
    return left[0][0] if left else None


_places: dict[Peer, tuple[Place, float]] = {}


def place_of(peer: Peer) -> Place:
    """Return where the peer runs; looked up once a second, since a process may connect thousands of times."""
    if peer.pid <= 0:
        return Place(peer.uid)
    now = time.monotonic()
    known = _places.get(peer)
    if known is not None and now - known[1] < PLACE_LASTS_S:
        return known[0]
    if len(_places) >= PLACES_REMEMBERED:
        _places.clear()
    place = _place_now(peer)
    _places[peer] = place, now
    return place


def _place_now(peer: Peer) -> Place:
    try:
        cgroup = Path(f"/proc/{peer.pid}/cgroup").read_text(errors="replace")[:4096]
    except OSError:
        cgroup = ""
    return Place(peer.uid, cgroup, pid_namespace_of(peer.pid))


def pid_namespace_of(pid: int) -> str:
    """Return the namespace in which a process sees pids; "" if that cannot be seen."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") if pid > 0 else ""
    except OSError:
        return ""


def parent_of(pid: int) -> int | None:
    """Return a process's parent now, another one than before if that has ended; None if it cannot be seen."""
    try:
        return int(_state_and_parent(pid)[1])
    except (OSError, IndexError, ValueError):
        return None


def user_of(pid: int) -> int | None:
    """Return the user id that a process runs as; None if it cannot be seen."""
    try:
        return int(_status_of(pid)["Uid"].split()[1]) if pid > 0 else None
    except (OSError, LookupError, ValueError):
        return None


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped now, by a signal or by its debugger; False if it cannot be seen."""
    try:
        return _state_and_parent(pid)[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def _state_and_parent(pid: int) -> list[bytes]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read(4096).rpartition(b")")[2].split(None, 2)  # "… (name) state parent …"


def _lives(descriptor: int) -> bool:
    """Return whether the process behind a pidfd has not ended: so its pid was its own until now."""
    watch = select.poll()
    watch.register(descriptor, select.POLLIN)
    return not watch.poll(0)


def _status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


class ProcessWatch:
    """Calls back once when a process ends."""

    def __init__(self, descriptor: int, on_end: Callable[[], None]):
        """Take the process's pidfd over."""
        self._descriptor = descriptor
        self._on_end = on_end
        asyncio.get_running_loop().add_reader(self._descriptor, self._ended)

    def send(self, number: int) -> None:
        """Send a signal to this process and no other. Raises ProcessLookupError, PermissionError."""
        if self._descriptor < 0:
            raise ProcessLookupError("it has ended")
        signal.pidfd_send_signal(self._descriptor, number)

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
    """Logs one line for each peer that was dropped, a bounded number a minute."""

    def __init__(self, log: logging.Logger, lines_per_minute: int = DROP_LINES_PER_MINUTE):
        self._log = log
        self._limit = lines_per_minute
        self._minute = 0.0
        self._lines = 0

    def drop(self, what: str, why: str) -> None:
        """Log that `what` (a peer, in words) was dropped."""
        now = time.monotonic()
        if now - self._minute >= 60:
            if self._lines > self._limit:
                self._log.warning("%d more peers were dropped within a minute", self._lines - self._limit)
            self._minute, self._lines = now, 0
        self._lines += 1
        if self._lines <= self._limit:
            self._log.warning("dropped %s: %s", what, why)


def started_at(pid: int, default: float) -> float:
    """Return the start time in seconds since boot, which a restarted controller still agrees with; `default` for a
    process that cannot be seen (another pid namespace).
    """
    if pid <= 0:
        return default
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[STARTED]) / TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return default
