"""A controller's end of the link that does exactly as a test says: what the shim's tests talk to the shim with.

Not a model of the node controller (its own tests run the real one); it lets a test send any command at a moment of its
choosing, and read the page.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from waiting import wait_until

from jupyter_affinode.bench.shim_peer import Listener, ShimPeer
from jupyter_affinode.node.protocol import wire
from jupyter_affinode.node.protocol.page import PageData, State, parse_page
from jupyter_affinode.node.protocol.wire import (
    CommandKind,
    NotifyKind,
    Reply,
    Status,
)

NONE, RESIDENT, PARKING, PARKED, QUEUED, RESUMING, LOST = State
PARK, RESUME, CANCEL, CANCEL_END, DYING, ROOM, COMMIT, ABORT, TRIM, LOT, DROP_CACHES, *_ = CommandKind
OK, BUSY, REVOKED, NO_GPU_ROOM, NO_HOST_ROOM, STALE, NOTHING, FAILED, REFUSED, *_ = Status


def bytes_of(page: PageData) -> tuple[int, int]:
    """Resident and parked bytes on all GPUs together."""
    return sum(gpu.resident_bytes for gpu in page.gpus), sum(gpu.parked_bytes for gpu in page.gpus)


class LinkPeer(ShimPeer):
    """One shim's connection, welcomed. All replies are kept, and no move is asked for again."""

    replies: list[Reply]  # type: ignore[assignment]

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.socket = connection
        self.replies = []
        self.notified: list[tuple[NotifyKind, int, int]] = []  # (kind, number, bytes)

    def command(
        self,
        command: int,
        *,
        argument: int = 0,
        request: int = 0,
        deadline_ns: int = 0,
        text: str = "test",
        descriptors: Sequence[int] = (),
    ) -> int:
        """Send a command; its epoch."""
        self._epoch += 1
        message = wire.pack_command(
            self._epoch,
            command,  # type: ignore[arg-type]
            request=request,
            deadline_ns=deadline_ns,
            argument=argument,
            reason=text,
        )
        socket.send_fds(self.socket, [message], list(descriptors))
        return self._epoch

    def pump(self, timeout_s: float = 0.0) -> None:
        """Read what the shim has sent, answering nothing but heartbeats."""
        while select.select([self.socket], [], [], timeout_s)[0]:
            data = self.socket.recv(wire.LARGEST_MESSAGE)
            if not data:
                raise ConnectionResetError("the shim closed the link")
            message = wire.parse(data)
            if isinstance(message, Reply):
                self.replies.append(message)
            elif isinstance(message, wire.Notify):
                self.notified.append((message.kind, message.number, message.bytes))
            elif isinstance(message, wire.Heartbeat):
                self._send(wire.pack_heartbeat())
            timeout_s = 0.0

    def reply_to(self, epoch: int, timeout_s: float = 60.0) -> Reply:
        """The reply to a command."""

        def reply() -> Reply | None:
            self.pump(0.05)
            return next((each for each in self.replies if each.epoch == epoch), None)

        return wait_until(reply, timeout_s, lambda: f"a reply to command {epoch}; page {self.page()}", 0)

    def park(self, timeout_s: float = 60.0) -> Reply:
        """Have it parked, and told again while it is busy, as a controller does: what waits for the GPU in a park
        has a bound, which a loaded machine does not keep.
        """

        def parked() -> Reply | None:
            reply = self.reply_to(self.command(PARK), timeout_s)
            return reply if reply.status is not BUSY else None

        return wait_until(parked, timeout_s)

    def resume(self, timeout_s: float = 60.0) -> Reply:
        return self.reply_to(self.command(RESUME), timeout_s)

    def wait(self, condition: Callable[[PageData], object], timeout_s: float = 60.0) -> PageData:
        """Read the page until `condition(page)`; that page."""

        def met() -> PageData | None:
            page = self.page()
            if condition(page):
                return page
            self.pump(0.005)
            return None

        return wait_until(met, timeout_s, lambda: str(self.page()), 0)

    def page(self) -> PageData:
        """The page now; a shim that is stalled while it writes is waited for."""
        raw = wait_until(self._page._consistent, message="a page that is not being written")
        return parse_page(raw, time.monotonic())

    def heartbeat_ns(self) -> int:
        """When the shim last looked at its counters."""
        return int(struct.unpack_from("=Q", self._page._map, 48)[0])


class LinkListener(Listener):
    """`link.sock` in a folder; set AFFINODE_SOCKET to `socket_path` for the process under test."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder)

    def accept(self, timeout_s: float = 60.0) -> LinkPeer:
        self._socket.settimeout(timeout_s)
        return LinkPeer(self._socket.accept()[0])
