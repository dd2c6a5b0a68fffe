"""Sockets to peers that pass descriptors: wanted ones are taken, others are refused, none is closed by the loop.

Descriptors lie in a Unix socket's queue until they are received. Whatever drops them there closes them: a receive
without space for them, or the close of the socket. So where Linux cannot refuse them, they are received too.
"""

from __future__ import annotations

import array
import contextlib
import socket
from pathlib import Path
from typing import Any

from .closing import SCM_MAX_FD, Closing
from .peers import Place, peer_of, place_of

SO_PASSRIGHTS = 83  # Linux 6.16; not in Python's socket module
DESCRIPTOR_BYTES = array.array("i").itemsize
CONTROL_BYTES = socket.CMSG_SPACE(SCM_MAX_FD * DESCRIPTOR_BYTES)


class PeerSocket(socket.socket):
    """A connection to a peer, whose descriptors `closing` closes."""

    peer_place: Place
    closing: Closing
    refuses: bool  # whether the peer's attempt to pass descriptors fails
    may_hold: bool  # whether descriptors may lie in its queue, unreceived: then its close can block

    def __repr__(self) -> str:
        """Return a name without asking the system, since the selector names each socket that it does not know yet."""
        return f"<connection {self.fileno()} to a peer>"

    def refuse_descriptors(self) -> None:
        """Refuse further descriptors, where Linux can refuse them."""
        self.refuses = self.refuses or refuse_descriptors(self)

    def receive(self, size: int) -> tuple[bytes, list[int], int]:
        """Return a message, its descriptors, which are the caller's, and the flags of recvmsg(2). Raises OSError."""
        data, ancillary, flags, _ = self.recvmsg(size, CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
        return data, _descriptors(ancillary), flags

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive as any socket does; descriptors are closed."""
        if self.refuses:
            return super().recv_into(buffer, nbytes, flags)
        view = memoryview(buffer)[: nbytes or None]
        size, ancillary, _, _ = self.recvmsg_into([view], CONTROL_BYTES, flags | socket.MSG_CMSG_CLOEXEC)
        self.closing.close(self.peer_place, _descriptors(ancillary))
        return size

    def close(self) -> None:
        """Shut the connection down, and leave the close to `closing` where unread descriptors can block it."""
        if not self.may_hold:
            super().close()
        elif self.fileno() >= 0:
            with contextlib.suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)
            self.closing.close(self.peer_place, [self.detach()])


class ListeningSocket(socket.socket):
    """Accepts connections as PeerSockets."""

    def __init__(self, kind: socket.SocketKind, closing: Closing, *, takes_descriptors: bool):
        super().__init__(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
        self._closing = closing
        self._refuses = not takes_descriptors and refuse_descriptors(self)  # connections inherit it

    def listen_at(self, path: Path, mode: int, backlog: int) -> None:
        """Listen in the place of an old socket: at no moment is there none, or one that refuses."""
        new = path.with_name(f"{path.name[:-1]}~")  # as long as the path, which may just fit
        new.unlink(missing_ok=True)
        self.bind(str(new))
        new.chmod(mode)
        self.listen(backlog)
        new.replace(path)

    def accept(self) -> tuple[PeerSocket, Any]:
        """Accept as any socket does."""
        accepted, address = super().accept()
        peer = PeerSocket(accepted.family, accepted.type, fileno=accepted.detach())
        peer.setblocking(False)
        peer.closing, peer.refuses, peer.may_hold = self._closing, self._refuses, not self._refuses
        peer.peer_place = place_of(peer_of(peer))
        return peer, address


def refuse_descriptors(connected: socket.socket) -> bool:
    """Have the system refuse descriptors that are sent to a socket; False if it does not know how."""
    try:
        connected.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    except OSError:
        return False
    return True


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(payload[: len(payload) - len(payload) % DESCRIPTOR_BYTES])
    return list(found)
