"""A kernel's messages that no server has delivered yet: the newest, as many as a tab takes at once."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterable, Sequence

DELIMITER = b"<IDS|MSG>"
OUTPUT = "iopub"
# Of a kernel's output. A Jupyter server passes 3 MB and 3,000 messages on to a tab at once, unless it is configured
# otherwise (`iopub_data_rate_limit`, `iopub_msg_rate_limit`), and drops what is more.
OUTPUT_BYTES_MAX, OUTPUT_MESSAGES_MAX = 2_500_000, 2500

Message = tuple[str, Sequence[bytes]]  # the channel, and the frames as a client's socket gets them


class Outbox:
    """The messages of one kernel, oldest first. Where there is more output than fits, the oldest goes; answers stay."""

    def __init__(self) -> None:
        """Begin with none. The newest message is kept, however large it is."""
        self._output: deque[Message] = deque()
        self._answers: list[Message] = []  # and questions to the user: few, and small
        self._bytes = 0
        self.dropped = 0  # how many messages went for the bound

    def add(self, channel: str, frames: Sequence[bytes]) -> None:
        """Take a message."""
        if channel == OUTPUT:
            self._output.append((channel, frames))
            self._bytes += _size(frames)
            self._shrink()
        else:
            self._answers.append((channel, frames))

    def put_before(self, earlier: Iterable[Message]) -> None:
        """Put messages that another client got before those that are here; those that are here too are left out."""
        here = {_name(message) for message in (*self._output, *self._answers)}
        news = [message for message in earlier if _name(message) not in here]
        output = [message for message in news if message[0] == OUTPUT]
        self._answers[:0] = [message for message in news if message[0] != OUTPUT]
        self._output.extendleft(reversed(output))
        self._bytes += sum(_size(frames) for _, frames in output)
        self._shrink()

    def take(self) -> list[Message]:
        """Return all, and forget them."""
        taken = [*self._output, *self._answers]
        self._output.clear()
        self._answers.clear()
        self._bytes, self.dropped = 0, 0
        return taken

    def _shrink(self) -> None:
        while len(self._output) > OUTPUT_MESSAGES_MAX or (
            self._bytes > OUTPUT_BYTES_MAX and len(self._output) > 1
        ):
            _, frames = self._output.popleft()
            self._bytes -= _size(frames)
            self.dropped += 1


def joined(earlier: Sequence[Message], later: Iterable[Message]) -> list[Message]:
    """Return two clients' messages of one kernel as one list, each once."""
    here = {_name(message) for message in earlier}
    return [*earlier, *(message for message in later if _name(message) not in here)]


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


def _name(message: Message) -> tuple[str, bytes]:
    """What two clients' copies of a message have in common: a header has an id, and its sender's."""
    channel, frames = message
    return channel, header_of(frames) or b"".join(frames)
