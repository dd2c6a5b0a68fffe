"""`python -m jupyter_affinode.keeping.keeper`: the program that keeps a user's kernels while no server has them.

It listens at a Unix socket in a folder that only its user can enter (lines.py says how both ends speak). It ends by
itself when no server is connected and no kernel is kept.
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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .. import environment
from ..hibernation.disk import in_words
from ..hibernation.hibernate import CannotHibernate, CannotWake
from .at_hub import ASK_EVERY_S, AtHub
from .earlier_release import EarlierServer
from .kept_kernel import KeptKernel
from .life import NEEDED, LeaseLost, Life
from .life_table import State
from .lines import Connection, HungUp, Refused, Unanswered
from .lives import Lives, NoSuchKernel
from .messages import Undelivered
from .oversight import Oversight
from .processes import ProcessName
from .records import LINE_BYTES_MAX, SOCKET_NAME, VERSION, Owner, Record, from_json, to_json
from .surroundings import machine_stops
from .warm_pools import FOLDER_NAME as WARM_FOLDER
from .warm_pools import WarmPools

LOCK_NAME = "keeper.lock"
SPEAKS = 2  # how requests look: lines.py; 1 is earlier_release.py
SERVERS_BACK_S = 0.5  # until a server that lives has reached a new keeper
LEAVES_AFTER_S = 5.0  # without servers and kernels
LOOK_EVERY_S = 1.0  # for kernels that are to be hibernated
TRY_AGAIN_S = 600.0  # one that could not be
STOP_LOOK_S = 0.5  # whether anything is in its hands, once it was asked to end
QUIET_S = 90.0  # for a server to have a kernel quiet; a cell that has just begun is refused at once
HEARD_S = 30.0  # for a server to have its tabs hear a kernel

Answer = dict[str, Any]


class Server:
    """A connected server, or a command line: the lease of the kernels that it has."""

    def __init__(self, connection: Connection):
        """Use its connection."""
        self._connection = connection

    async def until_quiet(self, kernel_id: str) -> None:
        """Have it pass nothing on to a kernel. Raises CannotHibernate and LeaseLost."""
        try:
            await self._connection.ask("quiet", QUIET_S, kernel=kernel_id)
        except Refused as refused:
            raise CannotHibernate(str(refused)) from None
        except Unanswered:
            raise CannotHibernate("its server does not answer") from None
        except HungUp:
            raise LeaseLost from None

    async def until_heard(self, kernel_id: str, process: ProcessName, undelivered: Undelivered) -> None:
        """Have its tabs hear a kernel that was woken. Raises LeaseLost."""
        told = {"process": process.__dict__, "undelivered": undelivered.to_json()}
        try:
            await self._connection.ask("hear", HEARD_S, kernel=kernel_id, **told)
        except (Refused, Unanswered):
            pass  # it has the kernel all the same, and what is not heard is kept until it is delivered
        except HungUp:
            raise LeaseLost from None

    def show(self, view: Answer) -> None:
        """Show it where a kernel is."""
        self._connection.tell("life", view=view)


class Keeper:
    """Answers a user's servers, and keeps the kernels of those that have ended."""

    def __init__(self, folder: Path, log: logging.Logger):
        """Know nothing yet: `begin`."""
        self._log = log
        self.warm = WarmPools(self, folder / WARM_FOLDER, log)
        self.lives = Lives(folder, log, self.warm.has_ended, self.maybe_leave)
        self.oversight = Oversight(self.lives, log)
        self.left = asyncio.Event()
        self._servers: set[object] = set()
        self._leaving: asyncio.TimerHandle | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._beginning: asyncio.Future[None] | None = None

    # ---- the start

    def begin(self) -> None:
        """Know what the folder has, and keep it once servers that live have said which kernels are theirs.

        Until then nothing is taken from these servers' tabs, whose client the keeper would be.
        """
        self.lives.read_records()
        self._beginning = asyncio.get_running_loop().create_task(self._keep_rest())

    async def _keep_rest(self) -> None:
        if any(True for _ in self.lives):
            await asyncio.sleep(SERVERS_BACK_S)
        await self.lives.look_at_found()
        try:
            await self.warm.begin()
        except Exception:  # kept kernels need no warm ones
            self._log.exception("warm kernels of an earlier keeper are not known")
        self.maybe_leave()

    async def _begun(self) -> None:
        if self._beginning is not None:
            await asyncio.shield(self._beginning)

    async def keep_warm(self) -> None:
        """Keep warm kernels as they should be, once those of an earlier keeper are known; until cancelled."""
        await self._begun()
        await self.warm.run()

    # ---- connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one server until it ends; then its kernels are kept."""
        try:
            line = await reader.readline()
            told = json.loads(line) if line else {}
            if told.get("do") == "hello" and told.get("speaks", 1) >= SPEAKS:
                writer.write(json.dumps({"answer": {"version": VERSION, "speaks": SPEAKS}}).encode() + b"\n")
                connection = Connection(reader, writer, self.words)
                server = Server(connection)
                connection.handlers = self._requests(server)
                await self._served(server, connection.serve)
            elif told:
                earlier = EarlierServer(self, reader, writer, told)
                await self._served(earlier, earlier.serve)
        except (OSError, ValueError, AttributeError):  # a line that is too long, or no request
            pass
        finally:
            writer.close()

    async def _served(self, server: Any, serve: Callable[[], Any]) -> None:
        self._servers.add(server)
        if self._leaving is not None:
            self._leaving.cancel()
        with contextlib.suppress(OSError, ValueError, LookupError):  # a line that is too long, or no request
            await serve()
        # Not where the keeper ends, which cancels this: servers go on, and their tabs' answers are theirs.
        self._servers.discard(server)
        self.warm.hung_up(server)
        await self.lives.are_left(server)
        self.oversight.hold_to_quota()
        self.maybe_leave()

    def words(self, error: Exception) -> str:
        """Return what a person is told of a failed request."""
        if isinstance(error, (CannotHibernate, CannotWake, NoSuchKernel, ProcessLookupError)):
            return str(error)
        if isinstance(error, OSError):
            return in_words(error)
        if isinstance(error, LookupError) and error.args and " " in str(error.args[0]):
            return str(error.args[0])  # a sentence of ours
        self._log.error("a request failed", exc_info=error)
        return "the keeper of kernels has met an error, which its log has (keeper.log)"

    def _requests(self, server: Server) -> Mapping[str, Callable[..., Any]]:
        """Return what a server, or a command line, may ask, by its name."""
        return {
            "offered": self.offered,
            "take": partial(self.take, server),
            "update": partial(self.update, server),
            "hand_over": partial(self.hand_over, server),
            "release": partial(self.release, server),
            "forget": partial(self.forget, server),
            "delivered": partial(self.delivered, server),
            "held": partial(self.held_message, server),
            "passed": partial(self.passed, server),
            "look": self.look_at,
            "list": self.list_all,
            "end": self.end,
            "hibernate": self.hibernate,
            "wake": self.wake,
            "stop": self.stop,
            "warm_want": lambda **told: self.warm.want(server, told),
            "warm_offer": lambda **told: self.warm.offer(server, told),
            "warm_taken": lambda **told: self.warm.taken(server, told),
            "warm_list": lambda **told: self.warm.list_all(server, told),
            "warm_drop": lambda **told: self.warm.drop(server, told),
        }

    # ---- requests

    async def update(
        self, server: Any, record: Answer, at_hub: Answer | None = None, open_cells: Sequence[str] = ()
    ) -> Answer:
        """Note what adopting a server's kernel takes, now or after a change; return where it is.

        `open_cells`: those that run, which a keeper that has just started did not hear begin.
        """
        life = await self.lives.update(from_json(record), server)
        life.at_hub = AtHub(**at_hub) if at_hub else None
        if life.kernel is not None:
            life.kernel.runs(open_cells)
        return life.view()

    def delivered(self, server: Any, kernel: str, reader: str, channel: str, header: str) -> None:
        """Note that a server passed a kernel's message on to its tab."""
        life = self.lives.find(kernel)
        if life is not None and life.lease is server and life.kernel is not None:
            life.kernel.delivered(reader, channel, header.encode())

    def held_message(self, server: Any, kernel: str, held: Answer) -> None:
        """Have what a tab sent to a kernel that is held back, for the next server."""
        life = self.lives.find(kernel)
        if life is not None and life.lease is server:
            life.hold(held)

    def passed(self, server: Any, kernel: str) -> None:
        """Forget what tabs have sent: their server is about to pass it on, or it is void."""
        life = self.lives.find(kernel)
        if life is not None and life.lease is server:
            life.held.clear()

    def forget(self, server: Any, kernel: str) -> None:
        """Forget a kernel that its server has ended."""
        life = self.lives.find(kernel)
        if life is not None and life.lease is server:
            life.forget()

    async def hand_over(self, server: Any, record: Answer, at_hub: Answer | None = None) -> dict[str, str]:
        """Keep a kernel from now on, beside its server, which ends.

        Return why kernels are ended for that, by their ids.
        """
        await self.update(server, {**record, "server": None}, at_hub)  # that ends
        life = self.lives.get(record["kernel_id"])
        self._log.info("kernel %s is kept: its server hands it over", life.id)
        if life.kernel is not None:
            try:
                await life.kernel.keep()
            except Exception:  # it is kept all the same; refused, it would end with its server
                self._log.exception("kernel %s is not listened to", life.id)
        return self.oversight.hold_to_quota()

    async def release(self, server: Any, kernel: str, undelivered: Answer) -> dict[str, str]:
        """Take what a server got of a kernel that it handed over, and did not deliver; another may take it now.

        Return why kernels are ended for that, by their ids.
        """
        life = self.lives.get(kernel)
        if life.lease is not None and life.lease is server:
            life.put_before(Undelivered.from_json(undelivered))
            await life.lost(life.lease)
        return self.oversight.hold_to_quota()

    async def offered(self, owner: Answer, store: str = "") -> Answer:
        """Return the kernels that a server of this name and root folder may take; say once which have ended."""
        await self._begun()
        whose = Owner(**owner)
        await self.lives.look_in(store)
        ended = self.lives.take_ends(whose)
        return {
            "kernels": [life.view() for life in self.lives.of(whose)],
            "ended": [{"record": to_json(record), "at": at} for record, at in ended],
        }

    async def take(self, server: Any, kernel: str) -> Answer:
        """Have a server have a kernel that was offered.

        Return where it is, and its messages, which stay here until they are delivered.
        """
        life = self.lives.get(kernel)
        if life.lease is not None and life.lease is not server:
            raise LookupError("another server has taken it")
        undelivered = await life.take(server)
        return {"view": life.view(), "undelivered": undelivered.to_json(), "held": life.held}

    def look_at(self, kernel: str) -> Answer:
        """Return where a kernel is, also where its process has ended at this moment."""
        self.lives.get(kernel).notice_end()
        return self.lives.get(kernel).view()

    async def list_all(self, store: str = "", all: bool = False) -> list[Answer]:
        """Return which kernels are kept; or all that are known."""
        await self._begun()
        await self.lives.look_in(store)
        shown = [life for life in self.lives if life.state is not State.GONE]
        return [life.view() for life in shown if all or (life.lease is None and not life.record.warm)]

    async def end(self, kernel: str, by_server: bool = False) -> None:
        """End a kept kernel, or one in an image. `by_server`: it asks for a kernel of its own that is shut down."""
        life = self.lives.get(kernel)
        if life.lease is not None and not life.is_out and not by_server:
            raise LookupError("a server has this kernel: shut it down there")
        await life.end("its user asked for that")

    async def hibernate(self, kernel: str) -> Answer:
        """Put a kernel into its image. Raises CannotHibernate."""
        await self._begun()
        life = self.lives.get(kernel)
        await life.hibernate()
        if not life.is_out:
            raise CannotHibernate(NEEDED)
        return life.view()

    async def wake(self, kernel: str, store: str = "") -> Answer:
        """Have a kernel run. Raises CannotWake."""
        await self._begun()
        if kernel not in self.lives:
            await self.lives.look_in(store)
        life = self.lives.get(kernel)
        if isinstance(life.lease, EarlierServer) and life.is_out:
            await life.lease.wakes(kernel)
        await life.wake()
        return life.view()

    async def stop(self, kernel: str) -> None:
        """Have a kernel stay where it is; return once that is known."""
        await self.lives.get(kernel).stop()

    # ---- in time

    async def watch(self) -> None:
        """See to kernels as their servers would, until cancelled."""
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            try:
                await self.lives.look()
                await self.oversight.look()
            except Exception:  # the next look may do it
                self._log.exception("looking after kept kernels failed")

    async def hibernate_idle(self) -> None:
        """Hibernate kernels that were kept for long enough, until cancelled."""
        tried: dict[str, float] = {}
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for life in self.lives:
                now = time.monotonic()
                if not _is_due(life, now) or now - tried.get(life.id, -TRY_AGAIN_S) < TRY_AGAIN_S:
                    continue
                tried[life.id] = now
                await self._try_to_hibernate(life)

    async def _try_to_hibernate(self, life: Life) -> None:
        try:
            await life.hibernate()
        except CannotHibernate:
            pass  # it has said so
        except Exception:
            self._log.exception("kernel %s is not hibernated", life.id)

    def machine_stops(self) -> None:
        """Hibernate what can be, and end once nothing is in its hands.

        SIGTERM may have reached all processes at once, as at the end of a unit or a batch job.
        """
        self._stopping = self._stopping or asyncio.get_running_loop().create_task(self._stop())

    async def _stop(self) -> None:
        tried: set[str] = set()
        while self._servers or any(not life.record.warm for life in self.lives if not life.is_out):
            can = [life for life in self.lives if _can_hibernate(life) and life.id not in tried]
            tried |= {life.id for life in can}
            await asyncio.gather(*map(self._try_to_hibernate, can))
            await asyncio.gather(*(life.settled() for life in self.lives))
            if not self._servers and await asyncio.to_thread(machine_stops):
                for life in self.lives:  # what cannot hibernate would hold the machine up until it is killed
                    life.begin_end("this machine stops")
            await asyncio.sleep(STOP_LOOK_S)
        self.left.set()

    # ---- warm kernels (WarmPools asks for these)

    async def hold(self, record: Record, at_hub: AtHub | None) -> KeptKernel | None:
        """Know a kernel and keep it; return None if its process has ended."""
        try:
            life = self.lives.add(record)
        except ProcessLookupError:
            return None
        life.at_hub = at_hub
        life.write()
        await life.keep()
        return life.kernel

    async def look_in(self, store: str | None) -> None:
        """Find the images in a folder."""
        await self.lives.look_in(store)
        self.warm.end_unknown()

    async def awaken(self, kernel_id: str) -> None:
        """Have a kernel's process run if it is in an image. Raises CannotWake and NoSuchKernel."""
        await self.lives.get(kernel_id).wake()

    def let_go(self, kernel_id: str) -> None:
        """Forget a kernel, which lives on as another, and delete its image beside other work."""
        if (life := self.lives.find(kernel_id)) is not None:
            life.forget_beside()

    def end_now(self, kernel_id: str, why: str) -> None:
        """End a kernel, wherever it is."""
        if (life := self.lives.find(kernel_id)) is not None:
            life.delete(why)
            life.begin_end(why)

    def held(self, kernel_id: str) -> KeptKernel | None:
        """Return a kernel whose process runs."""
        life = self.lives.find(kernel_id)
        return None if life is None else life.kernel

    def image_bytes(self, kernel_id: str) -> int | None:
        """Return what a kernel's image takes; None for one that is in none."""
        life = self.lives.find(kernel_id)
        return life.written_bytes if life is not None and life.state is State.IN_IMAGE else None

    def is_moving(self, kernel_id: str) -> bool:
        """Return whether a kernel is on its way into an image or back."""
        life = self.lives.find(kernel_id)
        return life is not None and life.is_moving

    def is_anothers(self, process: ProcessName, kernel_id: str) -> bool:
        """Return whether a process is, by its server's word, that of another kernel."""
        return any(life.record.process == process and life.id != kernel_id for life in self.lives)

    def warm_kernels(self) -> list[str]:
        """Return the ids of all warm kernels that are kept, in images or not."""
        return [life.id for life in self.lives if life.record.warm]

    # ---- its end

    @property
    def _is_idle(self) -> bool:
        return not self._servers and not self.lives.have_processes and self.warm.is_empty

    def maybe_leave(self) -> None:
        """End in a while, if nothing is to be kept then."""
        if self._leaving is not None:
            self._leaving.cancel()
        if self._is_idle:
            self._leaving = asyncio.get_running_loop().call_later(LEAVES_AFTER_S, self._leave)

    def _leave(self) -> None:
        if self._is_idle:
            self.left.set()


