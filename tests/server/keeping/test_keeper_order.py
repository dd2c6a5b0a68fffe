"""What a keeper does where a server or kernel ends while another step waits: without processes, in that very order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from waiting import until

from jupyter_affinode.keeping import transitions
from jupyter_affinode.keeping.keeper import Keeper
from jupyter_affinode.keeping.messages import Undelivered
from jupyter_affinode.keeping.records import Owner
from jupyter_affinode.keeping.warm_entry import Entry
from jupyter_affinode.keeping.warm_pool import Pool

LOG = logging.getLogger(__name__)
OWNER = Owner("server", "/")


class Kernel:
    """A kernel as the keeper knows it. `on_keep` is called as it begins to be kept."""

    def __init__(self, name: str, on_keep: Callable[[], object] = lambda: None):
        """Have no process."""
        self.record = SimpleNamespace(
            kernel_id=name, owner=OWNER, warm="", hibernate_dir="", hibernate_after_s=0.0,
            connection_file="", sockets=(), most_kernels=0, most_bytes=0,
        )  # fmt: skip
        self.on_keep = on_keep
        self.is_kept = False
        self.dying = self.at_hub = self.hibernate_asked = None
        self.heard_at = self.kept_for_s = 0.0
        self.open_cells: set[str] = set()
        self.is_heard = asyncio.Event()
        self.got: list[Undelivered] = []

    async def keep(self) -> None:
        """Be kept once, which takes a moment."""
        self.is_kept = True
        self.on_keep()
        await asyncio.sleep(0)

    async def is_heard_within(self, seconds: float) -> None:
        """Wait until the test says so."""
        await self.is_heard.wait()

    def put_before(self, undelivered: Undelivered) -> None:
        """Note what it is given."""
        self.got.append(undelivered)

    def close(self) -> None:
        """Do nothing."""


class Server:
    """A server's connection, both halves: it ends at once, or when the test says so."""

    def __init__(self, keeper: Keeper, *had: str):
        """Have some kernels, by their ids."""
        self.keeper, self.had = keeper, had

    async def readline(self) -> bytes:
        """End, when the keeper looks for a request."""
        self.keeper._known.servers[self] |= set(self.had)
        return b""

    def close(self) -> None:
        """Do nothing."""

    async def ends(self) -> None:
        """Return when the keeper has done what follows."""
        await self.keeper.serve(self, self)


def keeper_in(folder: Path) -> Any:
    """A real one. What it keeps is not told to a controller, since there is none."""
    return Keeper(folder, LOG)


def test_a_kernel_that_ends_while_another_of_its_server_is_kept_holds_up_no_third(tmp_path):
    async def run() -> None:
        keeper = keeper_in(tmp_path)
        known = keeper._known
        kernels = {name: Kernel(name) for name in ("first", "second", "third")}
        known.running.update(kernels)

        def another_ends() -> None:
            if len(known.running) == len(kernels):
                another, *_ = (kernel for kernel in kernels.values() if not kernel.is_kept)
                known._ended(another)

        for kernel in kernels.values():
            kernel.on_keep = another_ends
        await Server(keeper, *kernels).ends()
        ended = {record.kernel_id for record, _ in known.take_ends(OWNER)}
        assert len(ended) == 1
        assert {name for name, kernel in kernels.items() if kernel.is_kept} == kernels.keys() - ended
        assert not known.ended_under_server

    asyncio.run(run())


def test_another_server_that_has_a_kernel_again_is_not_deprived_of_it(tmp_path):
    async def run() -> None:
        keeper = keeper_in(tmp_path)
        known = keeper._known
        again = Server(keeper)
        first, second = kernels = [Kernel("first"), Kernel("second")]
        known.running.update({kernel.record.kernel_id: kernel for kernel in kernels})
        known.servers[again] = {"second"}
        await Server(keeper, "first", "second").ends()
        assert first.is_kept and not second.is_kept

    asyncio.run(run())


def test_a_woken_kernel_whose_server_ends_before_it_is_heard_is_kept_and_speaks(tmp_path):
    async def run() -> None:
        keeper = keeper_in(tmp_path)
        known, kernel = keeper._known, Kernel("woken")
        spoke: list[object] = []
        known.know = lambda record: known.running.setdefault("woken", kernel)
        known.records.write = lambda record: None
        known.hibernated.is_heard = spoke.append
        undelivered = Undelivered()
        image: Any = SimpleNamespace(undelivered=undelivered)
        server = Server(keeper, "woken")
        known.servers[server] = {"woken"}
        waking = keeper.transitions._begin_alone("woken", keeper.transitions._has_woken(image, kernel.record))
        await asyncio.sleep(0)
        await server.ends()
        assert not kernel.is_kept  # it is on its way
        kernel.is_heard.set()
        await waking
        assert kernel.is_kept and kernel.got == [undelivered] and spoke == [image]

    asyncio.run(run())


def test_a_kernel_that_a_server_adopts_does_not_hibernate_for_having_been_idle(tmp_path, monkeypatch):
    monkeypatch.setattr(transitions, "LOOK_EVERY_S", 0.001)

    async def run() -> None:
        keeper = keeper_in(tmp_path)
        known, kernel = keeper._known, Kernel("idle")
        kernel.is_kept, kernel.kept_for_s, kernel.record.hibernate_after_s = True, 1e9, 1.0
        kernel.heard_at = -1e9
        known.running["idle"] = kernel
        tried = asyncio.Event()
        looks, server_of, server = 0, known.server_of, Server(keeper)

        async def hibernate(kernel: object) -> None:
            tried.set()
            raise transitions.CannotHibernate("this is a test")

        def looked(kernel_id: str) -> object:
            nonlocal looks
            looks += 1
            return server_of(kernel_id)

        known.hibernated.hibernate, known.server_of = hibernate, looked
        known.servers[server] = {"idle"}
        looking = asyncio.get_running_loop().create_task(keeper.transitions.hibernate_idle())
        await until(lambda: looks >= 20 or tried.is_set())
        assert not tried.is_set()
        del known.servers[server]
        await asyncio.wait_for(tried.wait(), 60)
        looking.cancel()

    asyncio.run(run())


def test_a_warm_kernel_that_is_moved_when_its_pool_is_dropped_ends_afterwards(tmp_path):
    async def run() -> None:
        keeper = keeper_in(tmp_path)
        warm, kernel = keeper.warm, Kernel("warm")
        ended: list[str] = []
        kernel.begin_end = lambda why: ended.append(why)  # type: ignore[attr-defined]
        told = {"spec": "/spec", "digest": "", "environ": {}, "made_at": 0.0, "settings": {}, "prelude": ""}
        entry = Entry.new(tmp_path / "warm", told)
        pool = Pool("/spec", {}, {}, 0.0, entries={entry.kernel_id: entry})
        warm._pools["/spec"] = pool
        keeper._known.running[entry.kernel_id] = kernel
        moving = asyncio.get_running_loop().create_task(asyncio.sleep(3600))
        keeper.transitions.on_their_way[entry.kernel_id] = moving
        warm.drop(None, {"spec": "/spec"})
        await warm._look()
        assert not ended and not warm.is_empty
        del keeper.transitions.on_their_way[entry.kernel_id]
        await warm._look()
        assert len(ended) == 1 and warm.is_empty and not entry.folder.exists()
        moving.cancel()

    asyncio.run(run())
