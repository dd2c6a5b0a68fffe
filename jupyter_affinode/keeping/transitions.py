"""When kernels hibernate and wake: a client asks, they were idle for long, or the machine stops.

A kernel makes one transition at a time. While a server has the kernel, that server must agree, since it may pass on no
message meanwhile. hibernated.py makes, finds and deletes the images.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from .hibernated import CannotHibernate, CannotWake, Hibernated
from .kept_kernel import KeptKernel
from .known_kernels import KnownKernels
from .messages import Undelivered
from .records import Record

LOOK_EVERY_S = 1.0  # for kernels that are to be hibernated
TRY_AGAIN_S = 600.0  # one that could not be
HEARD_S = 2.0  # until a woken kernel must have heard that the keeper listens
RECONNECTED_S = 0.25  # other clients' sockets try again every tenth of a second
ON_ITS_WAY = "it is on its way already"
ENDED_AT_ONCE = "its process ended at once"

Answer = dict[str, Any]
T = TypeVar("T")


class Transitions:
    """Hibernates and wakes the kernels that the keeper knows."""

    def __init__(self, known: KnownKernels, log: logging.Logger, on_look: Callable[[], None]):
        """Begin with no kernel on its way. `on_look` is called after each look for images."""
        self._known = known
        self._on_look = on_look
        self._log = log
        self.on_their_way: dict[str, asyncio.Task[Any]] = {}  # kernels that are being hibernated, or woken
        self._stopped: set[asyncio.Task[Any]] = set()
        # By kernel: what was asked of the server that has it.
        self._wishes: dict[str, asyncio.Future[None]] = {}
        # Woken kernels; their servers have not said yet that they hear them.
        self._unheard: dict[str, Hibernated] = {}

    async def hibernate(self, writer: asyncio.StreamWriter, request: Answer) -> Answer:
        """Hibernate a kernel, or have the server that has it do so. Raises CannotHibernate."""
        kernel_id = request["kernel"]
        if kernel_id not in self._known.hibernated:
            server = None if request.get("by_server") else self._known.server_of(kernel_id)
            if server is None:
                await self._put_into_image(kernel_id)
            else:
                await self._ask_server(server, "hibernate", kernel_id)
        if kernel_id not in self._known.hibernated:
            raise CannotHibernate("it was needed again at once, and is awake")
        return self._known.hibernated.get(kernel_id).view()

    async def wake(self, writer: asyncio.StreamWriter, request: Answer) -> Answer:
        """Wake a hibernated kernel, which is kept then, or have the server that has it do so. Raises CannotWake."""
        await self.look_in(request.get("store"))
        kernel_id = request["kernel"]
        server = None if request.get("by_server") else self._known.server_of(kernel_id)
        if server is not None and kernel_id in self._known.hibernated:
            await self._ask_server(server, "wake", kernel_id)
        undelivered = await self.ensure_awake(kernel_id)
        if kernel_id not in self._known.running:
            raise CannotWake(ENDED_AT_ONCE)
        return {**self._known.running[kernel_id].view(), "undelivered": undelivered.to_json()}

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

    def heard(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Note that all tabs of a woken kernel hear it. Raises CannotWake if it has ended and its image counts."""
        hibernated = self._unheard.pop(request["kernel"], None)
        if request["kernel"] in self._known.hibernated:
            raise CannotWake(ENDED_AT_ONCE)
        if hibernated is not None:
            self._known.hibernated.is_heard(hibernated)

    def wish_done(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Note that a server fulfilled a wish, or why not."""
        if request["error"] is not None:
            self._wish_failed(request["kernel"], request["error"])
        elif (wish := self._wishes.get(request["kernel"])) is not None and not wish.done():
            wish.set_result(None)

    def _wish_failed(self, kernel_id: str, why: str) -> None:
        wish = self._wishes.get(kernel_id)
        if wish is not None and not wish.done():
            wish.set_exception(CannotHibernate(why))

    async def stop(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Have a kernel stay where it is; return once that is known."""
        task = self.on_their_way.get(request["kernel"])
        if task is not None:
            if self._known.hibernated.can_stop(request["kernel"]) and task not in self._stopped:
                self._stopped.add(task)  # a second one would end what puts things right after the first
                task.add_done_callback(self._stopped.discard)
                task.cancel()
            await asyncio.wait([task])

    def progress(self, writer: asyncio.StreamWriter, request: Answer) -> Answer | None:
        """Say how far a kernel is that is on its way."""
        return self._known.hibernated.progress(request["kernel"])

    # ---- what the keeper has it do

    def hung_up(self, had: set[str]) -> None:
        """Note that the server of these kernels has ended."""
        for kernel_id in had & self._wishes.keys():
            self._wish_failed(kernel_id, "its server has ended")
        for kernel_id in had & self._unheard.keys():
            self._known.hibernated.is_heard(self._unheard.pop(kernel_id))

    def recover(self, record: Record) -> None:
        """Begin to look at what an earlier keeper, which was killed, left of a kernel's image."""
        self._begin_alone(record.kernel_id, self._look_at_image_of(record))

    async def _look_at_image_of(self, record: Record) -> None:
        if await self._known.hibernated.look_at_image_of(record):
            return self._known.has_hibernated(record.kernel_id)
        kernel = self._known.running.get(record.kernel_id)
        if kernel is not None and self._known.server_of(record.kernel_id) is None:  # it has ended meanwhile
            await kernel.keep()

    async def look_in(self, store: str | None) -> None:
        """Find a store's images, and the kernels that run again and that no record names."""
        if store:
            for hibernated, record in await self._known.hibernated.look_in(store, self._known.running):
                with contextlib.suppress(CannotWake):
                    await self._has_woken(hibernated, record)
            self._on_look()

    async def hibernate_idle(self) -> None:
        """Hibernate kernels that were kept for long enough; runs until the keeper ends."""
        tried: dict[str, float] = {}
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for kernel_id, kernel in list(self._known.running.items()):
                is_adopted = self._known.server_of(kernel_id) is not None
                if self._known.running.get(kernel_id) is not kernel or not kernel.is_kept or is_adopted:
                    continue  # also where that changed while another was written
                after_s, now = kernel.record.hibernate_after_s, time.monotonic()
                is_due = after_s and min(kernel.kept_for_s, now - kernel.heard_at) >= after_s
                is_due = is_due or kernel.hibernate_asked is not None
                if not is_due or now - tried.get(kernel_id, -TRY_AGAIN_S) < TRY_AGAIN_S:
                    continue
                tried[kernel_id] = now
                await self._try_to_hibernate(kernel_id)

    async def hibernate_all(self) -> None:
        """Hibernate all that can be: the machine is about to stop."""
        kept = [kernel.record for kernel in self._known.running.values() if kernel.is_kept]
        can = [record.kernel_id for record in kept if record.hibernate_dir and not record.warm]
        await asyncio.gather(*map(self._try_to_hibernate, can))
        while self.on_their_way:  # also for their servers
            await asyncio.wait(list(self.on_their_way.values()))

    async def _try_to_hibernate(self, kernel_id: str) -> None:
        try:
            await self._put_into_image(kernel_id)
        except CannotHibernate as refused:
            self._log.warning("kernel %s is not hibernated: %s", kernel_id, refused)
        except Exception:
            self._log.exception("kernel %s is not hibernated", kernel_id)

    # ---- one kernel's way

    async def _put_into_image(self, kernel_id: str) -> Hibernated:
        kernel = self._known.running[kernel_id]
        if kernel.dying is not None:
            raise CannotHibernate("it is being shut down")
        return await self._alone(kernel_id, self._hibernated_of(kernel))

    async def _hibernated_of(self, kernel: KeptKernel) -> Hibernated:
        kernel_id = kernel.record.kernel_id
        try:
            hibernated = await self._known.hibernated.hibernate(kernel)
        except BaseException:
            is_known = self._known.running.get(kernel_id) is kernel
            if is_known and self._known.server_of(kernel_id) is None:  # its server has ended meanwhile
                await kernel.keep()
            raise
        self._known.has_hibernated(kernel_id)
        return hibernated

    async def ensure_awake(self, kernel_id: str) -> Undelivered:
        """Wake a kernel, unless it runs; return what its tabs had not got when it went. Raises CannotWake."""
        if kernel_id in self._known.running:
            return Undelivered()
        if kernel_id not in self._known.hibernated:
            raise CannotWake(self._known.hibernated.why_not(kernel_id))
        hibernated = self._known.hibernated.get(kernel_id)
        await self._alone(kernel_id, self._woken_of(kernel_id))
        return hibernated.undelivered

    async def _woken_of(self, kernel_id: str) -> None:
        tells = self._known.server_of(kernel_id) is None
        await self._has_woken(*await self._known.hibernated.wake(kernel_id, tells=tells))

    async def _has_woken(self, hibernated: Hibernated, record: Record) -> None:
        kernel_id, began = record.kernel_id, time.monotonic()
        server = self._known.server_of(kernel_id)
        kernel = self._known.know(record)
        if kernel is None:
            raise CannotWake(ENDED_AT_ONCE)
        if server is not None:
            self._known.servers[server].add(kernel_id)
        self._known.write(record)
        if record.warm:  # no client has ever heard it, and what it says of itself is no notebook's
            await kernel.keep()
            return self._known.hibernated.is_heard(hibernated)
        await kernel.is_heard_within(HEARD_S)
        if server is None or self._known.server_of(kernel_id) is None:
            await asyncio.sleep(max(began + RECONNECTED_S - time.monotonic(), 0))
        if self._known.running.get(kernel_id) is not kernel:  # its image counts again
            self._known.ended_under_server.pop(kernel_id, None)
            raise CannotWake(ENDED_AT_ONCE)
        kernel.put_before(hibernated.undelivered)  # until a server says that it is delivered
        if server is None or self._known.server_of(kernel_id) is None:  # its server has ended meanwhile
            await kernel.keep()
            self._known.hibernated.is_heard(hibernated)
        else:  # it says when its tabs hear the kernel
            self._unheard[kernel_id] = hibernated

    async def _alone(self, kernel_id: str, work: Coroutine[Any, Any, T]) -> T:
        """Do what takes a while with a kernel, and nothing else with it meanwhile, though the client may hang up."""
        if kernel_id in self.on_their_way:
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
        task = self.on_their_way[kernel_id] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda done: self.on_their_way.pop(kernel_id, None))
        return task