def _can_hibernate(life: Life) -> bool:
    return life.is_kept and bool(life.record.hibernate_dir) and not life.record.warm


def _is_due(life: Life, now: float) -> bool:
    """Return whether a kept kernel is to hibernate: it was idle for so long, or the controller asks for it."""
    kernel = life.kernel
    if kernel is None or not life.is_kept or not kernel.is_kept:
        return False
    after_s = life.record.hibernate_after_s
    is_late = bool(after_s) and min(kernel.kept_for_s, now - kernel.heard_at) >= after_s
    return is_late or kernel.hibernate_asked is not None


async def run(folder: Path, log: logging.Logger) -> None:
    """Serve until nothing is to be kept."""
    keeper, loop = Keeper(folder, log), asyncio.get_running_loop()
    path = folder / SOCKET_NAME
    keeper.begin()
    server = await asyncio.start_unix_server(keeper.serve, str(path), limit=LINE_BYTES_MAX)
    loop.add_signal_handler(signal.SIGTERM, keeper.machine_stops)
    works = [loop.create_task(work) for work in (keeper.watch(), keeper.hibernate_idle(), keeper.keep_warm())]
    try:
        await keeper.left.wait()
    finally:
        for work in works:
            work.cancel()
        path.unlink(missing_ok=True)
        server.close()


def main() -> int:
    """Be the keeper of a user, unless there is one."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    folder = environment.user_folder()
    environment.make_folder(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what ends servers
    signal.signal(
        signal.SIGHUP, lambda *_: None
    )  # at a session's end; what the keeper starts has the default
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
