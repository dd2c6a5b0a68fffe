"""Terminals of hibernated kernels: a process gets its pseudo-terminal back with its number, which is free meanwhile.

Linux gives the lowest free number to the next program that asks, as another bash kernel. So the keeper has
it until then.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct

from .files import TERMINAL, Known

GET_NUMBER = 0x80045430  # TIOCGPTN
MOST = 4096  # of Linux's terminals, tried for one number


class TerminalsHeld:
    """The numbers of a kernel's pseudo-terminals, which no other program gets meanwhile."""

    def __init__(self, needed: Known):
        """Take those that are free."""
        self._held: list[int] = []
        self.names: set[str] = set()  # of those that are held
        wanted = {path for path, was in needed.items() if was[:1] == [TERMINAL] and not os.path.exists(path)}
        passed: list[int] = []
        with contextlib.suppress(OSError):  # there are no more
            while wanted and len(passed) < MOST:
                master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
                name = f"/dev/pts/{_number_of(master)}"
                (self._held if name in wanted else passed).append(master)
                if name in wanted:
                    self.names.add(name)
                    wanted.remove(name)
        for master in passed:
            os.close(master)

    def free(self) -> None:
        """Let go of them, for the kernel."""
        self.names.clear()
        while self._held:
            os.close(self._held.pop())


def _number_of(master: int) -> int:
    number: int = struct.unpack("I", fcntl.ioctl(master, GET_NUMBER, bytes(4)))[0]
    return number
