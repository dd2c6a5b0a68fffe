"""A shim's end of the link, written for tests: it behaves as told, or misbehaves.

It speaks the wire by struct formats of its own, so that a mistake in `wire.py` is not made twice. A thread
answers commands as a real shim's link thread would; tests drive the rest.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import mmap
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_affinode.settings.policy import MIB

MAGIC = 0x4E464641
PAGE_MAGIC = 0x47504641
HEADER = struct.Struct("=IHHII")
COMMAND = struct.Struct("=IIQQ192s")
PAGE_HEAD = struct.Struct("=IHHiIIIQQQQIIII")
PAGE_TAIL = struct.Struct("=8x8QQQQQQQQQQQQIIQQ")
PAGE_GPU = struct.Struct("=16sQQ8Q")
PAGE_GPUS_AT = 256
HAS_GRANT = 32  # a flag of HELLO
PREPARE = 1  # a flag of PARK and RESUME
MEMORY_DEPTH, CONTEXT_DEPTH = 1, 2
PREPARED_S, PREPARED_CALL_S = 10.0, 0.1  # AFFINODE_PREPARED_MS, AFFINODE_PREPARED_CALL_MS
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

NONE, RESIDENT, PARKING, PARKED, QUEUED, RESUMING, LOST = range(7)
HELLO, NOTIFY, REPLY, REQUEST, GRANT, HEARTBEAT = 1, 2, 3, 4, 5, 0x40
STATE, WANT, UNWANT, ROOM, ROOM_END, LOT_END = 1, 2, 3, 4, 5, 6
PARK, RESUME, CANCEL, CANCEL_END, DYING, ROOM_ANSWER, COMMIT, ABORT, TRIM, LOT, DROP_CACHES = range(1, 12)
LOT_FORGET, HIBERNATE = 14, 16
OK, BUSY, REVOKED, NO_GPU_ROOM, NO_HOST_ROOM, STALE, NOTHING, FAILED, REFUSED, PREPARED = range(10)
GPU = bytes(range(16))


def message(kind: int, body: bytes, *, epoch: int = 0, version: int = 2, size: int | None = None) -> bytes:
    """A packet; `size` to lie about it."""
    return HEADER.pack(MAGIC, version, kind, HEADER.size + len(body) if size is None else size, epoch) + body


def hello(kernel_id: str = "", *, flags: int = 0, group: int = 0, **lies: int) -> bytes:
    """A HELLO; `group` is 0 where the shim cannot tell it."""
    body = struct.pack("=iI4xI64s64s32s", os.getpid(), flags, group, kernel_id.encode(), b"fake", b"0.1.0")
    return message(HELLO, body, **lies)


def grant_pieces(grant: str) -> list[bytes]:
    """A GRANT in pieces."""
    raw = grant.encode()
    return [
        message(GRANT, struct.pack("=II192s", at, len(raw), raw[at : at + 192]))
        for at in range(0, len(raw), 192)
    ]


def notify(kind: int, size: int = 0, *, number: int = 0, gpu: bytes = GPU, flags: int = 0) -> bytes:
    """A NOTIFY."""
    return message(NOTIFY, struct.pack("=IIQ16s", kind, flags, size, gpu), epoch=number)


def reply(command: int, epoch: int, status: int, size: int = 0, text: str = "") -> bytes:
    """A REPLY."""
    body = struct.pack("=IiQQ192s", command, status, size, 1000000, text.encode())
    return message(REPLY, body, epoch=epoch)


def request(kind: int, number: int, argument: int = 0) -> bytes:
    """A REQUEST."""
    return message(REQUEST, struct.pack("=IIQ", kind, 0, argument), epoch=number)


def send(connected: socket.socket, data: bytes, *descriptors: int) -> None:
    """Send a packet with descriptors."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connected.sendmsg([data], rights)


