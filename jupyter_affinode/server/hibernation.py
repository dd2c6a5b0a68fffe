"""Kernels of this server that hibernate: they go to disk while no tab needs them, and no message to them is lost.

While a kernel is away its tabs' messages are held here. The first of them wakes it. They are passed on once each tab's
sockets are connected again, so that no answer and no output is published before a tab hears it. The keeper has the
images (`keeping/hibernated.py`); here is what only the server that has a kernel can do.
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

from ..keeping.client import KeeperRefused, KeeperUnavailable, Kept, connected
from ..keeping.messages import OUTPUT, QUESTION, Undelivered, header_of, parent_of, question_id, request_of
from ..keeping.processes import lives, name_of
from ..keeping.records import IMAGE
from ..provisioning.provisioner import AffinodeProvisioner
from ..time_of_day import clock_in_words

HIBERNATING, HIBERNATED, WAKING = "hibernating", "hibernated", "waking"
SETTLES_S = 1.0  # from a cell's end until this server has heard of it
ANSWERS_S = 3.0  # an idle kernel
HEARD_S, ASK_EVERY_S = 10.0, 0.1  # until the sockets of all tabs are connected to a kernel that was woken
RECONNECTED_S = 0.25  # other sockets of this server: each tries again after a fifth of a second at most
TRY_AGAIN_S = 10.0  # where a tab waits for a kernel that could not be woken
LOOK_EVERY_S = 0.5
LOOK_AT_IMAGES_EVERY_S = 60.0
CELL_ENDS_S = 60.0  # after a cell that asks for it
WAKE_S, DISK_BYTES_PER_S = 1.0, 1 << 30  # until something was measured
ENDED = "it is being shut down"
SERVER_ENDS = "its server is ending: it stays in its image"
LOST = "its process ended before its GPU memory was back: it is again as it was when it hibernated"


class Refused(RuntimeError):
    """A kernel did not hibernate, or was not woken; the message says why, and what to do."""


@dataclass
class _Away:
    """A kernel that is hibernated, or on its way; what its provisioner knows of that."""

    kernel_id: str
    phase: str
    delete: Callable[[_Away], Awaitable[None]]
    stop: Callable[[], Awaitable[None]]
    bytes: int = 0  # of its image, so far
    kept: Kept | None = None  # what the keeper said of the image the last time
    since: float = field(default_factory=time.time)  # when the phase began, by the time of day
    held: list[tuple[Any, Any]] = field(default_factory=list)  # connections of tabs, and what they sent
    is_needed: bool = False
    ends: bool = False
    wait_for: set[tuple[Any, str, str]] = field(default_factory=set)  # connection, channel, a question's id
    move: asyncio.Task[None] | None = None  # the way there, or back

    @property
    def is_moving(self) -> bool:
        return self.phase != HIBERNATED

    async def settle(self) -> None:
        self.ends = True
        if self.move is not None and not self.move.done():
            await self.stop()
            await asyncio.wait([self.move])

    async def end(self) -> None:
        await self.delete(self)


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
        self._away: dict[str, _Away] = {}
        self._refusals: dict[str, str] = {}  # by kernel: why it did not hibernate, or could not be woken
        self._rate = float(DISK_BYTES_PER_S)
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self.wakes = True  # not any more where the server ends: what is in an image is safe there
        # Called when a kernel's processes run again, with what an earlier server did not deliver.
        self.on_awake: Callable[[str, Undelivered], Awaitable[None]] = _nothing
        self.tell_keeper: Callable[[], Awaitable[None]] = _nothing  # has it know what this server has

    # ---- what a person sees

    def shown(self, kernel_id: str) -> dict[str, Any] | None:
        """Return what a person is shown of a kernel; None for one that cannot hibernate."""
        provisioner = self._provisioner(kernel_id)
        if provisioner is None or not self._folder:
            return None
        away = self._away.get(kernel_id)
        size = away.bytes if away is not None else 0
        kept = away.kept if away is not None and away.phase == HIBERNATED else None
        deleted_at = None if kept is None else kept.deleted_at
        return {
            "state": None if away is None else away.phase,
            "bytes": size,
            "since_s": 0.0 if away is None else max(time.time() - away.since, 0.0),
            "estimate_s": WAKE_S + size / self._rate,
            "refusal": self._refusals.get(kernel_id),
            "deleted_at": None if deleted_at is None else clock_in_words(deleted_at - time.time()),
            "objection": None if kept is None else kept.objection,
        }

    def seen(self, kernel: dict[str, Any]) -> dict[str, Any]:
        """Return a kernel, as the controller tells it, as a person sees it: on its way it is hibernated, too."""
        shown = self.shown(kernel["id"])
        is_away = shown is not None and shown["state"] is not None
        return {**kernel, "hibernation": shown, **({"residency": HIBERNATED} if is_away else {})}

    def is_away(self, kernel_id: str) -> bool:
        """Return whether a kernel is hibernated, or on its way."""
        return kernel_id in self._away

    def is_hibernated(self, kernel_id: str) -> bool:
        """Return whether a kernel is in its image, and not on its way."""
        return kernel_id in self._away and not self._away[kernel_id].is_moving

    def description(self, kernel_id: str, *, with_image: bool = True) -> dict[str, Any]:
        """Return what the controller is told of a kernel that can hibernate."""
        if not self._folder or self._provisioner(kernel_id) is None:
            return {}
        away = self._away.get(kernel_id)
        in_image = away is not None and away.phase != HIBERNATING
        image = {"hibernated_bytes": away.bytes if away is not None and in_image else None}
        return {"hibernate_after_s": self._after_s, **(image if with_image else {})}

    # ---- there

    def adopt(self, kernel_id: str, kept: Kept) -> None:
        """Take a kernel that is in an image already."""
        away = self._begun(kernel_id, HIBERNATED)
        away.bytes, away.since = kept.bytes, kept.kept_since
        self._watch_images()

    async def counts_again(self, kernel_id: str) -> bool:
        """Take a woken kernel whose process has ended as hibernated, if its image counts again, and have tabs know;
        return whether it does.
        """
        kept, provisioner = await self._image_of(kernel_id), self._provisioner(kernel_id)
        if kept is None or provisioner is None:
            return False
        if provisioner.in_image is None:
            provisioner.has_left(kept.record.process)
            self.adopt(kernel_id, kept)
            self._refused(kernel_id, LOST, "is hibernated again")
            for connection in self._connections(kernel_id):
                connection.on_kernel_restarted()  # else its cells would be shown as running
        return True

    async def hibernate(self, kernel_id: str) -> None:
        """Put an idle kernel on disk. Raises Refused: then it goes on, and what was sent to it meanwhile reaches it."""
        try:
            provisioner = self._provisioner(kernel_id)
            if not self._folder:
                raise Refused("this server has no folder for images (AffinodeExtension.hibernate_dir)")
            if provisioner is None:
                raise Refused(
                    "it was started before hibernate_dir was set, or is not managed: restart it once"
                )
            if self._is_there(kernel_id):
                return
            if not await self._is_idle_within(SETTLES_S, kernel_id):
                raise Refused("a cell runs")
            if self._is_there(kernel_id):  # another asked meanwhile
                return
            away = self._begun(kernel_id, HIBERNATING)
            away.move = asyncio.get_running_loop().create_task(self._go(away, provisioner))
            await asyncio.shield(away.move)
        except Refused as refused:
            self._refused(kernel_id, str(refused), "is not hibernated")
            raise

    def _is_there(self, kernel_id: str) -> bool:
        """Return whether a kernel is hibernated. Raises Refused for one that is on its way there or back."""
        away = self._away.get(kernel_id)
        if away is not None and away.is_moving:
            raise Refused("it is on its way already")
        return away is not None

    def is_moving(self, kernel_id: str) -> bool:
        """Return whether a kernel is on its way, there or back."""
        away = self._away.get(kernel_id)
        return away is not None and away.is_moving and away.move is not None and not away.move.done()

    async def arrived(self, kernel_id: str) -> None:
        """Wait until a kernel is on its way no more."""
        while self.is_moving(kernel_id):
            move = self._away[kernel_id].move
            assert move is not None
            await asyncio.wait([move])

    async def _is_idle_within(self, seconds: float, kernel_id: str) -> bool:
        end = time.monotonic() + seconds
        while kernel_id in self._manager:
            if self._manager.get_kernel(kernel_id).execution_state != "busy":
                return True
            if time.monotonic() > end:
                break
            await asyncio.sleep(ASK_EVERY_S)
        return False

    async def _go(self, away: _Away, provisioner: AffinodeProvisioner) -> None:
        looking = asyncio.get_running_loop().create_task(self._look(away))
        try:
            name = name_of(provisioner.pid or 0)
            await self.tell_keeper()
            await self._until_quiet(away)
            began = time.monotonic()
            kept = await self._put_into_image(away.kernel_id)
            provisioner.has_left(name)
        except BaseException as error:
            self._is_here(away)
            if isinstance(error, (KeeperRefused, KeeperUnavailable, ProcessLookupError)):
                raise Refused(str(error)) from None
            raise
        finally:
            looking.cancel()
        self._rate = max(kept.bytes / max(time.monotonic() - began, 0.1), 1.0)
        self._refusals.pop(away.kernel_id, None)
        self._is_hibernated(away, kept.bytes)

    async def _put_into_image(self, kernel_id: str) -> Kept:
        """Have the keeper make the image. One that is killed after it may have ended the kernel's processes."""
        try:
            async with await connected() as keeper:
                return await keeper.hibernate(kernel_id, by_server=True)
        except KeeperUnavailable:
            await self.stop(kernel_id)  # it may be about to end the kernel: return when that is known
            if (kept := await self._image_of(kernel_id)) is not None:
                return kept
            raise

    async def _until_quiet(self, away: _Away) -> None:
        """Wait until all that tabs have sent is answered, and the answers are here. Raises Refused."""
        connections = self._connections(away.kernel_id)
        self._ask(away, connections, ("shell",))
        of_shell = set(away.wait_for)
        self._ask(away, connections, ("control",))
        of_control = away.wait_for - of_shell
        if await self._answered(away, ANSWERS_S):
            return
        here = self._connections(away.kernel_id)
        if away.wait_for != {each for each in of_control if each[0] in here}:
            raise Refused("a cell runs, or the kernel does not answer")
        away.wait_for.clear()  # some kernels, as R's, answer no question on their control channel

    async def _look(self, away: _Away) -> None:
        """Follow how much of an image is written."""
        with contextlib.suppress(KeeperUnavailable, KeeperRefused):
            async with await connected() as keeper:
                while True:
                    await asyncio.sleep(LOOK_EVERY_S)
                    progress = await keeper.progress(away.kernel_id)
                    if progress is not None and progress["bytes"] != away.bytes:
                        away.bytes = progress["bytes"]
                        self._changed(away.kernel_id)

    def _watch_images(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._look_at_images())

    async def _look_at_images(self) -> None:
        """Follow which images are about to be deleted by age, and which could not be woken now."""
        while any(away.phase == HIBERNATED for away in self._away.values()):
            with contextlib.suppress(KeeperUnavailable, KeeperRefused):
                async with await connected() as keeper:
                    for kept in await keeper.list_kept(self._folder, all=True):
                        self._is_seen(kept)
            await asyncio.sleep(LOOK_AT_IMAGES_EVERY_S)

    def _is_seen(self, kept: Kept) -> None:
        away = self._away.get(kept.record.kernel_id)
        if away is not None and kept.record.place == IMAGE:
            before, away.kept = away.kept, kept
            if before is None or (before.deleted_at, before.objection) != (kept.deleted_at, kept.objection):
                self._changed(away.kernel_id)

    async def _image_of(self, kernel_id: str) -> Kept | None:
        """Return what the keeper says of a kernel that is in an image; None if it is in none, or no keeper answers."""
        with contextlib.suppress(KeeperUnavailable, KeeperRefused):
            async with await connected() as keeper:
                for kept in await keeper.list_kept(self._folder, all=True):
                    if kept.record.kernel_id == kernel_id and kept.record.place == IMAGE:
                        return kept
        return None

    async def hibernate_after_cell(self, kernel_id: str) -> None:
        """Hibernate a kernel whose cell asks for that, once the cell has ended."""
        if await self._is_idle_within(CELL_ENDS_S, kernel_id):
            with contextlib.suppress(Refused):
                await self.hibernate(kernel_id)

    async def stop(self, kernel_id: str) -> None:
        """Have a kernel that is on its way stay where it was, if that can still be."""
        with contextlib.suppress(KeeperUnavailable, KeeperRefused):
            async with await connected() as keeper:
                await keeper.stop(kernel_id)

    # ---- back

    async def wake(self, kernel_id: str) -> None:
        """Have a kernel run. Raises Refused: then its image stays."""
        while (away := self._away.get(kernel_id)) is not None:
            if not self.wakes:
                raise Refused(SERVER_ENDS)
            self._need(away)
            assert away.move is not None
            await asyncio.shield(asyncio.wait([away.move]))
            if away.phase == HIBERNATED and away.move.exception() is not None:
                raise Refused(self._refusals.get(kernel_id, ENDED))

    def need(self, kernel_id: str) -> None:
        """Have a kernel run soon, if it is away."""
        if (away := self._away.get(kernel_id)) is not None:
            self._need(away)

    def holds(self, connection: Any, message: Any) -> bool:
        """Keep a tab's message for a kernel that is away, which is woken for it; return whether it was kept."""
        away = self._away.get(connection.kernel_id)
        if away is None:
            return False
        away.held.append((connection, message))
        self._need(away)
        return True

    def takes(self, connection: Any, stream: Any, frames: Sequence[bytes]) -> bool:
        """Take the answers to our own questions, which no tab is to see; return whether this is one."""
        away = self._away.get(connection.kernel_id)
        channel = stream if isinstance(stream, str) else getattr(stream, "channel", "")
        is_status = b'"status"' in header_of(frames)
        if QUESTION not in parent_of(frames) or (channel == OUTPUT and not is_status):
            return False  # what a thread prints meanwhile is of the kernel's last request
        if away is not None and (channel != OUTPUT or b'"idle"' in frames[-1]):
            away.wait_for.discard((connection, channel, request_of(frames)))
        return True

    def _need(self, away: _Away) -> None:
        """Have a kernel run soon: on its way there it turns back, if it still can."""
        if not self.wakes:
            return
        if away.phase == HIBERNATED and (away.move is None or away.move.done()):
            away.phase, away.since = WAKING, time.time()
            away.move = asyncio.get_running_loop().create_task(self._come(away))
            away.move.add_done_callback(_noticed)
            self._changed(away.kernel_id)
        elif away.phase == HIBERNATING and not away.is_needed:
            away.is_needed = True
            self._spawn(self.stop(away.kernel_id))

    async def _come(self, away: _Away) -> None:
        kernel_id, provisioner, record = away.kernel_id, self._provisioner(away.kernel_id), None
        try:
            if provisioner is None:
                raise Refused(ENDED)
            await self.tell_keeper()
            async with await connected() as keeper:
                record, undelivered = await keeper.wake_own(kernel_id, self._folder)
                provisioner.has_come_back(record.process)
                try:
                    await self.on_awake(kernel_id, undelivered)
                    await self._until_heard(away)
                finally:
                    await keeper.heard(kernel_id)
        except BaseException as error:
            if provisioner is not None and record is not None and provisioner.in_image is None:
                if not lives(record.process):
                    provisioner.has_left(record.process)
                elif isinstance(error, KeeperUnavailable):  # the next one finds it awake
                    self._log.warning("Kernel %s is awake, and its keeper was not told: %s", kernel_id, error)
                    self._refusals.pop(kernel_id, None)
                    self._is_here(away)
                    return
            away.phase, away.since = HIBERNATED, time.time()
            if not isinstance(error, (KeeperRefused, KeeperUnavailable, ProcessLookupError, Refused)):
                raise
            self._refused(kernel_id, str(error), "could not be woken")
            self._say_to_tabs(away, str(error))
            if away.held and not away.ends:
                asyncio.get_running_loop().call_later(TRY_AGAIN_S, self._try_again, away)
            raise Refused(str(error)) from None
        self._refusals.pop(kernel_id, None)
        self._is_here(away)

    async def _until_heard(self, away: _Away) -> None:
        """Wait until what a woken kernel says reaches all of its tabs."""
        loop = asyncio.get_running_loop()
        began, connections = loop.time(), self._connections(away.kernel_id)
        self._ask(away, connections, ("shell",))
        while away.wait_for and loop.time() < began + HEARD_S:
            if await self._answered(away, ASK_EVERY_S):
                break
            deaf = {connection for connection, channel, _ in away.wait_for if channel == OUTPUT}
            away.wait_for = {each for each in away.wait_for if each[1] != OUTPUT}
            self._ask(away, [each for each in deaf if each in self._connections(away.kernel_id)], ())
        if away.wait_for:
            unheard = sorted({channel for _, channel, _ in away.wait_for})
            self._log.warning(
                "Kernel %s is awake, and its %s is not heard.", away.kernel_id, ", ".join(unheard)
            )
        await asyncio.sleep(max(began + RECONNECTED_S - loop.time(), 0))

    def _try_again(self, away: _Away) -> None:
        if self._away.get(away.kernel_id) is away and away.held:
            self._need(away)

    # ---- questions to a kernel

    def _ask(self, away: _Away, connections: list[Any], channels: Sequence[str]) -> None:
        """Ask a kernel as its tabs would, and wait for the answers and the output of these."""
        for connection in connections:
            for channel in channels or ("control",):
                message = connection.session.msg("kernel_info_request")
                asked = message["header"]["msg_id"] = question_id()
                if channels:
                    away.wait_for.add((connection, channel, asked))
                away.wait_for.add((connection, OUTPUT, asked))
                connection.session.send(connection.channels[channel], message)

    async def _answered(self, away: _Away, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            here = self._connections(away.kernel_id)
            away.wait_for = {each for each in away.wait_for if each[0] in here}
            if not away.wait_for:
                return True
            await asyncio.sleep(0.01)
        return False

    async def settle(self) -> None:
        """Stop what can be stopped, since the server ends, and wait until no kernel is on its way."""
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*(away.settle() for away in list(self._away.values())))

    # ---- between the phases

    def _provisioner(self, kernel_id: str) -> AffinodeProvisioner | None:
        """Return the provisioner of a kernel that can hibernate."""
        if kernel_id not in self._manager:
            return None
        provisioner = self._manager.get_kernel(kernel_id).provisioner
        is_ours = isinstance(provisioner, AffinodeProvisioner) and provisioner.outlives_server
        return provisioner if is_ours else None

    def _begun(self, kernel_id: str, phase: str) -> _Away:
        away = _Away(kernel_id, phase, self._delete, lambda: self.stop(kernel_id))
        self._away[kernel_id] = away
        provisioner = self._provisioner(kernel_id)
        if provisioner is not None:
            provisioner.away = away
        self._changed(kernel_id)
        return away

    def _is_hibernated(self, away: _Away, size: int) -> None:
        away.phase, away.bytes, away.since = HIBERNATED, size, time.time()
        self._changed(away.kernel_id)
        self._watch_images()
        if (away.held or away.is_needed) and not away.ends:
            asyncio.get_running_loop().call_soon(self._try_again_if_needed, away)

    def _try_again_if_needed(self, away: _Away) -> None:
        if self._away.get(away.kernel_id) is away:
            self._need(away)

    def _is_here(self, away: _Away) -> None:
        """Pass on what tabs sent meanwhile: the kernel runs."""
        self._gone(away)
        for connection, message in away.held:
            _pass_on(connection, message)

    def _gone(self, away: _Away) -> None:
        if self._away.get(away.kernel_id) is away:
            del self._away[away.kernel_id]
        provisioner = self._provisioner(away.kernel_id)
        if provisioner is not None and provisioner.away is away:
            provisioner.away = None
        self._changed(away.kernel_id)

    async def _delete(self, away: _Away) -> None:
        """Delete a kernel's image: it is shut down, or started anew, and with that what was sent to it is void."""
        self._gone(away)
        self._refusals.pop(away.kernel_id, None)
        with contextlib.suppress(KeeperUnavailable, KeeperRefused):
            async with await connected() as keeper:
                await keeper.end(away.kernel_id)

    def _refused(self, kernel_id: str, why: str, what: str) -> None:
        self._refusals[kernel_id] = why
        self._log.warning("Kernel %s %s: %s.", kernel_id, what, why)
        self._changed(kernel_id)

    def _say_to_tabs(self, away: _Away, why: str) -> None:
        """Say in the output of cells that wait why they do."""
        for connection, message in away.held:
            header = _request_header(connection, message)
            if header.get("msg_type") == "execute_request" and not getattr(connection, "was_told", False):
                connection.was_told = True
                connection.write_stderr(
                    f"This notebook's kernel is hibernated and could not be woken: {why}. It is tried again.",
                    header,
                )

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _pass_on(connection: Any, message: Any) -> None:
    """Send a tab's message to its kernel, also if the tab was closed after it."""
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


def _noticed(task: asyncio.Task[None]) -> None:
    """Have a refusal be no error that was never looked at: it was said where it happened."""
    if not task.cancelled():
        task.exception()
