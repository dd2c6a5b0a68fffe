"""What a keeper does where a server or kernel ends while another step waits: without processes, in that very order."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until

from jupyter_affinode.keeping import hibernated, transitions
from jupyter_affinode.keeping.keeper import Keeper
from jupyter_affinode.keeping.messages import Undelivered
from jupyter_affinode.keeping.processes import name_of
from jupyter_affinode.keeping.records import Owner, Record
from jupyter_affinode.keeping.warm_entry import Entry
from jupyter_affinode.keeping.warm_pool import Pool

LOG = logging.getLogger(__name__)
OWNER = Owner("server", "/")


class Kernel:
    """A kernel as the keeper knows it. `on_keep` is called as it begins to be kept."""

    def __init__(self, name: str, on_keep: Callable[[], object] = lambda: None):
        """Have no process."""
        self.record = Record(name, "python3", OWNER, name_of(os.getpid()), None, "", {}, False)
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

    async def is_idle_within(self, seconds: float) -> bool:
        """Run no cell."""
        return True

    def undelivered(self) -> Undelivered:
        """Have nothing."""
        return Undelivered()

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


class Woken:
    """A kernel that is just awake, and what is done with its image."""

    def __init__(self, folder: Path):
        """Have no server."""
        self.keeper = keeper_in(folder)
        self.known, self.kernel = self.keeper._known, Kernel("woken")
        self.spoke: list[object] = []
        self.image: Any = SimpleNamespace(undelivered=Undelivered())
        self.known.know = lambda record: self.known.running.setdefault("woken", self.kernel)
        self.known.records.write = lambda record: None
        self.known.hibernated.is_heard = self.spoke.append

    def waking(self) -> asyncio.Task[None]:
        """Have the keeper do what follows when its process runs."""
        work = self.keeper.transitions._has_woken(self.image, self.kernel.record)
        return self.keeper.transitions._begin_alone("woken", work)


def test_a_woken_kernel_whose_server_ends_before_it_is_heard_is_kept_and_speaks(tmp_path):
    async def run() -> None:
        woken = Woken(tmp_path)
        server = Server(woken.keeper, "woken")
        woken.known.servers[server] = {"woken"}
        waking = woken.waking()
        await asyncio.sleep(0)
        await server.ends()
        assert not woken.kernel.is_kept  # it is on its way
        woken.kernel.is_heard.set()
        await waking
        assert woken.kernel.is_kept and woken.kernel.got == [woken.image.undelivered]
        assert woken.spoke == [woken.image]

    asyncio.run(run())


@pytest.mark.parametrize("has_server", [False, True])
def test_a_woken_kernel_that_ends_before_it_is_heard_keeps_its_image(tmp_path, has_server):
    async def run() -> None:
        woken = Woken(tmp_path)
        server = Server(woken.keeper, "woken")
        if has_server:
            woken.known.servers[server] = {"woken"}
        waking = woken.waking()
        await asyncio.sleep(0)
        woken.known._ended(woken.kernel)
        woken.kernel.is_heard.set()
        with pytest.raises(transitions.CannotWake, match="ended at once"):
            await waking
        assert not woken.kernel.is_kept
        if has_server:
            await server.ends()
        assert not woken.spoke and not woken.known.take_ends(OWNER)

    asyncio.run(run())


def test_a_woken_kernel_is_kept_where_a_full_disk_takes_no_record(tmp_path):
    async def run() -> None:
        woken = Woken(tmp_path)

        def write(record: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        woken.known.records.write = write
        woken.kernel.is_heard.set()
        await woken.waking()
        assert woken.kernel.is_kept and woken.spoke == [woken.image]

    asyncio.run(run())


def test_an_image_that_counts_again_is_not_deleted_for_having_been_heard(tmp_path):
    async def run() -> None:
        kernels = keeper_in(tmp_path)._known.hibernated
        done: list[str] = []
        image = SimpleNamespace(
            let_speak=lambda: done.append("speaks"), give_up=lambda: done.append("deleted")
        )
        again: Any = SimpleNamespace(record=Kernel("again").record, has_cuda=False, image=image)
        kernels._known["again"] = again
        kernels.is_heard(again)
        assert done == []

    asyncio.run(run())


def test_a_refused_hibernation_goes_on_waiting_for_the_gpu_memory_of_the_last_one(tmp_path, monkeypatch):
    """Else its old image would count when the kernel ends, days later."""

    async def refuse(*_: object, **__: object) -> None:
        raise transitions.CannotHibernate("this is a test")

    async def run() -> None:
        kernels, kernel = keeper_in(tmp_path)._known.hibernated, Kernel("busy")
        folder = hibernated.image_of(tmp_path / "images", "busy").folder
        folder.mkdir(parents=True)
        (folder / "woken.json").touch()
        kernel.record = replace(kernel.record, hibernate_dir=str(tmp_path / "images"))
        before = kernels._bringing_gpu_back["busy"] = asyncio.get_running_loop().create_future()
        with pytest.raises(transitions.CannotHibernate, match="this is a test"):
            await kernels.hibernate(kernel)
        assert before.cancelled()
        waiting = kernels._bringing_gpu_back["busy"]
        assert not waiting.done()
        waiting.cancel()

    monkeypatch.setattr(hibernated.images, "hibernate", refuse)
    asyncio.run(run())


def test_a_kernel_that_a_server_adopts_does_not_hibernate_for_having_been_idle(tmp_path, monkeypatch):
    monkeypatch.setattr(transitions, "LOOK_EVERY_S", 0.001)

    async def run() -> None:
        keeper = keeper_in(tmp_path)
        known, kernel = keeper._known, Kernel("idle")
        kernel.is_kept, kernel.kept_for_s = True, 1e9
        kernel.record = replace(kernel.record, hibernate_after_s=1.0)
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


def test_what_a_woken_kernels_tabs_had_not_got_stays_with_the_keeper_until_its_server_delivers_it(tmp_path):
    async def run() -> None:
        woken = Woken(tmp_path)
        server = Server(woken.keeper, "woken")
        woken.known.servers[server] = {"woken"}
        woken.kernel.is_heard.set()
        await woken.waking()
        assert woken.kernel.got == [woken.image.undelivered] and not woken.kernel.is_kept

    asyncio.run(run())


def test_a_second_stop_breaks_nothing_off_that_the_first_has_begun(tmp_path):
    async def run() -> None:
        transitions_ = keeper_in(tmp_path).transitions
        transitions_._known.hibernated.can_stop = lambda kernel_id: True
        is_right, stopped, goes_on = False, asyncio.Event(), asyncio.Event()

        async def wake() -> None:
            nonlocal is_right
            try:
                await asyncio.sleep(3600)
            finally:
                stopped.set()
                await goes_on.wait()
                is_right = True

        waking = transitions_._begin_alone("waking", wake())
        await asyncio.sleep(0)
        first = asyncio.create_task(transitions_.stop(None, {"kernel": "waking"}))
        await stopped.wait()
        second = asyncio.create_task(transitions_.stop(None, {"kernel": "waking"}))
        await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(first, second)
        assert waking.cancelled() and is_right

    asyncio.run(run())


def test_a_server_that_starts_waits_for_no_kernel_that_another_has(tmp_path):
    """Its Hub would give it up: a large kernel may take minutes."""

    async def run() -> None:
        keeper = keeper_in(tmp_path)
        known, server, starting = keeper._known, Server(keeper), Server(keeper)
        for name, owner in (("anothers", Owner("another", "/")), ("had", OWNER)):
            known.running[name] = kernel = Kernel(name)
            kernel.record = replace(kernel.record, owner=owner)
        known.servers |= {server: {"had"}, starting: set()}
        moving = [keeper.transitions._begin_alone(name, asyncio.sleep(3600)) for name in known.running]
        adopting = keeper._adopt(starting, {"owner": {"name": OWNER.name, "root": OWNER.root}})
        assert (await asyncio.wait_for(adopting, 60))["kernels"] == []
        for task in moving:
            task.cancel()

    asyncio.run(run())


def test_an_image_is_not_deleted_by_age_in_the_midst_of_its_wake(tmp_path):
    async def run() -> None:
        kernels = keeper_in(tmp_path)._known.hibernated
        old: Any = SimpleNamespace(
            record=replace(Kernel("old").record, image_keep_s=1.0), deleted_at=1.0, since=0.0, has_cuda=False,
            image=SimpleNamespace(warned_at=0.5, folder=tmp_path / "old", give_up=lambda: deleted.append("old")),
        )  # fmt: skip
        deleted: list[str] = []
        kernels._known["old"] = old
        with kernels._on_its_way("old", old.image):
            kernels.end_old()
        assert deleted == []
        kernels.end_old()
        assert deleted == ["old"]

    asyncio.run(run())
