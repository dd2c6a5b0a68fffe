"""`python -m jupyter_affinode.keeping.keeper`: the program that keeps a user's kernels while no server has them.

It listens at a Unix socket in a folder that only its user can enter. A request is a line of JSON, and so is its answer.
It ends by itself when no server is connected and no kernel is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from .. import environment
from ..time_of_day import since_boot_s
from .at_hub import ASK_EVERY_S, AtHub
from .hibernated import CannotHibernate, CannotWake, Hibernated, HibernatedKernels
from .kept_kernel import CLOSED, OPEN, KeptKernel
from .messages import Undelivered
from .oversight import Oversight
from .processes import ProcessName
from .records import (
    FOLDER_NAME,
    IMAGE,
    LINE_BYTES_MAX,
    PROCESS,
    SOCKET_NAME,
    VERSION,
    Owner,
    Record,
    Records,
    from_json,
    to_json,
)
from .warm_pools import FOLDER_NAME as WARM_FOLDER
from .warm_pools import WarmPools

LOCK_NAME = "keeper.lock"
SERVERS_BACK_S = 0.5  # until a server that lives has reached a new keeper
OF_LIVING_SERVERS = ("hello", "own")  # what it says first
LEAVES_AFTER_S = 5.0  # without servers and kernels
REMEMBERED_ENDS = 1000
LOOK_EVERY_S = 1.0  # for kernels that are to be hibernated
TRY_AGAIN_S = 600.0  # one that could not be
HEARD_S = 2.0  # until a woken kernel must have heard that the keeper listens
RECONNECTED_S = 0.25  # other clients' sockets try again every tenth of a second
ON_ITS_WAY = "it is on its way already"

Answer = dict[str, Any]
T = TypeVar("T")


class Keeper:
    """The kernels of a user that a server has, or had."""

    def __init__(self, folder: Path, log: logging.Logger):
        """Take the kernels that an earlier keeper knew, as kept, since no server is connected."""
        self._log = log
        self._records = Records(folder)
        self._kernels: dict[str, KeptKernel] = {}
        self._servers: dict[asyncio.StreamWriter, set[str]] = {}  # and the ids of their kernels
        self._ends: dict[
            str, tuple[Record, float]
        ] = {}  # of kernels that ended while they were kept: when, after the machine's start
        self._ended_under_server: dict[str, Record] = {}
        self._hibernated = HibernatedKernels(log)
        self.oversight = Oversight(self._kernels.values, log)
        self._on_their_way: dict[str, asyncio.Task[Any]] = {}  # kernels that are being hibernated, or woken
        # By kernel: what was asked of the server that has it.
        self._wishes: dict[str, asyncio.Future[None]] = {}
        # Kernels that were woken, and whose server has not said that it hears them.
        self._unheard: dict[str, Hibernated] = {}
        self.warm = WarmPools(self, folder.parent / WARM_FOLDER, log)
        self._stopping: asyncio.Task[None] | None = None
        self.left = asyncio.Event()
        self._leaving: asyncio.TimerHandle | None = None
        self._requests: dict[str, Callable[[asyncio.StreamWriter, Any], Any]] = {
            "hello": lambda writer, request: VERSION,
            "own": self._own,
            "forget": self._forget,
            "hand_over": self._hand_over,
            "deliver": self._deliver,
            "adopt": self._adopt,
            "take": self._take,
            "list": self._list,
            "end": self._end,
            "hibernate": self._hibernate,
            "wake": self._wake,
            "stop": self._stop_move,
            "progress": self._progress,
            "wish_done": self._wish_done,
            "heard": self._heard,
            "warm_want": self.warm.want,
            "warm_offer": self.warm.offer,
            "warm_taken": self.warm.taken,
            "warm_list": self.warm.list_all,
            "warm_drop": self.warm.drop,
        }

    def begin(self) -> None:
        """Know what the folder has, and keep it once servers that live have said which kernels are theirs.

        Until then nothing is taken from these servers' tabs, whose client the keeper would be.
        """
        for record in list(self._records.all(self._log)):
            if self._known(record) is not None:
                continue
            if record.hibernate_dir:  # it may be in an image by now
                self._records.remove(record.kernel_id)
            else:
                self._note_end(record)
        self._beginning = asyncio.get_running_loop().create_task(
            self._keep_rest(list(self._kernels.values()))
        )

    async def _keep_rest(self, found: list[KeptKernel]) -> None:
        if found:
            await asyncio.sleep(SERVERS_BACK_S)
        for kernel in found:
            if self._server_of(kernel.record.kernel_id) is None:
                try:
                    await self._keep_found(kernel)
                except Exception:  # the others are to be kept
                    self._log.exception("kernel %s is not listened to", kernel.record.kernel_id)
        try:
            await self.warm.begin()
        except Exception:  # kept kernels need no warm ones
            self._log.exception("warm kernels of an earlier keeper are not known")
        self.maybe_leave()

    async def keep_warm(self) -> None:
        """Keep warm kernels as they should be, once those of an earlier keeper are known; until cancelled."""
        await asyncio.shield(self._beginning)
        await self.warm.run()

    async def _keep_found(self, kernel: KeptKernel) -> None:
        record = kernel.record
        if self._ended_under_server.pop(record.kernel_id, None) is not None:
            self._note_end(record)
        elif self._kernels.get(record.kernel_id) is kernel:
            await kernel.keep()
            if record.hibernate_dir:  # the keeper before may have been killed in the midst of it
                self._begin_alone(record.kernel_id, self._look_at_image_of(record))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one server until it ends; then its kernels are kept."""
        self._servers[writer] = set()
        if self._leaving is not None:
            self._leaving.cancel()
        try:
            while line := await reader.readline():
                answer = await self._answer(writer, line)
                if answer is not None:
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
        except (OSError, ValueError):  # ValueError: a line that is too long
            pass
        finally:
            had = self._servers.pop(writer)
            writer.close()
            self.warm.hung_up(writer)
            for kernel_id in had & self._wishes.keys():
                self._wish_failed(kernel_id, "its server has ended")
            for kernel_id in had & self._unheard.keys():
                self._hibernated.is_heard(self._unheard.pop(kernel_id))
            for kernel_id in had & self._kernels.keys() - self._on_their_way.keys():
                if not self._kernels[kernel_id].is_kept:
                    self._log.info("kernel %s is kept: its server is gone", kernel_id)
                    await self._kernels[kernel_id].keep()
            for kernel_id in had & self._ended_under_server.keys():
                self._note_end(self._ended_under_server.pop(kernel_id))
            self.oversight.hold_to_quota()
            self.maybe_leave()

    async def _answer(self, writer: asyncio.StreamWriter, line: bytes) -> Answer | None:
        try:
            request = json.loads(line)
            if request["do"] == "delivered":  # for each message of a kernel: without an answer
                self._delivered(writer, request)
                return None
            if request["do"] not in OF_LIVING_SERVERS:
                await asyncio.shield(self._beginning)
            answer = self._requests[request["do"]](writer, request)
            return {"answer": await answer if asyncio.iscoroutine(answer) else answer}
        except (CannotHibernate, CannotWake) as refused:
            return {"error": str(refused)}
        except (ValueError, LookupError, TypeError, OSError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    # ---- requests

    async def _own(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Note what adopting a server's kernel takes, now or after a change. Raises ProcessLookupError."""
        record = from_json(request["record"])
        kernel_id = record.kernel_id
        if record.place == IMAGE and kernel_id not in self._hibernated:  # an earlier keeper knew it
            await self.look_in(record.hibernate_dir)
            if kernel_id not in self._hibernated:
                raise LookupError(f"kernel {kernel_id} is in no image")
        if record.place == PROCESS and kernel_id in self._hibernated:  # its server has started it anew
            self._hibernated.end(kernel_id)
        if record.place == PROCESS and self._known(record) is None:
            raise ProcessLookupError(f"kernel {kernel_id} has ended")
        for other, had in self._servers.items():
            if other is not writer:
                had.discard(kernel_id)
        self._servers[writer].add(kernel_id)
        if record.place == IMAGE:
            return
        kernel = self._kernels[kernel_id]
        self._ended_under_server.pop(kernel_id, None)
        if kernel.is_kept:  # the keeper before was killed, and the server has had it all the time
            kernel.take()
        kernel.at_hub = AtHub(**request["at_hub"]) if request.get("at_hub") else None
        try:
            self._records.write(record)
        except OSError as error:  # a full disk, for example: it is in memory
            self._log.error("kernel %s would be lost with this keeper: %s", kernel_id, error)

    def _delivered(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Note that a server passed a kernel's message on to its tab."""
        if request["kernel"] in self._servers[writer] & self._kernels.keys():
            self._kernels[request["kernel"]].delivered(
                request["reader"], request["channel"], request["header"].encode()
            )

    def _forget(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Forget a kernel that its server has ended."""
        kernel_id = request["kernel"]
        if kernel_id in self._servers[writer]:
            self._drop(kernel_id)
            if kernel_id in self._hibernated:  # also where its user ended it before its GPU memory was back
                self._hibernated.end(kernel_id)

    async def _hand_over(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Keep a kernel from now on; its server ends."""
        await self._own(writer, request)
        kernel_id = request["record"]["kernel_id"]
        if kernel_id in self._hibernated:
            return self._servers[writer].discard(kernel_id)
        self._log.info("kernel %s is kept: its server hands it over", kernel_id)
        await self._kernels[kernel_id].keep()
        self.oversight.hold_to_quota()

    def _deliver(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Take what a server got of a kernel that it handed over, and did not deliver; another may adopt it now."""
        if request["kernel"] in self._servers[writer] & self._kernels.keys():
            self._kernels[request["kernel"]].put_before(Undelivered.from_json(request["undelivered"]))
            self._servers[writer].discard(request["kernel"])

    async def _adopt(self, writer: asyncio.StreamWriter, request: Answer) -> Answer:
        """Give a server all kept kernels of its name and root folder, also those in images; say which have ended."""
        owner = Owner(**request["owner"])
        await self.look_in(request.get("store"))
        for task in list(self._on_their_way.values()):
            await asyncio.wait([task])
        there = [
            each for each in self._hibernated.of(owner) if self._server_of(each.record.kernel_id) is None
        ]
        found = [
            kernel
            for kernel in self._kernels.values()
            if kernel.is_kept
            and kernel.record.owner.is_served_by(owner)
            and self._server_of(kernel.record.kernel_id) is None
        ]
        records = [*(kernel.record for kernel in found), *(each.record for each in there)]
        self._servers[writer] |= {record.kernel_id for record in records}
        started = time.time() - since_boot_s()
        ended = [
            (record, started + at) for record, at in self._ends.values() if record.owner.is_served_by(owner)
        ]
        for record, _ in ended:
            del self._ends[record.kernel_id]
        return {
            "kernels": [
                *(_view(kernel) for kernel in found if kernel.dying is None),
                *map(_view_of_image, there),
            ],
            "ended": [{"record": to_json(record), "at": at} for record, at in ended],
        }

    def _take(self, writer: asyncio.StreamWriter, request: Answer) -> Answer:
        """Give an adopted kernel's messages, and keep it no longer; they stay here until they are delivered."""
        if request["kernel"] not in self._servers[writer]:
            raise LookupError(f"kernel {request['kernel']} is not this server's")
        return self._kernels[request["kernel"]].take().to_json()

    async def _list(self, writer: asyncio.StreamWriter, request: Answer) -> Answer:
        """Say which kernels are kept; or all that are known."""
        await self.look_in(request.get("store"))
        views = [*map(_view, self._kernels.values()), *map(_view_of_image, self._hibernated)]
        if not request.get("all"):
            views = [view for view in views if not view["record"]["warm"]]
        for view in views:
            view["has_server"] = self._server_of(view["record"]["kernel_id"]) is not None
        return {"kernels": [view for view in views if request.get("all") or not view["has_server"]]}

    def _server_of(self, kernel_id: str) -> asyncio.StreamWriter | None:
        """Return the connection of the server that has a kernel."""
        return next((writer for writer, had in self._servers.items() if kernel_id in had), None)

    async def _end(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """End a kept kernel."""
        if request["kernel"] in self._hibernated:
            for had in self._servers.values():
                had.discard(request["kernel"])
            return self._hibernated.end(request["kernel"])
        kernel = self._kernels[request["kernel"]]
        if not kernel.is_kept:
            raise LookupError(f"a server has kernel {request['kernel']}")
        await kernel.begin_end("its user asked for that")

    async def watch(self) -> None:
        """See to kept kernels as their servers would, until cancelled."""
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            self._hibernated.end_old()
            await self.oversight.look()

    # ---- hibernated kernels

    async def _hibernate(self, writer: asyncio.StreamWriter, request: Answer) -> Answer:
        """Hibernate a kernel, or have the server that has it do so. Raises CannotHibernate."""
        kernel_id = request["kernel"]
        if kernel_id not in self._hibernated:
            server = None if request.get("by_server") else self._server_of(kernel_id)
            if server is None:
                await self._put_into_image(kernel_id)
            else:
                await self._ask_server(server, "hibernate", kernel_id)
        if kernel_id not in self._hibernated:
            raise CannotHibernate("it was needed again at once, and is awake")
        return _view_of_image(self._hibernated.get(kernel_id))

    async def _wake(self, writer: asyncio.StreamWriter, request: Answer) -> Answer:
        """Wake a hibernated kernel, which is kept then, or have the server that has it do so. Raises CannotWake."""
        await self.look_in(request.get("store"))
        kernel_id = request["kernel"]
        server = None if request.get("by_server") else self._server_of(kernel_id)
        if server is not None and kernel_id in self._hibernated:
            await self._ask_server(server, "wake", kernel_id)
        undelivered = await self._woken(kernel_id)
        if kernel_id not in self._kernels:
            raise CannotWake("its process ended at once")
        return {**_view(self._kernels[kernel_id]), "undelivered": undelivered.to_json()}

    async def _ask_server(self, server: asyncio.StreamWriter, wish: str, kernel_id: str) -> None:
        """Have a server do with one of its kernels what only it can, since it must pass on no message meanwhile."""
        if kernel_id in self._wishes:
            raise CannotHibernate(ON_ITS_WAY)
        done = self._wishes[kernel_id] = asyncio.get_running_loop().create_future()
        try:
            server.write(json.dumps({"wish": wish, "kernel": kernel_id}).encode() + b"\n")
            await done
        finally:
            del self._wishes[kernel_id]

    def _heard(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Note that all tabs of a woken kernel hear it."""
        hibernated = self._unheard.pop(request["kernel"], None)
        if hibernated is not None:
            self._hibernated.is_heard(hibernated)

    def _wish_done(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Note that a server fulfilled a wish, or why not."""
        if request["error"] is not None:
            self._wish_failed(request["kernel"], request["error"])
        elif (wish := self._wishes.get(request["kernel"])) is not None and not wish.done():
            wish.set_result(None)

    def _wish_failed(self, kernel_id: str, why: str) -> None:
        wish = self._wishes.get(kernel_id)
        if wish is not None and not wish.done():
            wish.set_exception(CannotHibernate(why))

    async def _stop_move(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Have a kernel stay where it is; return once that is known."""
        task = self._on_their_way.get(request["kernel"])
        if task is not None:
            if self._hibernated.can_stop(request["kernel"]):
                task.cancel()
            await asyncio.wait([task])

    def _progress(self, writer: asyncio.StreamWriter, request: Answer) -> Answer | None:
        """Say how far a kernel is that is on its way."""
        return self._hibernated.progress(request["kernel"])

    async def _put_into_image(self, kernel_id: str) -> Hibernated:
        kernel = self._kernels[kernel_id]
        if kernel.dying is not None:
            raise CannotHibernate("it is being shut down")
        return await self._alone(kernel_id, self._hibernated_of(kernel))

    async def _hibernated_of(self, kernel: KeptKernel) -> Hibernated:
        kernel_id = kernel.record.kernel_id
        try:
            hibernated = await self._hibernated.hibernate(kernel)
        except BaseException:
            if self._server_of(kernel_id) is None:  # its server has ended meanwhile
                await kernel.keep()
            raise
        self._is_in_image(kernel_id)
        return hibernated

    def _is_in_image(self, kernel_id: str) -> None:
        self._kernels.pop(kernel_id, None)  # if it has not been noticed that its process ended
        self._ends.pop(kernel_id, None)
        self._records.remove(kernel_id)
        self.maybe_leave()

    async def _look_at_image_of(self, record: Record) -> None:
        if await self._hibernated.look_at_image_of(record):
            self._is_in_image(record.kernel_id)

    async def look_in(self, store: str | None) -> None:
        """Find a store's images, and the kernels that run again and that no record names."""
        if store:
            for hibernated, record in await self._hibernated.look_in(store, self._kernels):
                with contextlib.suppress(CannotWake):
                    await self._has_woken(hibernated, record)
            self.warm.end_unknown()

    async def _woken(self, kernel_id: str) -> Undelivered:
        """Wake a kernel; return what its tabs had not got when it went. Raises CannotWake."""
        if kernel_id in self._kernels:
            return Undelivered()
        if kernel_id not in self._hibernated:
            raise CannotWake(self._hibernated.why_not(kernel_id))
        hibernated = self._hibernated.get(kernel_id)
        await self._alone(kernel_id, self._woken_of(kernel_id))
        return hibernated.undelivered

    async def _woken_of(self, kernel_id: str) -> None:
        tells = self._server_of(kernel_id) is None
        await self._has_woken(*await self._hibernated.wake(kernel_id, tells=tells))

    async def _has_woken(self, hibernated: Hibernated, record: Record) -> None:
        kernel_id, began = record.kernel_id, time.monotonic()
        server = self._server_of(kernel_id)
        kernel = self._known(record)
        if kernel is None:
            raise CannotWake("its process ended at once")
        if server is not None:
            self._servers[server].add(kernel_id)
        self._records.write(record)
        if record.warm:  # no client has ever heard it, and what it says of itself is no notebook's
            await kernel.keep()
            return self._hibernated.is_heard(hibernated)
        await kernel.is_heard_within(HEARD_S)
        if server is None:
            await asyncio.sleep(max(began + RECONNECTED_S - time.monotonic(), 0))
            kernel.put_before(hibernated.undelivered)
            await kernel.keep()
            self._hibernated.is_heard(hibernated)
        else:  # it says when its tabs hear the kernel
            self._unheard[kernel_id] = hibernated

    async def _alone(self, kernel_id: str, work: Coroutine[Any, Any, T]) -> T:
        """Do what takes a while with a kernel, and nothing else with it meanwhile, though the client may hang up."""
        if kernel_id in self._on_their_way:
            work.close()
            raise CannotHibernate(ON_ITS_WAY)
        task = self._begin_alone(kernel_id, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise CannotHibernate("it was stopped, and stays where it is") from None
            raise

    def _begin_alone(self, kernel_id: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._on_their_way[kernel_id] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda done: self._on_their_way.pop(kernel_id, None))
        return task

    async def hibernate_idle(self) -> None:
        """Hibernate kernels that were kept for long enough; runs until the keeper ends."""
        tried: dict[str, float] = {}
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for kernel_id, kernel in list(self._kernels.items()):
                if not kernel.is_kept:
                    continue
                after_s, now = kernel.record.hibernate_after_s, time.monotonic()
                is_due = after_s and min(kernel.kept_for_s, now - kernel.heard_at) >= after_s
                is_due = is_due or kernel.hibernate_asked is not None
                if not is_due or now - tried.get(kernel_id, -TRY_AGAIN_S) < TRY_AGAIN_S:
                    continue
                tried[kernel_id] = now
                await self._try_to_hibernate(kernel_id)

    def machine_stops(self) -> None:
        """Hibernate what can be, and end."""
        self._stopping = self._stopping or asyncio.get_running_loop().create_task(self._stop())

    async def _stop(self) -> None:
        await self.hibernate_all()
        self.left.set()

    async def hibernate_all(self) -> None:
        """Hibernate all that can be: the machine is about to stop."""
        await asyncio.gather(
            *(
                self._try_to_hibernate(each)
                for each, kernel in self._kernels.items()
                if kernel.record.hibernate_dir and kernel.is_kept and not kernel.record.warm
            )
        )

    async def _try_to_hibernate(self, kernel_id: str) -> None:
        try:
            await self._put_into_image(kernel_id)
        except CannotHibernate as refused:
            self._log.warning("kernel %s is not hibernated: %s", kernel_id, refused)
        except Exception:
            self._log.exception("kernel %s is not hibernated", kernel_id)

    # ---- warm kernels (WarmPools asks for these)

    async def hold(self, record: Record) -> KeptKernel | None:
        """Know a kernel and keep it; return None if its process has ended."""
        kernel = self._known(record)
        if kernel is not None:
            self._records.write(record)
            await kernel.keep()
        return kernel

    async def awaken(self, kernel_id: str) -> None:
        """Have a kernel's process run if it is in an image. Raises CannotWake."""
        await self._woken(kernel_id)

    def let_go(self, kernel_id: str) -> None:
        """Forget a kernel, which lives on as another, and delete its image beside other work."""
        if kernel_id in self._kernels:
            self._hibernated.let_go(self._kernels[kernel_id].record)
        self._drop(kernel_id)

    def end_now(self, kernel_id: str, why: str) -> None:
        """End a kernel, wherever it is."""
        if kernel_id in self._hibernated:
            self._hibernated.end(kernel_id)
        elif kernel_id in self._kernels:
            self._kernels[kernel_id].begin_end(why)

    def held(self, kernel_id: str) -> KeptKernel | None:
        """Return a kernel whose process runs."""
        return self._kernels.get(kernel_id)

    def image_bytes(self, kernel_id: str) -> int | None:
        """Return what a kernel's image takes; None for one that is in none."""
        return self._hibernated.get(kernel_id).bytes if kernel_id in self._hibernated else None

    def is_moving(self, kernel_id: str) -> bool:
        """Return whether a kernel is on its way into an image or back."""
        return kernel_id in self._on_their_way

    def is_anothers(self, process: ProcessName, kernel_id: str) -> bool:
        """Return whether a process is, by its server's word, that of another kernel."""
        records = [kernel.record for kernel in self._kernels.values()]
        return any(record.process == process and record.kernel_id != kernel_id for record in records)

    def warm_kernels(self) -> list[str]:
        """Return the ids of all warm kernels that are kept, in images or not."""
        records = [
            *(kernel.record for kernel in self._kernels.values()),
            *(each.record for each in self._hibernated),
        ]
        return [record.kernel_id for record in records if record.warm]

    # ---- what is known

    def _known(self, record: Record) -> KeptKernel | None:
        """Return a kernel, which is new or has a newer record; None if its process has ended."""
        kernel = self._kernels.get(record.kernel_id)
        if kernel is not None and kernel.record.process == record.process:
            kernel.belongs_to(record)
            return kernel
        if kernel is not None:
            self._drop(record.kernel_id)
        try:
            kernel = KeptKernel(record, self._ended, self._log)
        except ProcessLookupError:
            return None
        self._kernels[record.kernel_id] = kernel
        return kernel

    def _ended(self, kernel: KeptKernel) -> None:
        kernel_id = kernel.record.kernel_id
        if self._kernels.get(kernel_id) is not kernel:
            return
        self._hibernated.has_ended(kernel.record, was_wanted=kernel.dying is not None)
        if kernel.record.warm:
            self._drop(kernel_id)
            self.warm.has_ended(kernel_id)
        elif kernel.is_kept:
            self._note_end(kernel.record, was_wanted=kernel.dying is not None)
            self._drop(kernel_id)
            self._remove_grant(kernel)
        else:  # its server restarts it, or says that it is gone, unless that ends at the same time
            kernel.close()
            self._ended_under_server[kernel_id] = self._kernels.pop(kernel_id).record
        self.maybe_leave()

    def _note_end(self, record: Record, *, was_wanted: bool = False) -> None:
        """Leave nothing of a kernel that ended without a server, and have the next one say so."""
        for path in (record.connection_file, *record.sockets):
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._records.remove(record.kernel_id)
        if was_wanted or record.warm:
            return
        self._log.warning("kernel %s ended while no server had it", record.kernel_id)
        self._ends[record.kernel_id] = (record, since_boot_s())
        while len(self._ends) > REMEMBERED_ENDS:
            del self._ends[next(iter(self._ends))]

    def _remove_grant(self, kernel: KeptKernel) -> None:
        """Remove the grant of the server that a kernel had, if it was the server's last kernel."""
        file = kernel.at_hub.grant_file if kernel.at_hub is not None else ""
        others = {other.at_hub.grant_file for other in self._kernels.values() if other.at_hub is not None}
        if file and file not in others:
            with contextlib.suppress(OSError):
                os.unlink(file)

    def _drop(self, kernel_id: str) -> None:
        kernel = self._kernels.pop(kernel_id, None)
        if kernel is not None:
            kernel.close()
            self._hibernated.has_ended(kernel.record, was_wanted=True)
        self._ended_under_server.pop(kernel_id, None)
        self._records.remove(kernel_id)
        for had in self._servers.values():
            had.discard(kernel_id)
        self.maybe_leave()

    @property
    def _is_idle(self) -> bool:
        return not self._servers and not self._kernels and self.warm.is_empty

    def maybe_leave(self) -> None:
        """End in a while, if nothing is to be kept then."""
        if self._leaving is not None:
            self._leaving.cancel()
        if self._is_idle:
            self._leaving = asyncio.get_running_loop().call_later(LEAVES_AFTER_S, self._leave)

    def _leave(self) -> None:
        if self._is_idle:
            self.left.set()


def _view_of_image(kernel: Hibernated) -> Answer:
    return {
        "record": to_json(kernel.record),
        "kept_since": kernel.since,
        "state": CLOSED,
        "quiet_s": time.time() - kernel.since,
        "bytes": kernel.bytes,
        "deleted_at": kernel.announced_end,
        "objection": kernel.objection,
    }


def _view(kernel: KeptKernel) -> Answer:
    return {
        "record": to_json(kernel.record),
        "kept_since": time.time() - kernel.kept_for_s,
        "state": OPEN if kernel.open_cells else CLOSED,
        "quiet_s": time.monotonic() - kernel.heard_at,
    }


async def run(folder: Path, log: logging.Logger) -> None:
    """Serve until nothing is to be kept."""
    keeper = Keeper(folder / FOLDER_NAME, log)
    path = folder / SOCKET_NAME
    keeper.begin()
    watching = asyncio.get_running_loop().create_task(keeper.watch())
    server = await asyncio.start_unix_server(keeper.serve, str(path), limit=LINE_BYTES_MAX)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, keeper.machine_stops)
    idle = asyncio.get_running_loop().create_task(keeper.hibernate_idle())
    warming = asyncio.get_running_loop().create_task(keeper.keep_warm())
    try:
        await keeper.left.wait()
    finally:
        watching.cancel()
        idle.cancel()
        warming.cancel()
        path.unlink(missing_ok=True)
        server.close()


def main() -> int:
    """Be the keeper of a user, unless there is one."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    folder = environment.user_folder()
    environment.make_folder(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what ends servers
    descriptor = os.open(folder / LOCK_NAME, environment.LOCK_FLAGS, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    except OSError:  # a file system without locks: of two that start at the same moment one may be of no use
        if environment.listens(folder / SOCKET_NAME):
            return 0
    asyncio.run(run(folder, logging.getLogger("keeper")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