def connect(path: Path) -> socket.socket:
    """Connect to `link.sock`."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connected.settimeout(60)
    try:
        connected.connect(str(path))
    except OSError:
        connected.close()
        raise
    return connected


class FakePage:
    """A page of its own; `seals` and `size` to get them wrong."""

    def __init__(self, *, size: int = 4096, seals: int = SEALS):
        self.descriptor = os.memfd_create("fake-page", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, size)
        self.map = mmap.mmap(self.descriptor, size) if size else None
        if seals:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        self.sequence = 0
        self.state = RESIDENT
        self.epoch = 0
        self.want = 0
        self.flags = self.calls_in_flight = self.captures = self.parks = self.resumes = 0
        self.last_activity = self.state_since = time.monotonic_ns()
        self.context_bytes = self.context_gpu = 0
        self.host = [0, 0, 0, 0, 0, 0]  # copies, kept, copied and zero at the last park, mended chunks, depth
        self.lots, self.last_park = 0, 5 * MIB
        self.memory = {GPU: [0, 0, 0]}  # resident, parked, fixed (as "managed")
        self.write()

    def write(self, **raw: int) -> None:
        """Publish; `raw` overrides fields of the head by name: magic, version, gpu_size, state, gpu_count."""
        if self.map is None or len(self.map) < 4096:
            return
        self.sequence += 2
        head = PAGE_HEAD.pack(
            raw.get("magic", PAGE_MAGIC),
            raw.get("version", 2),
            raw.get("gpu_size", PAGE_GPU.size),
            os.getpid(),
            self.flags,
            raw.get("state", self.state),
            self.want or int(self.state == QUEUED),
            self.sequence,
            self.state_since,
            self.last_activity,
            time.monotonic_ns(),
            self.calls_in_flight,
            self.captures,
            self.epoch,
            raw.get("gpu_count", len(self.memory)),
        )
        moves = (self.parks, self.resumes, 10**8, self.last_park, 10**8, 5 * MIB)
        gpus = b"".join(
            PAGE_GPU.pack(uuid, resident, parked, 0, fixed, 0, 0, 0, 0, 0, 0)
            for uuid, (resident, parked, fixed) in self.memory.items()
        )
        body = head + PAGE_TAIL.pack(
            *[0] * 8, *moves, *self.host, self.context_gpu, self.lots, self.context_bytes
        )
        self.map[24:32] = struct.pack("=Q", self.sequence - 1)
        self.map[:24] = body[:24]
        self.map[32 : len(body)] = body[32:]
        self.map[PAGE_GPUS_AT : PAGE_GPUS_AT + len(gpus)] = gpus
        self.map[24:32] = struct.pack("=Q", raw.get("sequence", self.sequence))

    def close(self) -> None:
        """Unmap and close; again without harm, since a process's connections share it."""
        if self.map is not None:
            self.map.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass(frozen=True)
class Command:
    """What the controller commanded."""

    kind: int
    epoch: int
    request: int
    deadline_ns: int
    argument: int
    reason: str


@dataclass
class Heard:
    """Everything the controller said."""

    commands: list[Command] = field(default_factory=list)
    notices: list[tuple[int, int, str]] = field(default_factory=list)
    results: list[tuple[int, int, str]] = field(default_factory=list)
    lots: dict[int, int] = field(default_factory=dict)  # the descriptors that came with LOT, by number
    heartbeats: int = 0
    welcome: tuple[int, int, str] | None = None  # version, heartbeat in ms, the controller's version
    ended: bool = False

    def of(self, kind: int) -> list[Command]:
        """The commands of a kind."""
        return [command for command in self.commands if command.kind == kind]


@dataclass
class Waiting:
    """A move that waits for COMMIT or ABORT, or still copies."""

    command: Command
    before: int  # the state
    is_prepared: bool = False
    since: float = 0.0
    called_at: float | None = None


