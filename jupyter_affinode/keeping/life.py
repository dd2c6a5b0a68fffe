"""One kernel's life: its process, its image, the server that has it, and the work under way.

The state changes by the table in life_table.py alone. Three facts say what it is, and a later keeper finds it by them:
the process lives, the name of the image's manifest, and who has the claim on the image. Nothing else states where a
kernel is: others are shown `view()`.

Work that takes a while is one task, which is never left: what comes next waits for it, or has it stopped and waits for
its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ..hibernation import hibernate as images
from ..hibernation.claims import Claimed, Claims
from ..hibernation.disk import in_words
from ..hibernation.hibernate import CannotHibernate, CannotWake
from ..hibernation.image import Image, ImageRefused, Manifest
from ..hibernation.store import Bounds, image_of, notice_s
from ..threads import ended, joined
from ..units import bytes_in_words
from .at_controller import GpuMemory, tell_bytes, tell_forget
from .at_hub import AtHub
from .earlier_folder import folder_of, stand_in_for
from .hibernated import Hibernated, Reserved
from .kept_kernel import CLOSED, KeptKernel
from .life_table import HAS_PROCESS, IS_MOVING, IS_OUT, Event, State, Way, outcome
from .messages import Undelivered
from .processes import ProcessName, lives
from .records import Record, Records, to_json
from .terms import write_terms

SETTLES_S = 1.0  # from a cell's last message until the keeper has read it
HEARD_S = 2.0  # until a woken kernel must have heard that the keeper listens
RECONNECTED_S = 0.25  # other clients' sockets try again every tenth of a second
HELD_BYTES_MAX = 16 << 20
SERVER_ENDS_S = 0.1  # how often it is looked whether a server has ended that a keeper before knew
SHOW_EVERY_S = 0.5  # how much of an image is written
STOPPED = "it was stopped, and stays where it is"
NEEDED = "it was needed again at once, and is awake"
ENDED_AT_ONCE = "its process ended at once"
LOST = "its process ended before its GPU memory was back: it is again as it was when it hibernated"
IMAGE_GONE = "its image is not there any more: it was deleted, or woken elsewhere"
HAS_ENDED = "its process has ended"
SHUT_DOWN = "it is being shut down"


class LeaseLost(Exception):
    """The server that had the kernel has hung up, or does not answer."""


class Lease(Protocol):
    """The server that has a kernel: what only that can do for it, and what it is shown."""

    async def until_quiet(self, kernel_id: str) -> None:
        """Return once it passes nothing on to the kernel, and all that it passed on is answered.

        Raises CannotHibernate and LeaseLost.
        """

    async def until_heard(self, kernel_id: str, process: ProcessName, undelivered: Undelivered) -> None:
        """Return once all tabs of a kernel that was woken hear it. Raises LeaseLost."""

    def show(self, view: dict[str, Any]) -> None:
        """Show where a kernel is."""


@dataclass
class Means:
    """What lives have in common."""

    records: Records
    claims: Claims
    log: logging.Logger
    changed: Callable[[Life], None]  # called after each change of a state
    listen: Callable[..., KeptKernel] = KeptKernel


class Life:
    """A kernel that the keeper knows."""

    def __init__(self, record: Record, means: Means, state: State = State.FOUND):
        """Know a kernel by its record. One that is FOUND is to be looked at: `begin_look`."""
        self.record = record
        self.state = state
        self.lease: Lease | None = None
        self.at_hub: AtHub | None = None
        self.kernel: KeptKernel | None = None  # while a process of it is followed
        self.hibernated: Hibernated | None = None  # while an image of it counts, or may count again
        self.refusal: str | None = None  # why it did not hibernate, or could not be woken
        self.since = time.time()  # when the state began, by the time of day
        self.written_bytes = 0  # of its image so far
        self.ended_why: str | None = None  # of one that was ended by request
        self._means = means
        self._gpu = GpuMemory()
        self._work: asyncio.Task[Any] | None = None
        self._is_stopped = False  # the work under way was cancelled
        # What its tabs have sent while it is held back: its server has that, too, and may be killed.
        self.held: list[dict[str, Any]] = []
        self._keeping: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None  # until its GPU memory is back
        self._reserved: Reserved | None = None

    # ---- what it is

    @property
    def id(self) -> str:
        """The kernel's id."""
        return self.record.kernel_id

    @property
    def image(self) -> Image:
        """Where its image is, or would be."""
        return image_of(Path(self.record.hibernate_dir or os.devnull), self.id)

    @property
    def is_kept(self) -> bool:
        """Whether its process runs, no server has it, and it does not end."""
        is_there = self.kernel is not None and self.kernel.dying is None
        return is_there and not self.has_server and self.state in HAS_PROCESS

    @property
    def has_server(self) -> bool:
        """Whether a server has it, or will say so: one that lives, and has not reached this keeper yet."""
        return self.lease is not None or (self.record.server is not None and lives(self.record.server))

    @property
    def is_moving(self) -> bool:
        """Whether it is on its way into an image or back."""
        return self.state in IS_MOVING

    @property
    def is_out(self) -> bool:
        """Whether it lives without a process."""
        return self.state in IS_OUT

    def view(self) -> dict[str, Any]:
        """Return what servers and command lines are shown of it."""
        view = {
            "record": to_json(self.record),
            "life": self.state.value,
            "kept_since": self.since,
            "state": CLOSED,
            "quiet_s": max(time.time() - self.since, 0.0),
            "bytes": self.written_bytes,
            "deleted_at": None,
            "objection": None,
            "refusal": self.refusal,
            "has_server": self.has_server,
        }
        if self.kernel is not None:
            view |= self.kernel.view()
        if self.hibernated is not None and self.is_out:
            view |= {
                "kept_since": self.hibernated.since,
                "quiet_s": time.time() - self.hibernated.since,
                "bytes": self.hibernated.bytes,
                "deleted_at": self.hibernated.announced_end(self.record.image_keep_s),
                "objection": self.hibernated.objection(self._reserved),
            }
        if self.state is State.ELSEWHERE:
            view["objection"] = self.refusal
        return view

    def _become(self, event: Event, to: State | None = None) -> None:
        """Take the next state; `to` says which where the facts decide. What the table does not know is a defect."""
        follows = outcome(self.state, event)
        assert not isinstance(follows, Way), f"{event.value} in state {self.state.value}"
        following = to or follows[0]
        assert following in follows, f"{event.value} leads from {self.state.value} to {following.value}"
        self._is_now(following)

    def _is_now(self, state: State) -> None:
        if state is not self.state:
            self.since = time.time()
        self.state = state
        self._means.changed(self)

    def show(self) -> None:
        """Show the server that has it where it is."""
        if self.lease is not None:
            self.lease.show(self.view())

    # ---- work

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin what takes a while; nothing else is under way."""
        assert self._work is None or self._work.done()
        self._is_stopped = False
        self._work = asyncio.get_running_loop().create_task(work, name=f"life of {self.id}")
        self._work.add_done_callback(lambda done: done.cancelled() or done.exception())  # callers have it
        return self._work

    @property
    def _is_at_work(self) -> bool:
        return self._work is not None and not self._work.done()

    async def settled(self) -> None:
        """Return once no work is under way."""
        while self._work is not None and not self._work.done():
            await asyncio.wait([self._work])

    async def _turn(self) -> None:
        """Wait for the work under way, or begin it: what was asked for is done after it."""
        if self._work is None or self._work.done():
            assert self.state is State.FOUND, f"nothing is done in state {self.state.value}"
            self.begin_look()
        await self.settled()

    async def _end_of(self, work: asyncio.Task[Any] | None) -> None:
        """Wait for work, which goes on if the caller is cancelled.

        Raises what it raised, and CannotHibernate if it was stopped.
        """
        if work is None:
            return
        await asyncio.wait([work])
        if work.cancelled():
            raise CannotHibernate(STOPPED)
        work.result()

    async def _stop_work(self) -> None:
        """Have the work under way undo what it did, and return once it has."""
        if self._work is not None and not self._work.done() and not self._is_stopped:
            self._is_stopped = True  # a second time would end what puts things right
            self._work.cancel()
        await self.settled()

    # ---- what others have it do

    async def hibernate(self) -> None:
        """Put it into its image, unless it is there. Raises CannotHibernate: then it goes on where it was."""
        while True:
            follows = outcome(self.state, Event.HIBERNATE)
            if follows is Way.REFUSED:
                raise CannotHibernate(SHUT_DOWN if self.state is State.ENDING else HAS_ENDED)
            if follows is Way.SAME and not self.is_moving:
                return
            if follows is Way.SAME:
                await self._end_of(self._work)
                if self.state is not State.IN_IMAGE:
                    raise CannotHibernate(NEEDED)
                return
            if self.state is State.WAKING:
                await self._stop_work()
                continue
            if follows is Way.WAITS or self._is_at_work:
                await self._turn()
                continue
            self._become(Event.HIBERNATE, State.LEAVING)
            return await self._end_of(self._begin(self._leave()))

    async def wake(self) -> None:
        """Have its process run, unless it does. Raises CannotWake: then it stays in its image."""
        while True:
            follows = outcome(self.state, Event.WAKE)
            if self.state is State.ELSEWHERE:
                raise CannotWake(self.refusal or "another keeper of yours has it")
            if follows is Way.REFUSED:
                raise CannotWake(SHUT_DOWN if self.state is State.ENDING else HAS_ENDED)
            if follows is Way.SAME and not self.is_moving:
                return
            if self.state is State.LEAVING:
                await self._stop_work()
            elif follows is Way.SAME:
                return await self._awake(self._work)
            elif follows is Way.WAITS or self._is_at_work:
                await self._turn()
            else:
                self._become(Event.WAKE)
                return await self._awake(self._begin(self._come()))

    async def _awake(self, work: asyncio.Task[Any] | None) -> None:
        try:
            await self._end_of(work)
        except CannotHibernate as stopped:
            raise CannotWake(str(stopped)) from None

    async def stop(self) -> None:
        """Have it stay where it is, if it is on its way and that can still be; return once that is known."""
        if self.state in (State.LEAVING, State.WAKING):
            await self._stop_work()
        elif outcome(self.state, Event.STOP) is Way.WAITS or self._is_at_work:
            await self._turn()

    async def end(self, why: str) -> None:
        """Shut it down, or delete its image; return when it has ended. Raises CannotWake for one that is elsewhere."""
        while outcome(self.state, Event.END) is Way.WAITS:
            await self.stop()
        if self.state is State.ELSEWHERE:
            raise CannotWake(self.refusal or "another keeper of yours has it")
        if self.state is State.IN_IMAGE:
            self._delete_image(why)
        elif (ending := self.begin_end(why)) is not None:
            await asyncio.wait([ending])

    def begin_end(self, why: str) -> asyncio.Task[None] | None:
        """Begin to shut its process down, once; None for one that has none."""
        if self.kernel is None or self.state not in HAS_PROCESS:
            return None
        if self.state is not State.ENDING:
            self.ended_why = why
            self._become(Event.END)
        return self.kernel.begin_end(why)

    def delete(self, why: str) -> None:
        """Delete its image, if it is there and nothing is done with it: it is too old, or its kernel was given up."""
        if self.state is State.IN_IMAGE:
            self._delete_image(why)

    def _delete_image(self, why: str) -> None:
        self.ended_why = why
        self._give_up_image()
        self._become(Event.END)

    # ---- the server that has it

    def hold(self, told: dict[str, Any]) -> None:
        """Have what a tab sent, for the next server. What does not fit its server alone has."""
        if sum(len(each["message"]) for each in (*self.held, told)) <= HELD_BYTES_MAX:
            self.held.append(told)

    async def take(self, lease: Lease) -> Undelivered:
        """Have a server have it from now on.

        Return what its tabs have not got, which stays here until it is delivered.
        """
        if self.state is State.MUTE and self.lease is None:
            await self.settled()  # it is being heard here
        self.lease = lease
        self._means.changed(self)
        return self.kernel.take() if self.kernel is not None else Undelivered()

    def put_before(self, undelivered: Undelivered) -> None:
        """Take what its server got and did not deliver, also where it lives on disk."""
        if self.kernel is not None:
            self.kernel.put_before(undelivered)
        elif self.hibernated is not None:
            more = self.hibernated.undelivered.with_more(undelivered)
            self.hibernated = replace(self.hibernated, undelivered=more)

    async def lost(self, lease: Lease) -> None:
        """Have no server any more: its own has ended, or given it back."""
        if self.lease is not lease:
            return
        self.lease = None
        self._means.changed(self)
        if self.has_server:  # it is about to end
            self.begin_keeping()
        else:
            await self.keep()

    async def keep(self) -> None:
        """Be its tabs' client, if its process runs and no server has it.

        A server that lives is waited for: it would not notice that its tabs' answers go to another client.
        """
        while self.lease is None and self.has_server:
            await asyncio.sleep(SERVER_ENDS_S)
        if self.kernel is not None and self.is_kept and self.state is not State.MUTE:
            try:
                await self.kernel.keep()
            except Exception:  # it is kept all the same, and others are to be kept
                self._means.log.exception("kernel %s is not listened to", self.id)

    def begin_keeping(self) -> None:
        """`keep`, beside other work: a server's end may be waited for."""
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.get_running_loop().create_task(self.keep())

    async def update(self, record: Record) -> None:
        """Take other terms of it; with another process that lives it was started anew. Raises ProcessLookupError."""
        if record.process != self.record.process and lives(record.process):
            await self._started_anew(record)
            return
        has_image = self.hibernated is not None or self.is_moving
        self.record = replace(
            record,
            process=self.record.process,
            folder=self.record.folder,
            hibernate_dir=self.record.hibernate_dir if has_image else record.hibernate_dir,
        )
        if self.kernel is not None:
            self.kernel.belongs_to(self.record)
        self.write()

    async def _started_anew(self, record: Record) -> None:
        await self.stop()
        while outcome(self.state, Event.STARTED_ANEW) is Way.WAITS:
            await self.stop()
        await self._unwatch()
        self._forget_process()
        if self.record.hibernate_dir and self.state is not State.ELSEWHERE:
            self._give_up_image()
        self.hibernated, self.refusal, self.ended_why = None, None, None
        self.record = replace(record, folder="")
        self._follow()
        self._become(Event.STARTED_ANEW)
        self.write()
        self.begin_keeping()

    def write(self) -> None:
        """Write its record for a later keeper: beside its image while that alone counts, and for a process."""
        try:
            if self.state in (State.LEFT, State.IN_IMAGE):
                write_terms(self.image.folder, self.record)
            elif self.state not in (State.GONE, State.ELSEWHERE):
                self._means.records.write(self.record)
        except OSError as error:  # a full disk, for example: it is in memory
            self._means.log.error("kernel %s would be lost with this keeper: %s", self.id, in_words(error))

    def _follow(self) -> None:
        """Follow its process. Raises ProcessLookupError if that has ended."""
        self.kernel = self._means.listen(self.record, self._process_ended, self.begin_end, self._means.log)

    def _forget_process(self) -> None:
        if self.kernel is not None:
            self.kernel.close()
            self.kernel = None

    def forget(self) -> None:
        """Know it no longer: its server ended it, or it lives on as another. Its image goes; its process may go on."""
        self.ended_why = self.ended_why or "its server ended it"
        self._forget_process()
        if self.record.hibernate_dir and self.state is not State.ELSEWHERE:
            self._give_up_image()
        self._is_now(State.GONE)
        self.lease = None

    def forget_beside(self) -> None:
        """`forget`, with the image deleted beside other work: many GiB take a while. No kernel has this id again."""
        if self._watch is not None:
            self._watch.cancel()
        image = self.image if self.record.hibernate_dir else None
        if image is not None and image.folder.exists():
            image.be_nothing()
            self._begin(self._deleted(image))
        self._forget_process()
        self._is_now(State.GONE)

    async def _deleted(self, image: Image) -> None:
        await joined(asyncio.to_thread(image.give_up))
        self._means.claims.release(image)

    # ---- a look at what there is

    def begin_look(self) -> None:
        """Begin to find out where it is: an earlier keeper left it, or another keeper had its image."""
        if self._work is None or self._work.done():
            self._begin(self._look())

    def find_process(self) -> None:
        """Follow its process at once, if that lives: what it says is not to be missed until it was looked at."""
        with contextlib.suppress(ProcessLookupError):
            self._follow()

    async def _look(self) -> None:
        found = await self._found()
        if found is State.RUNS and self.kernel is None:
            self._follow()
        if found is self.state:
            return
        if found is State.GONE and self.state is State.ELSEWHERE:
            self.ended_why = IMAGE_GONE
        self._become(Event.LOOKED if self.state is State.FOUND else Event.CLAIM_FREE, found)
        if found is State.IN_IMAGE:
            self._means.records.remove(self.id)
            self.write()
        elif self.kernel is not None and not self.kernel.is_alive:
            self._process_ended(self.kernel)  # in the midst of the look
        elif found is State.MUTE:
            await self._be_heard(asyncio.get_running_loop().time())
        elif found is State.PROVISIONAL:
            self._await_gpu()
        self.begin_keeping()

    async def _found(self) -> State:
        """Return where it is; where its image cannot be used that is as if another keeper had it."""
        try:
            return await self._find()
        except (ImageRefused, ValueError, LookupError, OSError) as refused:
            why = f"its image cannot be used: {in_words(refused)}"
            if why != self.refusal:
                self._means.log.error("kernel %s: %s", self.id, why)
            self.refusal = why
            if self.kernel is not None:
                return State.RUNS
            self._means.claims.leave(self.image)
            return State.ELSEWHERE

    async def _find(self) -> State:
        """Return where it is by what is there. Raises ImageRefused and OSError."""
        process = self.record.process if lives(self.record.process) else None
        without_image = State.RUNS if process is not None else State.GONE
        image = self.image
        if not self.record.hibernate_dir or not image.folder.exists():
            return without_image
        try:
            self._means.claims.take(image)
        except (Claimed, OSError) as refused:
            self.refusal = in_words(refused)
            if process is None and self.state is State.FOUND:
                self._means.log.info("the image %s is left alone: %s", image.folder, self.refusal)
            return without_image if process is not None else State.ELSEWHERE
        self.refusal = None
        recovered = await images.recover(image, process)
        if recovered.manifest is None:
            if process is None or not image.folder.exists():
                self._means.claims.release(image)
            return without_image
        if recovered.process is None:
            self._forget_process()
            self._is_whole(recovered.manifest)
            return State.IN_IMAGE
        return self._lives_again(recovered.manifest, recovered.process)

    def _lives_again(self, manifest: Manifest, process: ProcessName) -> State:
        """Follow a process that was woken from its image, by an earlier keeper."""
        image = self.image
        self.hibernated = Hibernated.of(image, manifest)
        if self.record.process != process:
            self._forget_process()
        self.record = replace(self.record, process=process)
        if self.kernel is None:
            self._follow()
        image.let_back()
        self._means.records.write(self.record)
        if image.unheard_file.exists():
            return State.MUTE
        if not manifest.has_cuda:
            self._give_up_image()
            return State.RUNS
        return State.PROVISIONAL

    # ---- into its image

    async def _leave(self) -> None:
        """Write its image and end its processes. Raises CannotHibernate: then it goes on."""
        record, image, kernel = self.record, self.image, self.kernel
        assert kernel is not None
        began = time.monotonic()
        try:
            self._refuse_to_leave()
            await self._until_quiet(kernel)
            await self._unwatch()
            await self._gpu.settled()
            self._claim()
            undelivered = kernel.undelivered()
            showing = asyncio.get_running_loop().create_task(self._show_progress())
            try:
                manifest = await images.hibernate(
                    image,
                    record.process.pid,
                    self._leave_gpu,
                    self._written,
                    bounds=Bounds(record.image_bytes_max, record.image_spare_bytes),
                    record={"kernel_id": record.kernel_id},
                    undelivered=undelivered.to_json(),
                )
            finally:
                await ended(showing)
        except BaseException as error:
            if isinstance(error, (CannotHibernate, asyncio.CancelledError)):
                self._refused(str(error) or STOPPED, "is not hibernated")
            await self._stays()
            raise
        self._is_whole(manifest)
        self._means.records.remove(self.id)
        self.refusal = None
        self._become(Event.ENDED_FOR_IMAGE)
        if self.lease is None:
            await tell_bytes(record, self.written_bytes)
        self._means.log.info(
            "kernel %s is hibernated: %s in %.1f s",
            self.id,
            bytes_in_words(self.written_bytes),
            time.monotonic() - began,
        )

    def _refuse_to_leave(self) -> None:
        if not self.record.hibernate_dir:
            raise CannotHibernate("its server was started without a folder for images (hibernate_dir)")
        if self.record.connection.get("transport") == "ipc":
            raise CannotHibernate(
                "it is connected by Unix sockets: start the server with KernelManager.transport=tcp"
            )
        if self.kernel is not None and self.kernel.dying is not None:
            raise CannotHibernate(SHUT_DOWN)

    async def _until_quiet(self, kernel: KeptKernel) -> None:
        if self.lease is not None:
            try:
                return await self.lease.until_quiet(self.id)
            except LeaseLost:
                await kernel.keep()  # and go on: nothing is passed on to it now
        if not await kernel.is_idle_within(SETTLES_S):
            raise CannotHibernate("a cell runs")

    def _claim(self) -> None:
        try:
            self._means.claims.take(self.image)
            self._means.claims.note_here(self.image)
        except (Claimed, OSError) as refused:
            raise CannotHibernate(f"its image cannot be made: {in_words(refused)}") from None

    async def _leave_gpu(self, folder: Path) -> bool:
        asleep = replace(self.record, folder=folder_of(self.record.process.pid))
        try:
            write_terms(folder, asleep)
        except OSError as error:
            raise CannotHibernate(in_words(error)) from None
        self.record = asleep
        return await self._gpu.leave(asleep, folder)

    def _written(self) -> None:
        """Note that its image counts: its processes are about to be ended."""
        self._forget_process()
        self._become(Event.WRITTEN)
        self.write()  # its terms may have changed meanwhile

    async def _stays(self) -> None:
        """Go on where it was, after a hibernation that was refused, failed or was stopped."""
        image, kernel = self.image, self.kernel
        self.record = replace(self.record, folder="")
        if self.record.hibernate_dir and not image.folder.exists():
            self._means.claims.release(image)
        self.written_bytes = 0
        if kernel is None or not kernel.is_alive:
            self._forget_process()
            self._means.log.warning("kernel %s ended while its image was written", self.id)
            self._become(Event.FAILED, State.GONE)
            return
        is_woken = bool(self.record.hibernate_dir) and image.was_woken
        self._become(Event.FAILED, State.PROVISIONAL if is_woken else State.RUNS)
        if is_woken:
            self._await_gpu()  # of the image that it came from: it was refused before anything was done
        if self.lease is None:
            await tell_bytes(self.record, None)  # its processes may have left already, and it may have none
        self.begin_keeping()

    def _is_whole(self, manifest: Manifest) -> None:
        """Take its image: that alone counts."""
        self._means.claims.note_nowhere(self.image)
        self.hibernated = Hibernated.of(self.image, manifest)
        self.written_bytes = self.hibernated.bytes
        self._reserve()

    async def _show_progress(self) -> None:
        while True:
            await asyncio.sleep(SHOW_EVERY_S)
            written = await joined(asyncio.to_thread(lambda: self.image.bytes))
            if written != self.written_bytes:
                self.written_bytes = written
                self.show()

    # ---- and back

    async def _come(self) -> None:
        """Start its processes again. Raises CannotWake: then its image stays."""
        image, began = self.image, asyncio.get_running_loop().time()
        try:
            self._prepare(image)
            with self._reserved.lent() if self._reserved is not None else contextlib.nullcontext():
                process = await images.wake(image)
        except BaseException as error:
            self._stays_out(image, error)
            raise
        self._free_reserved()
        self.record = replace(self.record, process=process)
        try:
            self._follow()
        except ProcessLookupError:
            if not self._counts_again():
                self._become(Event.FAILED, State.GONE)
            raise CannotWake(ENDED_AT_ONCE) from None
        self._become(Event.RESTORED)
        self.write()
        image.let_back()
        self._means.log.info(
            "kernel %s is awake after %.1f s", self.id, asyncio.get_running_loop().time() - began
        )
        await self._be_heard(began)

    def _prepare(self, image: Image) -> None:
        self.write()  # a later keeper looks for it by that
        try:
            self._means.claims.note_here(image)
            stand_in_for(self.record.folder)
        except OSError as error:
            raise CannotWake(f"it cannot be prepared: {in_words(error)}") from None

    def _stays_out(self, image: Image, error: BaseException) -> None:
        self._means.records.remove(self.id)
        if not image.folder.exists():
            self._means.log.error("kernel %s: %s", self.id, IMAGE_GONE)
            self._free_reserved()
            self._means.claims.release(image)
            self.refusal = self.ended_why = IMAGE_GONE
            self._become(Event.FAILED, State.GONE)
            raise CannotWake(IMAGE_GONE) from None
        if image.is_whole:
            self._means.claims.note_nowhere(image)
        self._reserve()
        if isinstance(error, (CannotWake, asyncio.CancelledError)):
            self._refused(str(error) or STOPPED, "could not be woken")
        self._become(Event.FAILED, State.IN_IMAGE)
        self.write()  # its terms may have changed meanwhile

    async def _be_heard(self, began: float) -> None:
        """Have it speak once its tabs, or the keeper in their place, hear it. Raises CannotWake."""
        kernel, hibernated, loop = self.kernel, self.hibernated, asyncio.get_running_loop()
        assert kernel is not None and hibernated is not None
        is_heard = False
        if not self.record.warm:  # no client has ever heard a warm one, and what it says is no notebook's
            await kernel.is_heard_within(HEARD_S)
            if self.lease is not None:
                with contextlib.suppress(LeaseLost):
                    await self.lease.until_heard(self.id, self.record.process, hibernated.undelivered)
                    is_heard = True
            if not is_heard:
                await asyncio.sleep(max(began + RECONNECTED_S - loop.time(), 0))
        self._refuse_to_speak(kernel)
        kernel.put_before(hibernated.undelivered)  # until a server says that it is delivered
        if not self.has_server or (self.lease is not None and not is_heard):
            await kernel.keep()
            self._refuse_to_speak(kernel)
        self._speaks(hibernated)
        if (
            self.lease is None and not hibernated.has_cuda
        ):  # else its processes tell the controller themselves
            await tell_bytes(self.record, None)

    def _refuse_to_speak(self, kernel: KeptKernel) -> None:
        if self.kernel is not kernel:
            raise CannotWake(ENDED_AT_ONCE)  # its image counts again
        if self.state is not State.MUTE:
            raise CannotWake(SHUT_DOWN)

    def _speaks(self, hibernated: Hibernated) -> None:
        hibernated.image.let_speak()
        self.refusal, self.written_bytes = None, 0
        if hibernated.has_cuda:
            self._become(Event.HEARD, State.PROVISIONAL)
            self._await_gpu()
            return
        self._give_up_image()
        self._become(Event.HEARD, State.RUNS)

    def _await_gpu(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._until_gpu_is_back())

    async def _until_gpu_is_back(self) -> None:
        """Keep the image until what was on the GPU is there again."""
        await self._gpu.until_back(self.record)
        await joined(asyncio.to_thread(self.image.keep_gpu_file))
        self.hibernated = None
        self._watch = None
        if self.state is State.PROVISIONAL:
            self._become(Event.GPU_BACK)

    async def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        await ended(watch)

    # ---- its process ends

    def notice_end(self) -> None:
        """Take the end of its process, if that has ended and this was not heard of yet."""
        if self.kernel is not None and not self.kernel.is_alive:
            self._process_ended(self.kernel)

    def _process_ended(self, kernel: KeptKernel) -> None:
        if kernel is not self.kernel or outcome(self.state, Event.DIED) is Way.SAME:
            return  # the work under way finds out
        self._forget_process()
        if self._watch is not None:
            self._watch.cancel()  # what it does last needs no process
            self._watch = None
        may_count = self.state in (State.MUTE, State.PROVISIONAL)
        if may_count and self.ended_why is None and self._counts_again():
            return
        if self.record.hibernate_dir and self.image.folder.exists():
            self._give_up_image()
        self._become(Event.DIED, State.GONE)

    def _counts_again(self) -> bool:
        """Have the image count again that it was woken from, if that is there."""
        image = self.image
        if not image.was_woken:
            return False
        try:
            image.not_woken()
            manifest = image.manifest()
        except (OSError, ImageRefused, ValueError) as error:
            self._means.log.error("%s is there, and cannot be used now: %s", image.folder, in_words(error))
            return False
        self._is_whole(manifest)
        self._means.records.remove(self.id)
        self.refusal = LOST
        self._means.log.error("kernel %s: %s", self.id, LOST)
        self._become(Event.FAILED if self.state is State.WAKING else Event.DIED, State.IN_IMAGE)
        self.write()
        return True

    def _refused(self, why: str, what: str) -> None:
        self.refusal = why
        self._means.log.warning("kernel %s %s: %s", self.id, what, why)

    # ---- the end of its image

    def _reserve(self) -> None:
        """Have no other program get what the kernel gets back by its number."""
        self._free_reserved()
        if self.hibernated is not None:
            self._reserved = Reserved(self.record.connection, self.hibernated.manifest.needed)

    def _free_reserved(self) -> None:
        if self._reserved is not None:
            self._reserved.free()
            self._reserved = None

    def _give_up_image(self) -> None:
        """Delete its image; what a process has open of it stays for that."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._free_reserved()
        is_out, image = self.is_out, self.image
        image.give_up()
        self._means.claims.release(image)
        self.hibernated = None
        if is_out:
            tell_forget(self.record)

    def look_at_age(self) -> None:
        """Delete its image by age, and say so before."""
        if self.state is not State.IN_IMAGE or self.hibernated is None:
            return
        if not self.image.folder.exists():
            self._means.log.error("kernel %s: %s", self.id, IMAGE_GONE)
            self._delete_image(IMAGE_GONE)
            return
        keep_s = self.record.image_keep_s
        deleted_at = self.hibernated.deleted_at(keep_s)
        if deleted_at is None or (wait_s := deleted_at - time.time()) > notice_s(keep_s):
            return
        if self.image.warned_at is None:
            self._means.log.warning(
                "the image of kernel %s will be deleted by age in %.1f hours: wake it to keep it",
                self.id,
                wait_s / 3600,
            )
            with contextlib.suppress(OSError):
                self.image.note_warned()
            self.show()
        elif wait_s <= 0:
            age_days = (time.time() - self.hibernated.since) / 86400
            self._means.log.warning(
                "the image of kernel %s is deleted: it is %.0f days old", self.id, age_days
            )
            self._delete_image("its image was too old")
