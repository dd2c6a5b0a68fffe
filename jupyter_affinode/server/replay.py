"""What an adopted kernel said while no tab read it, for the tabs that attach again, or anew.

Jupyter's kernel manager puts messages aside for one tab of a kernel, the last that was closed, and drops them when
another attaches. Here each tab that was open when the earlier server ended has its own. When none of them comes back
before a new one attaches, as after a reload, that one gets the output, with a message that says of which cells it is:
our extension of JupyterLab puts it there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
)

from ..keeping.messages import OUTPUT, Held, Message, Outbox, Undelivered, header_of, parent_of, request_of

V1 = "v1.kernel.websocket.jupyter.org"  # a websocket's subprotocol
SUBSCRIBED_S = 1.0
AWAITED_S = 120.0  # for the other tabs, once one has attached
CHANNELS = (OUTPUT, "shell", "control", "stdin")
MISSED = "affinode_missed_output"  # the message that names the cells


@dataclass
class _Awaited:
    """A tab that is to attach: its channels, and what came by them."""

    channels: dict[str, Any]
    outbox: Outbox = field(default_factory=Outbox)
    dropped: int = 0  # of what came before

    def __post_init__(self) -> None:
        for name, stream in self.channels.items():
            stream.channel = name
            stream.on_recv(partial(self.outbox.add, name))

    def hand_out(self, manager: Any) -> list[Message]:
        """Return what came, a list that grows until the channels have another reader."""
        messages = self.outbox.all()
        if self.outbox.dropped + self.dropped:
            messages.insert(0, _note_of_loss(manager, messages[0], self.outbox.dropped + self.dropped))
        for name, stream in self.channels.items():
            stream.on_recv(lambda frames, name=name: messages.append((name, frames)))
        return messages

    def close(self) -> None:
        """Read no more."""
        for stream in self.channels.values():
            if not stream.closed():
                stream.on_recv(None)
                stream.close()


@dataclass
class _Kernel:
    manager: Any
    tabs: dict[str, _Awaited]  # by their sessions
    new_tabs: dict[str, _Awaited]  # for each of these one that may come in its place, with output alone
    inputs: list[Message] = field(default_factory=list)
    expiry: asyncio.TimerHandle | None = None


class TabBefore:
    """Stands for a tab of an earlier server, for what it sent then; its answers are for the tab when it attaches."""

    def __init__(self, replay: Replay, kernel_id: str, held: Held):
        """`held`: a message of its."""
        self.kernel_id, self._subprotocol = kernel_id, held.subprotocol
        self._replay, self._session = replay, held.session

    def pass_on(self, message: str | bytes) -> None:
        """Send a message to the kernel, by the tab's name."""
        manager = self._replay.manager_of(self.kernel_id)
        if self._subprotocol == V1:
            channel, parts = deserialize_msg_from_ws_v1(message)
            send = partial(manager.session.send_raw, msg_list=parts)
        else:
            told = deserialize_binary_message(message) if isinstance(message, bytes) else json.loads(message)
            channel = told.pop("channel", None) or "shell"
            send = partial(manager.session.send, msg_or_type=told)
        if channel not in CHANNELS[1:]:
            return
        stream = self._replay.channel_of(self.kernel_id, self._session, channel)
        if stream is not None:
            send(stream)
            return
        # The tab has attached by now, or is closed for good. A second client of its name would take its answers.
        stream = getattr(manager, f"connect_{channel}")()
        send(stream)
        stream.flush()
        stream.close(linger=1000)


