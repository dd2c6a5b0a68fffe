"""The bench's own end of the shim's link: it commands at once, without a policy, and reads every answer."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from ..node.protocol import wire
from ..node.protocol.page import PageData
from ..node.system.mapped_page import Page

LINK_NAME = "link.sock"
HEARTBEAT_MS = 60_000
BEAT_EVERY_S = 15.0
PARK, RESUME = wire.CommandKind.PARK, wire.CommandKind.RESUME
REASON = "jupyter affinode bench"  # for the shim's log
NOTHING_PRIVATE = 1 << wire.MOVE_BUDGET_SHIFT  # a park's least budget: its host memory is that of lots
TRIES = 100  # a park that meets a call is revoked, and tried again


class MoveFailed(RuntimeError):
    """A park or resume was refused; the message has the shim's words."""


@dataclass(frozen=True)
class Move:
    """One park or resume that was carried out; sizes in bytes."""

    seconds: float  # as the shim measured it
    end_to_end_s: float  # from the command to its answer
    bytes: int
    copied_bytes: int
    zero_bytes: int
    copy_bytes: int  # host memory that holds the parked contents
    mended_chunks: int
    depth: int
    tries: int
    text: str  # why a park is less deep than was asked for


class Listener:
    """`link.sock` in a folder; processes find it through AFFINODE_SOCKET."""

    def __init__(self, folder: Path):
        self.socket_path = folder / "node.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(folder / LINK_NAME))
        self._socket.listen(8)

    def accept(self, timeout_s: float = 30.0) -> ShimPeer:
        """Return the next process's shim. Raises TimeoutError."""
        self._socket.settimeout(timeout_s)
        connection, _ = self._socket.accept()
        return ShimPeer(connection)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


class ShimPeer:
    """One process's shim, welcomed."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(True)
        self._socket = connection
        self._epoch = self._lots = 0
        self._beaten = time.monotonic()
        self.replies: dict[int, wire.Reply] = {}
        self.prepared: set[int] = set()  # moves in two steps that wait for a decision
        self.ended_lots: deque[int] = deque()  # lots in which nothing of the process's is any more
        self.wants = False  # a call waits at the closed gate
        data, descriptors, _, _ = socket.recv_fds(connection, wire.LARGEST_MESSAGE, 4)
        hello = wire.parse(data)
        if not isinstance(hello, wire.Hello) or len(descriptors) != 1:
            raise MoveFailed("the process did not introduce itself as a shim does")
        self.hello = hello
        try:
            self._page = Page(descriptors[0])
        finally:
            os.close(descriptors[0])
        self._send(wire.pack_welcome(HEARTBEAT_MS, "bench"))

    def fileno(self) -> int:
        """Return the socket's descriptor, for select."""
        return self._socket.fileno()

    def park(self, *, context: bool = False, timeout_s: float = 600.0) -> Move:
        """Park the process, again while a call is in the way; return the move. Raises MoveFailed."""
        return self._move(PARK, wire.MoveFlag.CONTEXT if context else 0, timeout_s)

    def resume(self, timeout_s: float = 600.0, *, on_gpu: str = "") -> Move:
        """Resume the process, where it was or, from context depth, on the GPU with that UUID. Raises MoveFailed."""
        return self._move(RESUME, wire.MoveFlag.MIGRATE if on_gpu else 0, timeout_s, on_gpu or REASON)

    def begin(self, kind: wire.CommandKind, flags: int, text: str = REASON) -> int:
        """Command a move; return its number, for `prepared` and `replies`, which `take` fills."""
        self._epoch += 1
        self._send(wire.pack_command(self._epoch, kind, argument=flags, reason=text))
        return self._epoch

    def decide(self, move: int, decision: wire.CommandKind) -> None:
        """Send COMMIT or ABORT for a move."""
        self._epoch += 1
        self._send(wire.pack_command(self._epoch, decision, request=move))

    def give_lot(self, descriptor: int, size: int, *, is_forgotten: bool = False) -> int:
        """Lend touched host memory for its copies, as a controller does; the shim maps it soon, and unmaps it after its
        use if that `is_forgotten`. Return its number.
        """
        self._lots += 1
        self._send_lot(wire.CommandKind.LOT, descriptor, size)
        if is_forgotten:
            self._send_lot(wire.CommandKind.LOT_FORGET, descriptor, size)
        return self._lots

    def _send_lot(self, kind: wire.CommandKind, descriptor: int, size: int) -> None:
        self._epoch += 1
        command = wire.pack_command(self._epoch, kind, request=self._lots, argument=size)
        socket.send_fds(self._socket, [command], [descriptor])

    def page(self) -> PageData:
        """Return the process's page."""
        return self._page.read()

    def private_bytes(self) -> int:
        """Return the shim's own host memory, without lots."""
        page = self.page()
        return max(page.copy_bytes + page.retained_bytes - page.lot_bytes, 0)

    def take(self, timeout_s: float = 0.0) -> None:
        """Read what the shim has sent, waiting up to `timeout_s` for a first message."""
        if time.monotonic() - self._beaten > BEAT_EVERY_S:
            self._beaten = time.monotonic()
            self._send(wire.pack_heartbeat())
        while select.select([self._socket], [], [], timeout_s)[0]:
            data = self._socket.recv(wire.LARGEST_MESSAGE)
            if not data:
                raise MoveFailed("the process ended, or closed the link")
            message = wire.parse(data)
            if isinstance(message, wire.Reply) and message.status is wire.Status.PREPARED:
                self.prepared.add(message.epoch)
            elif isinstance(message, wire.Reply):
                self.replies[message.epoch] = message
            elif isinstance(message, wire.Notify):
                if message.kind is wire.NotifyKind.WANT:
                    self.wants = True
                elif message.kind is wire.NotifyKind.UNWANT:
                    self.wants = False
                elif message.kind is wire.NotifyKind.LOT_END:
                    self.ended_lots.append(message.number)
            timeout_s = 0.0

    def close(self) -> None:
        """Hang up."""
        self._page.close()
        self._socket.close()

    def _move(self, kind: wire.CommandKind, flags: int, timeout_s: float, text: str = REASON) -> Move:
        for tries in range(1, TRIES + 1):
            reply, took = self._command(kind, flags, timeout_s, text)
            if reply.status is wire.Status.OK:
                page = self._page.read()
                return Move(
                    reply.duration_s,
                    took,
                    reply.bytes,
                    page.last_park_copied_bytes,
                    page.last_park_zero_bytes,
                    page.copy_bytes,
                    page.mended_chunks,
                    int(page.depth),
                    tries,
                    reply.text,
                )
            if reply.status not in (wire.Status.BUSY, wire.Status.REVOKED):
                break
            time.sleep(0.02)
        raise MoveFailed(f"{kind.name.lower()}: {reply.status.name}: {reply.text or 'no words'}")

    def _command(
        self, kind: wire.CommandKind, flags: int, timeout_s: float, text: str
    ) -> tuple[wire.Reply, float]:
        begin = time.perf_counter()
        number = self.begin(kind, flags, text)
        while number not in self.replies:
            self.take(1.0)
            if time.perf_counter() - begin > timeout_s:
                raise MoveFailed(f"{kind.name.lower()}: no answer within {timeout_s:.0f} s")
        return self.replies.pop(number), time.perf_counter() - begin

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # reading tells
            self._socket.send(data)
