"""The link's socket: accepts shims, bounds how many, and keeps their heartbeats."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from pathlib import Path

from .connection import Connection, Ending, LinkListener
from .peers import DropLog, peer_of

CONNECTIONS_MAX = 512
STRANGERS_MAX = 64  # connections that have not said HELLO yet
ACCEPTS_AT_ONCE = 16
BACKLOG = 128


class Link:
    """The listening `link.sock`. Made and used on the event loop."""

    def __init__(
        self,
        path: Path,
        listener: LinkListener,
        *,
        version: str,
        log: logging.Logger,
        heartbeat_s: float = 1.0,
    ):
        """Bind; the caller holds the lock that makes removing an old socket right."""
        self.connections: set[Connection] = set()
        self.drops = DropLog(log)
        self._listener = listener
        self._version = version
        self._log = log
        self._heartbeat_s = heartbeat_s
        self._loop = asyncio.get_running_loop()
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))
        os.chmod(path, 0o600)
        self._socket.listen(BACKLOG)
        self._loop.add_reader(self._socket, self._accept)
        self._beaten = time.monotonic()
        self._beat_handle = self._loop.call_later(heartbeat_s, self._beat)

    def close(self) -> None:
        """Stop accepting and close every connection; the shims live on."""
        self._beat_handle.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for connection in list(self.connections):
            connection.end(Ending.OURS, "this controller ends")

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: look again later instead of spinning
                self._log.error("cannot accept a shim: %s", error)
                self._loop.remove_reader(self._socket)
                self._loop.call_later(1.0, self._accept_again)
                return
            accepted.setblocking(False)
            self._welcome(accepted)

    def _accept_again(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket, self._accept)

    def _welcome(self, accepted: socket.socket) -> None:
        peer = peer_of(accepted)
        why = None
        if not peer.is_allowed:
            why = f"it belongs to user {peer.uid}"
        elif len(self.connections) >= CONNECTIONS_MAX:
            why = f"{CONNECTIONS_MAX} processes are connected already"
        elif sum(not connection.greeted for connection in self.connections) >= STRANGERS_MAX:
            why = f"{STRANGERS_MAX} connections have not introduced themselves yet"
        if why is not None:
            accepted.close()
            return self.drops.drop(f"process {peer.pid}", why)
        self.connections.add(
            Connection(
                accepted,
                peer,
                self._listener,
                heartbeat_s=self._heartbeat_s,
                controller_version=self._version,
                on_end=self._ended,
            )
        )

    def _ended(self, connection: Connection, ending: Ending, why: str) -> None:
        self.connections.discard(connection)
        if ending in (Ending.DROPPED, Ending.SILENT):
            self.drops.drop(str(connection), why)

    def _beat(self) -> None:
        now = time.monotonic()
        late = now - self._beaten > 2 * self._heartbeat_s
        self._beaten = now
        self._beat_handle = self._loop.call_later(self._heartbeat_s, self._beat)
        for connection in list(self.connections):
            connection.beat(now, lenient=late)
