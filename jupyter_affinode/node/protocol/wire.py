"""The link's messages: the structs of shim/src/protocol.h, checked, parsed and packed.

`parse` is given whatever a peer sent. It returns a frozen dataclass or raises WireError; never anything else. Native
byte order and alignment, as C has them on this machine.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

LINK_MAGIC = 0x4E464641
PROTOCOL_VERSION = 2
KERNEL_ID_BYTES = 64
TEXT_BYTES = 192
GRANT_BYTES = 4096  # AFFINODE_GRANT_SIZE: the longest
GRANT_PIECE_BYTES = 192
PREPARED_MS = 10000  # AFFINODE_PREPARED_MS: a prepared resume is carried out after that, come what may
STREAM_MS = 2000  # AFFINODE_STREAM_MS: how long a resume that takes room as it comes waits for more
WINDOW_BYTES = 256 << 20  # AFFINODE_WINDOW_BYTES: what a move that hands over has under way, twice
PREPARED_CALL_MS = 100  # AFFINODE_PREPARED_CALL_MS: a prepared park is undone that long after a call came
LARGEST_BYTES = 1 << 50  # no GPU has a pebibyte: a larger figure is false or a bug

HEADER = struct.Struct("=IHHII")
HELLO = struct.Struct("=iI4xI64s64s32s")
NOTIFY = struct.Struct("=IIQ16s")
REPLY = struct.Struct("=IiQQ192s")
REQUEST = struct.Struct("=IIQ")
GRANT = struct.Struct("=II192s")
WELCOME = struct.Struct("=I4x32s")
COMMAND = struct.Struct("=IIQQ192s")
NOTICE = struct.Struct("=II192s")
RESULT = struct.Struct("=iI192s")


class WireError(Exception):
    """The peer broke the protocol; the message says how, for one log line."""


class MessageType(enum.IntEnum):
    """`enum affinode_message`."""

    HELLO = 0x01
    NOTIFY = 0x02
    REPLY = 0x03
    REQUEST = 0x04
    GRANT = 0x05
    WELCOME = 0x81
    COMMAND = 0x82
    NOTICE = 0x83
    RESULT = 0x84
    HEARTBEAT = 0x40


class NotifyKind(enum.IntEnum):
    """`enum affinode_notice_kind`: what a shim reports unasked."""

    STATE = 1
    WANT = 2
    UNWANT = 3
    ROOM = 4
    ROOM_END = 5
    LOT_END = 6


NOTIFY_LOCKED = 1 << 0  # enum affinode_notify_flags


class CommandKind(enum.IntEnum):
    """`enum affinode_command_kind`."""

    PARK = 1
    RESUME = 2
    CANCEL = 3
    CANCEL_END = 4
    DYING = 5
    ROOM = 6
    COMMIT = 7
    ABORT = 8
    TRIM = 9
    LOT = 10
    DROP_CACHES = 11
    SPILL = 12  # the folder is the command's text
    COUNT = 13
    LOT_FORGET = 14
    READ_BACK = 15  # from the disk into host memory
    HIBERNATE = 16  # the image's folder is the command's text
    SHARE = 17  # the folder in host memory is the command's text


class MoveFlag(enum.IntFlag):
    """`enum affinode_move_flags`: in the low bits of the argument of PARK and RESUME."""

    PREPARE = 1
    CONTEXT = 2
    PREEMPT = 4  # PARK: although the process is at work
    MIGRATE = 8  # RESUME: on the GPU whose UUID is the command's text
    STREAM = 16  # part after part, in an exchange
    HAND_OVER = 32  # with STREAM: host memory goes from the process that resumes to the one that parks


MOVE_BUDGET_SHIFT = 8  # the bits above: the MiB of host memory that a park may take anew; 0: no limit


class Status(enum.IntEnum):
    """`enum affinode_status`."""

    OK = 0
    BUSY = 1
    REVOKED = 2
    NO_GPU_ROOM = 3
    NO_HOST_ROOM = 4
    STALE = 5
    NOTHING = 6
    FAILED = 7
    REFUSED = 8
    PREPARED = 9  # not the end: the move waits for COMMIT or ABORT


class RequestKind(enum.IntEnum):
    """`enum affinode_request_kind`: what the user asks from inside the kernel."""

    PARK = 1
    RESUME = 2
    HOLD = 3
    RELEASE = 4
    STATUS = 5


class HelloFlag(enum.IntFlag):
    """`enum affinode_hello_flags`. A test of one, made for each process in each pass, is an int and makes no member."""

    __and__ = __rand__ = int.__and__  # type: ignore[assignment]

    CONTEXT = 16  # may be parked at context depth
    GRANT = 32  # pieces of a grant follow, and name the user
    MIGRATES = 128  # can carry out MoveFlag.MIGRATE


BODIES = {  # what a controller may be sent
    MessageType.HELLO: HELLO,
    MessageType.NOTIFY: NOTIFY,
    MessageType.REPLY: REPLY,
    MessageType.REQUEST: REQUEST,
    MessageType.GRANT: GRANT,
    MessageType.HEARTBEAT: struct.Struct("="),
}
IN_EVERY_VERSION = (MessageType.HELLO, MessageType.GRANT)
LARGEST_MESSAGE = HEADER.size + max(body.size for body in (HELLO, NOTIFY, REPLY, REQUEST, COMMAND, RESULT))


@dataclass(frozen=True)
class Hello:
    """A shim's introduction of its process; the page's descriptor comes with it."""

    version: int  # of the shim's protocol; of another one only this message and the grant can be read
    pid: int  # as the shim sees it; informative, never trusted
    flags: HelloFlag
    kernel_id: str  # "" if the process has none
    command: str
    shim_version: str
    process_group: int = 0  # as the shim sees it; 0: not known


@dataclass(frozen=True)
class Notify:
    """A shim's report of a change. `number` is the request's, of ROOM and ROOM_END. `is_locked`, of ROOM: not the GPU
    is full, but another process that comes back has its lock.
    """

    number: int
    kind: NotifyKind
    bytes: int
    gpu_uuid: str
    is_locked: bool = False


@dataclass(frozen=True)
class Reply:
    """A shim's answer to PARK or RESUME; PREPARED is followed by another."""

    epoch: int
    command: CommandKind
    status: Status
    bytes: int
    duration_s: float
    text: str


