"""Which cells of a kernel are open: the bookkeeping of the execution tracker, without any channel or
clock.
"""

from __future__ import annotations

from collections import OrderedDict

REMEMBERED_CLOSED = 1024


class OpenCells:
    """The open execute_request ids of one kernel, by the subshell that runs them (None: the main shell).

    iopub is lossy: under load a `busy` or an `idle` may never arrive. A shell executes one request at a time,
    so a later one closes those before it; output of an unknown request opens it; and `answered` closes what
    was open when a question was sent on the same shell. A closed id stays closed, however late its output
    comes.
    """

    def __init__(self) -> None:
        self._open: dict[str, str | None] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._messages = 0

    @property
    def current(self) -> str | None:
        """The id of the open cell that opened last; None if no cell is open."""
        return next(reversed(self._open), None)

    @property
    def messages(self) -> int:
        """How many messages came since the first open cell began; iopub loses messages only among hundreds."""
        return self._messages

    def subshells(self) -> dict[str | None, frozenset[str]]:
        """The open ids of each subshell that has any."""
        shells: dict[str | None, frozenset[str]] = {}
        for message_id, subshell in self._open.items():
            shells[subshell] = shells.get(subshell, frozenset()) | {message_id}
        return shells

    def count_message(self) -> None:
        """Count an iopub message."""
        self._messages += 1

    def opened(self, message_id: str, subshell: str | None = None) -> bool:
        """Note that a request is being executed, by its `busy` or its output; return whether that changed anything."""
        if message_id in self._open or message_id in self._closed:
            return False
        if not self._open:
            self._messages = 0
        for earlier in [known for known, shell in self._open.items() if shell == subshell]:
            self._close(earlier)
        self._open[message_id] = subshell
        return True

    def closed(self, message_id: str) -> bool:
        """Note a request's `idle`; return whether that changed anything."""
        was_open = message_id in self._open
        self._close(message_id)
        return was_open

    def answered(self, message_ids: frozenset[str]) -> bool:
        """Close the cells that were open when a question was sent that the shell has answered; return whether any
        was."""
        late = [message_id for message_id in message_ids if message_id in self._open]
        for message_id in late:
            self._close(message_id)
        return bool(late)

    def reset(self) -> bool:
        """Forget all cells, since the kernel has a new process; return whether any was open."""
        had_any = bool(self._open)
        for message_id in list(self._open):
            self._close(message_id)
        self._messages = 0
        return had_any

    def _close(self, message_id: str) -> None:
        self._open.pop(message_id, None)
        self._closed[message_id] = None
        self._closed.move_to_end(message_id)
        while len(self._closed) > REMEMBERED_CLOSED:
            self._closed.popitem(last=False)
