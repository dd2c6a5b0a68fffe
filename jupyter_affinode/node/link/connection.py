"""One shim's connection: what it may send, how fast, and how long it may be silent.

Nothing here waits for a peer: reads take a bounded batch when it is the user's turn, writes go to a bounded queue, and
a peer that does not keep to that is dropped with one log line.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ..identity.access import Access, Caller, NotAllowed
from ..identity.identity import Identity
from ..identity.rate_limits import Account, Accounts, TokenBucket
from ..protocol import wire
from ..protocol.page import PageError
from ..protocol.peer_clock import PeerClock
from ..protocol.wire import HelloFlag, WireError
from ..system.accepting import Line
from ..system.mapped_page import Page
from ..system.peer_socket import PeerSocket
from ..system.peers import ProcessWatch, pidfd_of

HELLO_PATIENCE_S = 5.0
HEARTBEATS_MISSED = 3
MESSAGES_AT_ONCE = 32  # then other users' connections are read …
TURN_S = 0.002  # … or after so much of the processor's time
MESSAGES_PER_S = 500.0  # more is read later, so a flood waits in the peer's own socket
MESSAGES_BURST = 1000.0
DEAR = 9  # further messages that a request or notice counts for, since it has a pass made and a line logged
MESSAGE_S = 0.0002  # … and so much of the processor's time counts as a message, whatever it was for
SEND_QUEUE = 1024
GRANT_CHARACTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


class Ending(Enum):
    """Why a connection ended."""

    CLOSED = "closed"  # the peer hung up
    SILENT = "silent"  # no heartbeat: the process is stopped, or stuck
    DROPPED = "dropped"  # it broke a rule
    REVOKED = "revoked"  # the key of its grant was removed
    OURS = "ours"  # we closed it


class LinkListener(Protocol):
    """Learns of connections; called on the event loop, one at a time."""

    def knows(self, owner: str, page: Page) -> bool:
        """Return whether the page is that of a process of the owner's that was admitted before."""

    def shim_refused(self, identity: Identity, hello: wire.Hello) -> None:
        """Take note of a shim that speaks another version of the protocol, and so gets no connection."""

    def shim_connected(self, connection: Connection, hello: wire.Hello, page: Page) -> None:
        """Take note of a shim that said HELLO with a good page."""

    def shim_said(self, connection: Connection, message: wire.Message) -> None:
        """Take a message after HELLO other than a heartbeat."""

    def shim_gone(self, connection: Connection, ending: Ending) -> None:
        """Take note of the end of a connection of a shim that had said HELLO."""


@dataclass
class Introduction:
    """A HELLO whose grant is not complete yet."""

    hello: wire.Hello
    page: int  # its descriptor
    grant: bytearray = field(default_factory=bytearray)


