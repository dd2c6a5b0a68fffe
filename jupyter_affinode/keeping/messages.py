"""A kernel's messages that a tab has not got yet: the newest, as many as a tab takes at once."""

from __future__ import annotations

import base64
import hmac
import json
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

DELIMITER = b"<IDS|MSG>"
OUTPUT = "iopub"
QUESTION = b"affinode-question-"  # how the ids of our own questions to kernels begin (kernel/output_hold.py)
# Of a kernel's output. A Jupyter server passes 3 MB and 3,000 messages on to a tab at once, unless it is configured
# otherwise (`iopub_data_rate_limit`, `iopub_msg_rate_limit`), and drops what is more.
OUTPUT_BYTES_MAX, OUTPUT_MESSAGES_MAX = 2_500_000, 2500

Message = tuple[str, Sequence[bytes]]  # the channel, and the frames as a client's socket gets them
_Name = tuple[
    str, bytes
]  # the channel, and the header: two clients' copies of a message have these in common


@dataclass
class Undelivered:
    """What the tabs of a kernel have not got, by their sessions."""

    messages: dict[str, list[Message]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)  # how many messages of output did not fit
    inputs: list[Message] = field(
        default_factory=list
    )  # the kernel's word of the cells that these messages are of

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        messages = {session: to_json(messages) for session, messages in self.messages.items()}
        return {"messages": messages, "dropped": self.dropped, "inputs": to_json(self.inputs)}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Undelivered:
        """Return what `to_json` gave. Raises ValueError or LookupError."""
        messages = {session: from_json(messages) for session, messages in told["messages"].items()}
        return cls(messages, told["dropped"], from_json(told["inputs"]))

    def with_more(self, other: Undelivered) -> Undelivered:
        """Return this with what another client of the kernel got, each message once."""
        messages = {}
        for session in self.messages.keys() | other.messages.keys():
            outbox = Outbox()
            for each in (self, other):
                outbox.put_before(each.messages.get(session, []))
            messages[session] = outbox.all()
        return Undelivered(messages, {**other.dropped, **self.dropped}, [*other.inputs, *self.inputs])


@dataclass(frozen=True)
class Held:
    """What a tab sent to a kernel that is held back, as its websocket had it."""

    session: str  # the tab's
    subprotocol: str | None
    message: str | bytes

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        is_text = isinstance(self.message, str)
        told = self.message if isinstance(self.message, str) else base64.b64encode(self.message).decode()
        return {"session": self.session, "subprotocol": self.subprotocol, "is_text": is_text, "message": told}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Held:
        """Return what `to_json` gave. Raises ValueError or LookupError."""
        message = str(told["message"])
        return cls(
            str(told["session"]),
            told["subprotocol"],
            message if told["is_text"] else base64.b64decode(message),
        )


