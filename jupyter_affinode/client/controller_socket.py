"""The controller's API socket: where it is, whether it can be trusted, and what shows whose a request is."""

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
    """`socket`, or the one that `environment.socket_path` finds. Raises ControllerUnavailable."""
    try:
        return environment.socket_path() if socket is None else Path(socket)
    except environment.FolderRefused as refused:
        raise ControllerUnavailable(str(refused)) from None


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
