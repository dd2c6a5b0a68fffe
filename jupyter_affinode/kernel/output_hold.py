"""Holds an IPython kernel's output while the kernel is on its way to disk or back: standard library only.

What a kernel publishes while it has no subscriber is lost, and so is what is on its way to a subscriber when the kernel
is written to disk. A file says when that may be (`unheard`, in the folder of the kernel's image). It is looked for at
each message; while it is there messages wait, in the process, in their order, and are published when it is gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

LOOK_EVERY_S = 0.02
LOOKS = 30000  # ten minutes of the process's own time: then what removes the file has failed
DELIMITER, HEADER, PARENT = b"<IDS|MSG>", 2, 3
QUESTION = (
    b"affinode-question-"  # by the status that answers these, programs find out whether they hear the kernel
)


class OutputHold:
    """Stands before the call by which ipykernel's own thread publishes."""

    def __init__(self, file: str, publish: Callable[..., None], later: Callable[..., object]):
        """`later` calls a function on that thread after some seconds."""
        self.file = file
        self._publish = publish
        self._later = later
        self._held: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._looks = 0

    def publish(self, frames: Sequence[bytes], *args: Any, **kwargs: Any) -> None:
        """Publish a message, at once or when it will be heard."""
        is_held = bool(self._held) or os.path.exists(self.file)
        if not is_held or _answers_question(frames):
            self._publish(frames, *args, **kwargs)
            return
        self._held.append(((frames, *args), kwargs))
        if len(self._held) == 1:
            self._looks = 0
            self._later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._looks += 1
        if self._looks < LOOKS and os.path.exists(self.file):
            self._later(LOOK_EVERY_S, self._look)
            return
        held, self._held = self._held, []
        for args, kwargs in held:
            self._publish(*args, **kwargs)


def _answers_question(frames: Sequence[bytes]) -> bool:
    """Return whether a message is the status of a question; what a thread prints meanwhile is not."""
    begin = frames.index(DELIMITER)
    return QUESTION in frames[begin + PARENT] and b'"status"' in frames[begin + HEADER]


def hold_output(kernel: Any, file: str) -> None:
    """Have a kernel's output wait while a file is there. Raises AttributeError if this is no kernel of ipykernel's."""
    thread = kernel.iopub_thread
    hold = OutputHold(file, thread._really_send, thread.io_loop.call_later)
    thread._really_send, kernel.affinode_output_hold = hold.publish, hold  # a warm kernel gets another file
    set_parent = kernel.shell.set_parent

    def set_parent_of_cells(parent: Any) -> None:
        """Have what threads print stay with the last cell: a question is none."""
        if QUESTION.decode() not in str(parent.get("header", {}).get("msg_id")):
            set_parent(parent)

    kernel.shell.set_parent = set_parent_of_cells
