"""The controller's API socket: where it is, whether it can be trusted, and messages that nothing answers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket as sockets
import stat
import struct
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from .. import environment

START_LOCK_NAME = "starting.lock"
TRY_EVERY_S = 0.02
ANSWER_WITHIN_S = 10.0  # then the connection of a message is closed unanswered


class ControllerUnavailable(Exception):
    """No controller answers; the message says what was tried."""


def socket_or_default(socket: Path | None) -> Path:
    """`socket`, or the one that `environment.socket_path` finds. Raises ControllerUnavailable."""
    try:
        return environment.socket_path() if socket is None else Path(socket)
    except environment.FolderRefused as refused:
        raise ControllerUnavailable(str(refused)) from None


def make_own_folder(folder: Path) -> None:
    """Make the socket's folder, or verify that one of ours is ours alone. Raises OSError."""
    if not folder.exists() or os.stat(folder).st_uid == os.getuid():
        environment.make_folder(folder)


@contextlib.contextmanager
def one_starts(path: Path, *, until: float) -> Iterator[None]:
    """Let one thread or process at a time start a controller for `path`; the others wait, `until` then at most.

    So none starts a controller that finds the socket served, ends, and stays as a zombie. Where no lock file can be
    made, or its holder is stopped, the controllers' election decides as before.
    """
    try:
        make_own_folder(path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path.with_name(START_LOCK_NAME), flags, 0o600)
    except OSError:  # the start itself says why it cannot be
        yield
        return
    is_locked = False
    try:
        while not is_locked and not environment.listens(path) and time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_locked = True
            except BlockingIOError:
                time.sleep(TRY_EVERY_S)
        yield
    finally:
        if is_locked:  # said, since a process that was forked meanwhile has the same open file
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def refuse_other_sockets(path: Path) -> None:
    """ControllerUnavailable unless there is a socket of ours or root's."""
    try:
        status = path.stat()
    except OSError as error:
        raise ControllerUnavailable(f"no controller answers at {path}: {why(error)}") from None
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in (os.getuid(), 0):
        raise ControllerUnavailable(f"{path} is not a socket of yours or root's")


def refuse_peer(connected: Any, path: Path) -> None:
    """ControllerUnavailable unless the process that listens is ours or root's."""
    credentials = connected.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, 12)
    peer = int(struct.unpack("=iII", credentials)[1])
    if peer not in (os.getuid(), 0):
        raise ControllerUnavailable(f"{path} is answered by user {peer}, which is neither you nor root")


def authorization() -> dict[str, str]:
    """The header that shows the grant, if there is one."""
    grant = environment.grant()
    return {} if grant is None else {"Authorization": f"Bearer {grant}"}


def send_only(path: Path, method: str, target: str, body: dict[str, Any] | None = None) -> None:
    """Send one request: the answer is not awaited, and the call does not block.

    For callers whose event loop stops right afterwards, or must not be kept. A controller that is stopped reads the
    request when it goes on. Raises ControllerUnavailable if it could not be sent.
    """
    refuse_other_sockets(path)
    headers = {"Connection": "close", "Content-Type": "application/json", **authorization()}
    connected = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM | sockets.SOCK_NONBLOCK)
    request = HTTPConnection("localhost")
    request.sock = connected
    try:
        connected.connect(str(path))
        refuse_peer(connected, path)
        request.request(method, f"/api/v1{target}", json.dumps(body or {}), headers)
    except (OSError, ControllerUnavailable) as error:
        connected.close()
        if isinstance(error, ControllerUnavailable):
            raise
        raise ControllerUnavailable(f"no controller answers at {path}: {why(error)}") from None
    # The controller drops what it has not read yet of a client that hung up.
    try:
        threading.Thread(target=_hang_up, args=(connected,), name="affinode-answer", daemon=True).start()
    except RuntimeError:  # no more threads, or the interpreter ends
        connected.close()


def _hang_up(connected: sockets.socket) -> None:
    """Close a connection once the controller has answered; the body of a thread."""
    with connected, contextlib.suppress(OSError):
        connected.settimeout(ANSWER_WITHIN_S)
        while connected.recv(4096):
            pass


def why(error: BaseException) -> str:
    """An error in words."""
    return (
        os.strerror(error.errno)
        if isinstance(error, OSError) and error.errno
        else (str(error) or "timed out")
    )
