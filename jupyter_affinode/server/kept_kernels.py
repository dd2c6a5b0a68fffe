"""Kernels of this server that outlive it: what the keeper is told, hand-over at the end, adoption at the start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import NoSuchKernel
from jupyter_core.utils import ensure_async

from ..client.api import ControllerRefused, ControllerUnavailable
from ..environment import GRANT_FILE, GRANT_URL
from ..keeping.at_hub import AtHub
from ..keeping.client import Ended, Keeper, KeeperRefused, KeeperUnavailable, Kept, connected, is_there
from ..keeping.life_table import HAS_PROCESS
from ..keeping.messages import Held, Undelivered
from ..keeping.processes import lives, name_of
from ..keeping.records import Owner, Record
from ..keeping.surroundings import warnings_for, why_nothing_hibernates
from ..provisioning.kernelspec import scheduling_fields
from ..provisioning.provisioner import AffinodeProvisioner
from ..time_of_day import clock_in_words
from .adoption import Adoption
from .controller_watch import NodeWatch, cancelled
from .hibernation import Hibernation, Refused
from .readers import Readers
from .replay import Replay, TabBefore

LOOK_EVERY_S = 2.0
HAND_OVER_S = 8.0  # for all kernels: a Hub kills its servers 10 s after it asked them to end
PARK_S, ASK_S = 5.0, 2.0  # of these
INTERRUPTED_S = 8.0  # for a cell to end that was interrupted
OFF_THE_GPU = ("none", "parked")
SMALL_BYTES = 64 << 20  # of memory on the GPU, without which parking leaves no kernel
ENDS_AFTER_S = (
    60.0  # a kernel that does not outlive its server, where that was killed; a new keeper is told sooner
)


@dataclass(frozen=True)
class Limits:
    """For how long a kernel is kept, and how many of a user are, with how much host memory; 0: no limit."""

    keep_s: float
    most_kernels: int
    most_bytes: int


@dataclass(frozen=True)
class ImageSettings:
    """Where images of hibernated kernels go ("": kernels do not hibernate), after how long a kernel hibernates, for
    how long its image stays (0: not by itself; for ever), how much all of a user's take (0: any), and what they leave
    free of the disk.
    """

    folder: str = ""
    after_s: float = 0.0
    keep_s: float = 0.0
    most_bytes: int = 0
    spare_bytes: int = 0


class KeptKernels:
    """Keeps the kernels that our provisioner starts, as the administrator wants it."""

    def __init__(
        self,
        serverapp: Any,
        watch: NodeWatch,
        limits: Limits,
        *,
        which: str,
        images: ImageSettings,
        hibernation_changed: Callable[[str], None],
        name: str,
        log: logging.Logger,
    ):
        """`which`: "never", "parked", "all" or "hibernated"; `name`: what a Hub calls this server, or "".

        `hibernation_changed` is called with a kernel of whose hibernation a person sees something else.
        """
        self._app = serverapp
        self._manager = serverapp.kernel_manager
        self._watch = watch
        self._which = which
        self._limits = limits
        self._images = images
        self._owner = Owner(name, str(Path(serverapp.root_dir).resolve()))
        self._log = log
        self._keeper: Keeper | None = None
        self._told: dict[str, Record] = {}  # what this keeper took of each kernel
        self._said: set[tuple[str, str]] = set()  # why the keeper does not take a kernel
        self._adoption = Adoption(serverapp, log)
        self._replay = Replay(self._manager)
        self._unseen: dict[str, Kept] = {}  # adopted kernels that no tab has attached to
        self._stay: set[str] = set()  # kernels that run on when the server ends
        self._readers = Readers(self._delivered, self._look)
        self.hibernation = Hibernation(
            self._manager,
            images.folder,
            images.after_s,
            self._readers.connections,
            hibernation_changed,
            log,
        )
        self.open_cells: Callable[[str], list[str]] = (
            lambda kernel_id: []
        )  # the requests that a kernel executes
        self._server = name_of(os.getpid())
        self._was_signalled = False
        self._is_ending = False
        self._changed = asyncio.Event()
        self._telling = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._adopting: asyncio.Task[None] | None = None

    @property
    def _is_used(self) -> bool:
        """Whether kernels of this server may outlive it, or hibernate: the keeper knows them then."""
        return self._which != "never" or bool(self._images.folder)

    @property
    def leaves_kernels(self) -> bool:
        """Whether kernels run on without this server, which has ended."""
        return bool(self._stay)

    # ---- the start

    def begin(self, settings: dict[str, Any]) -> None:
        """Adopt what is kept for this server. Called before it answers requests, or it would forget sessions.

        `settings`: what the extension adds to the settings of the server's application.
        """
        if self._which == "never" and not (is_there() or self._images.folder):
            return
        for warning in warnings_for(self._which, self._images.folder):
            self._log.warning("%s", warning)
        if self._is_used:
            self._readers.watch(settings)
            self._readers.hibernation = self.hibernation if self._images.folder else None
            self.hibernation.on_awake = self._replay.begin_expected
            self.hibernation.keeper = self._reached
            self.hibernation.tell_keeper = self._tell_keeper
            self.hibernation.on_held = self._held
            self.hibernation.on_passed = self._passed
        loop = self._app.io_loop.asyncio_loop
        if loop.is_running():
            self._adopting = loop.create_task(self._begin())
        else:
            loop.run_until_complete(self._begin())
        self._note_signals()

    async def _begin(self) -> None:
        try:
            self._keeper = await self._connected()
            offered, ended = await self._keeper.offered(self._owner, self._images.folder)
        except (KeeperUnavailable, KeeperRefused) as error:
            self._log.error("Kernels of this server will end with it: %s", error)
            return
        for each in ended:
            self._log.warning("%s", _obituary(each))
        await asyncio.gather(*(self._adopt(self._keeper, each) for each in offered))
        AffinodeProvisioner.keeps = self._is_used

    async def _connected(self) -> Keeper:
        keeper = await connected()
        keeper.on_life = self.hibernation.show
        keeper.on_quiet = self.hibernation.until_quiet
        keeper.on_hear = self.hibernation.until_heard
        keeper.on_end = self._look  # the next one is to know at once that its kernels have a server
        return keeper

    async def _reached(self) -> Keeper:
        """Return the keeper, which knows what this server has. Raises KeeperUnavailable."""
        if self._keeper is None or self._keeper.is_gone:
            await self._tell_keeper()
        if self._keeper is None:
            raise KeeperUnavailable("the keeper of this user's kernels cannot be reached")
        return self._keeper

    async def _adopt(self, keeper: Keeper, offered: Kept) -> None:
        """Take a kernel: this server listens to it before the keeper lets go of it, so that nothing is missed."""
        kernel_id = offered.record.kernel_id
        try:
            manager = await self._adoption.put_in(offered)
            if offered.life in HAS_PROCESS:
                await self._replay.begin(kernel_id, manager, offered.record.readers)
            kept, undelivered, held = await keeper.take(kernel_id)
        except Exception as error:  # an error about one kernel must not keep the server from starting
            is_usual = isinstance(error, (KeeperUnavailable, KeeperRefused, ProcessLookupError, NoSuchKernel))
            self._log.error("Kernel %s could not be adopted: %s", kernel_id, error, exc_info=not is_usual)
            self._replay.end(kernel_id)
            if kernel_id in self._manager:
                self._adoption.take_out(kernel_id)
            with contextlib.suppress(KeeperUnavailable, KeeperRefused):
                await keeper.decline(kernel_id)
            return
        if offered.life in HAS_PROCESS:
            self._replay.put_before(kernel_id, undelivered)
        else:
            self._replay.expect(kernel_id, offered.record.readers)
        self._told[kernel_id] = kept.record
        self._unseen[kernel_id] = kept
        self.hibernation.show(kept)
        self.hibernation.hold_again(
            kernel_id, [(TabBefore(self._replay, kernel_id, each), each.message) for each in held]
        )
        how = "is hibernated" if kept.is_out else "ran on without one"
        self._log.info("Kernel %s is this server's again: it %s.", kernel_id, how)

    def _note_signals(self) -> None:
        """Tell an end by a signal, as a Hub or systemd ends servers, from one that the user chose in the menu.

        jupyter_server handles SIGINT at a terminal alone; a Hub's servers, which have none, would end without a word.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        stop: Callable[[Any, Any], None] = self._app._signal_stop

        def noted(number: Any, frame: Any) -> None:
            if self._was_signalled:
                return  # Slurm signals a job twice; ending again would stop what the first has begun
            self._was_signalled = True
            # Not within the handler: it logs, and raises where the signal came in the midst of another line.
            self._app.io_loop.add_callback_from_signal(stop, number, frame)

        self._app._signal_stop = noted
        signal.signal(signal.SIGTERM, noted)
        if not (sys.stdin and sys.stdin.isatty()):
            signal.signal(signal.SIGINT, noted)

    # ---- while the server runs

    async def start(self) -> None:
        """Begin to tell the keeper of this server's kernels. Called with the event loop running."""
        if self._adopting is not None:
            await self._adopting
        if self._is_used:
            self._task = asyncio.get_running_loop().create_task(self._keep_up(), name="affinode-kept-kernels")
            if (why := await why_nothing_hibernates(self._which, self._images.folder)) is not None:
                self._log.warning("%s", why)

    async def list_unseen(self) -> list[dict[str, Any]]:
        """Return the kernels that ran on without a server and that no tab shows: this server's, and other servers'."""
        for kernel_id in list(self._unseen):
            manager = self._manager
            if kernel_id not in manager or manager.kernel_model(kernel_id)["connections"]:
                del self._unseen[kernel_id]
        found = [
            *(_description(kept, is_here=True) for kept in self._unseen.values()),
            *(_description(kept, is_here=False) for kept in await self._kept_elsewhere()),
        ]
        return sorted(found, key=lambda each: (not each["here"], each["path"] or "", each["id"]))

    async def _kept_elsewhere(self) -> list[Kept]:
        if self._keeper is None and not is_there():
            return []
        with contextlib.suppress(KeeperUnavailable, KeeperRefused):
            async with await connected() as keeper:
                return await keeper.list_kept()  # without those that a server has
        return []

    async def end(self, kernel_id: str) -> None:
        """Shut a kernel down that is kept for another server. Raises KeyError, KeeperUnavailable and KeeperRefused."""
        if kernel_id not in {kept.record.kernel_id for kept in await self._kept_elsewhere()}:
            raise KeyError(kernel_id)
        async with await connected() as keeper:  # one of its own: it may take seconds
            await keeper.end(kernel_id)

    async def on_kernel_action(self, logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        """Look at once after what the server's `kernel_actions` events tell."""
        self._look()
        if data.get("action") == "shutdown":
            self._replay.end(str(data.get("kernel_id")))

    async def _keep_up(self) -> None:
        while True:
            try:
                await self._tell_keeper()
            except Exception:  # the next round may work
                self._log.exception("Telling the keeper of this server's kernels failed")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_EVERY_S)
            self._changed.clear()

    async def _tell_keeper(self) -> None:
        """Have the keeper know this server's kernels as they are, also one that was started since it was told last."""
        async with self._telling:
            try:
                await self._tell_changes()
            except KeeperUnavailable as error:
                self._log.warning("The keeper of this server's kernels is to be reached anew: %s", error)
                await self._reconnect()
                with contextlib.suppress(KeeperUnavailable):
                    await self._tell_changes()

    async def _tell_changes(self) -> None:
        if self._keeper is None or self._keeper.is_gone:
            raise KeeperUnavailable("there is none")
        sessions = await ensure_async(self._app.session_manager.list_sessions())
        for kernel_id, manager in list(self._manager._kernels.items()):
            record = await self._record(kernel_id, manager, sessions)
            if record is not None and record != self._told.get(kernel_id):
                await self._tell(self._keeper, record)
        for kernel_id in self._told.keys() - self._manager._kernels.keys():
            await self._keeper.forget(kernel_id)
            self._readers.forget(kernel_id)
            self.hibernation.forget(kernel_id)
            del self._told[kernel_id]

    async def _tell(self, keeper: Keeper, record: Record) -> None:
        kernel_id = record.kernel_id
        try:
            kept = await keeper.update(record, at_hub(), self.open_cells(kernel_id))
        except KeeperRefused as refused:
            self._told.pop(kernel_id, None)
            # One that has just ended is told again as what its server starts.
            if lives(record.process) and (kernel_id, str(refused)) not in self._said:
                self._said.add((kernel_id, str(refused)))
                self._log.warning(
                    "Kernel %s would end with this server: its keeper does not take it: %s",
                    kernel_id,
                    refused,
                )
            return
        self._told[kernel_id] = record
        self.hibernation.show(kept)

    async def _reconnect(self) -> None:
        self._told.clear()
        try:
            self._keeper = await self._connected()
            AffinodeProvisioner.keeps = self._is_used and not self._is_ending
        except KeeperUnavailable as error:
            self._keeper, AffinodeProvisioner.keeps = None, False
            self._log.error("New kernels will end with this server: %s", error)

    async def _record(self, kernel_id: str, manager: Any, sessions: list[dict[str, Any]]) -> Record | None:
        """Return what adopting a kernel takes; None for one that ends with its server, or has ended."""
        provisioner = manager.provisioner
        if not (isinstance(provisioner, AffinodeProvisioner) and provisioner.outlives_server):
            return None
        try:
            process = self.hibernation.process_of(kernel_id) or provisioner.process_name
        except ProcessLookupError:
            return None  # it is starting again, or has ended
        spec = manager.kernel_spec
        paths = [session["path"] for session in sessions if session["kernel"]["id"] == kernel_id]
        launch = dict(manager._launch_args or {})
        environ = launch.pop("env", {}) or {}
        return Record(
            kernel_id=kernel_id,
            kernel_name=manager.kernel_name,
            owner=self._owner,
            process=process,
            process_group=provisioner.pgid,
            connection_file=manager.connection_file,
            connection={name: _as_text(value) for name, value in manager.get_connection_info().items()},
            is_managed=provisioner.managed,
            description={
                "name": spec.display_name,
                "language": spec.language,
                "path": paths[0] if paths else None,
                **self.hibernation.description(kernel_id, with_image=False),
                **scheduling_fields(spec),
            },
            launch={name: value for name, value in launch.items() if _is_json(value)},
            environ={name: value for name, value in environ.items() if os.environ.get(name) != value},
            sessions=[
                {name: session.get(name) for name in ("id", "path", "name", "type")}
                for session in sessions
                if session["kernel"]["id"] == kernel_id
            ],
            info=_kernel_info(manager),
            readers=list(dict.fromkeys([*self._replay.awaited(kernel_id), *self._readers.of(kernel_id)])),
            keep_s=ENDS_AFTER_S if self._which == "never" else self._limits.keep_s,
            most_kernels=self._limits.most_kernels,
            most_bytes=self._limits.most_bytes,
            hibernate_dir=self._images.folder,
            hibernate_after_s=self._images.after_s,
            image_keep_s=self._images.keep_s,
            image_bytes_max=self._images.most_bytes,
            image_spare_bytes=self._images.spare_bytes,
            server=self._server,
        )

    def _delivered(self, kernel_id: str, reader: str, channel: str, header: bytes) -> None:
        if self._keeper is not None and kernel_id in self._told:
            self._keeper.tell_delivered(kernel_id, reader, channel, header)

    def _held(self, kernel_id: str, held: Held) -> None:
        if self._keeper is not None:
            self._keeper.tell_held(kernel_id, held)

    def _passed(self, kernel_id: str) -> None:
        if self._keeper is not None:
            self._keeper.tell_passed(kernel_id)

    def _look(self) -> None:
        """Tell the keeper soon what has changed."""
        self._changed.set()

    # ---- the end

    async def begin_end(self) -> None:
        """Have kernels hibernate, if the server ends by a signal and only those in images are sure to outlive it.

        Called while this server still tells the controller about its kernels: one that it does not know as awake could
        not hibernate. What tabs have sent until now reaches their kernels first: their connections end before anything
        else, and they send what comes later to the next server.
        """
        self._is_ending = True
        AffinodeProvisioner.keeps = False
        if self._was_signalled and self._which != "never":
            await self._readers.close_tabs()
        self.hibernation.wakes = False
        if self._was_signalled and self._which == "hibernated":
            await self._all_into_images()

    async def stop(self) -> None:
        """Hand kernels over, if the server ends by a signal; those that are not kept the server shuts down afterwards.

        Called after this server has stopped telling the controller about its kernels.
        """
        if self._task is not None:
            await cancelled(self._task)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._settle(), HAND_OVER_S)
        if self._keeper is None:
            self._take_out(self._in_images())
            return
        try:
            await asyncio.wait_for(self._hand_over(), HAND_OVER_S)
        except asyncio.TimeoutError:  # kernels that are stopped, for example: the keeper has them as it is
            self._log.warning("Kernels are handed over in haste: some output may be lost.")
            self._take_out(self._stay & self._told.keys())
        except (KeeperUnavailable, KeeperRefused) as error:
            known = self._stay & self._told.keys()
            self._log.error(
                "The hand-over failed: %s. The keeper keeps %d kernels as it knew them, and %d end with this server.",
                error,
                len(known),
                len(self._stay & self._manager._kernels.keys() - known),
            )
            self._take_out(known)
        finally:
            self._take_out(self._in_images())  # whatever failed: to shut them down would delete their images
            with contextlib.suppress(KeeperUnavailable, KeeperRefused):
                for kernel_id in self._told.keys() & self._manager._kernels.keys():
                    await self._keeper.forget(kernel_id)  # the server shuts it down
            await self._keeper.close()

    async def _settle(self) -> None:
        """Have no kernel on its way, and the keeper know all of them, also one that was just started."""
        kernel_ids = list(self._manager._kernels)
        await asyncio.gather(*map(self.hibernation.settle, kernel_ids))
        if self._task is not None and (self._keeper is None or self._keeper.is_gone):
            try:
                await self._tell_keeper()
            except Exception:  # what is in images is taken out all the same
                self._log.exception("The keeper was not told of this server's kernels")

    def _in_images(self) -> set[str]:
        """Return the hibernated kernels that are to outlive this server."""
        if not self._was_signalled or self._which == "never":
            return set()
        return {each for each in self._manager._kernels if self.hibernation.is_hibernated(each)}

    def _take_out(self, kernel_ids: set[str]) -> None:
        for kernel_id in kernel_ids & self._manager._kernels.keys():
            self._taken_out(kernel_id)

    async def _all_into_images(self) -> None:
        kernel_ids = list(self._manager._kernels)
        ends = await asyncio.gather(*map(self._into_image, kernel_ids), return_exceptions=True)
        for kernel_id, error in zip(kernel_ids, ends, strict=True):
            if isinstance(error, Exception):
                self._log.error("Kernel %s is not hibernated.", kernel_id, exc_info=error)

    async def _into_image(self, kernel_id: str) -> None:
        """Have a kernel hibernate; a cell that runs is interrupted, since it would end with the kernel.

        There is no time limit: what ends the server knows how long that may be.
        """
        end = None
        with contextlib.suppress(KeyError):
            await self.hibernation.settled(kernel_id)
            while end is None or time.monotonic() < end:
                if end is None and self._is_busy(kernel_id):  # also a cell that is heard of by now only
                    await ensure_async(self._manager.interrupt_kernel(kernel_id))
                    end = time.monotonic() + INTERRUPTED_S
                if await self._hibernated(kernel_id):
                    break
                await asyncio.sleep(0.2)

    async def _hibernated(self, kernel_id: str) -> bool:
        """Return whether a kernel is hibernated, or cannot be; not while its cell runs, or it is on its way."""
        await self.hibernation.settled(kernel_id)
        try:
            await self.hibernation.hibernate(kernel_id)
        except Refused:
            return not self._is_busy(kernel_id)
        return True

    def _is_busy(self, kernel_id: str) -> bool:
        return bool(self._manager.get_kernel(kernel_id).execution_state == "busy")

    async def _hand_over(self) -> None:
        assert self._keeper is not None
        sessions = await ensure_async(self._app.session_manager.list_sessions())
        records = {
            kernel_id: record
            for kernel_id, manager in list(self._manager._kernels.items())
            if (record := await self._record(kernel_id, manager, sessions)) is not None
        }
        self._stay = {*(stay := await self._staying(records))}
        if not stay:
            return
        # A page that asked on a connection which it has would be told that these kernels are gone, and drop them.
        await self._app.http_server.close_all_connections()
        # From now on the server puts the messages of open tabs aside, as for a tab that is closed.
        await self._app.kernel_websocket_connection_class.close_all()
        ended: dict[str, str] = {}
        for kernel_id in stay:
            try:
                ended |= await self._keeper.hand_over(records[kernel_id], at_hub())
            except KeeperRefused as refused:  # the others are to be kept
                if kernel_id in self._told and lives(records[kernel_id].process):
                    self._log.warning("Kernel %s is kept as its keeper knows it: %s", kernel_id, refused)
                    self._taken_out(kernel_id)
                    continue
                self._log.warning("Kernel %s is not kept: %s", kernel_id, refused)
                self._stay.discard(kernel_id)
                self._told.pop(kernel_id, None)  # what the keeper has of it stays
                continue
            ended |= await self._keeper.release(kernel_id, self._undelivered(kernel_id))
            self._taken_out(kernel_id)
        for kernel_id, why in ended.items():
            what = _what_it_is(records[kernel_id]) if kernel_id in records else f"Kernel {kernel_id}"
            self._log.warning("%s is not kept: %s.", what, why)
        self._log.info("%d kernels outlive this server.", len(self._stay - ended.keys()))

    def _undelivered(self, kernel_id: str) -> Undelivered:
        """Return what tabs did not get: those that have not attached again, and the last that was closed."""
        undelivered = self._replay.end(kernel_id)
        buffer = self._manager._kernel_buffers.get(kernel_id)
        if buffer:
            undelivered.messages[buffer["session_key"].partition(":")[2]] = buffer["buffer"]
        for session, messages in self._readers.late(kernel_id).items():
            undelivered.messages[session] = [*messages, *undelivered.messages.get(session, [])]
        return undelivered

    async def _staying(self, records: dict[str, Record]) -> list[str]:
        """Return the kernels that are to run on: for "parked", those that use no GPU memory once they were parked."""
        if not self._was_signalled or self._which == "never":
            return []
        if self._which in ("all", "hibernated"):  # what could not hibernate goes on as long as it may
            return list(records)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*map(self._parked, records)), PARK_S)
        stay = []
        managed = [kernel_id for kernel_id, record in records.items() if record.is_managed]
        residencies = dict(
            zip(managed, await asyncio.gather(*map(self._residency, managed)), strict=True),
        )
        for kernel_id in records:
            if kernel_id not in residencies or residencies[kernel_id] in OFF_THE_GPU:
                stay.append(kernel_id)
            else:
                self._log.warning("Kernel %s is not kept: it uses the GPU.", kernel_id)
        return stay

    async def _parked(self, kernel_id: str) -> None:
        with contextlib.suppress(ControllerUnavailable, ControllerRefused):
            if await self._residency(kernel_id) not in OFF_THE_GPU:
                await self._watch.client.park(kernel_id)

    async def _residency(self, kernel_id: str) -> str | None:
        """Return where a kernel's GPU memory is; None if no controller says so: then it is not kept."""
        if self.hibernation.is_away(kernel_id):
            return "none"
        try:
            told = await asyncio.wait_for(self._watch.client.kernel(kernel_id), ASK_S)
            return "parked" if _has_nothing_to_park(told) else str(told["residency"])
        except ControllerRefused:
            return "none"  # the controller knows no such kernel
        except (ControllerUnavailable, asyncio.TimeoutError):
            return None

    def _taken_out(self, kernel_id: str) -> None:
        self._adoption.take_out(kernel_id)
        self.hibernation.forget(kernel_id)
        self._told.pop(kernel_id, None)


