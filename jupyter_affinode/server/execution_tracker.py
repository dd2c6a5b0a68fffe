"""The execution tracker: follows one kernel's cells on an iopub channel of its own.

A front end's channel may stall, and the server's own view (`execution_state`) follows the last status of any
parent message; so the tracker has its own subscriber, looks at as little of each message as it can (100,000
outputs of one cell cost it one comparison of bytes each), and keeps none of them: what it cannot read in time
stays in ZMQ's bounded queues (1,000 messages a side) or is lost, which `OpenCells` and the probe below make
good.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from jupyter_client.session import DELIM

from .cells import OpenCells

DRAIN_AT_ONCE = 500  # messages, then other work of the server's loop gets its turn
REMEMBERED_PARENTS = 64
HIBERNATE = b"affinode_hibernate"  # the message of %gpu_hibernate (kernel/magics.py)
LOSS_MESSAGES = 500  # iopub loses nothing before a queue of 1,000 messages (ZMQ's default) was full
PROBE_QUIET_S = 2.0
PROBE_PATIENCE_S = 30.0
GREETING_S = 1.0
HEARING_S = 0.2  # then twice as long, again and again
GREETINGS = 8  # 50 s in all


class Channel:
    """One ZMQ socket, read without waiting, and the wrapper by which the event loop waits for it.

    zmq.asyncio's Poller would wrap a plain socket anew for each wait and take that wrapper's reader off the loop
    late, or never before pyzmq 26: by then the descriptor's number may belong to another socket, which goes deaf.
    """

    def __init__(self, sock: Any):
        self.sock = sock
        self.waiter: Any = zmq.asyncio.Socket.from_socket(sock)

    def sent(self) -> None:
        """Look for messages after each send: ZMQ may have taken the descriptor's signal of one while it sent."""
        self.waiter.get(zmq.EVENTS)

    def close(self) -> None:
        """Take the reader off the loop, and then close the socket."""
        self.waiter.close(linger=0)
        self.sock.close(linger=0)


