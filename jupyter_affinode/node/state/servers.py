"""The servers that describe kernels and their cells: when one ends, what only it knew is forgotten."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Container

from ..identity.identity import OWN_USER, Identity
from ..system.peers import ProcessWatch
from .records.kernel import KernelRecord
from .registry import NodeState


class ServerWatch:
    """Watches the processes that describe kernels over the API."""

    def __init__(self, state: NodeState, log: logging.Logger, on_change: Callable[[], None]):
        self._state = state
        self._log = log
        self._on_change = on_change
        self._watches: dict[int, ProcessWatch] = {}

    def speaks_for(self, pid: int, kernel: KernelRecord, speaker: Identity = OWN_USER) -> None:
        """Note that the process `pid`, of the user `speaker`, described the kernel or its cells.

        A pid of 0 is one of another pid namespace that cannot be seen from here. Such a server counts as alive while a
        client of its origin follows the events, as every server does.
        """
        if pid == os.getpid():
            return
        if pid <= 0:
            kernel.server.origin = speaker.origin
            return
        kernel.server.pid, kernel.server.origin = pid, None
        self._watch(pid)

    def watch_all(self, origins: Container[str] = ()) -> None:
        """Watch the processes that describe a kernel, and no others: each watch costs a descriptor. `origins`: from
        where events are followed.
        """
        for kernel in self._state.kernels.values():
            kernel.server.is_heard = kernel.server.origin is not None and kernel.server.origin in origins
        said_by = (kernel.server.pid for kernel in self._state.kernels.values())
        speaking = {pid for pid in said_by if pid is not None}
        for pid in self._watches.keys() - speaking:
            self._watches.pop(pid).close()
        for pid in speaking:
            self._watch(pid)

    def close(self) -> None:
        """Stop watching."""
        for watch in self._watches.values():
            watch.close()

    def _watch(self, pid: int) -> None:
        if pid in self._watches:
            return
        try:
            self._watches[pid] = ProcessWatch(os.pidfd_open(pid), lambda: self._ended(pid))
        except ProcessLookupError:  # it spoke and ended: nothing else would ever say so
            self._ended(pid)
        except OSError as error:  # out of descriptors; tried again at the next look
            self._log.debug("process %d cannot be watched: %s", pid, error)

    def _ended(self, pid: int) -> None:
        self._watches.pop(pid, None)
        for kernel in list(self._state.kernels.values()):
            if kernel.server.pid != pid:
                continue
            kernel.server.pid = None
            kernel.cell.is_tracked = kernel.cell.is_open = False
            kernel.cell.id = None
            if (
                not kernel.processes and not kernel.is_hibernated
            ):  # an image stays though its keeper has ended
                kernel.server.description = None  # forgotten soon, unless another server describes it
                kernel.past.empty_since = time.monotonic()
        self._on_change()