@dataclass(frozen=True)
class Request:
    """A user's request from inside the kernel; answered with `pack_result`."""

    number: int
    kind: RequestKind
    argument: int


@dataclass(frozen=True)
class GrantPiece:
    """A part of the signed text that names the process's user; `size` is that of the whole text."""

    offset: int
    size: int
    piece: bytes


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life of the shim."""


Message = Hello | Notify | Reply | Request | GrantPiece | Heartbeat


def parse(data: bytes) -> Message:
    """Parse one packet from a shim. Raises WireError and nothing else."""
    if len(data) < HEADER.size:
        raise WireError(f"a message of {len(data)} bytes, shorter than a header")
    magic, version, type_, size, epoch = HEADER.unpack_from(data)
    if magic != LINK_MAGIC:
        raise WireError(f"a message with magic {magic:#x}")
    if size != len(data):
        raise WireError(f"a message of {len(data)} bytes that says {size}")
    if version != PROTOCOL_VERSION and type_ not in IN_EVERY_VERSION:
        raise WireError(f"a message of protocol version {version}")
    body = BODIES.get(type_)
    if body is None:
        raise WireError(f"a message of type {type_}")
    if len(data) != HEADER.size + body.size:
        raise WireError(f"a {MessageType(type_).name} of {len(data)} bytes, not {HEADER.size + body.size}")
    fields = body.unpack_from(data, HEADER.size)
    if type_ == MessageType.HELLO:
        return _hello(version, *fields)
    if type_ == MessageType.NOTIFY:
        return _notify(epoch, *fields)
    if type_ == MessageType.REPLY:
        return _reply(epoch, *fields)
    if type_ == MessageType.REQUEST:
        return _request(epoch, *fields)
    if type_ == MessageType.GRANT:
        return _grant_piece(*fields)
    return Heartbeat()


def gpu_uuid(raw: bytes) -> str:
    """Return a GPU's UUID as NVML writes it."""
    digits = raw.hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def pack_welcome(heartbeat_ms: int, controller_version: str) -> bytes:
    """Pack the answer to a HELLO."""
    body = WELCOME.pack(heartbeat_ms, _field(controller_version, 32))
    return _packed(MessageType.WELCOME, 0, body)


