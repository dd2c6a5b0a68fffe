"""Kernels of any language: an improper message does not keep the tracker from following the next one."""

from __future__ import annotations

import json
import logging
import time

import pytest
import zmq
from jupyter_client.session import DELIM, Session

from jupyter_affinode.server.execution_tracker import ExecutionTracker

LOG = logging.getLogger(__name__)


class Client:
    """Of a kernel that signs nothing."""

    session = Session(key=b"")


class Channel:
    """Has these messages."""

    def __init__(self, messages):
        self.messages = messages

    def recv_multipart(self, flags):
        if not self.messages:
            raise zmq.Again
        return self.messages.pop(0)


def message(header, parent, content):
    return [DELIM, b"", *(json.dumps(part).encode() for part in (header, parent, {}, content))]


def status(parent, content=None):
    header = {"msg_id": "m", "msg_type": "status"}
    return message(header, parent, content or {"execution_state": "busy"})


@pytest.mark.parametrize(
    "odd",
    [
        [],
        [b"nothing"],
        [DELIM],
        status(None),
        status([]),
        status("text"),
        status(5),
        status({"msg_type": "execute_request", "msg_id": ["a"]}),
        status({"msg_type": "execute_request", "msg_id": "x"}, ["no object"]),
        message(None, {}, {}),
        message([], None, None),
        message("status", {"msg_id": "y"}, "status"),
        [DELIM, b"", b"status", b"\xff", b"{", b""],
    ],
)
@pytest.mark.parametrize("channel", ["iopub", "shell"])
def test_what_is_no_message_is_passed_over(odd, channel):
    told = []
    tracker = ExecutionTracker(
        None, on_cells=lambda *cell: told.append(cell), on_interrupt=told.append, log=LOG
    )
    tracker._manager, tracker._client = type("Manager", (), {"kernel_id": "k"}), Client()
    proper = status({"msg_type": "execute_request", "msg_id": "cell"})
    if channel == "shell":
        tracker._drain(Channel([odd]), tracker._take_reply)
        odd = []
    tracker._drain(Channel([odd, proper]), tracker._take_iopub)
    is_open, cell_id, began_at = told[-1]
    assert (is_open, cell_id) == (True, "cell")
    assert began_at <= time.monotonic(), "a kernel that gives no date began now"
