"""`python -m jupyter_affinode.keeping.keeper`: the program that keeps a user's kernels while no server has them.

It listens at a Unix socket in a folder that only its user can enter. A request is a line of JSON, and so is its answer.
It ends by itself when no server is connected and no kernel is kept.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import environment
from .at_hub import ASK_EVERY_S, AtHub
from .hibernated import CannotHibernate, CannotWake, Hibernated
from .kept_kernel import KeptKernel
from .known_kernels import KnownKernels
from .messages import Undelivered
from .oversight import Oversight
from .processes import ProcessName
from .records import IMAGE, LINE_BYTES_MAX, PROCESS, SOCKET_NAME, VERSION, Owner, Record, from_json, to_json
from .transitions import Transitions
from .warm_pools import FOLDER_NAME as WARM_FOLDER
from .warm_pools import WarmPools

LOCK_NAME = "keeper.lock"
SERVERS_BACK_S = 0.5  # until a server that lives has reached a new keeper
OF_LIVING_SERVERS = ("hello", "own")  # what it says first
LEAVES_AFTER_S = 5.0  # without servers and kernels

Answer = dict[str, Any]


class Keeper:
    """Answers a user's servers, and keeps the kernels of those that have ended."""

    def __init__(self, folder: Path, log: logging.Logger):
        """Take the kernels that an earlier keeper knew, as kept, since no server is connected."""
        self._log = log
        self.warm = WarmPools(self, folder / WARM_FOLDER, log)
        self._known = KnownKernels(folder, log, self.warm.has_ended, self.maybe_leave)
        self.oversight = Oversight(self._known.running.values, log)
        self.transitions = Transitions(self._known, log, self.warm.end_unknown)
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
            "give_back": self._give_back,
            "list": self._list,
            "end": self._end,
            "hibernate": self.transitions.hibernate,
            "wake": self.transitions.wake,
            "stop": self.transitions.stop,
            "progress": self.transitions.progress,
            "wish_done": self.transitions.wish_done,
            "heard": self.transitions.heard,
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
        self._known.read_records()
        self._beginning = asyncio.get_running_loop().create_task(
            self._keep_rest(list(self._known.running.values()))
        )

    async def _keep_rest(self, found: list[KeptKernel]) -> None:
        if found:
            await asyncio.sleep(SERVERS_BACK_S)
        for kernel in found:
            kernel_id = kernel.record.kernel_id
            if self._known.server_of(kernel_id) is None:
                try:
                    await self._keep_found(kernel)
                except Exception:  # the others are to be kept
                    self._log.exception("kernel %s is not listened to", kernel_id)
            elif self._known.running.get(kernel_id) is kernel and kernel.record.hibernate_dir:
                self.transitions.recover(kernel.record)
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
        if self._known.ended_under_server.pop(record.kernel_id, None) is not None:
            self._known.note_end(record)
        elif self._known.running.get(record.kernel_id) is kernel:
            await kernel.keep()
            if record.hibernate_dir:  # the keeper before may have been killed in the midst of it
                self.transitions.recover(record)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one server until it ends; then its kernels are kept."""
        self._known.servers[writer] = set()
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
            had = self._known.servers.pop(writer)
            writer.close()
            self.warm.hung_up(writer)
            await self._are_left(had)
            self.maybe_leave()

    async def _are_left(self, kernel_ids: set[str]) -> None:
        """Keep the kernels that a server had and has not any more, and note which have ended."""
        self.transitions.hung_up(kernel_ids)
        await asyncio.gather(*map(self._keep_left, kernel_ids - self.transitions.on_their_way.keys()))
        for kernel_id in kernel_ids & self._known.ended_under_server.keys():
            self._known.note_end(self._known.ended_under_server.pop(kernel_id))
        self.oversight.hold_to_quota()

    async def _keep_left(self, kernel_id: str) -> None:
        """Keep a kernel after its server has ended, unless it has ended, too, or another server has it."""
        kernel = self._known.running.get(kernel_id)
        if kernel is None or kernel.is_kept or self._known.server_of(kernel_id) is not None:
            return
        self._log.info("kernel %s is kept: its server is gone", kernel_id)
        try:
            await kernel.keep()
        except Exception:  # the others are to be kept
            self._log.exception("kernel %s is not listened to", kernel_id)

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
        except Exception as error:  # zmq.ZMQError, for example: its server's other kernels have no part in it
            self._log.exception("a request failed")
            return {"error": f"{type(error).__name__}: {error}"}

    # ---- requests

    async def _own(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Note what adopting a server's kernel takes, now or after a change. Raises ProcessLookupError."""
        record = from_json(request["record"])
        kernel_id = record.kernel_id
        if record.place == IMAGE and kernel_id not in self._known.hibernated:  # an earlier keeper knew it
            await self.transitions.look_in(record.hibernate_dir)
            if kernel_id not in self._known.hibernated:
                raise LookupError(f"kernel {kernel_id} is in no image")
        if record.place == PROCESS and self._known.know(record) is None:
            raise ProcessLookupError(f"kernel {kernel_id} has ended")
        if record.place == PROCESS and kernel_id in self._known.hibernated:  # its server has started it anew
            self._known.hibernated.end(kernel_id)
        for other, had in self._known.servers.items():
            if other is not writer:
                had.discard(kernel_id)
        self._known.servers[writer].add(kernel_id)
        if record.place == IMAGE:
            return
        kernel = self._known.running[kernel_id]
        self._known.ended_under_server.pop(kernel_id, None)
        if kernel.is_kept:  # the keeper before was killed, and the server has had it all the time
            kernel.take()
        kernel.at_hub = AtHub(**request["at_hub"]) if request.get("at_hub") else None
        self._known.write(record)

    def _delivered(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Note that a server passed a kernel's message on to its tab."""
        if request["kernel"] in self._known.servers[writer] & self._known.running.keys():
            self._known.running[request["kernel"]].delivered(
                request["reader"], request["channel"], request["header"].encode()
            )

    def _forget(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Forget a kernel that its server has ended."""
        kernel_id = request["kernel"]
        if kernel_id in self._known.servers[writer]:
            self._known.drop(kernel_id)
            if (
                kernel_id in self._known.hibernated
            ):  # also where its user ended it before its GPU memory was back
                self._known.hibernated.end(kernel_id)

    async def _hand_over(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Keep a kernel from now on; its server ends."""
        await self._own(writer, request)
        kernel_id = request["record"]["kernel_id"]
        if kernel_id in self._known.hibernated:
            return self._known.servers[writer].discard(kernel_id)
        self._log.info("kernel %s is kept: its server hands it over", kernel_id)
        try:
            await self._known.running[kernel_id].keep()
        except Exception:  # it is kept all the same; refused, it would end with its server
            self._log.exception("kernel %s is not listened to", kernel_id)
        self.oversight.hold_to_quota()

    def _deliver(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Take what a server got of a kernel that it handed over, and did not deliver; another may adopt it now."""
        if request["kernel"] in self._known.servers[writer] & self._known.running.keys():
            self._known.running[request["kernel"]].put_before(Undelivered.from_json(request["undelivered"]))
            self._known.servers[writer].discard(request["kernel"])

    async def _adopt(self, writer: asyncio.StreamWriter, request: Answer) -> Answer:
        """Give a server all kept kernels of its name and root folder, also those in images; say which have ended."""
        owner = Owner(**request["owner"])
        await self.transitions.look_in(request.get("store"))
        for kernel_id, task in list(self.transitions.on_their_way.items()):
            if self._may_have(owner, kernel_id):
                await asyncio.wait([task])
        there = [
            each
            for each in self._known.hibernated.of(owner)
            if self._known.server_of(each.record.kernel_id) is None
        ]
        found = [
            kernel
            for kernel in self._known.running.values()
            if kernel.is_kept
            and kernel.record.owner.is_served_by(owner)
            and self._known.server_of(kernel.record.kernel_id) is None
        ]
        records = [*(kernel.record for kernel in found), *(each.record for each in there)]
        views = [*(kernel.view() for kernel in found if kernel.dying is None), *map(Hibernated.view, there)]
        self._known.servers[writer] |= {record.kernel_id for record in records}
        ended = self._known.take_ends(owner)
        return {
            "kernels": views,
            "ended": [{"record": to_json(record), "at": at} for record, at in ended],
        }

    def _may_have(self, owner: Owner, kernel_id: str) -> bool:
        """Return whether a kernel that is on its way may be for such a server to adopt."""
        if self._known.server_of(kernel_id) is not None:
            return False
        kernel = self._known.running.get(kernel_id)
        if kernel is None and kernel_id in self._known.hibernated:
            return self._known.hibernated.get(kernel_id).record.owner.is_served_by(owner)
        return kernel is not None and kernel.record.owner.is_served_by(owner)

    def _take(self, writer: asyncio.StreamWriter, request: Answer) -> Answer:
        """Give an adopted kernel's messages, and keep it no longer; they stay here until they are delivered."""
        if request["kernel"] not in self._known.servers[writer]:
            raise LookupError(f"kernel {request['kernel']} is not this server's")
        return self._known.running[request["kernel"]].take().to_json()

    async def _give_back(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Keep a kernel that its server could not adopt: another may, or its user ends it."""
        if request["kernel"] in self._known.servers[writer]:
            self._known.servers[writer].discard(request["kernel"])
            await self._are_left({request["kernel"]})

    async def _list(self, writer: asyncio.StreamWriter, request: Answer) -> Answer:
        """Say which kernels are kept; or all that are known."""
        await self.transitions.look_in(request.get("store"))
        views = [
            *map(KeptKernel.view, self._known.running.values()),
            *map(Hibernated.view, self._known.hibernated),
        ]
        if not request.get("all"):
            views = [view for view in views if not view["record"]["warm"]]
        for view in views:
            view["has_server"] = self._known.server_of(view["record"]["kernel_id"]) is not None
        return {"kernels": [view for view in views if request.get("all") or not view["has_server"]]}

    async def _end(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """End a kept kernel."""
        await self.transitions.stop(writer, request)
        if request["kernel"] in self._known.hibernated:
            for had in self._known.servers.values():
                had.discard(request["kernel"])
            return self._known.hibernated.end(request["kernel"])
        kernel = self._known.running[request["kernel"]]
        if not kernel.is_kept:
            raise LookupError(f"a server has kernel {request['kernel']}")
        await kernel.begin_end("its user asked for that")

    async def watch(self) -> None:
        """See to kept kernels as their servers would, until cancelled."""
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            try:
                self._known.hibernated.end_old()
                await self.oversight.look()
            except Exception:  # the next look may do it
                self._log.exception("looking after kept kernels failed")

    def machine_stops(self) -> None:
        """Hibernate what can be, and end."""
        self._stopping = self._stopping or asyncio.get_running_loop().create_task(self._stop())

    async def _stop(self) -> None:
        await self.transitions.hibernate_all()
        self.left.set()

    # ---- warm kernels (WarmPools asks for these)

    async def hold(self, record: Record) -> KeptKernel | None:
        """Know a kernel and keep it; return None if its process has ended."""
        kernel = self._known.know(record)
        if kernel is not None:
            self._known.write(record)
            await kernel.keep()
        return kernel

    async def look_in(self, store: str | None) -> None:
        """Find the images in a folder."""
        await self.transitions.look_in(store)

    async def awaken(self, kernel_id: str) -> None:
        """Have a kernel's process run if it is in an image. Raises CannotWake."""
        await self.transitions.ensure_awake(kernel_id)

    def let_go(self, kernel_id: str) -> None:
        """Forget a kernel, which lives on as another, and delete its image beside other work."""
        if kernel_id in self._known.running:
            self._known.hibernated.let_go(self._known.running[kernel_id].record)
        self._known.drop(kernel_id)

    def end_now(self, kernel_id: str, why: str) -> None:
        """End a kernel, wherever it is."""
        if kernel_id in self._known.hibernated:
            self._known.hibernated.end(kernel_id)
        elif kernel_id in self._known.running:
            self._known.running[kernel_id].begin_end(why)

    def held(self, kernel_id: str) -> KeptKernel | None:
        """Return a kernel whose process runs."""
        return self._known.running.get(kernel_id)

    def image_bytes(self, kernel_id: str) -> int | None:
        """Return what a kernel's image takes; None for one that is in none."""
        return self._known.hibernated.get(kernel_id).bytes if kernel_id in self._known.hibernated else None

    def is_moving(self, kernel_id: str) -> bool:
        """Return whether a kernel is on its way into an image or back."""
        return kernel_id in self.transitions.on_their_way

    def is_anothers(self, process: ProcessName, kernel_id: str) -> bool:
        """Return whether a process is, by its server's word, that of another kernel."""
        records = [kernel.record for kernel in self._known.running.values()]
        return any(record.process == process and record.kernel_id != kernel_id for record in records)

    def warm_kernels(self) -> list[str]:
        """Return the ids of all warm kernels that are kept, in images or not."""
        records = [
            *(kernel.record for kernel in self._known.running.values()),
            *(each.record for each in self._known.hibernated),
        ]
        return [record.kernel_id for record in records if record.warm]

    @property
    def _is_idle(self) -> bool:
        return not self._known.servers and not self._known.running and self.warm.is_empty

    def maybe_leave(self) -> None:
        """End in a while, if nothing is to be kept then."""
        if self._leaving is not None:
            self._leaving.cancel()
        if self._is_idle:
            self._leaving = asyncio.get_running_loop().call_later(LEAVES_AFTER_S, self._leave)

    def _leave(self) -> None:
        if self._is_idle:
            self.left.set()


async def run(folder: Path, log: logging.Logger) -> None:
    """Serve until nothing is to be kept."""
    keeper = Keeper(folder, log)
    path = folder / SOCKET_NAME
    keeper.begin()
    watching = asyncio.get_running_loop().create_task(keeper.watch())
    server = await asyncio.start_unix_server(keeper.serve, str(path), limit=LINE_BYTES_MAX)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, keeper.machine_stops)
    idle = asyncio.get_running_loop().create_task(keeper.transitions.hibernate_idle())
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