def pack_command(
    epoch: int,
    command: CommandKind,
    *,
    request: int = 0,
    deadline_ns: int = 0,
    argument: int = 0,
    reason: str = "",
) -> bytes:
    """Pack a command; `deadline_ns` is of the process's clock, 0 for none; `reason` is for the shim's log."""
    body = COMMAND.pack(command, request, deadline_ns, argument, _field(reason, TEXT_BYTES))
    return _packed(MessageType.COMMAND, epoch, body)


def pack_notice(place: int, waiting: int, text: str) -> bytes:
    """Pack a notice for the kernel's user: its place in the queue from 1, or 0."""
    return _packed(MessageType.NOTICE, 0, NOTICE.pack(place, waiting, _field(text, TEXT_BYTES)))


def pack_result(number: int, status: Status, text: str) -> bytes:
    """Pack the answer to a REQUEST."""
    return _packed(MessageType.RESULT, number, RESULT.pack(status, 0, _field(text, TEXT_BYTES)))


def pack_heartbeat() -> bytes:
    """Pack a sign of life of the controller."""
    return _packed(MessageType.HEARTBEAT, 0, b"")


def _hello(
    version: int,
    pid: int,
    flags: int,
    process_group: int,
    kernel_id: bytes,
    command: bytes,
    shim_version: bytes,
) -> Hello:
    return Hello(
        version,
        pid,
        HelloFlag(flags),
        _text(kernel_id, "kernel id"),
        _text(command, "command"),
        _text(shim_version, "shim version"),
        process_group,
    )


def _notify(number: int, kind: int, flags: int, bytes_: int, raw_uuid: bytes) -> Notify:
    if kind not in NotifyKind.__members__.values():
        raise WireError(f"a NOTIFY of kind {kind}")
    if bytes_ > LARGEST_BYTES:
        raise WireError(f"a NOTIFY of {bytes_} bytes of GPU memory")
    return Notify(number, NotifyKind(kind), bytes_, gpu_uuid(raw_uuid), bool(flags & NOTIFY_LOCKED))


def _reply(epoch: int, command: int, status: int, bytes_: int, ns: int, text: bytes) -> Reply:
    if command not in CommandKind.__members__.values():
        raise WireError(f"a REPLY to command {command}")
    if status not in Status.__members__.values():
        raise WireError(f"a REPLY with status {status}")
    if bytes_ > LARGEST_BYTES:
        raise WireError(f"a REPLY about {bytes_} bytes of GPU memory")
    return Reply(epoch, CommandKind(command), Status(status), bytes_, ns / 1e9, _text(text, "text"))


def _request(number: int, kind: int, _reserved: int, argument: int) -> Request:
    if kind not in RequestKind.__members__.values():
        raise WireError(f"a REQUEST of kind {kind}")
    return Request(number, RequestKind(kind), argument)


def _grant_piece(offset: int, size: int, piece: bytes) -> GrantPiece:
    if not 0 < size <= GRANT_BYTES or offset >= size or offset % GRANT_PIECE_BYTES:
        raise WireError(f"a piece at {offset} of a grant of {size} bytes")
    return GrantPiece(offset, size, piece[: size - offset])


def _text(raw: bytes, what: str) -> str:
    """Return a NUL-terminated field made fit for logs and JSON. Raises WireError."""
    end = raw.find(b"\0")
    if end < 0:
        raise WireError(f"a {what} without an end")
    text = raw[:end].decode(errors="replace")
    return "".join(character if character.isprintable() else "�" for character in text)


def _field(text: str, size: int) -> bytes:
    """Return text for a field of `size` bytes, cut at a whole character and NUL-terminated."""
    return text.encode()[: size - 1].decode(errors="ignore").encode().ljust(size, b"\0")


def _packed(type_: MessageType, epoch: int, body: bytes) -> bytes:
    return HEADER.pack(LINK_MAGIC, PROTOCOL_VERSION, type_, HEADER.size + len(body), epoch) + body