class ExecutionTracker:
    """One kernel's open cells, followed until `close()`.

    `on_cells(open, cell_id, began_at)` is called at every change (`began_at`: when the kernel began with it,
    in monotonic seconds, None if that is not known), `on_interrupt()` when an interrupt_request went by (a
    kernel with `interrupt_mode` "message", interrupted by whatever front end), `on_hibernate()` when a cell asks for
    that. All run on the event loop.
    """

    def __init__(
        self,
        manager: KernelManager,
        *,
        on_cells: Callable[[bool, str | None, float | None], None],
        on_interrupt: Callable[[], None],
        on_hibernate: Callable[[], None] = lambda: None,
        log: logging.Logger,
    ):
        self.cells = OpenCells()
        self._manager = manager
        self._on_cells = on_cells
        self._on_interrupt = on_interrupt
        self._on_hibernate = on_hibernate
        self._log = log
        self._client: BlockingKernelClient | None = None
        self._known_parents: OrderedDict[bytes, None] = OrderedDict()
        self._probes: dict[str, frozenset[str]] = {}  # message id of a probe: the ids it was sent for
        self._last_message = self._opened_at = time.monotonic()
        self._began_at: float | None = None  # when the kernel began with the cell that opened last
        self._iopub: Channel | None = None
        self._shell: Channel | None = None
        self._following: list[asyncio.Task[None]] = []
        self._greeting: asyncio.Task[None] | None = None
        self._greeted = ""  # the message id of the last greeting
        self._answered, self._heard = asyncio.Event(), asyncio.Event()  # it: on the shell, by iopub

    def start(self) -> None:
        """Connect and follow; called with the event loop running, again after a restart (ports may
        change).
        """
        self.close()
        # A manager's own sockets may be plain, asyncio's or tornado's; those of a blocking client are plain.
        self._client = self._manager.blocking_client()
        self._client.context = zmq.Context.instance()
        self._iopub = Channel(self._client.connect_iopub())
        self._shell = Channel(self._client.connect_shell())
        self._following = [
            self._spawn(self._follow(self._iopub, self._take_iopub)),
            self._spawn(self._follow(self._shell, self._take_reply)),
        ]
        self._greeting = self._spawn(self._greet())

    def close(self) -> None:
        """Stop following and release the sockets; no callback is made afterwards."""
        for task in (*self._following, self._greeting):
            if task is not None:
                task.cancel()
        self._following, self._greeting = [], None
        for channel in (self._iopub, self._shell):
            if channel is not None:
                channel.close()
        self._iopub = self._shell = None

    def keep_following(self) -> None:
        """Connect anew if following ended by an error; called every few seconds."""
        if any(task.done() for task in self._following):
            self.start()

    def restarted(self) -> None:
        """Forget open cells and connect anew, since the kernel has a new process."""
        self._reset()
        self.start()

    def gpu_idle(self, idle_s: float | None) -> None:
        """Take how long the kernel's processes have not used CUDA, or None; called every few seconds.

        When they are quiet and a cell seems open, ask the kernel's shell whether it still executes: it
        answers only after the cell's end. Soon when iopub may have lost the end, otherwise after half a
        minute, since a waiting question is one more parent message in a kernel that is merely busy.
        """
        if self.cells.current is None or idle_s is None or self._iopub is None:
            return
        now = time.monotonic()
        quiet_s = min(now - self._last_message, now - self._opened_at, idle_s)
        if quiet_s >= (PROBE_QUIET_S if self.cells.messages >= LOSS_MESSAGES else PROBE_PATIENCE_S):
            self._probe()

    def _probe(self) -> None:
        waiting = set().union(*self._probes.values())
        for subshell, message_ids in self.cells.subshells().items():
            if not message_ids <= waiting:
                self._ask(message_ids, subshell)

    def _ask(self, message_ids: frozenset[str] = frozenset(), subshell: str | None = None) -> str:
        """Ask a shell a question that it answers only when it executes nothing; return the question's id."""
        assert self._client is not None and self._shell is not None
        message = self._client.session.msg("kernel_info_request", content={})
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self._client.session.send(self._shell.sock, message)
        self._shell.sent()
        asked: str = message["header"]["msg_id"]
        self._probes[asked] = message_ids | {asked}
        return asked

    async def _greet(self) -> None:
        """Make sure that no cell goes unseen because the subscription reached the kernel after the cell began.

        Ask until an answer and its status on iopub have come: no cell ran then, and the next will be seen. While
        there is no answer, a cell runs (or the kernel still starts, and has no GPU). A kernel that answers and sends
        no status is asked ever more rarely, and then no more: it will not say when cells run.
        """
        for attempt in range(GREETINGS):
            self._answered.clear()
            self._heard.clear()
            self._greeted = self._ask()
            if not await happens(self._answered, GREETING_S):
                if self.cells.current is None and self.cells.opened(self._greeted):
                    self._began_at = None
                    self._report()  # the greeting's own id stands for the cell that was not seen to begin
                await self._answered.wait()
            if await happens(self._heard, HEARING_S * 2**attempt):
                return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="affinode-tracker")
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._log.error(
                "Following the cells of kernel %s failed", self._manager.kernel_id, exc_info=task.exception()
            )

    async def _follow(self, channel: Channel, take: Callable[[list[bytes]], None]) -> None:
        while True:
            await channel.waiter.poll()
            self._drain(channel.sock, take)
            await asyncio.sleep(0)

    def _drain(self, sock: Any, take: Callable[[list[bytes]], None]) -> None:
        for _ in range(DRAIN_AT_ONCE):
            try:
                frames = sock.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                take(frames)
            except (ValueError, LookupError, TypeError, AttributeError) as error:  # an invalid message
                self._log.debug(
                    "A message of kernel %s was not understood: %r", self._manager.kernel_id, error
                )

    def _take_iopub(self, frames: list[bytes]) -> None:
        """Take an iopub message; [topic…, DELIM, signature, header, parent, metadata, content, …]."""
        self.cells.count_message()
        self._last_message = time.monotonic()
        start = frames.index(DELIM) + 1
        header, parent = frames[start + 1], frames[start + 2]
        if HIBERNATE in header:
            self._on_hibernate()
        is_status = b"status" in header
        if not is_status and parent in self._known_parents:
            return
        message = self._deserialized(frames, content=is_status)
        self._known_parents[parent] = None
        if len(self._known_parents) > REMEMBERED_PARENTS:
            self._known_parents.popitem(last=False)
        state = message["content"]["execution_state"] if message["header"]["msg_type"] == "status" else None
        self._take_status(state, message["parent_header"], message["header"].get("date"))

    def _take_status(self, state: str | None, parent: dict[str, Any], date: Any = None) -> None:
        kind, message_id = parent.get("msg_type"), parent.get("msg_id")
        if state == "starting":
            self._reset()
        elif message_id == self._greeted:
            self._heard.set()
        elif kind == "interrupt_request" and state == "busy":
            self._on_interrupt()
        elif kind == "execute_request" and message_id:
            if state == "idle":
                changed = self.cells.closed(message_id)
            else:
                changed = self.cells.opened(message_id, parent.get("subshell_id"))
                if changed:
                    self._opened_at, self._began_at = time.monotonic(), moment_of(date)
            if changed:
                self._report()

    def _take_reply(self, frames: list[bytes]) -> None:
        """Take an answer on the shell channel: whatever it says, the cells that were queued before the question are
        over."""
        message = self._deserialized(frames, content=False)
        asked = message["parent_header"]["msg_id"]
        # a kernel that says it starts has them forgotten
        message_ids = self._probes.pop(asked, frozenset([asked]))
        if asked == self._greeted:
            self._answered.set()
        if self.cells.answered(message_ids):
            self._log.debug("Kernel %s executes nothing any more.", self._manager.kernel_id)
            self._report()

    def _deserialized(self, frames: list[bytes], *, content: bool) -> dict[str, Any]:
        """Return a message whose signature is valid. Raises ValueError."""
        assert self._client is not None
        return self._client.session.deserialize(frames[frames.index(DELIM) + 1 :], content=content)

    def _reset(self) -> None:
        self._probes.clear()
        self._known_parents.clear()
        if self.cells.reset():
            self._report()

    def _report(self) -> None:
        current = self.cells.current
        self._on_cells(current is not None, current, self._began_at if current is not None else None)


def moment_of(date: Any) -> float:
    """Return when a message was made, in monotonic seconds; now if it has no date, or a future one."""
    ago_s = time.time() - date.timestamp() if isinstance(date, datetime) else 0.0
    return time.monotonic() - max(ago_s, 0.0)


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for a limited time; return whether it happened."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([waiting], timeout=seconds)
    finally:
        waiting.cancel()
    return event.is_set()