class Connection:
    """A shim's connection; its identity is this object, never a pid."""

    identity: Identity  # once it is greeted

    def __init__(
        self,
        peer_socket: PeerSocket,
        caller: Caller,
        listener: LinkListener,
        *,
        access: Access,
        accounts: Accounts,
        line: Line[Connection],
        heartbeat_s: float,
        controller_version: str,
        on_end: Callable[[Connection, Ending, str], None],
    ):
        self.peer = caller.peer
        self.greeted = False
        self.open = True
        self._caller = caller
        self._access = access
        self._accounts = accounts
        self._account: Account | None = None  # of its user, once greeted
        self._introduction: Introduction | None = None
        self._line = line
        self._socket = peer_socket
        self._listener = listener
        self._heartbeat_s = heartbeat_s
        self._controller_version = controller_version
        self._on_end = on_end
        self._epoch = 0
        self._clock = PeerClock()  # the process's, once greeted
        self._began = self._heard = time.monotonic()
        self._messages = TokenBucket(MESSAGES_PER_S, MESSAGES_BURST)
        self._paused = False  # its messages are not read at present, so it only seems to be silent
        self._unsent: deque[tuple[bytes, int | None]] = deque()  # a message, a descriptor of our own
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(peer_socket, self._readable)

    def read(self) -> None:
        """Read a bounded batch of what has come; called when it is the user's turn, and once at the start: a shim that
        says HELLO at once is never counted as unidentified.
        """
        if not self.open:
            return
        self._paused = False
        began = time.thread_time()
        for _ in range(MESSAGES_AT_ONCE):
            if not self._read_one() or time.thread_time() - began > TURN_S:
                break
        if self._account is not None:
            self._account.messages.spend((time.thread_time() - began) / MESSAGE_S)
        if self.open and not self._paused:
            self._loop.add_reader(self._socket, self._readable)

    def __repr__(self) -> str:
        return f"process {self.peer.pid}"

    def watch(self, on_end: Callable[[], None]) -> ProcessWatch:
        """Return a watch on the end of the connected process. Raises OSError if that cannot be seen."""
        return ProcessWatch(pidfd_of(self._socket, self.peer), on_end)

    def command(
        self,
        kind: wire.CommandKind,
        *,
        request: int = 0,
        argument: int = 0,
        reason: str = "",
        lasts_s: float | None = None,
        descriptor: int | None = None,
    ) -> int:
        """Send a command that may begin within `lasts_s`; return its epoch, which the REPLY will carry.

        `descriptor` is sent along; it stays the caller's.
        """
        self._epoch += 1
        until_ns = 0 if lasts_s is None else time.monotonic_ns() + int(lasts_s * 1e9)
        self._send(
            wire.pack_command(
                self._epoch,
                kind,
                request=request,
                deadline_ns=self._clock.theirs_ns(until_ns) if until_ns else 0,
                argument=argument,
                reason=reason,
            ),
            descriptor,
        )
        return self._epoch

    def notice(self, place: int, waiting: int, text: str) -> None:
        """Tell the shim its kernel's place in the queue."""
        self._send(wire.pack_notice(place, waiting, text))

    def result(self, number: int, status: wire.Status, text: str) -> None:
        """Answer a REQUEST."""
        self._send(wire.pack_result(number, status, text))

    def beat(self, now: float, *, lenient: bool) -> None:
        """Send a heartbeat and check that the peer still sends its own; called once every heartbeat period.

        `lenient` if this controller itself was stopped or slow, so that silence proves nothing.
        """
        if lenient:
            self._heard = now
        if not self.greeted:
            if now - self._began > HELLO_PATIENCE_S:
                self.end(Ending.DROPPED, f"no HELLO within {HELLO_PATIENCE_S:g} s")
            return
        if now - self._heard > HEARTBEATS_MISSED * self._heartbeat_s and not self._paused:
            self.end(Ending.SILENT, f"silent for {now - self._heard:.1f} s")
            return
        if self.identity.is_revoked:  # the shim connects again at once, with another grant if it has one
            self.end(Ending.REVOKED, "the key of its grant is not known here any more")
            return
        self._send(wire.pack_heartbeat())

    def end(self, ending: Ending, why: str) -> None:
        """Close the connection; the listener is told if the shim had said HELLO."""
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        while self._unsent:
            _close(self._unsent.popleft()[1])
        if self._introduction is not None:
            self._close([self._introduction.page])
        if self._account is not None:
            self._account.links -= 1
        self._on_end(self, ending, why)
        self._socket.close()
        if self.greeted:
            self._listener.shim_gone(self, ending)

    def _readable(self) -> None:
        """Wait for the user's turn: however many links a user has, one of them is read in a turn of the loop."""
        self._pause()
        self._line.add(self.identity.charged_user if self.greeted else self._socket.peer_place, self)

    def _read_one(self) -> bool:
        """Read one message; return whether another may follow at once."""
        if not self._take_token():
            return False
        try:
            received = self._receive()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.end(Ending.CLOSED, os.strerror(error.errno or 0))
            return False
        except WireError as error:
            self.end(Ending.DROPPED, str(error))
            return False
        if received is None:
            self.end(Ending.CLOSED, "hung up")
            return False
        data, descriptors = received
        try:
            is_heartbeat = self._take(data, descriptors)
        except (WireError, PageError) as error:
            self.end(Ending.DROPPED, str(error))
            return False
        finally:
            self._close(descriptors)
        return self.open and not is_heartbeat  # which is rarely followed by anything

    def _close(self, descriptors: list[int]) -> None:
        """Close what the peer sent."""
        self._socket.closing.close(self._socket.peer_place, descriptors)

    def _take_token(self) -> bool:
        """Return whether another message may be read now; if not, reading continues a little later."""
        if self._messages.take() and (self._account is None or self._account.messages.take()):
            return True
        self._pause()
        self._loop.call_later(0.1, self._read_again)
        return False

    def _pause(self) -> None:
        self._paused = True
        self._loop.remove_reader(self._socket)

    def _read_again(self) -> None:
        if self.open:
            self._paused = False
            self._heard = time.monotonic()
            self._loop.add_reader(self._socket, self._readable)

    def _receive(self) -> tuple[bytes, list[int]] | None:
        """Return one packet and its descriptors; None at the end of the connection."""
        data, descriptors, flags = self._socket.receive(wire.LARGEST_MESSAGE)
        if not data and not flags & socket.MSG_TRUNC:
            self._close(descriptors)
            return None
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            self._close(descriptors)
            what = "message" if flags & socket.MSG_TRUNC else "number of descriptors"
            raise WireError(f"a {what} too large to be one of ours")
        return data, descriptors

    def _take(self, data: bytes, descriptors: list[int]) -> bool:
        """Take a message; return whether it was only a heartbeat."""
        message = wire.parse(data)
        self._heard = time.monotonic()
        if isinstance(message, wire.Hello):
            self._take_hello(message, descriptors)
            return False
        if descriptors:
            raise WireError("descriptors with a message that is no HELLO")
        if isinstance(message, wire.GrantPiece):
            self._take_piece(message)
            return False
        if not self.greeted:
            raise WireError(
                "another message before HELLO" if self._introduction is None else "no whole grant"
            )
        if isinstance(message, wire.Heartbeat):
            return True
        if isinstance(message, wire.Request | wire.Notify) and self._account is not None:
            self._account.messages.spend(DEAR)
        self._listener.shim_said(self, message)
        return False

    def _take_hello(self, hello: wire.Hello, descriptors: list[int]) -> None:
        if self.greeted or self._introduction is not None:
            raise WireError("a second HELLO")
        if len(descriptors) != 1:
            raise WireError(f"a HELLO with {len(descriptors)} descriptors, not 1")
        self._socket.refuse_descriptors()  # there is no use for others
        if hello.flags & HelloFlag.GRANT:
            self._introduction = Introduction(hello, descriptors.pop())
            return
        self._greet(hello, descriptors[0], None)

    def _take_piece(self, message: wire.GrantPiece) -> None:
        """Take a piece of the grant that HELLO announced."""
        introduction = self._introduction
        if introduction is None:
            raise WireError("a grant that no HELLO announced")
        grant = introduction.grant
        if message.offset != len(grant) or not GRANT_CHARACTERS.issuperset(message.piece):
            raise WireError("a grant in disorder")
        grant += message.piece
        if len(grant) < message.size:
            return
        self._introduction = None
        try:
            self._greet(introduction.hello, introduction.page, grant.decode())
        finally:
            self._close([introduction.page])

    def _greet(self, hello: wire.Hello, page_descriptor: int, grant: str | None) -> None:
        """Admit a process, or refuse it."""
        if hello.version != wire.PROTOCOL_VERSION:
            self._refuse_version(hello, grant)
            return
        page = Page(page_descriptor)
        try:
            self._admit(hello, page, grant)
        except WireError:
            page.close()
            raise
        self._clock = page.clock
        self._send(wire.pack_welcome(int(self._heartbeat_s * 1000), self._controller_version))
        if self.open:
            self._listener.shim_connected(self, hello, page)
        else:
            page.close()

    def _refuse_version(self, hello: wire.Hello, grant: str | None) -> None:
        """Refuse a process whose page and messages cannot be read. Its shim tries again every two seconds."""
        try:
            identity = self._access.identify(self._caller, grant)
        except NotAllowed as refused:
            raise WireError(str(refused)) from None
        self._listener.shim_refused(identity, hello)
        self.end(Ending.OURS, "it speaks another version of the protocol")

    def _admit(self, hello: wire.Hello, page: Page, grant: str | None) -> None:
        """Identify the process's user. Raises WireError if it may not connect."""
        try:
            identity = self._access.identify(
                self._caller, grant, was_let_in=lambda owner: self._listener.knows(owner, page)
            )
        except NotAllowed as refused:
            raise WireError(str(refused)) from None
        account = self._accounts.of(identity.charged_user)
        if account.links >= self._accounts.limits.links:
            raise WireError(f"{identity.name or 'its user'} has {account.links} processes connected already")
        if not account.hellos.take():
            raise WireError(f"{identity.name or 'its user'} connects too often")
        account.links += 1
        self.identity, self._account, self.greeted = identity, account, True

    def _send(self, data: bytes, descriptor: int | None = None) -> None:
        if not self.open:
            return
        if self._unsent:
            return self._queue(data, descriptor)
        try:
            self._write(data, descriptor)
        except (BlockingIOError, InterruptedError):
            self._queue(data, descriptor)
            self._loop.add_writer(self._socket, self._writable)
        except OSError as error:
            self._end_soon(Ending.CLOSED, os.strerror(error.errno or 0))

    def _write(self, data: bytes, descriptor: int | None) -> None:
        rights = array.array("i", [] if descriptor is None else [descriptor])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
        self._socket.sendmsg([data], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _queue(self, data: bytes, descriptor: int | None) -> None:
        if len(self._unsent) >= SEND_QUEUE:
            return self._end_soon(Ending.DROPPED, f"it has not read its last {SEND_QUEUE} messages")
        try:  # a copy: its number may be another file's by the time it is sent
            kept = None if descriptor is None else os.dup(descriptor)
        except OSError as error:
            return self._end_soon(Ending.DROPPED, os.strerror(error.errno or 0))
        self._unsent.append((data, kept))

    def _writable(self) -> None:
        while self._unsent:
            try:
                self._write(*self._unsent[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                return self.end(Ending.CLOSED, os.strerror(error.errno or 0))
            _close(self._unsent.popleft()[1])
        self._loop.remove_writer(self._socket)

    def _end_soon(self, ending: Ending, why: str) -> None:
        """End the connection later, since the caller may be iterating over the connections."""
        self._loop.call_soon(self.end, ending, why)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
