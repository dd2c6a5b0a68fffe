"""Kernels that no server has had yet: the keeper has them made, and gives each to the one notebook that takes it.

A warm kernel is a kept kernel with an entry (warm_entry.py), which warm_making.py makes. It is parked and hibernates as
other kept kernels do. The program that takes it is told which it is, hands it over itself (provisioning/taking.py), and
says so; where it hangs up before, the kernel is ended, since it may have been handed over in part.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..client.errors import ControllerUnavailable
from ..client.kernel_messages import KernelMessages
from ..time_of_day import since_boot_s
from ..units import bytes_in_words
from .at_hub import AtHub
from .processes import Adopted, ProcessName, name_of
from .warm_entry import ENTRY, LAUNCHED, OFFERED, READY, Entry, entries_in
from .warm_making import WarmMaker
from .warm_pool import POOLS, Holder, Pool, end_kernel, place_of, process_bytes, view_of, why_stale
from .warm_spec import WarmSpec, read_at_start, read_spec, why_unfit

FOLDER_NAME = "warm"
LOOK_EVERY_S = 2.0
CHECK_EVERY_S = 30.0  # whether what kernels are made of has changed
MAKE_AFTER_S = 1.5  # another is taken: its notebook's first cell needs the processors more
KEEP_S = 3600.0
PER_USER = 4
REMOVED = "its kernelspec is removed"

Answer = dict[str, Any]


class WarmPools:
    """All warm kernels of a user."""

    def __init__(self, holder: Holder, folder: Path, log: logging.Logger):
        """Use a folder, which is the user's own."""
        self._holder = holder
        self._folder = folder
        self._log = log
        self._pools: dict[str, Pool] = {}  # by the kernelspec's folder
        self._offers: dict[object, dict[str, Entry]] = {}
        # Kernels that may be their taker's: an earlier keeper offered them, or their server has not told of them yet.
        self._on_their_way: dict[str, Entry] = {}
        self._wanting: dict[object, set[str]] = {}
        self._was_empty = True
        self._has_begun = False  # whether it is known which kernels an earlier keeper had
        self._changed = asyncio.Event()
        self._maker = WarmMaker(holder, folder, log, on_end=self._changed.set)
        self._dropped: list[Pool] = []  # that have kernels which are being made, or moved
        self._making: asyncio.Task[None] | None = None
        self._checked_at = 0.0
        self._make_at = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held and nothing is to be made."""
        pools = self._pools.values()
        has_some = any(pool.entries or self._is_wanted(pool) for pool in pools)
        return not (self._on_their_way or self._dropped or has_some)

    # ---- the start

    async def begin(self) -> None:
        """Take what an earlier keeper had: kernels that are ready, and those that will be."""
        for path in sorted((self._folder / POOLS).glob("*.json")):
            with contextlib.suppress(OSError, ValueError, TypeError):
                known = Pool.read(path)
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
                end_kernel(self._holder, entry, "its kernelspec is not known any more")
            else:
                pool.entries[entry.kernel_id] = entry
                await self._maker.go_on(pool, entry)
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

    async def want(self, writer: object, request: Answer) -> Answer:
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
        pool.save(self._folder, self._log)
        self._changed.set()
        return pool

    async def offer(self, writer: object, request: Answer) -> Answer:
        """Give a client a warm kernel that fits its notebook, which no other client gets; or say why there is none."""
        pool = self._wanted(request)
        self._changed.clear()  # what is taken is made anew afterwards
        spec = read_spec(pool.spec)
        if spec is None:
            raise LookupError(f"{pool.spec} has no warm kernels any more")
        failed = self._maker.failure(pool, spec)
        if failed is not None and pool.failed is not None and pool.failed["again_at"] is None:
            self._changed.set()
            return {"offer": None, "why": "its prelude failed", "failed": str(failed)}
        why = "none was made yet" if not pool.entries else "none is ready yet"
        for entry in self._ready(pool):
            stale = await asyncio.to_thread(why_stale, entry, spec.digest())
            if stale is not None and entry.kernel_id in pool.entries:
                pool.end(self._holder, entry, f"it is stale: {stale}")
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
            except Exception as error:  # an unusable image, for example: the notebook is to open all the same
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
            if not self._holder.is_moving(entry.kernel_id) and place_of(self._holder, entry) is not None
        ]
        return sorted(
            found,
            key=lambda entry: (place_of(self._holder, entry) != "process", entry.told(ENTRY)["made_at"]),
        )

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

    def taken(self, writer: object, request: Answer) -> None:
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

    def hung_up(self, writer: object) -> None:
        """End what a client was offered and has not said that it has; keep pools no longer for its sake."""
        for entry in list(self._offers.get(writer, {}).values()):
            self._discard(writer, entry, "the program that was to take it has ended")
        self._offers.pop(writer, None)
        for spec in self._wanting.pop(writer, set()):
            if spec in self._pools:
                self._pools[spec].wanted_at = since_boot_s()
                self._pools[spec].save(self._folder, self._log)
        self._changed.set()

    def _discard(self, writer: object, entry: Entry, why: str) -> None:
        self._offers.get(writer, {}).pop(entry.kernel_id, None)
        end_kernel(self._holder, entry, why)

    async def list_all(self, writer: object, request: Answer) -> list[Answer]:
        """Say what there is, by kernelspec."""
        return [await self._view(pool) for pool in list(self._pools.values())]

    async def _view(self, pool: Pool) -> Answer:
        return {**await view_of(self._holder, pool), "is_wanted": self._is_wanted(pool)}

    def drop(self, writer: object, request: Answer) -> None:
        """End a kernelspec's warm kernels, and make none any more."""
        self._drop(request["spec"])
        self._changed.set()

    def _drop(self, spec: str) -> None:
        pool = self._pools.pop(spec, None)
        if pool is not None:
            self._dropped.append(pool)
            self._empty(pool, REMOVED)
            pool.path(self._folder).unlink(missing_ok=True)

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
        for pool in self._dropped:
            self._empty(pool, REMOVED)
        self._dropped = [pool for pool in self._dropped if pool.entries or self._is_making]
        if not self._pools:
            return
        now = time.monotonic()
        checks = now - self._checked_at > CHECK_EVERY_S
        self._checked_at = now if checks else self._checked_at
        for pool in list(self._pools.values()):
            if not os.path.exists(os.path.join(pool.spec, "kernel.json")):
                self._drop(pool.spec)
                continue
            spec = pool.read_spec()
            if spec is None or spec.count == 0:
                self._empty(pool, "its kernelspec wants none, or cannot be read")
                continue
            if not self._is_wanted(pool):
                self._empty(pool, "no server or program has wanted it for a while")
                continue
            if checks:
                await self._end_stale(pool, spec)
            self._end_beyond(pool, spec)
            await self._end_beyond_memory(pool)
            if not self._is_making and now >= self._make_at:
                await self._maybe_make(pool, spec)

    @property
    def _is_making(self) -> bool:
        return self._making is not None and not self._making.done()

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
                end_kernel(self._holder, entry, "it was never handed over")
                continue
            if process is None or self._holder.is_anothers(process, kernel_id):
                del self._on_their_way[kernel_id]
                self._give_away(entry)
                continue
            with contextlib.suppress(ProcessLookupError, LookupError, TypeError):
                Adopted(ProcessName(**entry.told(OFFERED)["taker"])).close()
                continue  # it still lives, and has the kernel, or will end it
            del self._on_their_way[kernel_id]
            end_kernel(self._holder, entry, "the program that was to take it has ended")

    async def _end_stale(self, pool: Pool, spec: WarmSpec) -> None:
        digest = await asyncio.to_thread(spec.digest)
        for entry in list(pool.entries.values()):
            if place_of(self._holder, entry) is None or self._holder.is_moving(entry.kernel_id):
                continue
            stale = await asyncio.to_thread(why_stale, entry, digest)
            stale = stale or why_unfit(entry.told(LAUNCHED)["environ"], self._launch_environ(entry, pool))
            if stale is not None and entry.kernel_id in pool.entries:
                pool.end(self._holder, entry, f"it is stale: {stale}")

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
        ready = [entry for entry in pool.entries.values() if place_of(self._holder, entry) is not None]
        for entry in ready[: max(len(pool.entries) - spec.count, 0)]:
            pool.end(self._holder, entry, f"{spec.name} has {spec.count} warm kernels")

    async def _end_beyond_memory(self, pool: Pool) -> None:
        """End the newest of a pool's kernels while the user's have more host memory than they may."""
        most_bytes = pool.settings.get("most_bytes", 0)
        ready = [entry for entry in pool.entries.values() if place_of(self._holder, entry) == "process"]
        if not most_bytes or not ready:
            return
        newest = ready[-1]
        everything = [entry for each in self._pools.values() for entry in each.entries.values()]
        one_bytes = await process_bytes(self._holder, [newest])
        is_too_much = await process_bytes(self._holder, everything) > most_bytes
        is_here = newest.kernel_id in pool.entries and place_of(self._holder, newest) == "process"
        if is_too_much and is_here and not self._holder.is_moving(newest.kernel_id):
            pool.one_bytes = one_bytes
            pool.end(self._holder, newest, "its user's warm kernels have more host memory than they may")

    async def _maybe_make(self, pool: Pool, spec: WarmSpec) -> None:
        if len(pool.entries) >= spec.count:
            pool.note = None
            return
        if self._maker.failure(pool, spec) is not None:
            return
        everything = [entry for each in self._pools.values() for entry in each.entries.values()]
        most = pool.settings.get("per_user", PER_USER)
        if most and len(everything) >= most:
            pool.note = f"a user may have {most} at a time"
            return
        most_bytes = pool.settings.get("most_bytes", 0)
        if most_bytes and await process_bytes(self._holder, everything) + pool.one_bytes > most_bytes:
            pool.note = f"a user's warm kernels may have {bytes_in_words(most_bytes)}"
            return
        pool.note = None
        self._making = asyncio.get_running_loop().create_task(self._maker.make(pool, spec))

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

    def _empty(self, pool: Pool, why: str) -> None:
        for entry in list(pool.entries.values()):
            if not self._holder.is_moving(entry.kernel_id):
                pool.end(self._holder, entry, why)
