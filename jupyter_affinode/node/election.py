"""Who serves: one controller for a socket, and one for each GPU, by locks held for life.

A lock is held by an open file, so it ends with its process however that ends; the files stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from .. import environment
from .handover import serves_gpu

LOCK_NAME = "node.lock"


class AlreadyServed(Exception):
    """Another controller serves this socket; `holder` says who."""

    def __init__(self, path: Path):
        self.holder = _holder(path)
        super().__init__(f"{path.parent} is served already, by {self.holder}")


class GpuServed(Exception):
    """Another controller, of another socket, serves this GPU; the message says who."""


class Election:
    """The locks of one controller."""

    def __init__(self, socket: Path, gpu_folder: Path | None = None, *, is_machines: bool = False):
        """`gpu_folder` is one for all controllers of the user, whatever their sockets. `is_machines`: this is the
        controller of all users, to which others give way (`handover`).
        """
        self._socket = socket
        self._is_machines = is_machines
        self._gpu_folder = gpu_folder or Path("/tmp") / f"affinode-{os.getuid()}"
        self._files: dict[Path, int] = {}

    def win(self) -> None:
        """Become the one controller of the socket. Raises AlreadyServed."""
        path = self._socket.with_name(LOCK_NAME)
        if not self._lock(path):
            raise AlreadyServed(path)

    def serve_gpu(self, uuid: str) -> None:
        """Become the one controller of a GPU; again is fine. Raises GpuServed."""
        if not self._is_machines:
            environment.make_folder(self._gpu_folder)
            if serves_gpu(uuid):
                raise GpuServed(
                    f"{uuid} is served by this machine's own controller ({environment.NODE_SOCKET})"
                )
        path = self._gpu_folder / f"serves-{uuid}.lock"
        if path not in self._files and not self._lock(path):
            raise GpuServed(
                f"{uuid} is served by {_holder(path)} already; two controllers must not share a GPU"
            )

    def _lock(self, path: Path) -> bool:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        with contextlib.suppress(OSError):  # who it is, for people: a full disk is no reason not to serve
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} ({self._socket})\n".encode())
        self._files[path] = descriptor
        return True

    def is_intact(self) -> bool:
        """Whether the lock files are still where others look for them."""
        for path, descriptor in self._files.items():
            try:
                if not os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    return False
            except OSError:
                return False
        return True

    def close(self) -> None:
        """Let others serve."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip() or "another controller"
    except OSError:
        return "another controller"