def _has_nothing_to_park(told: dict[str, Any]) -> bool:
    """Return whether a kernel has on the GPU what stays there when it is parked: its context, and small blocks."""
    small = sum(gpu["unmovable_bytes"] for gpu in told["gpus"]) <= SMALL_BYTES
    return (
        told["residency"] == "resident" and small and not any(gpu["resident_bytes"] for gpu in told["gpus"])
    )


def at_hub() -> AtHub | None:
    """Return this server's place at its Hub; None without one."""
    user, token = os.environ.get("JUPYTERHUB_USER", ""), os.environ.get("JUPYTERHUB_API_TOKEN", "")
    url = os.environ.get("JUPYTERHUB_API_URL", "")
    if not (user and token and url):
        return None
    grant_url, grant_file = (os.environ.get(name, "") for name in (GRANT_URL, GRANT_FILE))
    return AtHub(user, url, token, grant_url, grant_file)


def _kernel_info(manager: Any) -> dict[str, Any] | None:
    """Return what a kernel said of itself when its first tab asked."""
    told = getattr(manager, "_kernel_info_future", None)
    return told.result() if told is not None and told.done() and not told.cancelled() else None


def _what_it_is(record: Record) -> str:
    paths = ", ".join(session["path"] for session in record.sessions if session.get("path"))
    return f"The kernel of {paths}" if paths else f"Kernel {record.kernel_id}"


def _obituary(ended: Ended) -> str:
    what = _what_it_is(ended.record)
    when = clock_in_words(ended.at - time.time())
    return f"{what} ended at {when}, while no server ran: its process was killed, or ended by itself."


def _description(kept: Kept, *, is_here: bool) -> dict[str, Any]:
    record = kept.record
    return {
        "id": record.kernel_id,
        "name": record.description.get("name"),
        "path": next((session["path"] for session in record.sessions if session.get("path")), None),
        "here": is_here,
        "folder": None if is_here else record.owner.root,
        "server": None if is_here else record.owner.name or None,
        "since": clock_in_words(kept.kept_since - time.time()),
        "image_bytes": kept.bytes if kept.is_out else None,
        "deleted_at": None if kept.deleted_at is None else clock_in_words(kept.deleted_at - time.time()),
        "objection": kept.objection,
    }


def _as_text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