class FakeShim:
    """One process with `resident` bytes on a GPU.

    `park_status` and `resume_status` say how it answers PARK and RESUME, at once or by preparing ("Prepared moves" in
    protocol.h), `end_status` how a committed move ends. It can be slow, or say nothing.

    When it has been made, the controller has either welcomed it or hung up.
    """

    def __init__(
        self,
        folder: Path,
        kernel_id: str = "",
        *,
        resident: int = 0,
        parked: int = 0,
        busy: bool = False,
        flags: int = 0,
        group: int = 0,
        grant: str | None = None,
        state: int | None = None,
        page: FakePage | None = None,
        park_status: int = OK,
        resume_status: int = OK,
        answers: bool = True,
    ):
        """`busy`: a call is under way. `state`: of its page when it says HELLO; by default as its memory says.
        `page`: with what it says already, as that of a process's earlier connection does.
        """
        self.page = FakePage() if page is None else page
        if page is None:
            self.page.memory[GPU][:2] = [resident, parked]
            self.page.calls_in_flight = int(busy)
            if parked:
                self.page.state = PARKED
        if state is not None:
            self.page.state = state
        self.page.write()
        self.states: list[int] = []  # that it became, one after the other; some last for milliseconds
        self.park_status, self.resume_status = park_status, resume_status
        self.hibernate_status = OK
        self.beats, self.answers = True, answers
        self.is_slow = False  # says PREPARED when it is told to, by `ready()`
        self.hears_decisions = self.says_ends = True
        self.end_status = OK
        self.lacks = 0  # host memory that it says it lacks yet when it is prepared
        self.waiting: Waiting | None = None
        self.is_closed = False
        self.on_command: Callable[[Command], None] | None = None
        self.heard = Heard()
        self._answered = threading.Event()
        self._lock = threading.Lock()
        self._link = folder / "link.sock"
        flags |= HAS_GRANT if grant else 0
        self._hello = [hello(kernel_id, flags=flags, group=group), *grant_pieces(grant or "")]
        self._say_hello()
        assert self._answered.wait(60)

    def _say_hello(self) -> None:
        self._socket = connect(self._link)
        send(self._socket, self._hello[0], self.page.descriptor)
        for piece in self._hello[1:]:
            send(self._socket, piece)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def reconnect(self) -> None:
        """Say HELLO again, as after the controller's death."""
        self._thread.join(timeout=60)
        self._socket.close()
        self.heard.ended = False
        self._say_hello()

    @property
    def state(self) -> int:
        """The page's state, once the page says so: what the controller is asked then is not older."""
        with self._lock:
            return self.page.state

    def send(self, data: bytes) -> None:
        """Send a packet as it is."""
        with self._lock:
            self._socket.send(data)

    def become(self, state: int) -> None:
        """Change state, and say so."""
        with self._lock:
            self.page.state, self.page.state_since = state, time.monotonic_ns()
            self.states.append(state)
            self.page.write()
        self.send(notify(STATE))

    def touch(self) -> None:
        """Use CUDA: activity if resident, a wait if parked.

        A call at the gate of a prepared park waits, and one while it copies revokes it.
        """
        with self._lock:
            self.page.last_activity = time.monotonic_ns()
            waiting = self.waiting
            parks = waiting is not None and waiting.command.kind == PARK
            if waiting is not None and parks and waiting.is_prepared and waiting.called_at is None:
                waiting.called_at = time.monotonic()
                self.page.want = 1
            self.page.write()
        if parks and waiting is not None and waiting.is_prepared:
            self.send(notify(WANT))
        elif parks:
            self._end(REVOKED)
        elif self.page.state == PARKED:
            self.become(QUEUED)
            self.send(notify(WANT))

    def give_up(self) -> None:
        """The waiting call was cancelled."""
        self.become(PARKED)
        self.send(notify(UNWANT))

    def allocate(self, size: int, number: int) -> None:
        """Meet a full GPU."""
        self.send(notify(ROOM, size, number=number))

    def allocated(self, size: int, number: int) -> None:
        """The allocation that had asked for room succeeded."""
        self.send(notify(ROOM_END, size, number=number))
        with self._lock:
            self.page.memory[GPU][0] += size
            self.page.write()
        self.send(notify(STATE))

    def hang_up(self) -> None:
        """End the connection; the process lives on."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up, for good; again without harm."""
        if self.is_closed:
            return
        self.is_closed = True
        self.hang_up()
        self._thread.join(timeout=60)
        self._socket.close()
        self.page.close()
        for descriptor in self.heard.lots.values():
            os.close(descriptor)

    def ready(self) -> None:
        """Say PREPARED."""
        waiting = self.waiting
        assert waiting is not None
        waiting.is_prepared, waiting.since = True, time.monotonic()
        self.send(reply(waiting.command.kind, waiting.command.epoch, PREPARED, self.lacks))

    def _follow(self) -> None:
        self._follow_link()
        self._without_decision(link_is_down=True)

    def _follow_link(self) -> None:
        beaten = 0.0
        while not self.heard.ended:
            ready, _, _ = select.select([self._socket], [], [], 0.1)
            if self.beats and time.monotonic() - beaten > 0.3:
                beaten = time.monotonic()
                with contextlib.suppress(OSError):
                    self.send(message(HEARTBEAT, b""))
            self._without_decision(link_is_down=False)
            if not ready:
                continue
            try:
                data, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(4 * 4))
            except OSError:
                data, ancillary = b"", []
            self._descriptors = [
                descriptor
                for _, _, payload in ancillary
                for descriptor in array.array("i", payload[: len(payload) // 4 * 4])
            ]
            if not data:
                self.heard.ended = True
                self._answered.set()
                return
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it ended while we answered
                self._take(data)

    def _take(self, data: bytes) -> None:
        _, version, kind, size, epoch = HEADER.unpack_from(data)
        assert size == len(data)
        body = data[HEADER.size :]
        if kind == 0x81:
            heartbeat_ms, _, controller = struct.unpack("=II32s", body)
            self.heard.welcome = (version, heartbeat_ms, controller.rstrip(b"\0").decode())
            self._answered.set()
        elif kind == 0x82:
            number, asked, deadline, argument, reason = COMMAND.unpack(body)
            command = Command(number, epoch, asked, deadline, argument, reason.rstrip(b"\0").decode())
            if number == LOT:
                (self.heard.lots[asked],) = self._descriptors
            elif number == LOT_FORGET:
                os.close(*self._descriptors)
            else:
                assert not self._descriptors
            self.heard.commands.append(command)
            if number in (PARK, RESUME):
                self.page.epoch = epoch
                self.page.write()
            if self.on_command is not None:
                self.on_command(command)
            elif self.answers:
                self._carry_out(command)
        elif kind == 0x83:
            place, waiting, text = struct.unpack("=II192s", body)
            self.heard.notices.append((place, waiting, text.rstrip(b"\0").decode()))
        elif kind == 0x84:
            status, _, text = struct.unpack("=iI192s", body)
            self.heard.results.append((epoch, status, text.rstrip(b"\0").decode()))
        elif kind == HEARTBEAT:
            self.heard.heartbeats += 1

    def _carry_out(self, command: Command) -> None:
        waiting = self.waiting
        if command.kind in (PARK, RESUME) and command.argument & PREPARE:
            self._prepare(command)
        elif command.kind in (COMMIT, ABORT):
            is_ours = waiting is not None and waiting.command.epoch == command.request
            if is_ours and waiting is not None and self.hears_decisions:
                if command.kind == ABORT:
                    self._end(REVOKED)
                elif waiting.is_prepared:
                    self._end(self.end_status)
        elif command.kind == PARK:
            self._move(command, self.park_status)
        elif command.kind == RESUME:
            self._move(command, self.resume_status)
        elif command.kind == HIBERNATE:
            size = sum(parked for _, parked, _ in self.page.memory.values())
            self.send(reply(HIBERNATE, command.epoch, self.hibernate_status, size, "it is a fake"))
        elif command.kind == TRIM:
            self.keep(min(self.page.host[1], command.argument))

    def keep(self, size: int) -> None:
        """Keep that much host memory for the next park."""
        with self._lock:
            self.page.host[1] = size
            self.page.write()
        self.send(notify(STATE))

    def _move(self, command: Command, status: int) -> None:
        parks = command.kind == PARK
        size = sum(memory[0 if parks else 1] for memory in self.page.memory.values())
        if status == OK:
            self._moved(command)
            self.become(PARKED if parks else RESIDENT)
        words = self._words(command) if status == OK else f"status {status}"
        self.send(reply(command.kind, command.epoch, status, size, words))

    def _moved(self, command: Command) -> None:
        """Write on the page that everything was parked, or resumed."""
        parks = command.kind == PARK
        for gpu, (resident, parked, fixed) in self.page.memory.items():
            everything = resident + parked
            self.page.memory[gpu] = [0, everything, fixed] if parks else [everything, 0, fixed]
        self.page.parks += parks
        self.page.resumes += not parks
        self.page.host[5] = MEMORY_DEPTH if parks else 0

    def _words(self, command: Command) -> str:
        """What is said of a move that was carried out."""
        return ""

    def _prepare(self, command: Command) -> None:
        status = self.park_status if command.kind == PARK else self.resume_status
        if status != OK:
            self.send(reply(command.kind, command.epoch, status, text=f"status {status}"))
            return
        before = self.state
        self.become(PARKING if command.kind == PARK else RESUMING)
        self.waiting = Waiting(command, before)  # who sees this may look at the state, or end it
        if not self.is_slow:
            self.ready()

    def _end(self, status: int) -> None:
        """The move's end, and the word of it."""
        with self._lock:
            waiting, self.waiting = self.waiting, None
            self.page.want = 0
        if waiting is None:
            return
        parks = waiting.command.kind == PARK
        if status == OK:
            self._moved(waiting.command)
        after = waiting.before if status != OK else PARKED if parks else RESIDENT
        with contextlib.suppress(OSError):  # the link may be down: the page is right all the same
            self.become(after)
            if self.says_ends:
                moved = sum(sum(memory[:2]) for memory in self.page.memory.values())
                self.send(
                    reply(waiting.command.kind, waiting.command.epoch, status, moved, f"status {status}")
                )

    def _without_decision(self, *, link_is_down: bool) -> None:
        """What protocol.h says when neither COMMIT nor ABORT comes."""
        waiting, now = self.waiting, time.monotonic()
        if waiting is None:
            return
        if waiting.command.kind == RESUME:
            if waiting.is_prepared and (link_is_down or now - waiting.since > PREPARED_S):
                self._end(OK)
            elif link_is_down:
                self._end(OK)  # begun: it goes on by itself
        elif link_is_down or (waiting.called_at is not None and now - waiting.called_at > PREPARED_CALL_S):
            self._end(REVOKED)