class Outbox:
    """The messages for one tab, oldest first. Where there is more output than fits, the oldest goes; answers stay."""

    def __init__(self) -> None:
        """Begin with none. The newest message is kept, however large it is."""
        self._output: OrderedDict[_Name, Message] = OrderedDict()
        self._answers: list[Message] = []  # and questions to the user: few, and small
        self._bytes = 0
        self._expected: _Name | None = None  # output that the tab has got before it came here
        self.dropped = 0  # how many messages went for the bound

    def add(self, channel: str, frames: Sequence[bytes]) -> None:
        """Take a message."""
        name = _name((channel, frames))
        if channel != OUTPUT:
            self._answers.append((channel, frames))
        elif name == self._expected:
            self._forget_output()
        elif name not in self._output:
            self._output[name] = channel, frames
            self._bytes += _size(frames)
            self._shrink()

    def delivered(self, channel: str, header: bytes) -> None:
        """Forget a message that the tab has got; of the output also what came before it."""
        name = channel, header
        if channel != OUTPUT:
            self._answers = [message for message in self._answers if _name(message) != name]
        elif name not in self._output:
            self._expected = name
        else:
            while self._drop_oldest() != name:
                pass
            self.dropped = 0

    def put_before(self, earlier: Iterable[Message]) -> None:
        """Put messages that another client got before those that are here; those that are here too are left out."""
        here = {*self._output, *map(_name, self._answers)}
        news = [message for message in earlier if _name(message) not in here]
        self._answers[:0] = [message for message in news if message[0] != OUTPUT]
        for message in reversed([message for message in news if message[0] == OUTPUT]):
            self._output[_name(message)] = message
            self._output.move_to_end(_name(message), last=False)
            self._bytes += _size(message[1])
        self.dropped = 0  # what went here was among those
        self._shrink()

    def all(self) -> list[Message]:
        """Return all of them."""
        return [*self._output.values(), *self._answers]

    def _forget_output(self) -> None:
        self._output.clear()
        self._bytes, self.dropped, self._expected = 0, 0, None

    def _shrink(self) -> None:
        while len(self._output) > OUTPUT_MESSAGES_MAX or (
            self._bytes > OUTPUT_BYTES_MAX and len(self._output) > 1
        ):
            self._drop_oldest()
            self.dropped += 1

    def _drop_oldest(self) -> _Name:
        name, (_, frames) = self._output.popitem(last=False)
        self._bytes -= _size(frames)
        return name


def question_id() -> str:
    """Return an id for a question by whose answer a program finds out whether it hears a kernel."""
    return f"{QUESTION.decode()}{uuid.uuid4().hex}"


def signed_request(
    kind: str, content: dict[str, Any], message_id: str, *, key: bytes, signature_scheme: str
) -> list[bytes]:
    """Return a client's request as it is sent to a kernel, signed as the kernel's connection file says.

    The keeper makes its few by itself: jupyter_client would take more memory than all else in it, or be imported at a
    time at which an upgrade may have replaced its files.
    """
    header = {
        "msg_id": message_id,
        "msg_type": kind,
        "username": "",
        "session": uuid.uuid4().hex,
        "date": datetime.now(timezone.utc).isoformat(),
        "version": "5.3",
    }
    parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
    signature = b""
    if key:
        digest = signature_scheme.removeprefix("hmac-")
        signature = hmac.new(key, b"".join(parts), digest).hexdigest().encode()
    return [DELIMITER, signature, *parts]


def parent_of(frames: Sequence[bytes]) -> bytes:
    """Return the frame that names what a message answers; b"" for one that is no Jupyter message."""
    try:
        return frames[list(frames).index(DELIMITER) + 3]
    except (ValueError, IndexError):
        return b""


def header_of(frames: Sequence[bytes]) -> bytes:
    """Return the frame with the message's own kind and id; b"" for one that is no Jupyter message."""
    try:
        return frames[list(frames).index(DELIMITER) + 2]
    except (ValueError, IndexError):
        return b""


def request_of(frames: Sequence[bytes]) -> str:
    """Return the id of the request that a message answers; "" for one that answers none."""
    try:
        return str(json.loads(parent_of(frames))["msg_id"])
    except (ValueError, LookupError, TypeError):
        return ""


def to_json(messages: Iterable[Message]) -> list[list[object]]:
    """Return messages as JSON."""
    return [[channel, [base64.b64encode(frame).decode() for frame in frames]] for channel, frames in messages]


def from_json(told: Iterable[Sequence[object]]) -> list[Message]:
    """Return the messages that `to_json` gave. Raises ValueError."""
    try:
        return [(str(channel), [base64.b64decode(frame) for frame in frames]) for channel, frames in told]  # type: ignore[attr-defined]
    except TypeError as error:
        raise ValueError(f"no messages: {error}") from None


def _size(frames: Sequence[bytes]) -> int:
    return sum(map(len, frames))


def _name(message: Message) -> _Name:
    """Return what no other message has: a header has an id, and its sender's."""
    channel, frames = message
    return channel, header_of(frames) or b"".join(frames)
