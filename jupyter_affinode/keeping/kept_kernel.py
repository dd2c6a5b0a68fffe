"""One kernel that the keeper knows: listened to while its server lives, held when it has none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from ..client.errors import ControllerRefused, ControllerUnavailable
from ..client.kernel_messages import KernelMessages
from ..threads import on_own_thread
from ..time_of_day import clock_in_words, since_boot_s
from .messages import (
    OUTPUT,
    Message,
    Outbox,
    Undelivered,
    header_of,
    parent_of,
    question_id,
    request_of,
    signed_request,
)
from .processes import Adopted
from .records import KEPT_SINCE, WARM_SINCE, Record

CONNECTED_S = 1.0  # how long a connection to a kernel on this machine may take
POLITE_S, TERM_S = 5.0, 5.0  # until SIGTERM, and from then until SIGKILL
SPEAKING, SPEAK_EVERY_S = "controller", 10.0
READING = ("shell", "control", "stdin")  # channels whose messages go to one client
READERS_MAX, INPUTS_MAX = 8, 20  # tabs of one kernel that it is the client of, and cells whose code it has
OPEN, CLOSED = "busy", "idle"
CLOSED_CELLS_MAX = 100  # the newest whose end was heard


class KeptKernel:
    """Listens to a kernel's output always, and has what each tab that reads it has not got yet.

    A server says what it delivered to which tab, so what a server that is killed did not is here. While no server has
    the kernel the keeper is the tabs' client, so that the answer to a cell that still runs comes here.
    """

    def __init__(
        self,
        record: Record,
        ended: Callable[[KeptKernel], None],
        is_due: Callable[[str], object],
        log: logging.Logger,
    ):
        """Begin to listen. `ended` is called when the process has ended, `is_due` with why it is to be ended.

        Raises ProcessLookupError if it has ended.
        """
        self.record = record
        self._kept_at: float | None = None  # since the machine's start; None while a server has it
        self.dying: asyncio.Task[None] | None = None
        self.hibernate_asked: str | None = None  # why the controller wants it to hibernate while it is kept
        self.heard_at = time.monotonic()  # its last message
        self.open_cells: set[str] = set()
        self._closed_cells: deque[str] = deque(maxlen=CLOSED_CELLS_MAX)
        self._outboxes = {session: Outbox() for session in record.readers}
        self._news: set[str] = set()  # sessions that no record has named yet
        self._inputs: OrderedDict[str, Message] = (
            OrderedDict()
        )  # the kernel's word of the newest cells, by request
        self._process = Adopted(record.process)
        self._ended = ended
        self._is_due = is_due
        self._log = log
        self._context = zmq.asyncio.Context.instance()
        self._output = self._connected(OUTPUT, zmq.SUB)
        self._reading: dict[tuple[str, str], zmq.asyncio.Socket] = {}  # by a tab's session and the channel
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[object, asyncio.Task[None]] = {
            OUTPUT: self._loop.create_task(self._listen_to_output())
        }
        self._loop.add_reader(self._process.fileno(), self._has_ended)
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def is_alive(self) -> bool:
        """Whether its process lives."""
        return self._process.poll() is None

    @property
    def is_kept(self) -> bool:
        """Whether no server has it."""
        return self._kept_at is not None

    @property
    def kept_for_s(self) -> float:
        """For how long no server has had it."""
        return since_boot_s() - self._kept_at if self._kept_at is not None else 0.0

    def view(self) -> dict[str, Any]:
        """Return what a client is told of it."""
        return {
            "kept_since": time.time() - self.kept_for_s,
            "state": OPEN if self.open_cells else CLOSED,
            "quiet_s": time.monotonic() - self.heard_at,
        }

    def belongs_to(self, record: Record) -> None:
        """Take a newer record of it; its ports stay while its process is the same."""
        for session in self._outboxes.keys() - set(record.readers) - self._news:
            del self._outboxes[session]
        self._news.clear()
        for session in record.readers:
            self._outboxes.setdefault(session, Outbox())
        self.record = record

    def runs(self, cells: Sequence[str]) -> None:
        """Take cells as running whose begin was not heard here, unless their end was."""
        if news := {*cells} - {*self._closed_cells} - self.open_cells:
            self.open_cells |= news
            self._tasks[object()] = self._loop.create_task(self._until_answered(news))

    async def _until_answered(self, cells: set[str]) -> None:
        """Take cells as ended once the kernel's shell answers: it may have said so before it was heard here."""
        shell = self._connected("shell", zmq.DEALER)
        try:
            await shell.send_multipart(self._request("kernel_info_request", {}, question_id()))
            await shell.recv_multipart()
            self.open_cells -= cells
        finally:
            shell.close(linger=0)

    def delivered(self, session: str, channel: str, header: bytes) -> None:
        """Forget what a tab has got. One that no record named yet is news here, until the next record."""
        if session not in self._outboxes:
            self._news.add(session)
        self._outboxes.setdefault(session, Outbox()).delivered(channel, header)

    def close(self) -> None:
        """Stop listening, and forget it; the kernel goes on."""
        if self._process.fileno() >= 0:
            self._loop.remove_reader(self._process.fileno())
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._tasks.values():
            task.cancel()
        for connected in (self._output, *self._reading.values()):
            connected.close(linger=0)
        self._tasks, self._reading = {}, {}
        if self.dying is None or self.dying.done() or self._process.poll() is not None:
            self._process.close()  # else it is still to be ended

    # ---- kept, and no longer

    async def keep(self) -> None:
        """Be the one that reads it: no server has it."""
        if self.is_kept:
            return
        self._kept_at = since_boot_s()
        if self.record.keep_s:
            self._expiry = self._loop.call_later(self.record.keep_s, self._expire)
        if self.record.is_managed:
            self._tasks[SPEAKING] = self._loop.create_task(self._speak())
        sessions = list(self._outboxes)[-READERS_MAX:]
        await asyncio.gather(*(self._read(session, channel) for session in sessions for channel in READING))

    async def is_idle_within(self, seconds: float) -> bool:
        """Wait until no cell runs, so many seconds at most."""
        end = self._loop.time() + seconds
        while self.open_cells and self._loop.time() < end:
            await asyncio.sleep(0.02)
        return not self.open_cells

    async def is_heard_within(self, seconds: float) -> bool:
        """Wait until what the kernel publishes is heard here: one that was woken knows no listener at first."""
        control, end = self._connected("control", zmq.DEALER), self._loop.time() + seconds
        try:
            while self._loop.time() < end:
                before = self.heard_at
                await control.send_multipart(self._request("kernel_info_request", {}, question_id()))
                await asyncio.sleep(0.05)
                if self.heard_at != before:
                    return True
        finally:
            control.close(linger=0)
        return False

    def put_before(self, undelivered: Undelivered) -> None:
        """Take what its server got and did not deliver."""
        for session, messages in undelivered.messages.items():
            self._outboxes.setdefault(session, Outbox()).put_before(messages)
        for session, dropped in undelivered.dropped.items():
            self._outboxes.setdefault(session, Outbox()).dropped += dropped
        for message in undelivered.inputs:
            self._inputs.setdefault(request_of(message[1]), message)

    def take(self) -> Undelivered:
        """Return its messages for the server that has it now, which says when they are delivered."""
        self._kept_at = None
        if self._expiry is not None:
            self._expiry.cancel()
        for name in (SPEAKING, *self._reading):
            if name in self._tasks:
                self._tasks.pop(name).cancel()
        for name in list(self._reading):
            self._reading.pop(name).close(linger=0)
        return self.undelivered()

    def undelivered(self) -> Undelivered:
        """Return its messages that no tab has got."""
        messages = {session: outbox.all() for session, outbox in self._outboxes.items()}
        dropped = {session: outbox.dropped for session, outbox in self._outboxes.items() if outbox.dropped}
        wanted = {request_of(frames) for each in messages.values() for _, frames in each} | self.open_cells
        inputs = [message for request, message in self._inputs.items() if request in wanted]
        return Undelivered(messages, dropped, inputs)

    async def _read(self, session: str, channel: str) -> None:
        """Be the client of a tab, and return once the kernel knows that."""
        name = (session, channel)
        if name in self._reading or not self.is_kept:  # a server has taken it before this began
            return
        socket = self._made(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, session.encode())
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            socket.connect(self._address(channel))
            self._reading[name] = socket
            self._tasks[name] = self._loop.create_task(self._listen(session, channel, socket))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(recv_monitor_message(monitor), CONNECTED_S)
        finally:
            with contextlib.suppress(zmq.ZMQError):
                socket.disable_monitor()
            monitor.close(linger=0)  # else its descriptors stay as long as the keeper

    async def _listen_to_output(self) -> None:
        while True:
            frames = await self._output.recv_multipart()
            self.heard_at = time.monotonic()
            self._follow_cells(frames)
            for outbox in self._outboxes.values():
                outbox.add(OUTPUT, frames)

    async def _listen(self, session: str, channel: str, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart()
            self.heard_at = time.monotonic()
            self._outboxes.setdefault(session, Outbox()).add(channel, frames)

    def _follow_cells(self, frames: list[bytes]) -> None:
        """Know whether a cell runs: the controller parks no kernel of which it believes that one does."""
        kind = header_of(frames)
        if b"execute_input" in kind:
            self._inputs[request_of(frames)] = (OUTPUT, frames)
            if len(self._inputs) > INPUTS_MAX:
                self._inputs.popitem(last=False)
        if b"status" not in kind:
            return
        with contextlib.suppress(ValueError, LookupError, TypeError):
            parent, state = json.loads(parent_of(frames)), json.loads(frames[-1])["execution_state"]
            if parent.get("msg_type") != "execute_request":
                return
            before = bool(self.open_cells)
            if state == OPEN:
                self.open_cells.add(parent["msg_id"])
            else:
                self.open_cells.discard(parent["msg_id"])
                self._closed_cells.append(parent["msg_id"])
            if SPEAKING in self._tasks and bool(self.open_cells) != before:
                self._tell_cells()

    async def _speak(self) -> None:
        """Tell the controller, and each new one, what a server would: which kernel this is, and whether a cell runs."""
        while True:
            self._tell_cells()  # first: a kernel that is named, and of which no cell is known, may be parked
            with contextlib.suppress(asyncio.TimeoutError):
                why = await on_own_thread(self._describe, timeout_s=SPEAK_EVERY_S)
                if why and self.is_kept:
                    self._is_due(why)
                    return
            await asyncio.sleep(SPEAK_EVERY_S)

    def _describe(self) -> str | None:
        """Describe it to the controller; return why that wants it to end, if it does."""
        since = clock_in_words(-self.kept_for_s)
        try:
            known = KernelMessages(self.record.kernel_id).describe(
                server=f"{WARM_SINCE if self.record.warm else KEPT_SINCE}{since}", **self.record.description
            )
            known = known if isinstance(known, dict) else {}
            self.hibernate_asked = known.get("hibernate_asked")
            return known.get("end_asked")
        except (ControllerUnavailable, ControllerRefused) as error:
            self._log.debug("kernel %s: the controller was not told: %s", self.record.kernel_id, error)
            return None

    def _tell_cells(self) -> None:
        self._tell(lambda controller: controller.tell_cell(bool(self.open_cells)))

    def _tell(self, message: Callable[[KernelMessages], None]) -> None:
        try:
            message(KernelMessages(self.record.kernel_id))
        except ControllerUnavailable as error:
            self._log.debug("kernel %s: the controller was not told: %s", self.record.kernel_id, error)

    # ---- its end

    def _expire(self) -> None:
        self._is_due(f"no server had it for {self.record.keep_s:g} s")

    def begin_end(self, why: str) -> asyncio.Task[None]:
        """Begin to shut it down, once."""
        if self.dying is None:
            self._log.warning("kernel %s is ended: %s", self.record.kernel_id, why)
            self.dying = self._loop.create_task(self._end())
        return self.dying

    async def _end(self) -> None:
        """Shut it down as a server does: by its own protocol, then by SIGTERM, then by SIGKILL."""
        if self.record.is_managed:
            self._tell(lambda controller: controller.tell_dying(self.record.process_group))
        control = self._connected("control", zmq.DEALER)
        try:
            await control.send_multipart(
                self._request("shutdown_request", {"restart": False}, uuid.uuid4().hex)
            )
            for number, patience_s in ((signal.SIGTERM, POLITE_S), (signal.SIGKILL, TERM_S)):
                if await self._ends_within(patience_s):
                    return
                self._signal(number)
            await self._ends_within(TERM_S)
        finally:
            control.close(linger=0)

    def _request(self, kind: str, content: dict[str, Any], message_id: str) -> list[bytes]:
        told = self.record.connection
        key, scheme = told["key"].encode(), told["signature_scheme"]
        return signed_request(kind, content, message_id, key=key, signature_scheme=scheme)

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
