"""A controller's end of the link that does exactly as a test says: what the shim's tests talk to the shim with.

Not a model of the node controller (its own tests run the real one); it lets a test send any command, or any bytes, at a
moment of its choosing, and read the page.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAGIC = 0x4E464641
HEADER = struct.Struct("=IHHII")
HELLO = struct.Struct("=iIHHI64s64s32s")
NOTIFY = struct.Struct("=IIQ16s")
COMMAND = struct.Struct("=IIQQ192s")
REPLY = struct.Struct("=IiQQ192s")
REQUEST = struct.Struct("=IIQ")
WELCOME = struct.Struct("=II32s")
POOLS = 1  # in the flags of WELCOME
NOTICE = struct.Struct("=II192s")
RESULT = struct.Struct("=iI192s")

NONE, RESIDENT, PARKING, PARKED, QUEUED, RESUMING, LOST = range(7)
PARK, RESUME, CANCEL, CANCEL_END, DYING, ROOM, COMMIT, ABORT, TRIM, LOT, DROP_CACHES = range(1, 12)
OK, BUSY, REVOKED, NO_GPU_ROOM, NO_HOST_ROOM, STALE, NOTHING, FAILED, REFUSED, PREPARED = range(10)
PREPARE = 1  # in the argument of PARK and RESUME
WANT = 2  # what is notified
TYPES = {1: "hello", 2: "notify", 3: "reply", 4: "request", 0x40: "heartbeat"}


@dataclass(frozen=True)
class Page:
    """The fields of `struct affinode_page` that tests look at; sizes in bytes, times in ns."""

    pid: int
    flags: int
    state: int
    want: int
    in_flight: int
    captures: int
    room_bytes: int
    calls: tuple[int, ...]
    parks: int
    resumes: int
    resident_bytes: int
    parked_bytes: int
    fixed_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Reply:
    epoch: int
    command: int
    status: int
    bytes: int
    duration_ns: int
    text: str


class LinkPeer:
    """One shim's connection, accepted and welcomed."""

    def __init__(self, connection: socket.socket, *, welcome: bool = True) -> None:
        self.socket = connection
        self.epoch = 0
        self.replies: list[Reply] = []
        self.notified: list[tuple[int, int, int]] = []  # (kind, epoch, bytes)
        self.requests: list[tuple[int, int, int]] = []  # (number, kind, argument)
        data, fds, _flags, _address = socket.recv_fds(connection, 4096, 4)
        self.hello = HELLO.unpack_from(data, HEADER.size)
        self.page_fd = fds[0]
        self.map = mmap.mmap(self.page_fd, 4096, access=mmap.ACCESS_READ)
        if welcome:
            self.send(0x81, WELCOME.pack(30000, POOLS, b"test"))

    def send(self, kind: int, body: bytes, epoch: int = 0, descriptors: Sequence[int] = ()) -> None:
        message = HEADER.pack(MAGIC, 1, kind, HEADER.size + len(body), epoch) + body
        socket.send_fds(self.socket, [message], list(descriptors))

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
        self.epoch += 1
        body = COMMAND.pack(command, request, deadline_ns, argument, text.encode())
        self.send(0x82, body, self.epoch, descriptors)
        return self.epoch

    def pump(self, timeout_s: float = 0.0) -> None:
        """Read what the shim has sent, answering nothing but heartbeats."""
        while select.select([self.socket], [], [], timeout_s)[0]:
            data = self.socket.recv(4096)
            if not data:
                raise ConnectionResetError("the shim closed the link")
            _magic, _version, kind, _size, epoch = HEADER.unpack_from(data)
            if kind == 3:
                c, status, size, ns, text = REPLY.unpack_from(data, HEADER.size)
                self.replies.append(Reply(epoch, c, status, size, ns, text.split(b"\0")[0].decode()))
            elif kind == 2:
                what, _r, size, _uuid = NOTIFY.unpack_from(data, HEADER.size)
                self.notified.append((what, epoch, size))
            elif kind == 4:
                what, _r, argument = REQUEST.unpack_from(data, HEADER.size)
                self.requests.append((epoch, what, argument))
            elif kind == 0x40:
                self.send(0x40, b"")
            timeout_s = 0.0

    def reply_to(self, epoch: int, timeout_s: float = 60.0, *, last: bool = False) -> Reply:
        """The first reply to a command, or the `last`, which ends a prepared move."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for reply in self.replies:
                if reply.epoch == epoch and not (last and reply.status == PREPARED):
                    return reply
            self.pump(0.05)
        raise TimeoutError(f"no reply to command {epoch} within {timeout_s} s; page {self.page()}")

    def park(self, timeout_s: float = 60.0) -> Reply:
        return self.reply_to(self.command(PARK), timeout_s)

    def resume(self, timeout_s: float = 60.0) -> Reply:
        return self.reply_to(self.command(RESUME), timeout_s)

    def prepare(self, command: int) -> int:
        """PARK or RESUME as far as PREPARED; its epoch."""
        epoch = self.command(command, argument=PREPARE)
        reply = self.reply_to(epoch)
        assert reply.status == PREPARED, reply
        return epoch

    def decide(self, decision: int, epoch: int) -> Reply:
        """COMMIT or ABORT; how the move ended."""
        self.command(decision, request=epoch)
        return self.reply_to(epoch, last=True)

    def wait(self, condition, timeout_s: float = 60.0) -> Page:  # type: ignore[no-untyped-def]
        """Read the page until `condition(page)`; that page."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            page = self.page()
            if condition(page):
                return page
            self.pump(0.005)
        raise TimeoutError(f"page never met the condition within {timeout_s} s: {self.page()}")

    def page(self) -> Page:
        for _ in range(1000):
            raw = bytes(self.map)
            if struct.unpack_from("=Q", raw, 24)[0] % 2 == 0 and bytes(self.map[24:32]) == raw[24:32]:
                break
        pid, flags, state, want = struct.unpack_from("=iIII", raw, 8)
        in_flight, captures, _epoch, gpus = struct.unpack_from("=IIII", raw, 56)
        room = struct.unpack_from("=Q", raw, 72)[0]
        calls = struct.unpack_from("=8Q", raw, 80)
        parks, resumes = struct.unpack_from("=QQ", raw, 144)
        resident = parked = 0
        fixed = [0] * 8
        for i in range(gpus):
            r, p, *f = struct.unpack_from("=QQ8Q", raw, 256 + 96 * i + 16)
            resident, parked = resident + r, parked + p
            fixed = [a + b for a, b in zip(fixed, f, strict=True)]
        return Page(
            pid,
            flags,
            state,
            want,
            in_flight,
            captures,
            room,
            calls,
            parks,
            resumes,
            resident,
            parked,
            tuple(fixed),
        )

    def close(self) -> None:
        self.map.close()
        os.close(self.page_fd)
        self.socket.close()


class LinkListener:
    """`link.sock` in a folder; set AFFINODE_SOCKET to `socket_path` for the process under test."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.socket_path = folder / "node.sock"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(folder / "link.sock"))
        self.listener.listen(16)

    def accept(self, timeout_s: float = 60.0, *, welcome: bool = True) -> LinkPeer:
        self.listener.settimeout(timeout_s)
        connection, _ = self.listener.accept()
        connection.setblocking(True)
        return LinkPeer(connection, welcome=welcome)

    def close(self) -> None:
        self.listener.close()
