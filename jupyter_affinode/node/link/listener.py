"""The link's socket: accepts shims, bounds their number, and keeps their heartbeats."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from pathlib import Path

from ..identity.access import Access, NotAllowed
from ..identity.rate_limits import Accounts
from ..identity.unidentified import one_too_many
from ..system.accepting import Accepting, Line
from ..system.closing import Closing
from ..system.peer_socket import ListeningSocket, PeerSocket
from ..system.peers import DropLog, Place, peer_of
from .connection import Connection, Ending, LinkListener

BACKLOG = 1024


class Link:
    """The listening `link.sock`. Made and used on the event loop."""

    def __init__(
        self,
        path: Path,
        listener: LinkListener,
        *,
        access: Access,
        accounts: Accounts,
        closing: Closing,
        version: str,
        log: logging.Logger,
        heartbeat_s: float = 1.0,
    ):
        """Bind; the caller holds the lock that makes removing an old socket right."""
        self.connections: set[Connection] = set()
        self.drops = DropLog(log)
        self._listener = listener
        self._access, self._accounts = access, accounts
        self._unidentified: dict[Connection, Place] = {}  # those that have not said HELLO yet, oldest first
        self._line = Line(Connection.read)  # of the connections with messages to read, by user
        self._version = version
        self._log = log
        self._heartbeat_s = heartbeat_s
        self._loop = asyncio.get_running_loop()
        listening = ListeningSocket(socket.SOCK_SEQPACKET, closing, takes_descriptors=True)
        listening.listen_at(path, access.socket_mode, BACKLOG)
        self._accepting = Accepting(listening, self._welcome, log, in_a_turn=1)
        self._beaten = time.monotonic()
        self._beat_handle = self._loop.call_later(heartbeat_s, self._beat)

    def close(self) -> None:
        """Stop accepting and close every connection; the shims live on."""
        self._beat_handle.cancel()
        self._accepting.stop()
        self._line.clear()
        for connection in list(self.connections):
            connection.end(Ending.OURS, "this controller ends")

    def _welcome(self, accepted: PeerSocket, address: object) -> None:
        limits = self._accounts.limits
        peer = peer_of(accepted)
        try:
            caller = self._access.recognise(accepted, peer)
        except NotAllowed as refused:
            accepted.close()
            return self.drops.drop(f"process {peer.pid}", str(refused))
        if accepted.closing.is_behind(accepted.peer_place):
            accepted.close()
            return self.drops.drop(f"process {peer.pid}", "closing what it sent takes too long")
        if len(self.connections) >= limits.links_everyone:
            accepted.close()
            return self.drops.drop(
                f"process {peer.pid}", f"{limits.links_everyone} processes are connected already"
            )
        connection = Connection(
            accepted,
            caller,
            self._listener,
            access=self._access,
            accounts=self._accounts,
            line=self._line,
            heartbeat_s=self._heartbeat_s,
            controller_version=self._version,
            on_end=self._ended,
        )
        self.connections.add(connection)
        connection.read()
        if connection.open and not connection.greeted:
            self._take_stranger(connection, accepted.peer_place)

    def _take_stranger(self, connection: Connection, place: Place) -> None:
        """Take a connection that has not identified its user yet."""
        self._unidentified = {
            connection: its
            for connection, its in self._unidentified.items()
            if connection.open and not connection.greeted
        }
        goes = one_too_many(self._unidentified, place, self._accounts.limits)
        if goes is not None:
            goes.end(Ending.DROPPED, "too many connections say nothing")
        self._unidentified[connection] = place

    def _ended(self, connection: Connection, ending: Ending, why: str) -> None:
        self.connections.discard(connection)
        self._unidentified.pop(connection, None)
        if ending in (Ending.DROPPED, Ending.SILENT, Ending.REVOKED):
            self.drops.drop(str(connection), why)

    def _beat(self) -> None:
        now = time.monotonic()
        late = now - self._beaten > 2 * self._heartbeat_s
        self._beaten = now
        self._beat_handle = self._loop.call_later(self._heartbeat_s, self._beat)
        for connection in list(self.connections):
            connection.beat(now, lenient=late)
