"""One kernel that the keeper knows: listened to while its server lives, held when it has none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from ..client.errors import ControllerRefused, ControllerUnavailable
from ..client.kernel_messages import KernelMessages
from ..threads import on_own_thread
from ..time_of_day import clock_in_words
from .messages import OUTPUT, Message, Outbox, header_of, parent_of
from .processes import Adopted
from .records import Record

CONNECTED_S = 1.0  # how long a connection to a kernel on this machine may take
POLITE_S, TERM_S = 5.0, 5.0  # until SIGTERM, and from then until SIGKILL
SPEAKING, SPEAK_EVERY_S = "controller", 10.0
READING = ("shell", "control", "stdin")  # channels whose messages go to one client
OPEN, CLOSED = "busy", "idle"


class KeptKernel:
    """Listens to a kernel's output always, and has what the tab that was the last to read has not got yet.

    A server says what it delivered to that tab, so what a server that is killed did not is here. While no server has
    the kernel the keeper is that tab's client, so that the answer to a cell that still runs comes here.
    """

    def __init__(
        self,
        record: Record,
        ended: Callable[[KeptKernel], None],
        log: logging.Logger,
    ):
        """Begin to listen. `ended` is called when the process has ended. Raises ProcessLookupError if it has."""
        self.record = record
        self.kept_since: float | None = None  # by the time of day; None while a server has it
        self.dying: asyncio.Task[None] | None = None
        self.heard_at = time.monotonic()  # its last message
        self.open_cells: set[str] = set()
        self.outbox = Outbox()
        self._process = Adopted(record.process)
        self._ended = ended
        self._log = log
        self._context = zmq.asyncio.Context.instance()
        self._output = self._connected(OUTPUT, zmq.SUB)
        self._reading: dict[str, zmq.asyncio.Socket] = {}
        self._loop = asyncio.get_running_loop()
        self._tasks = {OUTPUT: self._loop.create_task(self._listen(OUTPUT, self._output))}
        self._loop.add_reader(self._process.fileno(), self._has_ended)
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def is_kept(self) -> bool:
        """Whether no server has it."""
        return self.kept_since is not None

    @property
    def dropped(self) -> int:
        """How many messages of its output did not fit."""
        return self.outbox.dropped

    def belongs_to(self, record: Record) -> None:
        """Take a newer record of it; its ports stay while its process is the same."""
        if record.reader != self.record.reader:
            self.outbox.clear()
        self.record = record

    def delivered(self, reader: str, channel: str, header: bytes) -> None:
        """Forget what its tab has got. A tab that is the reader now, and was not before, may be news here."""
        self.belongs_to(replace(self.record, reader=reader))
        self.outbox.delivered(channel, header)

    def close(self) -> None:
        """Stop listening, and forget it; the kernel goes on."""
        self._loop.remove_reader(self._process.fileno())
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._tasks.values():
            task.cancel()
        for connected in (self._output, *self._reading.values()):
            connected.close(linger=0)
        self._tasks, self._reading = {}, {}

    # ---- kept, and no longer

    async def keep(self) -> None:
        """Be the one that reads it: no server has it."""
        if self.is_kept:
            return
        self.kept_since = time.time()
        if self.record.keep_s:
            self._expiry = self._loop.call_later(self.record.keep_s, self._expire)
        if self.record.is_managed:
            self._tasks[SPEAKING] = self._loop.create_task(self._speak())
        if self.record.reader:
            await asyncio.gather(*(self._read(channel) for channel in READING))

    def put_before(self, messages: list[Message]) -> None:
        """Take what its server got and did not deliver."""
        self.outbox.put_before(messages)

    def take(self) -> list[Message]:
        """Return its messages for the server that has it now, which says when they are delivered."""
        self.kept_since = None
        if self._expiry is not None:
            self._expiry.cancel()
        for name in (SPEAKING, *READING):
            if name in self._tasks:
                self._tasks.pop(name).cancel()
        for channel in list(self._reading):
            self._reading.pop(channel).close(linger=0)
        return self.outbox.all()

    async def _read(self, channel: str) -> None:
        """Be the client whose tab was the last to read, and return once the kernel knows that."""
        if channel in self._reading:
            return
        socket = self._made(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, self.record.reader.encode())
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            socket.connect(self._address(channel))
            self._reading[channel] = socket
            self._tasks[channel] = self._loop.create_task(self._listen(channel, socket))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(recv_monitor_message(monitor), CONNECTED_S)
        finally:
            with contextlib.suppress(zmq.ZMQError):
                socket.disable_monitor()

    async def _listen(self, channel: str, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart()
            self.heard_at = time.monotonic()
            if channel == OUTPUT:
                self._follow_cells(frames)
            if self.record.reader:
                self.outbox.add(channel, frames)

    def _follow_cells(self, frames: list[bytes]) -> None:
        """Know whether a cell runs: the controller parks no kernel of which it believes that one does."""
        if b"status" not in header_of(frames):
            return
        with contextlib.suppress(ValueError, LookupError, TypeError):
            parent, state = json.loads(parent_of(frames)), json.loads(frames[-1])["execution_state"]
            if parent.get("msg_type") != "execute_request":
                return
            before = bool(self.open_cells)
            (self.open_cells.add if state == OPEN else self.open_cells.discard)(parent["msg_id"])
            if SPEAKING in self._tasks and bool(self.open_cells) != before:
                self._tell_cells()

    async def _speak(self) -> None:
        """Tell the controller, and each new one, what a server would: which kernel this is, and whether a cell runs."""
        while True:
            self._tell_cells()  # first: a kernel that is named, and of which no cell is known, may be parked
            with contextlib.suppress(asyncio.TimeoutError):
                await on_own_thread(self._describe, timeout_s=SPEAK_EVERY_S)
            await asyncio.sleep(SPEAK_EVERY_S)

    def _describe(self) -> None:
        since = clock_in_words((self.kept_since or time.time()) - time.time())
        try:
            KernelMessages(self.record.kernel_id).describe(
                server=f"none, kept since {since}", **self.record.description
            )
        except (ControllerUnavailable, ControllerRefused) as error:
            self._log.debug("kernel %s: the controller was not told: %s", self.record.kernel_id, error)

    def _tell_cells(self) -> None:
        self._tell(lambda controller: controller.tell_cell(bool(self.open_cells)))

    def _tell(self, message: Callable[[KernelMessages], None]) -> None:
        try:
            message(KernelMessages(self.record.kernel_id))
        except ControllerUnavailable as error:
            self._log.debug("kernel %s: the controller was not told: %s", self.record.kernel_id, error)

    # ---- its end

    def _expire(self) -> None:
        self._log.warning(
            "kernel %s is ended: no server had it for %g s", self.record.kernel_id, self.record.keep_s
        )
        self.dying = self._loop.create_task(self.end())

    async def end(self) -> None:
        """Shut it down as a server does: by its own protocol, then by SIGTERM, then by SIGKILL."""
        if self.record.is_managed:
            self._tell(lambda controller: controller.tell_dying(self.record.process_group))
        from jupyter_client.session import Session  # imports much, and is needed here alone

        control = self._connected("control", zmq.DEALER)
        try:
            told = self.record.connection
            session = Session(key=told["key"].encode(), signature_scheme=told["signature_scheme"])
            await control.send_multipart(
                session.serialize(session.msg("shutdown_request", {"restart": False}))
            )
            for number, patience_s in ((signal.SIGTERM, POLITE_S), (signal.SIGKILL, TERM_S)):
                if await self._ends_within(patience_s):
                    return
                self._signal(number)
            await self._ends_within(TERM_S)
        finally:
            control.close(linger=0)

    async def _ends_within(self, seconds: float) -> bool:
        end = self._loop.time() + seconds
        while self._process.poll() is None:
            if self._loop.time() > end:
                return False
            await asyncio.sleep(0.05)
        return True

    def _signal(self, number: int) -> None:
        group = self.record.process_group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group and os.getpgid(self._process.pid) == group:
                os.killpg(group, number)
        self._process.send_signal(number)

    def _has_ended(self) -> None:
        self._loop.remove_reader(self._process.fileno())
        if self.is_kept and self.record.is_managed:
            self._tell(KernelMessages.tell_forget)
        self._ended(self)

    # ---- sockets

    def _connected(self, channel: str, kind: int) -> zmq.asyncio.Socket:
        socket = self._made(kind)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(self._address(channel))
        return socket

    def _made(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, 0)
        public, secret = (self.record.connection.get(f"curve_{half}key") for half in ("public", "secret"))
        if public and secret:  # clients have the kernel's own, as jupyter_client's
            socket.curve_secretkey = str(secret).encode()
            socket.curve_publickey = socket.curve_serverkey = str(public).encode()
        return socket

    def _address(self, channel: str) -> str:
        told: dict[str, Any] = self.record.connection
        separator = "-" if told["transport"] == "ipc" else ":"
        return f"{told['transport']}://{told['ip']}{separator}{told[f'{channel}_port']}"
