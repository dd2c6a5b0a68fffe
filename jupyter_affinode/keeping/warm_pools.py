"""Kernels that no server has had yet: the keeper makes them, and gives each to the one notebook that takes it.

A warm kernel is a kept kernel with an entry (warm_entry.py). It is parked and hibernates as other kept kernels do. The
program that takes it is told which it is, hands it over itself (provisioning/taking.py), and says so; where it hangs up
before, the kernel is ended, since it may have been handed over in part.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import environment
from ..client.errors import ControllerRefused, ControllerUnavailable
from ..client.kernel_messages import KernelMessages
from ..python_command import module_command
from ..threads import on_own_thread
from ..time_of_day import since_boot_s
from ..units import bytes_in_words
from .at_hub import AtHub
from .processes import Adopted, ProcessName, name_of, resident_bytes
from .records import Owner, Record
from .warm_entry import CONNECTION, ENTRY, LAUNCHED, OFFERED, READY, Entry, entries_in
from .warm_pool import Holder, Pool, nothing_made, why_stale, without_hub
from .warm_spec import WarmSpec, first_changed, read_at_start, read_spec, why_unfit

FOLDER_NAME, POOLS = "warm", "pools"
OWNER = Owner("warm", "")  # no server has this name: a Hub's end with a slash
LOOK_EVERY_S = 2.0
CHECK_EVERY_S = 30.0  # whether what kernels are made of has changed
STARTS_WITHIN_S = 60.0  # a kernel that has not said that it runs by then never began
POLL_S = 0.1
MAKE_AFTER_S = 1.5  # another is taken: its notebook's first cell needs the processors more
PARK_AGAIN_S, PARK_TRIES = 3.0, 20
TRY_AGAIN_S = 600.0  # to make a kernel whose process ended by itself
KEEP_S = 3600.0
PER_USER = 4

Answer = dict[str, Any]


class WarmPools:
    """All warm kernels of a user."""

    def __init__(self, holder: Holder, folder: Path, log: logging.Logger):
        """Use a folder, which is the user's own."""
        self._holder = holder
        self._folder = folder
        self._log = log
        self._pools: dict[str, Pool] = {}  # by the kernelspec's folder
        self._offers: dict[asyncio.StreamWriter, dict[str, Entry]] = {}
        # Kernels that may be their taker's: an earlier keeper offered them, or their server has not told of them yet.
        self._on_their_way: dict[str, Entry] = {}
        self._wanting: dict[asyncio.StreamWriter, set[str]] = {}
        self._making: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # that go on beside the looks
        self._was_empty = True
        self._has_begun = False  # whether it is known which kernels an earlier keeper had
        self._changed = asyncio.Event()
        self._checked_at = 0.0
        self._make_at = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held and nothing is to be made."""
        pools = self._pools.values()
        return not self._on_their_way and not any(pool.entries or self._is_wanted(pool) for pool in pools)

    # ---- the start

    async def begin(self) -> None:
        """Take what an earlier keeper had: kernels that are ready, and those that will be."""
        for path in sorted((self._folder / POOLS).glob("*.json")):
            with contextlib.suppress(OSError, ValueError, TypeError):
                known = Pool(**json.loads(path.read_text(encoding="utf-8")))
                self._pools[known.spec] = known
        entries = list(entries_in(self._folder))
        for store in {entry.told(ENTRY)["settings"].get("hibernate_dir", "") for entry in entries}:
            await self._holder.look_in(store)
        for entry in entries:
            pool = self._pools.get(entry.told(ENTRY)["spec"])
            if entry.read(OFFERED) is not None:
                self._on_their_way[entry.kernel_id] = entry
                if (kernel := self._holder.held(entry.kernel_id)) is not None:
                    kernel.take()  # it may be a notebook's: nothing is done with it here
            elif pool is None:
                self._end(entry, "its kernelspec is not known any more")
            else:
                pool.entries[entry.kernel_id] = entry
                if entry.read(READY) is not None:
                    await self._hold(pool, entry)
                else:
                    following = self._follow(pool, entry, of_before=True)
                    self._tasks.add(asyncio.get_running_loop().create_task(following))
        self._has_begun = True
        self.end_unknown()

    def end_unknown(self) -> None:
        """End warm kernels that have no entry: images of before a restart of the machine, for example."""
        if not self._has_begun:
            return
        known = {kernel_id for pool in self._pools.values() for kernel_id in pool.entries}
        known |= self._on_their_way.keys() | {each for offers in self._offers.values() for each in offers}
        for kernel_id in self._holder.warm_kernels():
            if kernel_id not in known and not self._holder.is_moving(kernel_id):
                self._holder.end_now(kernel_id, "it has no entry")

    # ---- requests

    async def want(self, writer: asyncio.StreamWriter, request: Answer) -> Answer:
        """Have a kernelspec's warm kernels made: while the client is connected, if it `stays`, and a while longer."""
        pool = self._wanted(request)
        if request.get("stays"):
            self._wanting.setdefault(writer, set()).add(pool.spec)
        return await self._view(pool)

    def _wanted(self, request: Answer) -> Pool:
        spec, now = request["spec"], since_boot_s()
        pool = self._pools.get(spec)
        if pool is None:
            if read_spec(spec) is None:
                raise LookupError(f"{spec} has no warm kernels")
            pool = self._pools[spec] = Pool(spec, request["environ"], request["settings"], now)
        pool.environ, pool.settings, pool.wanted_at = request["environ"], request["settings"], now
        if request.get("at_hub"):
            pool.at_hub = AtHub(**request["at_hub"])
        if request.get("again"):  # its user says so
            pool.failed = None
        self._save(pool)
        self._changed.set()
        return pool

    async def offer(self, writer: asyncio.StreamWriter, request: Answer) -> Answer:
        """Give a client a warm kernel that fits its notebook, which no other client gets; or say why there is none."""
        pool = self._wanted(request)
        self._changed.clear()  # what is taken is made anew afterwards
        spec = read_spec(pool.spec)
        if spec is None:
            raise LookupError(f"{pool.spec} has no warm kernels any more")
        failed = self._failure(pool, spec)
        if failed is not None and pool.failed is not None and pool.failed["again_at"] is None:
            self._changed.set()
            return {"offer": None, "why": "its prelude failed", "failed": str(failed)}
        why = "none was made yet" if not pool.entries else "none is ready yet"
        for entry in self._ready(pool):
            stale = await asyncio.to_thread(why_stale, entry, spec.digest())
            if stale is not None and entry.kernel_id in pool.entries:
                self._end_of(pool, entry, f"it is stale: {stale}")
            if (unfit := stale or self._why_unfit(entry, request)) is not None:
                why = unfit
                continue
            if entry.kernel_id not in pool.entries or entry.read(OFFERED) is not None:
                continue  # another client has got it meanwhile
            entry.write(OFFERED, {"taker": asdict(name_of(request["pid"]))})
            self._offers.setdefault(writer, {})[entry.kernel_id] = entry
            del pool.entries[entry.kernel_id]
            try:
                offer = await self._made_ready(entry)
            except (
                Exception
            ) as error:  # an image that cannot be used, for example: the notebook is to open all the same
                self._log.exception("warm kernel %s cannot be taken", entry.kernel_id)
                self._discard(writer, entry, f"it could not be taken: {error}")
                why = f"it could not be taken: {error}"
                continue
            pool.taken += 1
            return {"offer": offer, "why": None, "failed": None}
        pool.misses += 1
        self._changed.set()
        return {"offer": None, "why": why, "failed": None}

    def _ready(self, pool: Pool) -> list[Entry]:
        """Return the kernels that can be offered; those whose processes run come first, the oldest first."""
        found = [
            entry
            for entry in pool.entries.values()
            if not self._holder.is_moving(entry.kernel_id) and self._place(entry) is not None
        ]
        return sorted(
            found, key=lambda entry: (self._place(entry) != "process", entry.told(ENTRY)["made_at"])
        )

    def _place(self, entry: Entry) -> str | None:
        """Return where a ready kernel is, "process" or "image"; None for one that is not ready, or ends."""
        kernel = self._holder.held(entry.kernel_id)
        if kernel is not None:
            return "process" if kernel.dying is None else None
        return "image" if self._holder.image_bytes(entry.kernel_id) is not None else None

    def _why_unfit(self, entry: Entry, request: Answer) -> str | None:
        launched = entry.told(LAUNCHED)
        if (unfit := why_unfit(launched["environ"], request["kernel_environ"])) is not None:
            return unfit
        if launched["command"] != request["command"]:
            return "made with another command"
        return None

    async def _made_ready(self, entry: Entry) -> Answer:
        await self._holder.awaken(entry.kernel_id)
        kernel = self._holder.held(entry.kernel_id)
        if kernel is None:
            raise LookupError("its process has ended")
        kernel.take()
        process = asdict(kernel.record.process)
        entry.write(OFFERED, {**entry.told(OFFERED), "process": process})
        return {
            "id": entry.kernel_id,
            "process": process,
            "process_group": kernel.record.process_group,
            "connection": entry.connection,
            "launched_with": entry.told(LAUNCHED)["environ"],
            "has_shim": entry.told(READY)["has_shim"],
            "made_at": entry.told(ENTRY)["made_at"],
        }

    def taken(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """Note that a client has a kernel that it was offered: it is no warm one any more.

        `outlives`: it does not end with that client, a server, which says next that it has the kernel, unless it ends.
        """
        entry = self._offers.get(writer, {}).pop(request["id"])
        if request.get("outlives"):
            self._on_their_way[entry.kernel_id] = entry
        else:
            self._give_away(entry)
        self._make_at = time.monotonic() + MAKE_AFTER_S
        asyncio.get_running_loop().call_later(MAKE_AFTER_S, self._changed.set)

    def _give_away(self, entry: Entry) -> None:
        self._holder.let_go(entry.kernel_id)
        entry.remove()
        with contextlib.suppress(ControllerUnavailable):
            KernelMessages(entry.kernel_id).tell_forget()

    def hung_up(self, writer: asyncio.StreamWriter) -> None:
        """End what a client was offered and has not said that it has; keep pools no longer for its sake."""
        for entry in list(self._offers.get(writer, {}).values()):
            self._discard(writer, entry, "the program that was to take it has ended")
        self._offers.pop(writer, None)
        for spec in self._wanting.pop(writer, set()):
            if spec in self._pools:
                self._pools[spec].wanted_at = since_boot_s()
                self._save(self._pools[spec])
        self._changed.set()

    def _discard(self, writer: asyncio.StreamWriter, entry: Entry, why: str) -> None:
        self._offers.get(writer, {}).pop(entry.kernel_id, None)
        self._end(entry, why)

    async def list_all(self, writer: asyncio.StreamWriter, request: Answer) -> list[Answer]:
        """Say what there is, by kernelspec."""
        return [await self._view(pool) for pool in self._pools.values()]

    def drop(self, writer: asyncio.StreamWriter, request: Answer) -> None:
        """End a kernelspec's warm kernels, and make none any more."""
        self._drop(request["spec"])
        self._changed.set()

    def _drop(self, spec: str) -> None:
        pool = self._pools.pop(spec, None)
        if pool is not None:
            self._empty(pool, "its kernelspec is removed")
            (self._folder / POOLS / f"{pool.id}.json").unlink(missing_ok=True)

    async def _view(self, pool: Pool) -> Answer:
        held = {kernel_id: self._holder.held(kernel_id) for kernel_id in pool.entries}
        pids = {
            kernel_id: kernel.record.process.pid for kernel_id, kernel in held.items() if kernel is not None
        }
        sizes = await asyncio.to_thread(resident_bytes, list(pids.values())) if pids else {}
        kernels = [
            {
                "id": entry.kernel_id,
                "place": place,
                "made_at": entry.told(ENTRY)["made_at"],
                "took_s": entry.told(READY)["took_s"],
                "bytes": sizes.get(pids.get(entry.kernel_id, -1), 0)
                if place == "process"
                else self._holder.image_bytes(entry.kernel_id),
            }
            for entry in pool.entries.values()
            if (place := self._place(entry)) is not None
        ]
        spec, problem = None, None
        try:
            spec = read_spec(pool.spec)
        except ValueError as error:
            problem = str(error)
        return {
            **nothing_made(pool.spec, spec),
            "problem": problem,
            "is_wanted": self._is_wanted(pool),
            "ready": len(kernels),
            "making": len(pool.entries) - len(kernels),
            "failed": pool.failed and pool.failed["words"],
            "note": pool.note,
            "kernels": kernels,
            "taken": pool.taken,
            "misses": pool.misses,
        }

    # ---- what goes on by itself

    async def run(self) -> None:
        """Keep pools as they should be, until cancelled."""
        while True:
            try:
                await self._look()
                if self.is_empty and not self._was_empty:
                    self._holder.maybe_leave()
                self._was_empty = self.is_empty
            except Exception:  # the next look may do it
                self._log.exception("looking after warm kernels failed")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_EVERY_S)
            self._changed.clear()

    async def _look(self) -> None:
        self._look_at_those_on_their_way()
        self._tasks = {task for task in self._tasks if not task.done()}
        if not self._pools:
            return
        now = time.monotonic()
        checks = now - self._checked_at > CHECK_EVERY_S
        self._checked_at = now if checks else self._checked_at
        for pool in list(self._pools.values()):
            if not os.path.exists(os.path.join(pool.spec, "kernel.json")):
                self._drop(pool.spec)
                continue
            spec = self._spec(pool)
            if not self._is_wanted(pool) or spec is None or spec.count == 0:
                self._empty(
                    pool,
                    "no server or program has wanted it for a while" if spec is not None else "it is gone",
                )
                continue
            if checks:
                await self._end_stale(pool, spec)
            self._end_beyond(pool, spec)
            await self._end_beyond_memory(pool)
            if (self._making is None or self._making.done()) and now >= self._make_at:
                await self._maybe_make(pool, spec)

    def _spec(self, pool: Pool) -> WarmSpec | None:
        try:
            return read_spec(pool.spec)
        except ValueError as error:
            pool.note = str(error)
            return None

    def _is_wanted(self, pool: Pool) -> bool:
        if any(pool.spec in specs for specs in self._wanting.values()):
            return True
        return since_boot_s() - pool.wanted_at < pool.settings.get("keep_s", KEEP_S)

    def _look_at_those_on_their_way(self) -> None:
        """Let go of kernels that a server has by now. End a kernel if its taker ended before."""
        for kernel_id, entry in list(self._on_their_way.items()):
            process = entry.process
            if "process" not in entry.told(OFFERED):  # the keeper was killed before its taker got an answer
                del self._on_their_way[kernel_id]
                self._end(entry, "it was never handed over")
                continue
            if process is None or self._holder.is_anothers(process, kernel_id):
                del self._on_their_way[kernel_id]
                self._give_away(entry)
                continue
            with contextlib.suppress(ProcessLookupError, LookupError, TypeError):
                Adopted(ProcessName(**entry.told(OFFERED)["taker"])).close()
                continue  # it still lives, and has the kernel, or will end it
            del self._on_their_way[kernel_id]
            self._end(entry, "the program that was to take it has ended")

    async def _end_stale(self, pool: Pool, spec: WarmSpec) -> None:
        digest = await asyncio.to_thread(spec.digest)
        for entry in list(pool.entries.values()):
            if self._place(entry) is None or self._holder.is_moving(entry.kernel_id):
                continue
            stale = await asyncio.to_thread(why_stale, entry, digest)
            stale = stale or why_unfit(entry.told(LAUNCHED)["environ"], self._launch_environ(entry, pool))
            if stale is not None and entry.kernel_id in pool.entries:
                self._end_of(pool, entry, f"it is stale: {stale}")

    def _launch_environ(self, entry: Entry, pool: Pool) -> Mapping[str, str]:
        """Return what a kernel's environment would be if it was made now, as far as its pool's has changed."""
        made, before = entry.told(LAUNCHED)["environ"], read_at_start(entry.told(ENTRY)["environ"])
        now = read_at_start(pool.environ)
        changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
        return {
            **{name: value for name, value in made.items() if name not in changed},
            **{name: now[name] for name in changed & now.keys()},
        }

    def _end_beyond(self, pool: Pool, spec: WarmSpec) -> None:
        beyond = len(pool.entries) - spec.count
        for entry in [each for each in pool.entries.values() if self._place(each) is not None][
            : max(beyond, 0)
        ]:
            self._end_of(pool, entry, f"{spec.name} has {spec.count} warm kernels")

    async def _end_beyond_memory(self, pool: Pool) -> None:
        """End the newest of a pool's kernels while the user's have more host memory than they may."""
        most_bytes = pool.settings.get("most_bytes", 0)
        ready = [entry for entry in pool.entries.values() if self._place(entry) == "process"]
        if not most_bytes or not ready:
            return
        everything = [entry for each in self._pools.values() for entry in each.entries.values()]
        if await self._bytes(everything) > most_bytes and ready[-1].kernel_id in pool.entries:
            pool.one_bytes = await self._bytes(ready[-1:])
            self._end_of(pool, ready[-1], "its user's warm kernels have more host memory than they may")

    async def _maybe_make(self, pool: Pool, spec: WarmSpec) -> None:
        if len(pool.entries) >= spec.count:
            pool.note = None
            return
        if self._failure(pool, spec) is not None:
            return
        everything = [entry for each in self._pools.values() for entry in each.entries.values()]
        most = pool.settings.get("per_user", PER_USER)
        if most and len(everything) >= most:
            pool.note = f"a user may have {most} at a time"
            return
        most_bytes = pool.settings.get("most_bytes", 0)
        if most_bytes and await self._bytes(everything) + pool.one_bytes > most_bytes:
            pool.note = f"a user's warm kernels may have {bytes_in_words(most_bytes)}"
            return
        pool.note = None
        self._making = asyncio.get_running_loop().create_task(self._make(pool, spec))

    async def _bytes(self, entries: list[Entry]) -> int:
        held = [kernel for entry in entries if (kernel := self._holder.held(entry.kernel_id)) is not None]
        sizes = await asyncio.to_thread(resident_bytes, [kernel.record.process.pid for kernel in held])
        return sum(sizes.values())

    # ---- making one

    async def _make(self, pool: Pool, spec: WarmSpec) -> None:
        entry = Entry.new(
            self._folder,
            {
                "spec": pool.spec,
                "digest": await asyncio.to_thread(spec.digest),
                "environ": without_hub(pool.environ),
                "made_at": time.time(),
                "settings": pool.settings,
                "prelude": spec.prelude,
            },
        )
        pool.entries[entry.kernel_id] = entry
        self._log.info("a warm kernel of %s is made: %s", spec.name, entry.kernel_id)
        try:
            await self._start(entry, pool)
        except OSError as error:
            return self._failed(pool, entry, f"It could not be started: {error}", again=True)
        await self._follow(pool, entry)
        return None

    async def _start(self, entry: Entry, pool: Pool) -> None:
        """Start its process, by a program that ends then. Raises OSError."""
        log = self._folder / "making.log"
        with log.open("wb") as said:
            maker = subprocess.Popen(
                module_command("jupyter_affinode.provisioning.making", str(entry.folder)),
                env={**pool.environ, environment.FOLDER: str(self._folder.parent)},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        status = await asyncio.to_thread(maker.wait)
        if status != 0:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise OSError(lines[-1] if lines else f"its start ended with status {status}")

    async def _follow(self, pool: Pool, entry: Entry, *, of_before: bool = False) -> None:
        """Wait until a kernel is ready. `of_before`: an earlier keeper began it, and may not have come to start it."""
        try:
            await self._until_ready(pool, entry, of_before)
        except (OSError, LookupError) as error:
            self._failed(pool, entry, f"It could not be kept: {error}", again=True)
        self._changed.set()

    async def _until_ready(self, pool: Pool, entry: Entry, of_before: bool) -> None:
        """Wait for the end of its prelude, and hold it then."""
        began = time.monotonic()
        while entry.kernel_id in pool.entries and (ready := entry.read(READY)) is None:
            has_begun = entry.read("started.json") is not None
            if has_begun and entry.process is None and entry.read(READY) is None:
                return self._failed(pool, entry, "Its process ended before the prelude did.", again=True)
            if not has_begun and time.monotonic() - began > STARTS_WITHIN_S:
                if of_before:
                    return self._end_of(pool, entry, "it was never started")
                return self._failed(
                    pool, entry, "Its kernel did not run start-up code: is it ipykernel's?", again=True
                )
            await asyncio.sleep(POLL_S)
        if entry.kernel_id not in pool.entries:
            return None  # it was ended meanwhile
        assert ready is not None
        if ready["error"]:
            return self._failed(pool, entry, ready["error"])
        pool.failed = None
        self._save(pool)
        await self._hold(pool, entry)
        return None

    async def _hold(self, pool: Pool, entry: Entry) -> None:
        """Keep a kernel that is ready, off the GPU."""
        if self._place(entry) is not None:
            return  # it is kept, or in an image
        process = entry.process
        kernel = None if process is None else await self._holder.hold(self._record(pool, entry, process))
        if kernel is None:
            pool.entries.pop(entry.kernel_id, None)
            entry.remove()
            return
        kernel.at_hub = pool.at_hub
        if kernel.record.is_managed:
            self._tasks.add(asyncio.get_running_loop().create_task(self._park(entry)))
        pool.one_bytes = await self._bytes([entry])

    async def _park(self, entry: Entry) -> None:
        """Have a kernel's GPU memory parked, if it has any: again for a while, since its controller may be new."""
        for _ in range(PARK_TRIES):
            kernel = self._holder.held(entry.kernel_id)
            if kernel is None or not kernel.is_kept:
                return
            with contextlib.suppress(ControllerUnavailable, ControllerRefused):
                await on_own_thread(KernelMessages(entry.kernel_id).park, timeout_s=None)
                return
            await asyncio.sleep(PARK_AGAIN_S)

    def _record(self, pool: Pool, entry: Entry, process: ProcessName) -> Record:
        spec = self._spec(pool)
        settings = entry.told(ENTRY)["settings"]
        images = (
            {} if not settings.get("hibernate_dir") else {"hibernate_after_s": settings["hibernate_after_s"]}
        )
        return Record(
            kernel_id=entry.kernel_id,
            kernel_name=os.path.basename(pool.spec),
            owner=OWNER,
            process=process,
            process_group=os.getpgid(process.pid),
            connection_file=str(entry.folder / CONNECTION),
            connection=entry.connection,
            is_managed=entry.told(READY)["has_shim"],
            description={
                "name": spec.display_name if spec is not None else None,
                "language": spec.language if spec is not None else None,
                "path": None,
                **images,
            },
            hibernate_dir=settings.get("hibernate_dir", ""),
            hibernate_after_s=settings.get("hibernate_after_s", 0.0),
            image_bytes_max=settings.get("image_bytes_max", 0),
            image_spare_bytes=settings.get("image_spare_bytes", 0),
            warm=pool.spec,
        )

    # ---- the end

    def has_ended(self, kernel_id: str) -> None:
        """Note that a warm kernel's process has ended."""
        with contextlib.suppress(ControllerUnavailable):
            KernelMessages(kernel_id).tell_forget()
        for pool in self._pools.values():
            entry = pool.entries.pop(kernel_id, None)
            if entry is not None:
                entry.remove()
                self._changed.set()

    def _failed(self, pool: Pool, entry: Entry, words: str, *, again: bool = False) -> None:
        self._log.warning("a warm kernel of %s failed: %s", os.path.basename(pool.spec), words)
        pool.failed = {
            "words": words,
            "digest": entry.told(ENTRY)["digest"],
            "folders": (entry.read(READY) or {}).get("folders", {}),
            "again_at": since_boot_s() + TRY_AGAIN_S if again else None,
        }
        self._save(pool)
        self._end_of(pool, entry, "its prelude failed")

    def _failure(self, pool: Pool, spec: WarmSpec) -> Path | None:
        """Return a file that says why none can be made, until that may have changed; None: one can be tried."""
        failed = pool.failed
        if failed is None:
            return None
        is_due = failed["again_at"] is not None and since_boot_s() >= failed["again_at"]
        if is_due or failed["digest"] != spec.digest() or first_changed(failed["folders"]) is not None:
            pool.failed = None
            return None
        path = self._folder / f"failed-{pool.id}.txt"
        path.write_text(failed["words"], encoding="utf-8")
        return path

    def _empty(self, pool: Pool, why: str) -> None:
        for entry in list(pool.entries.values()):
            if not self._holder.is_moving(entry.kernel_id):
                self._end_of(pool, entry, why)

    def _end_of(self, pool: Pool, entry: Entry, why: str) -> None:
        pool.entries.pop(entry.kernel_id, None)
        self._end(entry, why)

    def _end(self, entry: Entry, why: str) -> None:
        """End a kernel, also one that is being made. Its folder is removed once nothing else tells of its process."""
        if self._place(entry) is not None:
            self._holder.end_now(entry.kernel_id, why)
        else:
            entry.kill()
        entry.remove()

    def _save(self, pool: Pool) -> None:
        try:
            environment.make_folder(self._folder / POOLS)
            path = self._folder / POOLS / f"{pool.id}.json"
            path.with_suffix(".new").touch(mode=0o600)
            path.with_suffix(".new").write_text(json.dumps(pool.to_json()), encoding="utf-8")
            os.replace(path.with_suffix(".new"), path)
        except OSError as error:  # a full disk: it is in memory
            self._log.error("the pool of %s would be lost with this keeper: %s", pool.spec, error)
