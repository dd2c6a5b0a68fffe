"""A keeper of the release before this one, which runs on after an upgrade: how it is asked, for one release.

It left hibernations and wakes of a server's kernels in that server's hands. So here is what the keeper does by itself
now: it has the server be quiet, and hear, and shows it where the kernel is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from .at_hub import AtHub
from .client import Ended, Keeper, KeeperEnded, KeeperRefused, KeeperUnavailable, Kept
from .life_table import State
from .lines import ANSWER_S, UNREAD_BYTES_MAX
from .messages import Held, Undelivered
from .records import LINE_BYTES_MAX, Owner, Record, from_json, to_json

PROCESS, IMAGE = "process", "image"
IMAGE_S = 1800.0  # until a disk has written, or read, an image


class EarlierKeeper(Keeper):
    """Speaks to it. One request at a time: its answers have no numbers."""

    def __init__(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        """Use a connection to the keeper at a socket; what takes long has one of its own."""
        super().__init__(None)
        self._path = path
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._shown: dict[str, Kept] = {}  # this server's kernels, as it was shown them last
        self._wishes: set[asyncio.Task[None]] = set()
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="affinode-keeper")

    @property
    def is_gone(self) -> bool:
        """Whether the keeper has ended."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def close(self) -> None:
        """Hang up."""
        if self._reading is not None:
            self._reading.cancel()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def update(
        self, record: Record, at_hub: AtHub | None = None, open_cells: Sequence[str] = ()
    ) -> Kept:
        """Say that this server has a kernel."""
        before = self._shown.get(record.kernel_id)
        if before is None:
            listed = {
                kept.record.kernel_id: kept for kept in await self.list_kept(record.hibernate_dir, all=True)
            }
            before = listed.get(record.kernel_id)
        state = State.RUNS if before is None else before.life
        if state in (State.IN_IMAGE, State.RUNS):
            await self._ask("own", record=_told(record, state), at_hub=at_hub and asdict(at_hub))
        kept = Kept(record, state, 0.0, "idle", 0.0, 0 if before is None else before.bytes, True)
        self._shown[record.kernel_id] = kept
        return kept

    async def forget(self, kernel_id: str) -> None:
        """Say that a kernel is shut down."""
        self._shown.pop(kernel_id, None)
        await super().forget(kernel_id)

    async def hand_over(self, record: Record, at_hub: AtHub | None = None) -> dict[str, str]:
        """Have a kernel kept from now on."""
        kept = self._shown.get(record.kernel_id)
        told = _told(record, State.RUNS if kept is None else kept.life)
        await self._ask("hand_over", record=told, at_hub=at_hub and asdict(at_hub))
        return {}

    async def release(self, kernel_id: str, undelivered: Undelivered) -> dict[str, str]:
        """Give what this server got of a kernel that it handed over."""
        self._shown.pop(kernel_id, None)
        await self._ask("deliver", kernel=kernel_id, undelivered=undelivered.to_json())
        return {}

    def tell_delivered(self, kernel_id: str, reader: str, channel: str, header: bytes) -> None:
        """Say that a tab has got a message."""
        if not self.is_gone and self._writer.transport.get_write_buffer_size() < UNREAD_BYTES_MAX:
            told = {"kernel": kernel_id, "reader": reader, "channel": channel, "header": header.decode()}
            self._writer.write(json.dumps({"do": "delivered", **told}).encode() + b"\n")

    async def offered(self, owner: Owner, store: str = "") -> tuple[list[Kept], list[Ended]]:
        """Take the kernels that such a server may have; it says so by `adopt` at once."""
        answer = await self._ask("adopt", IMAGE_S, owner=asdict(owner), store=store)
        found = [_kept(each) for each in answer["kernels"]]
        self._shown |= {kept.record.kernel_id: kept for kept in found}
        return found, [Ended(from_json(each["record"]), each["at"]) for each in answer["ended"]]

    async def take(self, kernel_id: str) -> tuple[Kept, Undelivered, list[Held]]:
        """Have a kernel from now on."""
        kept = self._shown[kernel_id]
        if kept.is_out:
            return kept, Undelivered(), []
        return kept, Undelivered.from_json(await self._ask("take", kernel=kernel_id)), []

    async def decline(self, kernel_id: str) -> None:
        """Give a kernel back that this server could not take."""
        await self._ask("give_back", kernel=kernel_id)

    async def look(self, kernel_id: str) -> Kept:
        """Return where a kernel is."""
        for kept in await self.list_kept(all=True):
            if kept.record.kernel_id == kernel_id:
                return kept
        raise KeeperRefused("there is no such kernel")

    async def list_kept(self, store: str = "", *, all: bool = False) -> list[Kept]:
        """Return the kernels that are kept."""
        return [_kept(each) for each in (await self._ask("list", store=store, all=all))["kernels"]]

    async def end(self, kernel_id: str, *, by_server: bool = False) -> None:
        """Shut a kernel down that is kept."""
        async with self._another() as other:
            await other._ask("end", kernel=kernel_id)

    async def stop(self, kernel_id: str) -> None:
        """Have a kernel stay where it is."""
        async with self._another() as other:
            await other._ask("stop", IMAGE_S, kernel=kernel_id)

    async def hibernate(self, kernel_id: str) -> Kept:
        """Put a kernel into an image."""
        before = self._shown.get(kernel_id)
        async with self._another() as other:
            if before is None:
                return _kept(await other._ask("hibernate", IMAGE_S, kernel=kernel_id))
            if before.is_out:
                return before
            self._show(kernel_id, State.LEAVING)
            try:
                try:
                    await self.on_quiet(kernel_id)
                except Exception as refused:  # as the keeper would be told
                    raise KeeperRefused(str(refused)) from None
                told = _kept(await other._ask("hibernate", IMAGE_S, kernel=kernel_id, by_server=True))
            except BaseException as error:
                self._show(kernel_id, State.RUNS, refusal=str(error))
                raise
            self._show(kernel_id, State.IN_IMAGE, bytes=told.bytes, kept_since=told.kept_since)
            return self._shown[kernel_id]

    async def wake(self, kernel_id: str, store: str = "") -> Kept:
        """Have a kernel run."""
        before = self._shown.get(kernel_id)
        async with self._another() as other:
            if before is None:
                return _kept(await other._ask("wake", IMAGE_S, kernel=kernel_id, store=store))
            if before.life is State.LEAVING:
                await self.stop(kernel_id)
                return self._shown[kernel_id]
            if not before.is_out:
                return before
            self._show(kernel_id, State.WAKING)
            try:
                told = await other._ask("wake", IMAGE_S, kernel=kernel_id, store=store, by_server=True)
            except BaseException as error:
                self._show(kernel_id, State.IN_IMAGE, refusal=str(error))
                raise
            record = from_json(told["record"])
            self._show(kernel_id, State.MUTE, record=record)
            try:
                await self.on_hear(kernel_id, record.process, Undelivered.from_json(told["undelivered"]))
            finally:
                await other._ask("heard", kernel=kernel_id)
            self._show(kernel_id, State.RUNS)
            return self._shown[kernel_id]

    def _show(self, kernel_id: str, state: State, **changes: Any) -> None:
        kept = self._shown[kernel_id] = replace(
            self._shown[kernel_id], life=state, **{"refusal": None, **changes}
        )
        self.on_life(kept)

    # ---- lines

    @contextlib.asynccontextmanager
    async def _another(self) -> AsyncIterator[EarlierKeeper]:
        """One more connection, for what takes long."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=LINE_BYTES_MAX)
        except OSError as error:
            raise KeeperEnded(f"the keeper of kernels has ended: {error}") from None
        other = EarlierKeeper(self._path, reader, writer)
        try:
            yield other
        finally:
            await other.close()

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                told = json.loads(line)
                if "wish" in told:
                    task = asyncio.get_running_loop().create_task(self._fulfil(told["wish"], told["kernel"]))
                    self._wishes.add(task)
                    task.add_done_callback(self._wishes.discard)
                else:
                    self._answers.put_nowait(told)
        except (OSError, ValueError, LookupError):
            pass
        finally:
            self._writer.close()
            self._answers.put_nowait(None)
            self.on_end()

    async def _fulfil(self, wish: str, kernel_id: str) -> None:
        """Do what a command line asked this keeper for."""
        error = None
        try:
            await (self.hibernate if wish == "hibernate" else self.wake)(kernel_id)
        except (KeeperRefused, KeeperUnavailable) as refused:
            error = str(refused)
        with contextlib.suppress(KeeperRefused, KeeperUnavailable):
            await self._ask("wish_done", kernel=kernel_id, error=error)

    async def _ask(self, what: str, patience_s: float | None = ANSWER_S, **request: Any) -> Any:
        exchange = asyncio.ensure_future(self._exchange(what, patience_s, request))
        # One that is cancelled is answered all the same: the next one would take that answer for its own.
        exchange.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(exchange)

    async def _exchange(self, what: str, patience_s: float | None, request: dict[str, Any]) -> Any:
        async with self._turn:
            try:
                self._writer.write(json.dumps({"do": what, **request}).encode() + b"\n")
                await self._writer.drain()
                answer = await asyncio.wait_for(self._answers.get(), patience_s)
            except ConnectionError as error:
                raise KeeperEnded(f"the keeper of kernels has ended: {error}") from None
            except (OSError, asyncio.TimeoutError) as error:
                self._writer.close()  # a late answer would be taken for that of the next request
                raise KeeperUnavailable(f"the keeper of kernels does not answer: {error}") from None
        if answer is None:
            self._answers.put_nowait(None)
            raise KeeperEnded("the keeper of kernels has ended")
        if "error" in answer:
            raise KeeperRefused(answer["error"])
        return answer["answer"]


def _told(record: Record, state: State) -> dict[str, Any]:
    """Return a record as such a keeper takes it: it says where the kernel is."""
    return {**to_json(record), "place": IMAGE if state is State.IN_IMAGE else PROCESS}


def _kept(view: dict[str, Any]) -> Kept:
    life = State.IN_IMAGE if view["record"].get("place") == IMAGE else State.RUNS
    missing = {"bytes": 0, "has_server": False, "deleted_at": None, "objection": None, "refusal": None}
    return Kept.of({**missing, **view, "life": life.value})
