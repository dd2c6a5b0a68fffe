"""Makes a warm kernel for a pool, follows it until its prelude has run, and keeps it then, off the GPU.

A program that ends then starts its process (provisioning/making.py), since a keeper imports no jupyter_client. A pool
remembers that making one failed, so that it is not tried again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from .. import environment
from ..client.errors import ControllerRefused, ControllerUnavailable
from ..client.kernel_messages import KernelMessages
from ..python_command import module_command
from ..threads import on_own_thread
from ..time_of_day import since_boot_s
from ..units import duration_in_words
from .processes import ProcessName
from .records import Owner, Record
from .warm_entry import CONNECTION, ENTRY, READY, STARTED, Entry
from .warm_pool import Holder, Pool, place_of, process_bytes
from .warm_spec import WarmSpec, first_changed, without_secrets

OWNER = Owner("warm", "")  # no server has this name: a Hub's end with a slash
PRELUDE_S = 1800.0  # where no server has said how long a prelude may run
STARTS_WITHIN_S = 60.0  # a kernel that has not said that it runs by then never began
POLL_S = 0.1
PARK_AGAIN_S, PARK_TRIES = 3.0, 20
TRY_AGAIN_S = 600.0  # until another try, after a process ended by itself


class WarmMaker:
    """Makes the warm kernels of a user."""

    def __init__(self, holder: Holder, folder: Path, log: logging.Logger, on_end: Callable[[], None]):
        """Make entries in a folder; call `on_end` once a kernel is ready or has failed."""
        self._holder = holder
        self._folder = folder
        self._log = log
        self._on_end = on_end
        self._tasks: set[asyncio.Task[None]] = set()  # of kernels that are followed beside `make`, or parked

    async def make(self, pool: Pool, spec: WarmSpec) -> None:
        """Make a kernel for a pool, which has it from its start on; return once it is ready or has failed."""
        digest = await asyncio.to_thread(spec.digest)
        told = {
            "spec": pool.spec,
            "digest": digest,
            "environ": without_secrets(pool.environ),
            "made_at": time.time(),
            "settings": pool.settings,
            "prelude": spec.prelude,
        }
        try:
            entry = Entry.new(self._folder, told)
        except OSError as error:  # a full disk
            return self._note(pool, digest, f"It could not be started: {error}", {}, again=True)
        pool.entries[entry.kernel_id] = entry
        self._log.info("a warm kernel of %s is made: %s", spec.name, entry.kernel_id)
        try:
            await self._start(entry, pool)
        except OSError as error:
            return self._failed(pool, entry, f"It could not be started: {error}", again=True)
        await self._follow(pool, entry)
        return None

    async def go_on(self, pool: Pool, entry: Entry) -> None:
        """Hold a kernel that an earlier keeper made; follow one that it began."""
        if entry.read(READY) is not None:
            await self._hold(pool, entry)
        else:
            self._beside(self._follow(pool, entry, of_before=True))

    def _beside(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        self._on_end()

    async def _until_ready(self, pool: Pool, entry: Entry, of_before: bool) -> None:
        """Wait for the end of its prelude, and hold it then."""
        began, most_s = time.monotonic(), pool.settings.get("prelude_s", PRELUDE_S)
        while entry.kernel_id in pool.entries and (ready := entry.read(READY)) is None:
            has_begun = entry.read(STARTED) is not None
            if has_begun and entry.process is None and entry.read(READY) is None:
                return self._failed(pool, entry, "Its process ended before the prelude did.", again=True)
            if not has_begun and time.monotonic() - began > STARTS_WITHIN_S:
                if of_before:
                    return pool.end(self._holder, entry, "it was never started")
                return self._failed(
                    pool, entry, "Its kernel did not run start-up code: is it ipykernel's?", again=True
                )
            if has_begun and time.monotonic() - began > most_s:
                lasts = duration_in_words(most_s)
                return self._failed(pool, entry, f"Its prelude had not ended after {lasts} (warm_prelude_s).")
            await asyncio.sleep(POLL_S)
        if entry.kernel_id not in pool.entries:
            return None  # it was ended meanwhile
        assert ready is not None
        if ready["error"]:
            return self._failed(pool, entry, ready["error"])
        pool.failed = None
        pool.save(self._folder, self._log)
        await self._hold(pool, entry)
        return None

    async def _hold(self, pool: Pool, entry: Entry) -> None:
        """Keep a kernel that is ready, off the GPU."""
        if place_of(self._holder, entry) is not None:
            return  # it is kept, or in an image
        process = entry.process
        record = None if process is None else self._record(pool, entry, process)
        kernel = None if record is None else await self._holder.hold(record, pool.at_hub)
        if kernel is None:
            pool.entries.pop(entry.kernel_id, None)
            entry.remove()
            return
        if kernel.record.is_managed:
            self._beside(self._park(entry))
        pool.one_bytes = await process_bytes(self._holder, [entry])

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
        spec = pool.read_spec()
        settings = entry.told(ENTRY)["settings"]
        images = {"hibernate_after_s": settings["hibernate_after_s"]} if settings.get("hibernate_dir") else {}
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

    def _failed(self, pool: Pool, entry: Entry, words: str, *, again: bool = False) -> None:
        if entry.kernel_id not in pool.entries:
            return  # it was ended meanwhile, and failed by that
        folders = (entry.read(READY) or {}).get("folders", {})
        self._note(pool, entry.told(ENTRY)["digest"], words, folders, again=again)
        pool.end(self._holder, entry, words)

    def _note(self, pool: Pool, digest: str, words: str, folders: dict[str, Any], *, again: bool) -> None:
        """Remember why a kernel could not be made of what has this digest. `again`: it can be tried after a while."""
        self._log.warning("a warm kernel of %s failed: %s", os.path.basename(pool.spec), words)
        again_at = since_boot_s() + TRY_AGAIN_S if again else None
        pool.failed = {"words": words, "digest": digest, "folders": folders, "again_at": again_at}
        pool.save(self._folder, self._log)

    def failure(self, pool: Pool, spec: WarmSpec) -> Path | None:
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
