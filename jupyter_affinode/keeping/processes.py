"""Processes that are no children of ours: named so that a pid that is given again is no mistake, ended, waited for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .. import environment

# Of /proc/PID/stat, counted from behind the program's name: its session, when it started, in ticks, and its pages.
SESSION_FIELD, START_FIELD, RESIDENT_FIELD = 3, 19, 21
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ProcessName:
    """One process of this start of the machine."""

    pid: int
    started: int  # ticks after the machine's start
    boot: str


def name_of(pid: int) -> ProcessName:
    """Return a process's name. Raises ProcessLookupError."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        raise ProcessLookupError(f"no process {pid}") from None
    return ProcessName(pid, int(fields[START_FIELD]), environment.boot_id())


def resident_bytes(pids: Iterable[int]) -> dict[int, int]:
    """Return the host memory that each of these processes has, with all processes of its session."""
    sessions: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = path.read_text().rpartition(")")[2].split()
            session, pages = int(fields[SESSION_FIELD]), int(fields[RESIDENT_FIELD])
            sessions[session] = sessions.get(session, 0) + pages * PAGE_BYTES
    found = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            found[pid] = sessions.get(os.getsid(pid), 0)
    return found


class Adopted:
    """What provisioners use of subprocess.Popen, for a process that another program started.

    Its exit status is not to be had: 0 stands for it.
    """

    stdin = stdout = stderr = None

    def __init__(self, process: ProcessName):
        """Find it. Raises ProcessLookupError if it has ended."""
        self.name = process
        self.pid = process.pid
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(process.pid)
        try:
            is_it = name_of(process.pid) == process
        except ProcessLookupError:
            is_it = False
        if not is_it or self.poll() is not None:
            self.close()
            raise ProcessLookupError(f"process {process.pid} has ended")

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Watch it no longer; it counts as ended."""
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def fileno(self) -> int:
        """Return a descriptor that can be read once the process has ended."""
        return self._descriptor

    def poll(self) -> int | None:
        """Return None while it lives."""
        return self._looked(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, or so many seconds."""
        return self._looked(timeout) or 0

    def send_signal(self, number: int) -> None:
        """Send a signal; none to a process that has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _looked(self, timeout: float | None) -> int | None:
        if self.returncode is None and (self._descriptor < 0 or _is_readable(self._descriptor, timeout)):
            self.returncode = 0
        return self.returncode


def _is_readable(descriptor: int, timeout_s: float | None) -> bool:
    """Return whether a descriptor can be read within a time; select.select() takes none above 1,023."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))


def lives(process: ProcessName) -> bool:
    """Return whether a process lives; one that waits for its parent does not."""
    try:
        Adopted(process).close()
    except ProcessLookupError:
        return False
    except OSError:  # this process has no more descriptors: nothing says that the other has ended
        pass
    return True


class NoProcess:
    """What stands for the process of a kernel that lives on disk, where a provisioner has a subprocess.Popen."""

    stdin = stdout = stderr = None
    returncode = 0

    def __init__(self, name: ProcessName):
        """`name` is the process as it was; the one that wakes has the same number."""
        self.name = name
        self.pid = name.pid

    def poll(self) -> int:
        """Return that it has ended."""
        return 0

    def wait(self, timeout: float | None = None) -> int:
        """Return at once."""
        return 0

    def send_signal(self, number: int) -> None:
        """Do nothing."""

    def kill(self) -> None:
        """Do nothing."""

    def terminate(self) -> None:
        """Do nothing."""
