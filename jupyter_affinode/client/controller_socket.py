"""The controller's API socket: where it is, whether it can be trusted, and how a request shows its user."""

from __future__ import annotations

import os
import socket as sockets
import stat
import struct
from pathlib import Path
from typing import Any

from .. import environment
from .errors import ControllerUnavailable, why


def socket_or_default(socket: Path | None) -> Path:
    """Return `socket`, or the one that `environment.socket_path` finds. Raises ControllerUnavailable."""
    try:
        return environment.socket_path() if socket is None else Path(socket)
    except environment.FolderRefused as refused:
        raise ControllerUnavailable(str(refused)) from None


def refuse_other_sockets(path: Path) -> None:
    """Raise ControllerUnavailable unless there is a socket of this user's or root's."""
    try:
        status = path.stat()
    except OSError as error:
        raise ControllerUnavailable(f"no controller answers at {path}: {why(error)}") from None
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in (os.getuid(), 0):
        raise ControllerUnavailable(f"{path} is not a socket of yours or root's")


def connect_in_line(connecting: sockets.socket, path: Path, wait_s: float) -> None:
    """Connect a non-blocking socket, and wait up to that long for a place in the listener's queue. Raises
    BlockingIOError.

    A client that only tries now and then may find the queue full each time if other clients connect all the time.
    Linux serves blocking connect(2) calls in order, so the socket is made blocking meanwhile.
    """
    if wait_s > 0:
        seconds, microseconds = divmod(max(int(wait_s * 1e6), 1), 1_000_000)  # 0 would mean no limit
        timeout = struct.pack("@ll", seconds, microseconds)
        connecting.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDTIMEO, timeout)
        connecting.setblocking(True)
    try:
        connecting.connect(str(path))
    finally:
        connecting.setblocking(False)


def refuse_peer(connected: Any, path: Path) -> None:
    """Raise ControllerUnavailable unless the process that listens is this user's or root's."""
    credentials = connected.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, 12)
    peer = int(struct.unpack("=iII", credentials)[1])
    if peer not in (os.getuid(), 0):
        raise ControllerUnavailable(f"{path} is answered by user {peer}, which is neither you nor root")


def authorization() -> dict[str, str]:
    """Return the header that shows the grant, if there is one."""
    grant = environment.grant()
    return {} if grant is None else {"Authorization": f"Bearer {grant}"}
