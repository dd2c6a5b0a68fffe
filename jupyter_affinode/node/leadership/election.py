"""Election: one controller serves a socket, and one serves each GPU, by locks held for life.

A lock is held by an open file, so it ends with its process however that ends. The files of GPUs are removed by the
controller, or, if that was killed, at the next one's start: each simulated machine has GPUs of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from ... import environment
from .handover import serves_gpu

LOCK_NAME = "node.lock"
GPU_LOCKS = "serves-*.lock"
LOOK_S = 0.2  # how long a process may hold a lock that only checks it
TRY_EVERY_S = 0.005


class AlreadyServed(Exception):
    """Another controller serves this socket; `holder` names it."""

    def __init__(self, path: Path):
        self.holder = _holder(path)
        super().__init__(f"{path.parent} is served already, by {self.holder}")


class GpuServed(Exception):
    """Another controller, of another socket, serves this GPU; the message names it."""


class Election:
    """The locks of one controller."""

    def __init__(self, socket: Path, gpu_folder: Path | None = None, *, is_machines: bool = False):
        """Prepare. `gpu_folder` is one for all controllers of the user, whatever their sockets. `is_machines`: this is
        the controller of all users, to which others give way (`handover`).
        """
        self._socket = socket
        self._is_machines = is_machines
        self._gpu_folder = gpu_folder or environment.gpu_lock_folder(socket)
        self._files: dict[Path, int] = {}

    def win(self) -> None:
        """Become the one controller of the socket. Raises AlreadyServed."""
        path = self._socket.with_name(LOCK_NAME)
        if not self._lock(path):
            raise AlreadyServed(path)

    def serve_gpu(self, uuid: str) -> None:
        """Become the one controller of a GPU, or stay it. Raises GpuServed."""
        if not self._is_machines:
            environment.make_folder(self._gpu_folder)
            if serves_gpu(uuid):
                raise GpuServed(
                    f"{uuid} is served by this machine's own controller ({environment.NODE_SOCKET})"
                )
        path = self._gpu_folder / f"serves-{uuid}.lock"
        if path in self._files:
            return
        if not self._lock(path):
            raise GpuServed(
                f"{uuid} is served by {_holder(path)} already; two controllers must not share a GPU"
            )
        for other in self._gpu_folder.glob(GPU_LOCKS):
            if other not in self._files:
                _remove_unheld(other)

    def _lock(self, path: Path) -> bool:
        until = time.monotonic() + LOOK_S
        while (descriptor := _locked(path, os.O_CREAT)) is None:
            if time.monotonic() > until:
                return False
            time.sleep(TRY_EVERY_S)
        with contextlib.suppress(OSError):
            # it is only informative: a full disk does not keep the controller from serving
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} ({self._socket})\n".encode())
        self._files[path] = descriptor
        return True

    def is_intact(self) -> bool:
        """Return whether the lock files are still where others look for them."""
        return all(_is_at(path, descriptor) for path, descriptor in self._files.items())

    def close(self) -> None:
        """Release the locks, so that others may serve."""
        for path, descriptor in self._files.items():
            if path.name != LOCK_NAME and _is_at(path, descriptor):
                with contextlib.suppress(OSError):
                    path.unlink()
            os.close(descriptor)
        self._files.clear()


def _locked(path: Path, flags: int = 0) -> int | None:
    """Lock the file at `path`; return its descriptor, or None if another process holds it or has just removed it."""
    # Sticky: systemd-tmpfiles does not remove it from /tmp, however old it is.
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o1600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, descriptor):
            return descriptor
    except BlockingIOError:
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def _remove_unheld(path: Path) -> None:
    """Remove the lock file of a controller that was killed."""
    with contextlib.suppress(OSError):
        descriptor = _locked(path)
        if descriptor is not None:
            try:
                path.unlink()
            finally:
                os.close(descriptor)


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip() or "another controller"
    except OSError:
        return "another controller"
