"""Handles shims: their connections, messages and ends."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .execution.effects import Parts
from .identity.access import Access
from .identity.identity import Identity
from .link.connection import Connection, Ending
from .model.reasons import Refusal
from .protocol.wire import (
    PROTOCOL_VERSION,
    Hello,
    Message,
    Notify,
    NotifyKind,
    Reply,
    Request,
    WireError,
)
from .state.records.kernel import OTHER_VERSION_WORDS, KernelRecord
from .state.records.process import Process
from .state.registry import NodeState
from .system.mapped_page import Page
from .system.peers import ProcessWatch
from .views.kernel_words import status_in_words


@dataclass(frozen=True)
class Looks:
    """What the controller looks at after a shim's message."""

    at: Callable[[KernelRecord, float], None]  # one kernel's pages, at that moment
    at_gpus: Callable[[], None]  # NVML's figures, soon
    shown: Callable[[KernelRecord], dict[str, Any]]  # a kernel as its user sees it
    poke: Callable[[], None]  # at everything, and decide


class Shims:
    """The links' listener (`connection.LinkListener`)."""

    def __init__(self, state: NodeState, access: Access, log: logging.Logger, parts: Parts, looks: Looks):
        self._state = state
        self._access = access
        self._log = log
        self._parts = parts
        self._looks = looks

    def knows(self, owner: str, page: Page) -> bool:
        """Return whether the owner's process was admitted before (`LinkListener.knows`)."""
        return self._state.knows(owner, page)

    def shim_refused(self, identity: Identity, hello: Hello) -> None:
        """Show a kernel whose shim is of another version as one that is not managed (`LinkListener.shim_refused`)."""
        kernel = self._state.kernels.get(identity.scoped(hello.kernel_id))
        if kernel is None:
            return  # no server has named it, so no user would see this
        now = time.monotonic()
        before = kernel.other_version(now)
        is_older = hello.version < PROTOCOL_VERSION
        code = Refusal.OLDER_KERNEL if is_older else Refusal.OLDER_CONTROLLER
        kernel.refused = code, now
        if before is not code:
            words = OTHER_VERSION_WORDS[code]
            self._log.warning("%s, shim %s, is refused: %s", kernel.id, hello.shim_version, words)
            self._looks.poke()

    def shim_connected(self, connection: Connection, hello: Hello, page: Page) -> None:
        """Add the process of a shim that said HELLO."""
        now = time.monotonic()
        identity = connection.identity
        is_new = identity.scoped(hello.kernel_id) not in self._state.kernels
        if is_new and self._state.count_of(identity.charged_user) >= self._access.limits.kernels:
            page.close()
            raise WireError(
                f"{identity.name or 'its user'} has {self._access.limits.kernels} kernels already"
            )
        earlier = self._state.earlier(connection, page)
        for old in earlier:
            if old.connection is not None:  # the shim has left that link, which we are about to hear
                old.connection.end(Ending.OURS, "its process has connected again")
        process = self._state.add_process(connection, hello, page, now)
        for old in earlier:
            self._parts.lots.follow(process.key, old.key)
        process.earlier_lot_bytes = process.data.lot_bytes
        if process.pid > 0:
            try:
                process.watch = ProcessWatch(os.pidfd_open(process.pid), lambda: self._process_ended(process))
            except ProcessLookupError:
                asyncio.get_running_loop().call_soon(connection.end, Ending.CLOSED, "the process has ended")
            except OSError as error:
                self._log.warning("process %d cannot be watched: %s", process.pid, error)
        self._log.info(
            "hello from process %d (%s), kernel %s, %s, shim %s",
            process.pid,
            hello.command,
            process.kernel_id,
            process.data.state.name.lower(),
            hello.shim_version,
        )
        self._looks.at(self._state.kernels[process.kernel_id], now)
        self._parts.operations.process_came(process)
        self._looks.poke()

    def shim_said(self, connection: Connection, message: Message) -> None:
        """Pass a shim's notice, reply or request to the part that it concerns."""
        process = self._state.process_of(connection)
        if process is None:
            return
        if isinstance(message, Reply):
            self._parts.operations.take_reply(process, message)
        elif isinstance(message, Request):
            self._looks.at(self._state.kernels[process.kernel_id], time.monotonic())
            self._parts.user_requests.take_request(
                process, message, lambda kernel: status_in_words(self._looks.shown(kernel))
            )
        elif isinstance(message, Notify):
            self._take_notify(process, message)
        self._looks.poke()

    def shim_gone(self, connection: Connection, ending: Ending) -> None:
        """Note that a shim's connection ended; its process may live on."""
        process = self._state.process_of(connection)
        if process is None:
            return
        kernel = self._state.kernels[process.kernel_id]
        self._state.disconnect(process)
        process.silent_since = time.monotonic()
        process.is_stopped = ending is Ending.SILENT
        process.allocations.clear()
        self._parts.operations.process_gone(process, kernel)
        self._looks.poke()

    def _take_notify(self, process: Process, message: Notify) -> None:
        if message.kind is NotifyKind.WANT:
            self._parts.operations.process_wants(process)
        elif message.kind is NotifyKind.LOT_END:
            self._parts.lots.take_back(process.key, message.number)
        elif self._parts.allocations.take_notify(process, message, time.monotonic()):
            self._looks.at_gpus()

    def _process_ended(self, process: Process) -> None:
        kernel = self._state.kernels.get(process.kernel_id)
        if kernel is None or process.key not in kernel.processes:
            return
        self._log.info("process %d of %s ended", process.pid, kernel.id)
        connection = process.connection
        self._state.disconnect(process)
        if connection is not None:
            connection.end(Ending.CLOSED, "the process has ended")
        self.forget(process)

    def forget(self, process: Process, *, lives: bool = False) -> None:
        """Remove a process that has ended, or that has no shim any more (`lives`)."""
        kernel = self._state.kernels[process.kernel_id]
        self._state.remove_process(process, time.monotonic(), lives=lives)
        self._parts.operations.process_gone(process, kernel)
        self._looks.at_gpus()
        self._looks.poke()
