"""The tabs that read kernels' messages, and what each of them has got: what the keeper is told of it.

A server that is killed has taken messages from a kernel that reached no tab. Since the keeper reads along, it can
have the next server deliver them, and only them, if it knows each one that did reach the tab.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tornado import web
from tornado.iostream import StreamClosedError

from ..keeping.messages import Message, header_of
from .hibernation import Hibernation, Refused

SETTING = "kernel_websocket_connection_class"
GOING_AWAY = 1001  # a websocket's code
CLOSED_S = 1.0  # until a tab has answered that its connection ends


class Readers:
    """Follows the server's connections between tabs and kernels."""

    def __init__(self, delivered: Callable[[str, str, str, bytes], None], changed: Callable[[], None]):
        """`delivered` is called with a kernel, the session of a tab, a channel, and a message's header."""
        self._delivered = delivered
        self._changed = changed
        self.hibernation: Hibernation | None = None  # where kernels of this server hibernate
        # By kernel, the client sessions of tabs and their connections, the newest last; None: it is closed.
        self._open: dict[str, dict[str, Any]] = {}
        self._late: dict[
            tuple[str, str], list[Message]
        ] = {}  # what came for a tab while its connection was ended

    def watch(self, settings: dict[str, Any]) -> None:
        """Have all connections from now on be followed. Called with the settings of the server's application."""
        settings[SETTING] = _followed(settings[SETTING], self)

    def connections(self, kernel_id: str) -> list[Any]:
        """Return the connections of the tabs that are open on a kernel."""
        tabs = self._open.get(kernel_id, {}).values()
        return [each for each in tabs if each is not None and each.channels and not each.is_closing]

    def of(self, kernel_id: str) -> list[str]:
        """Return the client sessions of the tabs that read a kernel's messages, the newest last."""
        return list(self._open.get(kernel_id, {}))

    def forget(self, kernel_id: str) -> None:
        """Forget a kernel that has ended."""
        self._open.pop(kernel_id, None)

    def opened(self, connection: Any) -> None:
        """Take a tab as a reader of its kernel."""
        tabs = self._open.setdefault(connection.kernel_id, {})
        for session, other in list(tabs.items()):
            if other is None or session == connection.session.session:
                del tabs[session]
        tabs[connection.session.session] = connection
        self._changed()

    def closed(self, connection: Any) -> None:
        """Take a tab as a reader no longer, unless it is the last: that comes back, perhaps."""
        tabs, session = self._open.get(connection.kernel_id, {}), connection.session.session
        if tabs.get(session) is not connection:
            return  # it is open again
        if len(tabs) > 1:
            del tabs[session]
        else:
            tabs[session] = None
        self._changed()

    async def close_tabs(self) -> None:
        """End the connections of all tabs, and return once all that they had sent before has come.

        A tab answers that its connection is to end, and what it sent comes before that answer.
        """
        end = asyncio.get_running_loop().time() + CLOSED_S
        connections = [connection for kernel_id in self._open for connection in self.connections(kernel_id)]
        # Jupyter reads what a tab has sent only once the tab's connection to the kernel is made.
        while any(each.is_connecting for each in connections) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        end = asyncio.get_running_loop().time() + CLOSED_S
        for connection in connections:
            connection.is_closing = True
            for stream in connection.channels.values():
                stream.stop_on_recv()  # a tab that closes takes nothing: it stays in the socket
            connection.websocket_handler.close(GOING_AWAY)
        while not all(each.has_ended for each in connections) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)

    def came_late(self, connection: Any, stream: Any, frames: Sequence[bytes]) -> None:
        """Put a message aside for the next server: the tab would not read it."""
        name = connection.kernel_id, connection.session.session
        self._late.setdefault(name, []).append((_channel_of(stream), frames))

    def late(self, kernel_id: str) -> dict[str, list[Message]]:
        """Return, once, what came for a kernel's tabs while their connections were ended."""
        return {session: self._late.pop((of, session)) for of, session in list(self._late) if of == kernel_id}

    def passed_on(self, connection: Any, stream: Any, frames: Sequence[bytes]) -> None:
        """Tell of a message to a tab, once it is out of this process's hands."""
        session = connection.session.session
        header = header_of(frames)
        if not header:
            return
        channel = _channel_of(stream)
        tell = partial(self._delivered, connection.kernel_id, session, channel, header)
        to_tab = getattr(getattr(connection.websocket_handler, "ws_connection", None), "stream", None)
        if to_tab is None:
            tell()
            return
        try:
            written = to_tab.write(b"")  # done when all before it is with the system, which is mostly now
        except StreamClosedError:
            return
        if written.done():
            tell()
        else:
            written.add_done_callback(lambda done: done.cancelled() or done.exception() or tell())


def _channel_of(stream: Any) -> str:
    return stream if isinstance(stream, str) else getattr(stream, "channel", "")


def _followed(base: Any, readers: Readers) -> type:
    """Return the server's class of connections with what `readers` is to know, and what a hibernated kernel needs."""

    class Followed(base):  # type: ignore[misc]
        is_connecting = False
        is_closing = False  # this server has begun to end the connection
        has_ended = False

        async def prepare(self) -> Any:
            if readers.hibernation is not None:
                try:
                    await readers.hibernation.wake(self.kernel_id)
                except Refused as refused:
                    raise web.HTTPError(503, f"The kernel could not be woken: {refused}") from None
            return await super().prepare()

        def handle_incoming_message(self, incoming_msg: Any) -> None:
            if readers.hibernation is None or not readers.hibernation.holds(self, incoming_msg):
                self.pass_on(incoming_msg)

        def pass_on(self, incoming_msg: Any) -> None:
            super().handle_incoming_message(incoming_msg)

        def connect(self) -> Any:
            readers.opened(self)
            connecting = super().connect()
            if hasattr(connecting, "add_done_callback"):
                self.is_connecting = True
                connecting.add_done_callback(self.is_made)
            return connecting

        def is_made(self, connecting: Any) -> None:
            self.is_connecting = False

        def disconnect(self) -> None:
            if self.has_ended:
                return  # a second time would close what the kernel's manager buffers
            self.has_ended = True
            super().disconnect()
            readers.closed(self)

        def handle_outgoing_message(self, stream: Any, outgoing_msg: Any) -> None:
            if readers.hibernation is not None and readers.hibernation.takes(self, stream, outgoing_msg):
                return
            if self.is_closing:
                readers.came_late(self, stream, outgoing_msg)
                return
            super().handle_outgoing_message(stream, outgoing_msg)
            readers.passed_on(self, stream, outgoing_msg)

    return Followed
