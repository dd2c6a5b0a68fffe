"""The bench's own end of the shim's link: it commands at once, without a policy, and hears every answer."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from ..node import wire
from ..node.page import PAGE_SIZE

LINK_NAME = "link.sock"
HEARTBEAT_MS = 60_000
BEAT_EVERY_S = 15.0
MOVE_CONTEXT = 1 << 1  # AFFINODE_MOVE_CONTEXT
PARK, RESUME = wire.CommandKind.PARK, wire.CommandKind.RESUME
TRIES = 100  # a park that meets a call is revoked, and tried again

SEQUENCE = struct.Struct("=Q")
SEQUENCE_OFFSET = 24
FIGURES = struct.Struct("=5QI")  # from copy_bytes of struct affinode_page on
FIGURES_OFFSET = 192


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


@dataclass(frozen=True)
class Figures:
    """Fields of struct affinode_page, in its order."""

    copy_bytes: int
    kept_bytes: int
    copied_bytes: int
    zero_bytes: int
    mended_chunks: int
    depth: int


class Listener:
    """`link.sock` in a folder; processes find it through AFFINODE_SOCKET."""

    def __init__(self, folder: Path):
        self.socket_path = folder / "node.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(folder / LINK_NAME))
        self._socket.listen(8)

    def accept(self, timeout_s: float = 30.0) -> ShimPeer:
        """The next process's shim. Raises TimeoutError."""
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
        self._epoch = 0
        self._beaten = time.monotonic()
        self._replies: dict[int, wire.Reply] = {}
        self.wants = False  # a call waits at the closed gate
        data, descriptors, _, _ = socket.recv_fds(connection, wire.LARGEST_MESSAGE, 4)
        hello = wire.parse(data)
        if not isinstance(hello, wire.Hello) or len(descriptors) != 1:
            raise MoveFailed("the process did not introduce itself as a shim does")
        self.hello = hello
        self._page = mmap.mmap(descriptors[0], PAGE_SIZE, access=mmap.ACCESS_READ)
        os.close(descriptors[0])
        self._send(wire.pack_welcome(wire.PROTOCOL_VERSION, HEARTBEAT_MS, "bench"))

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def park(self, *, context: bool = False, timeout_s: float = 600.0) -> Move:
        """Park it; asks again while a call is in the way. Raises MoveFailed."""
        return self._move(PARK, MOVE_CONTEXT if context else 0, timeout_s)

    def resume(self, timeout_s: float = 600.0) -> Move:
        """Bring it back. Raises MoveFailed."""
        return self._move(RESUME, 0, timeout_s)

    def take(self, timeout_s: float = 0.0) -> None:
        """Read what the shim has sent, waiting up to `timeout_s` for a first message."""
        if time.monotonic() - self._beaten > BEAT_EVERY_S:
            self._beaten = time.monotonic()
            self._send(wire.pack_heartbeat(wire.PROTOCOL_VERSION))
        while select.select([self._socket], [], [], timeout_s)[0]:
            data = self._socket.recv(wire.LARGEST_MESSAGE)
            if not data:
                raise MoveFailed("the process ended, or closed the link")
            message = wire.parse(data)
            if isinstance(message, wire.Reply):
                self._replies[message.epoch] = message
            elif isinstance(message, wire.Notify):
                if message.kind is wire.NotifyKind.WANT:
                    self.wants = True
                elif message.kind is wire.NotifyKind.UNWANT:
                    self.wants = False
            timeout_s = 0.0

    def figures(self) -> Figures:
        """One consistent look at the page."""
        while True:
            (before,) = SEQUENCE.unpack_from(self._page, SEQUENCE_OFFSET)
            figures = Figures(*FIGURES.unpack_from(self._page, FIGURES_OFFSET))
            if before % 2 == 0 and before == SEQUENCE.unpack_from(self._page, SEQUENCE_OFFSET)[0]:
                return figures

    def close(self) -> None:
        """Hang up."""
        self._page.close()
        self._socket.close()

    def _move(self, kind: wire.CommandKind, flags: int, timeout_s: float) -> Move:
        for tries in range(1, TRIES + 1):
            reply, took = self._command(kind, flags, timeout_s)
            if reply.status is wire.Status.OK:
                page = self.figures()
                return Move(
                    reply.duration_s,
                    took,
                    reply.bytes,
                    page.copied_bytes,
                    page.zero_bytes,
                    page.copy_bytes,
                    page.mended_chunks,
                    page.depth,
                    tries,
                )
            if reply.status not in (wire.Status.BUSY, wire.Status.REVOKED):
                break
            time.sleep(0.02)
        raise MoveFailed(f"{kind.name.lower()}: {reply.status.name}: {reply.text or 'no words'}")

    def _command(self, kind: wire.CommandKind, flags: int, timeout_s: float) -> tuple[wire.Reply, float]:
        self._epoch += 1
        begin = time.perf_counter()
        self._send(
            wire.pack_command(
                wire.PROTOCOL_VERSION, self._epoch, kind, argument=flags, reason="jupyter affinode bench"
            )
        )
        while self._epoch not in self._replies:
            self.take(1.0)
            if time.perf_counter() - begin > timeout_s:
                raise MoveFailed(f"{kind.name.lower()}: no answer within {timeout_s:.0f} s")
        return self._replies.pop(self._epoch), time.perf_counter() - begin

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # reading tells
            self._socket.send(data)
