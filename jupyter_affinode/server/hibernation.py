"""Kernels of this server that hibernate: no message to them is lost while they live on disk.

The keeper has each kernel's life (keeping/life.py), and shows this server where it is. Here is what only the server
that has a kernel can do: hold its tabs' messages while it is held back, have it quiet before it goes, and have its tabs
hear it before it speaks again. The first message that is held has the keeper wake the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..keeping.client import Keeper, KeeperRefused, KeeperUnavailable, Kept
from ..keeping.life_table import IS_HELD_BACK, IS_MOVING, IS_OUT, State
from ..keeping.messages import (
    OUTPUT,
    QUESTION,
    Held,
    Undelivered,
    header_of,
    parent_of,
    question_id,
    request_of,
)
from ..keeping.processes import ProcessName, lives
from ..provisioning.provisioner import AffinodeProvisioner
from ..time_of_day import clock_in_words
from .replay import TabBefore

HIBERNATED = "hibernated"  # as a residency
SHOWN_AS = {
    State.LEAVING: "hibernating",
    State.LEFT: "hibernating",
    State.IN_IMAGE: HIBERNATED,
    State.ELSEWHERE: HIBERNATED,
    State.WAKING: "waking",
    State.MUTE: "waking",
}
SETTLES_S = 1.0  # from a cell's end until this server has heard of it
ANSWERS_S = 3.0  # an idle kernel
HEARD_S, ASK_EVERY_S = 10.0, 0.1  # until the sockets of all tabs are connected to a kernel that was woken
RECONNECTED_S = 0.25  # other sockets of this server: each tries again after a fifth of a second at most
TRY_AGAIN_S = 10.0  # where a tab waits for a kernel that could not be woken
CELL_ENDS_S = 60.0  # after a cell that asks for it
WAKE_S, DISK_BYTES_PER_S = 1.0, 1 << 30  # until something was measured
SERVER_ENDS = "its server is ending: it stays in its image"


class Refused(RuntimeError):
    """A kernel did not hibernate, or was not woken; the message says why, and what to do."""


@dataclass
class Shown:
    """A kernel of this server: where the keeper says that it is, and what its tabs have sent that it may not get yet.

    Its provisioner asks it about a kernel whose process has ended.
    """

    kernel_id: str
    kept: Kept
    owner: Hibernation
    refusal: str | None = None  # this server's own
    since: float = field(default_factory=time.time)  # when the state began, by the time of day
    held: list[tuple[Any, Any]] = field(default_factory=list)  # connections of tabs, and what they sent
    wait_for: set[tuple[Any, str, str]] = field(default_factory=set)  # connection, channel, a question's id
    waking: asyncio.Task[None] | None = None  # for its tabs

    @property
    def state(self) -> State:
        """Where it is."""
        return self.kept.life

    @property
    def is_held_back(self) -> bool:
        """Whether no message may reach it."""
        return self.state in IS_HELD_BACK

    async def lives_on(self) -> bool:
        """Return whether it lives although its process has ended. Where no keeper answers it may."""
        try:
            self.owner.show(await (await self.owner.keeper()).look(self.kernel_id))
        except KeeperRefused:
            return False
        except KeeperUnavailable:
            pass
        if self.state in IS_OUT or self.state in (State.LEAVING, State.FOUND):
            return True
        return self.state is not State.GONE and lives(self.kept.record.process)  # it was woken at this moment

    async def end(self) -> bool:
        """Delete its image, if it lives on disk, since it is shut down or started anew: what was sent to it is void."""
        if not self.is_held_back:
            return False
        self.held.clear()
        self.owner.on_passed(self.kernel_id)
        with contextlib.suppress(KeeperUnavailable, KeeperRefused):
            keeper = await self.owner.keeper()
            await keeper.stop(self.kernel_id)
            if self.is_held_back:
                await keeper.end(self.kernel_id, by_server=True)
                return True
        return self.is_held_back


class Hibernation:
    """Hibernates and wakes this server's kernels."""

    def __init__(
        self,
        manager: Any,
        folder: str,
        after_s: float,
        connections: Callable[[str], list[Any]],
        changed: Callable[[str], None],
        log: logging.Logger,
    ):
        """Begin with none.

        `folder`: where images go, "" for nowhere; `after_s`: parked for so long a kernel hibernates. `connections`
        returns those of a kernel's open tabs; `changed` is called with a kernel of which a person sees something else.
        """
        self._manager = manager
        self._folder = folder
        self._after_s = after_s
        self._connections = connections
        self._changed = changed
        self._log = log
        self._shown: dict[str, Shown] = {}
        self._rate = float(DISK_BYTES_PER_S)
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()  # another one after each change
        self.wakes = True  # not any more where the server ends: what is in an image is safe there
        self.keeper: Callable[[], Awaitable[Keeper]] = _no_keeper  # raises KeeperUnavailable
        self.tell_keeper: Callable[[], Awaitable[None]] = _nothing  # has it know what this server has
        # What the keeper has for the server after this one, of what tabs sent: one more message; none any more.
        self.on_held: Callable[[str, Held], None] = lambda kernel_id, held: None
        self.on_passed: Callable[[str], None] = lambda kernel_id: None
        # Called when a kernel's processes run again, with what an earlier server did not deliver.
        self.on_awake: Callable[[str, Undelivered], Awaitable[None]] = _nothing

    # ---- what the keeper shows, and asks for

    def show(self, kept: Kept) -> None:
        """Take where the keeper says that a kernel is."""
        kernel_id, provisioner = kept.record.kernel_id, self._provisioner(kept.record.kernel_id)
        shown = self._shown.get(kernel_id)
        if provisioner is None:  # it is shut down by now
            self._shown.pop(kernel_id, None)
            return
        if shown is None:
            shown = self._shown[kernel_id] = Shown(kernel_id, kept, self)
        before, shown.kept = shown.kept, kept
        provisioner.on_disk = shown
        if before.life is not kept.life or before is kept:
            shown.since = kept.kept_since if kept.is_out else time.time()
            self._is_now(shown, before.life, provisioner)
        if before is kept or _as_seen(before) != _as_seen(kept):
            self._changed(kernel_id)
        self._news.set()
        self._news = asyncio.Event()

    def _is_now(self, shown: Shown, before: State, provisioner: AffinodeProvisioner) -> None:
        state, kernel_id = shown.state, shown.kernel_id
        if state in IS_OUT:
            provisioner.has_left(shown.kept.record.process)
        elif state in (State.MUTE, State.PROVISIONAL, State.RUNS) and before in IS_OUT:
            with contextlib.suppress(ProcessLookupError):  # the keeper says so next
                provisioner.has_come_back(shown.kept.record.process)
        if (before, state) in (
            (State.LEFT, State.IN_IMAGE),
            (State.MUTE, State.RUNS),
            (State.MUTE, State.PROVISIONAL),
        ):
            shown.refusal = None
        if state is State.IN_IMAGE:
            if before is State.LEFT:
                self._rate = max(shown.kept.bytes / max(time.time() - shown.since, 0.1), 1.0)
            elif before in (State.MUTE, State.PROVISIONAL):
                self._is_lost(shown)
            if shown.held:
                self.need(kernel_id)
        elif state is State.GONE:
            self._say_to_tabs(
                shown, "is gone, and is started anew", shown.kept.refusal or "its process ended"
            )
            shown.held.clear()
        elif not shown.is_held_back and shown.held:
            held, shown.held = shown.held, []
            self.on_passed(
                kernel_id
            )  # before, since a server that is killed in between would have it done twice
            for connection, message in held:
                _pass_on(connection, message)

    def _is_lost(self, shown: Shown) -> None:
        """Have tabs know that a kernel is again as it was when it hibernated: else its cells would seem to run."""
        if getattr(self._manager.get_kernel(shown.kernel_id), "shutting_down", False):
            return
        self._log.warning("Kernel %s is hibernated again: %s.", shown.kernel_id, shown.kept.refusal)
        for connection in self._connections(shown.kernel_id):
            connection.on_kernel_restarted()

    async def until_quiet(self, kernel_id: str) -> None:
        """Return once all that tabs have sent to a kernel is answered, and the answers are here. Raises Refused.

        What they send from now on is held, since the keeper has shown that the kernel leaves.
        """
        if not await self._is_idle_within(SETTLES_S, kernel_id):
            raise Refused("a cell runs")
        shown, connections = self._shown[kernel_id], self._connections(kernel_id)
        shown.wait_for.clear()
        self._ask(shown, connections, ("shell",))
        of_shell = set(shown.wait_for)
        self._ask(shown, connections, ("control",))
        of_control = shown.wait_for - of_shell
        if await self._answered(shown, ANSWERS_S):
            return
        here = self._connections(kernel_id)
        if shown.wait_for != {each for each in of_control if each[0] in here}:
            raise Refused("a cell runs, or the kernel does not answer")
        shown.wait_for.clear()  # some kernels, as R's, answer no question on their control channel

    async def until_heard(self, kernel_id: str, process: ProcessName, undelivered: Undelivered) -> None:
        """Return once what a woken kernel says reaches all of its tabs."""
        await self.on_awake(kernel_id, undelivered)
        shown, loop = self._shown[kernel_id], asyncio.get_running_loop()
        began, connections = loop.time(), self._connections(kernel_id)
        shown.wait_for.clear()
        self._ask(shown, connections, ("shell",))
        while shown.wait_for and loop.time() < began + HEARD_S:
            if await self._answered(shown, ASK_EVERY_S):
                break
            deaf = {connection for connection, channel, _ in shown.wait_for if channel == OUTPUT}
            shown.wait_for = {each for each in shown.wait_for if each[1] != OUTPUT}
            self._ask(shown, [each for each in deaf if each in self._connections(kernel_id)], ())
        if shown.wait_for:
            unheard = sorted({channel for _, channel, _ in shown.wait_for})
            self._log.warning("Kernel %s is awake, and its %s is not heard.", kernel_id, ", ".join(unheard))
        await asyncio.sleep(max(began + RECONNECTED_S - loop.time(), 0))

    def forget(self, kernel_id: str) -> None:
        """Forget a kernel that is not this server's any more."""
        self._shown.pop(kernel_id, None)

    # ---- what a person sees

    def shown(self, kernel_id: str) -> dict[str, Any] | None:
        """Return what a person is shown of a kernel; None for one that cannot hibernate."""
        shown = self._shown.get(kernel_id)
        if self._provisioner(kernel_id) is None or not (self._folder or self.is_away(kernel_id)):
            return None
        state = None if shown is None else SHOWN_AS.get(shown.state)
        if shown is not None and state == HIBERNATED and shown.waking is not None and not shown.waking.done():
            state = "waking"  # the keeper was asked
        kept = None if shown is None or state is None else shown.kept
        size = 0 if kept is None else kept.bytes
        deleted_at = None if kept is None else kept.deleted_at
        return {
            "state": state,
            "bytes": size,
            "since_s": 0.0 if kept is None or shown is None else max(time.time() - shown.since, 0.0),
            "estimate_s": WAKE_S + size / self._rate,
            "refusal": None if shown is None else shown.refusal or shown.kept.refusal,
            "deleted_at": None if deleted_at is None else clock_in_words(deleted_at - time.time()),
            "objection": None if kept is None else kept.objection,
        }

    def seen(self, kernel: dict[str, Any]) -> dict[str, Any]:
        """Return a kernel, as the controller tells it, as a person sees it: on its way it is hibernated, too."""
        hibernation = self.shown(kernel["id"])
        is_away = hibernation is not None and hibernation["state"] is not None
        return {**kernel, "hibernation": hibernation, **({"residency": HIBERNATED} if is_away else {})}

    def is_away(self, kernel_id: str) -> bool:
        """Return whether a kernel is hibernated, or on its way."""
        shown = self._shown.get(kernel_id)
        return shown is not None and shown.state in SHOWN_AS

    def is_hibernated(self, kernel_id: str) -> bool:
        """Return whether a kernel is in its image, and not on its way."""
        shown = self._shown.get(kernel_id)
        return shown is not None and SHOWN_AS.get(shown.state) == HIBERNATED

    def process_of(self, kernel_id: str) -> ProcessName | None:
        """Return the process of a kernel that is held back, as the keeper knows it; None for others."""
        shown = self._shown.get(kernel_id)
        return shown.kept.record.process if shown is not None and shown.is_held_back else None

    def description(self, kernel_id: str, *, with_image: bool = True) -> dict[str, Any]:
        """Return what the controller is told of a kernel that can hibernate."""
        shown = self._shown.get(kernel_id)
        if self._provisioner(kernel_id) is None or not (self._folder or self.is_away(kernel_id)):
            return {}
        state = State.RUNS if shown is None else shown.state
        image = {"hibernated_bytes": shown.kept.bytes if shown is not None and state in IS_OUT else None}
        # On its way it says nothing of an image: "none" would mean that it is awake, and on no GPU.
        says_so = with_image and state not in (State.LEAVING, State.LEFT)
        return {"hibernate_after_s": self._after_s, **(image if says_so else {})}

    # ---- there

    async def hibernate(self, kernel_id: str) -> None:
        """Put an idle kernel on disk. Raises Refused: then it goes on, and what was sent to it meanwhile reaches it."""
        try:
            if not self._folder:
                raise Refused("this server has no folder for images (AffinodeExtension.hibernate_dir)")
            if self._provisioner(kernel_id) is None:
                raise Refused(
                    "it was started before hibernate_dir was set, or is not managed: restart it once"
                )
            if self.is_hibernated(kernel_id):
                return
            if not await self._is_idle_within(SETTLES_S, kernel_id):
                raise Refused("a cell runs")
            await self.tell_keeper()
            await self._moved(kernel_id, lambda keeper: keeper.hibernate(kernel_id), IS_OUT)
        except Refused as refused:
            self._refused(kernel_id, str(refused))
            raise

    async def _moved(
        self, kernel_id: str, ask: Callable[[Keeper], Awaitable[Kept]], wanted: frozenset[State]
    ) -> None:
        """Have the keeper do something with a kernel. Raises Refused.

        A keeper that is killed meanwhile leaves the kernel to the next one.
        """
        try:
            keeper = await self.keeper()
            self.show(await ask(keeper))
        except KeeperRefused as refused:
            raise Refused(str(refused)) from None
        except KeeperUnavailable as error:
            with contextlib.suppress(KeeperUnavailable):
                await self.keeper()  # the next one finds out where it is
            await self._until_still(kernel_id)
            shown = self._shown.get(kernel_id)
            if shown is None or shown.state not in wanted:
                raise Refused(str(error)) from None
        shown = self._shown.get(kernel_id)
        if shown is not None:
            shown.refusal = None

    async def settled(self, kernel_id: str) -> None:
        """Wait until a kernel is on its way no more, also one that the keeper was asked to wake."""
        await self._until_still(kernel_id)
        shown = self._shown.get(kernel_id)
        while shown is not None and shown.waking is not None and not shown.waking.done():
            await asyncio.wait([shown.waking])
            await self._until_still(kernel_id)

    async def _until_still(self, kernel_id: str) -> None:
        while (shown := self._shown.get(kernel_id)) is not None and shown.state in IS_MOVING:
            await self._news.wait()

    async def settle(self, kernel_id: str) -> None:
        """Have a kernel be on its way no more: the server ends. One that is woken for what a tab sent gets that."""
        shown = self._shown.get(kernel_id)
        if shown is not None and shown.state in IS_MOVING and not shown.held:
            await self.stop(kernel_id)
        await self.settled(kernel_id)

    async def _is_idle_within(self, seconds: float, kernel_id: str) -> bool:
        end = time.monotonic() + seconds
        while kernel_id in self._manager:
            if self._manager.get_kernel(kernel_id).execution_state != "busy":
                return True
            if time.monotonic() > end:
                break
            await asyncio.sleep(ASK_EVERY_S)
        return False

    async def hibernate_after_cell(self, kernel_id: str) -> None:
        """Hibernate a kernel whose cell asks for that, once the cell has ended."""
        if await self._is_idle_within(CELL_ENDS_S, kernel_id):
            with contextlib.suppress(Refused):
                await self.hibernate(kernel_id)

    async def stop(self, kernel_id: str) -> None:
        """Have a kernel that is on its way stay where it was, if that can still be."""
        with contextlib.suppress(KeeperUnavailable, KeeperRefused):
            await (await self.keeper()).stop(kernel_id)

    # ---- back

    async def wake(self, kernel_id: str) -> None:
        """Have a kernel run. Raises Refused: then its image stays."""
        shown = self._shown.get(kernel_id)
        if shown is None or not shown.is_held_back:
            return
        if not self.wakes:
            raise Refused(SERVER_ENDS)
        await self._moved(
            kernel_id, lambda keeper: keeper.wake(kernel_id, self._folder), frozenset(State) - IS_HELD_BACK
        )

    def need(self, kernel_id: str) -> None:
        """Have a kernel run soon, if it is held back."""
        shown = self._shown.get(kernel_id)
        if shown is None or not shown.is_held_back or not self.wakes:
            return
        if shown.waking is None or shown.waking.done():
            shown.waking = self._spawn(self._wake_for_tabs(shown))
            self._changed(kernel_id)

    async def _wake_for_tabs(self, shown: Shown) -> None:
        try:
            await self.wake(shown.kernel_id)
        except Refused as refused:
            if shown.state is State.GONE or self._shown.get(shown.kernel_id) is not shown:
                return
            self._refused(shown.kernel_id, str(refused))
            why = f"{refused}. It is tried again"
            self._say_to_tabs(shown, "is hibernated and could not be woken", why)
            if shown.held:
                asyncio.get_running_loop().call_later(TRY_AGAIN_S, self._try_again, shown)

    def _try_again(self, shown: Shown) -> None:
        if self._shown.get(shown.kernel_id) is shown and shown.held:
            self.need(shown.kernel_id)

    def holds(self, connection: Any, message: Any) -> bool:
        """Keep a tab's message for a kernel that is held back, which is woken for it; return whether it was kept."""
        shown = self._shown.get(connection.kernel_id)
        if shown is None or not shown.is_held_back:
            return False
        shown.held.append((connection, message))
        self.on_held(connection.kernel_id, Held(connection.session.session, connection.subprotocol, message))
        self.need(connection.kernel_id)
        return True

    def hold_again(self, kernel_id: str, held: list[tuple[Any, Any]]) -> None:
        """Have what tabs had sent to an earlier server, by what stands for these tabs; the kernel is woken for it."""
        shown = self._shown.get(kernel_id)
        if shown is None or not held:
            return
        if shown.is_held_back:
            shown.held[:0] = held
            self.need(kernel_id)
            return
        self.on_passed(kernel_id)
        for tab, message in held:
            tab.pass_on(message)

    def takes(self, connection: Any, stream: Any, frames: Sequence[bytes]) -> bool:
        """Take what no tab is to see, and return whether this is it.

        That is the answers to our own questions, and what comes from the address of a kernel that has no process.
        """
        shown = self._shown.get(connection.kernel_id)
        if shown is not None and shown.state in (State.IN_IMAGE, State.ELSEWHERE, State.WAKING):
            return True
        channel = stream if isinstance(stream, str) else getattr(stream, "channel", "")
        is_status = b'"status"' in header_of(frames)
        if QUESTION not in parent_of(frames) or (channel == OUTPUT and not is_status):
            return False  # what a thread prints meanwhile is of the kernel's last request
        if shown is not None and (channel != OUTPUT or b'"idle"' in frames[-1]):
            shown.wait_for.discard((connection, channel, request_of(frames)))
        return True

    # ---- questions to a kernel

    def _ask(self, shown: Shown, connections: list[Any], channels: Sequence[str]) -> None:
        """Ask a kernel as its tabs would, and wait for the answers and the output of these."""
        for connection in connections:
            for channel in channels or ("control",):
                message = connection.session.msg("kernel_info_request")
                asked = message["header"]["msg_id"] = question_id()
                if channels:
                    shown.wait_for.add((connection, channel, asked))
                shown.wait_for.add((connection, OUTPUT, asked))
                connection.session.send(connection.channels[channel], message)

    async def _answered(self, shown: Shown, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            here = self._connections(shown.kernel_id)
            shown.wait_for = {each for each in shown.wait_for if each[0] in here}
            if not shown.wait_for:
                return True
            await asyncio.sleep(0.01)
        return False

    # ---- parts

    def _provisioner(self, kernel_id: str) -> AffinodeProvisioner | None:
        """Return the provisioner of a kernel that the keeper knows."""
        if kernel_id not in self._manager:
            return None
        provisioner = self._manager.get_kernel(kernel_id).provisioner
        is_ours = isinstance(provisioner, AffinodeProvisioner) and provisioner.outlives_server
        return provisioner if is_ours else None

    def _refused(self, kernel_id: str, why: str) -> None:
        self._log.warning("Kernel %s stays where it is: %s.", kernel_id, why)
        if (shown := self._shown.get(kernel_id)) is not None:
            shown.refusal = why
        self._changed(kernel_id)

    def _say_to_tabs(self, shown: Shown, what: str, why: str) -> None:
        """Say in the output of cells that wait what their kernel is, and why."""
        for connection, message in shown.held:
            if isinstance(connection, TabBefore):
                continue  # it is not attached yet
            header = _request_header(connection, message)
            if header.get("msg_type") == "execute_request" and not getattr(connection, "was_told", False):
                connection.was_told = True
                connection.write_stderr(f"This notebook's kernel {what}: {why}.", header)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _as_seen(kept: Kept) -> tuple[object, ...]:
    return kept.life, kept.bytes, kept.deleted_at, kept.objection, kept.refusal


def _pass_on(connection: Any, message: Any) -> None:
    """Send a tab's message to its kernel, also if the tab was closed after it."""
    if isinstance(connection, TabBefore):
        return connection.pass_on(message)
    channels = connection.channels
    is_closed = not channels or any(stream.closed() for stream in channels.values())
    if is_closed:
        connection.create_stream()
    connection.pass_on(message)
    if is_closed:
        for stream in connection.channels.values():
            stream.flush()
            stream.close(linger=1000)
        connection.channels = {}


def _request_header(connection: Any, message: Any) -> dict[str, Any]:
    """Return the header of what a tab sent; {} for what is no message."""
    from jupyter_server.services.kernels.connection.base import (
        deserialize_binary_message,
        deserialize_msg_from_ws_v1,
    )

    try:
        if connection.subprotocol == "v1.kernel.websocket.jupyter.org":
            return dict(connection.session.unpack(deserialize_msg_from_ws_v1(message)[1][0]))
        told = deserialize_binary_message(message) if isinstance(message, bytes) else json.loads(message)
        return dict(told["header"])
    except (ValueError, LookupError, TypeError):
        return {}


async def _nothing(*_: object) -> None:
    pass


async def _no_keeper() -> Keeper:
    raise KeeperUnavailable("this server has no keeper")