class Replay:
    """Stands before a kernel manager's buffers while tabs of adopted kernels are awaited."""

    def __init__(self, manager: Any):
        """Use the server's manager of all kernels."""
        self._all = manager
        self._kernels: dict[str, _Kernel] = {}
        self._of_images: dict[str, list[str]] = {}  # kernels on disk: the tabs to await once they run
        self._buffer_of_jupyter = manager.get_buffer

    async def begin(self, kernel_id: str, manager: Any, sessions: Iterable[str]) -> None:
        """Await the tabs of these sessions, and return once all that the kernel says from now on comes in."""
        self._all.get_buffer = self._buffer
        kernel = _Kernel(manager, {}, {})
        for session in sessions:
            identity = session.encode()
            channels = {name: getattr(manager, f"connect_{name}")(identity=identity) for name in CHANNELS}
            kernel.tabs[session] = _Awaited(channels)
            kernel.new_tabs[session] = _Awaited({OUTPUT: manager.connect_iopub()})
        if kernel.tabs:
            self._kernels[kernel_id] = kernel
            await self._subscribed(kernel)

    def manager_of(self, kernel_id: str) -> Any:
        """Return a kernel's own manager."""
        return self._all.get_kernel(kernel_id)

    def channel_of(self, kernel_id: str, session: str, channel: str) -> Any | None:
        """Return a channel of a tab that is awaited; None if it is not."""
        kernel = self._kernels.get(kernel_id)
        tab = None if kernel is None else kernel.tabs.get(session)
        return None if tab is None else tab.channels.get(channel)

    def expect(self, kernel_id: str, sessions: Iterable[str]) -> None:
        """Await the tabs of a kernel on disk, once it runs: `begin_expected`."""
        self._of_images[kernel_id] = list(sessions)

    async def begin_expected(self, kernel_id: str, undelivered: Undelivered) -> None:
        """Await the tabs of a kernel that was on disk when this server took it, if it was."""
        sessions = self._of_images.pop(kernel_id, None)
        if sessions is not None:
            await self.begin(kernel_id, self._all.get_kernel(kernel_id), sessions)
            self.put_before(kernel_id, undelivered)

    async def _subscribed(self, kernel: _Kernel) -> None:
        """Wait until a kernel's output comes in, by a question to it; not for ever."""
        control = kernel.manager.connect_control()
        outputs = [tab.channels[OUTPUT] for tab in (*kernel.tabs.values(), *kernel.new_tabs.values())]
        heard = asyncio.get_running_loop().create_future()
        missing = set(outputs)
        question = kernel.manager.session.msg("kernel_info_request")

        def listen(stream: Any, outbox: Outbox, frames: list[bytes]) -> None:
            if question["header"]["msg_id"].encode() not in parent_of(frames):
                outbox.add(OUTPUT, frames)
                return
            missing.discard(stream)
            if not missing and not heard.done():
                heard.set_result(None)

        for tab in (*kernel.tabs.values(), *kernel.new_tabs.values()):
            stream = tab.channels[OUTPUT]
            stream.on_recv(partial(listen, stream, tab.outbox))
        try:
            kernel.manager.session.send(control, question)
            await asyncio.wait_for(heard, SUBSCRIBED_S)
        except asyncio.TimeoutError:
            pass  # one that does not answer
        finally:
            control.close(linger=0)

    def put_before(self, kernel_id: str, earlier: Undelivered) -> None:
        """Put what each tab had not got before."""
        kernel = self._kernels.get(kernel_id)
        if kernel is None:
            return
        kernel.inputs = earlier.inputs
        for session, tab in (*kernel.tabs.items(), *kernel.new_tabs.items()):
            messages = earlier.messages.get(session, [])
            tab.outbox.put_before([message for message in messages if message[0] in tab.channels])
            tab.dropped = earlier.dropped.get(session, 0)

    def awaited(self, kernel_id: str) -> list[str]:
        """Return the sessions of a kernel's tabs that have not attached."""
        kernel = self._kernels.get(kernel_id)
        return self._of_images.get(kernel_id, []) if kernel is None else list(kernel.tabs)

    def end(self, kernel_id: str) -> Undelivered:
        """Await no tab any more; return what they did not get."""
        self._of_images.pop(kernel_id, None)
        kernel = self._kernels.pop(kernel_id, None)
        if kernel is None:
            return Undelivered()
        if kernel.expiry is not None:
            kernel.expiry.cancel()
        for tab in (*kernel.tabs.values(), *kernel.new_tabs.values()):
            tab.close()
        messages = {session: tab.outbox.all() for session, tab in kernel.tabs.items()}
        return Undelivered(
            messages, {session: tab.outbox.dropped + tab.dropped for session, tab in kernel.tabs.items()}
        )

    def _buffer(self, kernel_id: str, session_key: str) -> dict[str, Any] | None:
        """Return what a tab that attaches is to get; stands in for the manager's `get_buffer`."""
        kernel = self._kernels.get(kernel_id)
        session = session_key.partition(":")[2]
        awaited = kernel is not None and session in kernel.tabs
        buffer = None if awaited else self._buffer_of_jupyter(kernel_id, session_key)
        if kernel is None or buffer is not None:
            return buffer  # type: ignore[no-any-return]
        if kernel.expiry is None:
            loop = asyncio.get_running_loop()
            kernel.expiry = loop.call_later(AWAITED_S, self.end, kernel_id)
        if awaited:  # the page was not reloaded
            tab = kernel.tabs.pop(session)
            while kernel.new_tabs:
                kernel.new_tabs.popitem()[1].close()
        elif kernel.new_tabs:
            tab = kernel.new_tabs.popitem()[1]  # the newest
            for name in CHANNELS[1:]:
                tab.channels[name] = getattr(kernel.manager, f"connect_{name}")(identity=session.encode())
                tab.channels[name].channel = name
        else:
            return None
        messages = tab.hand_out(kernel.manager)
        if not awaited and messages:
            messages.insert(0, _cells(kernel, messages))
        if not kernel.tabs:
            self.end(kernel_id)
        return {"session_key": session_key, "channels": tab.channels, "buffer": messages}


def _cells(kernel: _Kernel, messages: list[Message]) -> Message:
    """Return a message that says which requests the output of a new tab answers, by the cells' code."""
    cells = {}
    for _, frames in (*kernel.inputs, *messages):
        if b"execute_input" in header_of(frames):
            content = json.loads(frames[-1])
            cells[request_of(frames)] = {
                "code": content["code"],
                "execution_count": content["execution_count"],
            }
    return _message(kernel.manager, messages[0], MISSED, {"cells": cells})


def _note_of_loss(manager: Any, first: Message, dropped: int) -> Message:
    """Return a message that says in the cell's output that there was more."""
    text = f"[{dropped} messages of output from the time without a server did not fit and are missing here]\n"
    return _message(manager, first, "stream", {"name": "stderr", "text": text})


def _message(manager: Any, like: Message, kind: str, content: dict[str, Any]) -> Message:
    """Return a message that answers what another does, as the kernel's own: JupyterLab drops what others send."""
    message = manager.session.msg(kind, content)
    try:
        message["parent_header"] = json.loads(parent_of(like[1]))
        message["header"]["session"] = json.loads(header_of(like[1]))["session"]
    except (ValueError, LookupError):
        message["parent_header"] = {}
    return OUTPUT, [kind.encode(), *manager.session.serialize(message)]
