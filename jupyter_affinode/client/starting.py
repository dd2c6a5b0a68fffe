"""Start a controller where none answers."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from .. import environment
from ..python_command import module_command
from ..threads import on_own_thread
from .controller_socket import socket_or_default
from .errors import ControllerRefused, ControllerUnavailable, why
from .kernel_messages import ask
from .supervisor import CONTROLLER

ENDS_WITHIN_S = 10.0
START_MARGIN_S = 10.0  # how much longer than its own time-out a start may take, where a file system hangs
MACHINES_RESTART_S = 3.0  # its unit starts it again after one second
TRY_EVERY_S = 0.02
SYSTEMD = Path("/run/systemd/system")  # where systemd runs
UNIT = Path("/etc/systemd/system/affinode.service")  # as `jupyter affinode systemd-unit` is installed

# Supervisors of controllers that this process started, reaped at the next start; they outlive this process.
_started: list[subprocess.Popen[bytes]] = []


def ensure_controller(
    socket: Path | None = None, *, extra_args: Sequence[str] = (), timeout_s: float = 5.0
) -> Path:
    """Start a controller unless one answers; return the path of its API socket.

    Blocks up to `timeout_s`, and some seconds more while the machine's controller may be starting again. A
    controller that is started gets `extra_args`, as `--park-when=idle`; it survives this process, and ends by
    itself when it is no longer needed. Raises ControllerUnavailable.
    """
    path = socket_or_default(socket)
    if environment.listens(path):
        return path
    if socket is None and not os.environ.get(environment.SOCKET) and _machines_comes_back():
        return environment.NODE_SOCKET
    if path == environment.NODE_SOCKET:  # its administrator starts it, and systemd restarts it when it fails
        raise ControllerUnavailable(f"this machine's controller does not answer at {path}")
    return _started_at(path, extra_args, timeout_s)


def start_machines_controller(timeout_s: float = 20.0) -> Path:
    """Start the controller of all users unless it answers, as root: by its unit, or as a process that outlives us.

    Return the path of its API socket. Raises ControllerUnavailable.
    """
    path = environment.NODE_SOCKET
    if environment.listens(path):
        return path
    if UNIT.exists() and SYSTEMD.is_dir():
        subprocess.run(["systemctl", "start", UNIT.name], check=False, timeout=timeout_s)
        if environment.listens(path):
            return path
        raise ControllerUnavailable(f"{UNIT.name} was started, and no controller answers at {path}")
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise ControllerUnavailable(f"{path.parent} cannot be made: {why(error)}") from None
    return _started_at(path, ["--system"], timeout_s)


def _started_at(path: Path, extra_args: Sequence[str], timeout_s: float) -> Path:
    """Start a controller for a socket, and wait until it answers."""
    deadline = time.monotonic() + timeout_s
    with _one_starts(path, until=deadline - timeout_s / 2) as share:
        if environment.listens(path):
            return path
        child = _start(path, extra_args)
        share()
        while not environment.listens(path):
            if time.monotonic() > deadline or child.poll() not in (None, 0):
                raise ControllerUnavailable(
                    f"the controller for {path} did not come up within {timeout_s:g} s"
                    if child.poll() is None
                    else f"the controller for {path} ended with status {child.returncode}: {_last_words(path)}"
                )
            time.sleep(0.02)
    return path


def end_controller(socket: Path) -> None:
    """End the controller at a socket before its folder is removed, and wait for its end. Do nothing without one."""
    with contextlib.suppress(ControllerUnavailable, ControllerRefused, ProcessLookupError):
        ending = os.pidfd_open(ask(socket, "GET", "/node", {})["controller"]["pid"])
        try:
            signal.pidfd_send_signal(ending, signal.SIGTERM)
            select.select([ending], [], [], ENDS_WITHIN_S)  # it still writes its history into the folder
        finally:
            os.close(ending)


async def ensure_controller_async(
    socket: Path | None = None, *, extra_args: Sequence[str] = (), timeout_s: float = 5.0
) -> Path:
    """`ensure_controller` for event loops, on a thread."""
    ensure = partial(ensure_controller, socket, extra_args=extra_args, timeout_s=timeout_s)
    try:
        return await on_own_thread(ensure, timeout_s=timeout_s + START_MARGIN_S)
    except asyncio.TimeoutError:
        raise ControllerUnavailable("starting a controller did not come to an end") from None


def _machines_comes_back() -> bool:
    """Wait for the machine's controller for some seconds, if its socket is there: it may be starting again."""
    deadline = time.monotonic() + MACHINES_RESTART_S
    while environment.NODE_SOCKET.exists() and time.monotonic() < deadline:
        if environment.listens(environment.NODE_SOCKET):
            return True
        time.sleep(0.05)
    return False


def _start(path: Path, extra_args: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a controller, which is started again when it is killed (supervisor.py), in a session of its own.

    If two start at once, their election settles which one serves.
    """
    _started[:] = [child for child in _started if child.poll() is None]
    folder = path.parent
    try:
        _make_own_folder(folder)
        environ = environment.controller_environment()
        environ[environment.SOCKET] = str(path.absolute())
        with (folder / "node.log").open("ab") as log:
            child = subprocess.Popen(
                module_command("jupyter_affinode.client.supervisor", CONTROLLER, *extra_args),
                env=environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except (OSError, environment.SimulationRefused) as error:
        raise ControllerUnavailable(
            f"no controller answers at {path}, and none can be started: {error}"
        ) from None
    _started.append(child)
    return child


def _last_words(path: Path) -> str:
    """Return the last line of the controller's log, for an error message."""
    try:
        lines = (path.parent / "node.log").read_text(errors="replace").strip().splitlines()
    except OSError as error:
        return f"its log cannot be read: {why(error)}"
    return lines[-1] if lines else "its log is empty"


@contextlib.contextmanager
def _one_starts(path: Path, *, until: float) -> Iterator[Callable[[], None]]:
    """Let one thread or process at a time start a controller for `path`; the others wait until then, or until `until`.

    Otherwise a second controller would find the socket served, end, and stay as a zombie. Where no lock file can be
    made, or its holder is stopped, the controllers' election decides as before. Yields what shares the lock with the
    supervisor, which holds it until its controller listens, however long that takes.
    """
    try:
        _make_own_folder(path.parent)
        descriptor = os.open(path.with_name(environment.START_LOCK_NAME), environment.LOCK_FLAGS, 0o600)
    except OSError:  # the start reports the reason
        yield lambda: None
        return
    is_locked = False
    try:
        while not is_locked and not environment.listens(path) and time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_locked = True
            except BlockingIOError:
                time.sleep(TRY_EVERY_S)
        yield lambda: fcntl.flock(descriptor, fcntl.LOCK_SH) if is_locked else None
    finally:
        if is_locked:  # explicit, since a process that was forked meanwhile shares the open file
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _make_own_folder(folder: Path) -> None:
    """Make the socket's folder, or verify that only this user can change it; root's may be used. Raises OSError."""
    if os.getuid() == 0 or not folder.exists() or os.stat(folder).st_uid != 0:
        environment.make_folder(folder)
