"""The controller: looks at pages and NVML, has the policy decide and its actions carried out."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple

from ..settings.declaration import SettingsRefused
from ..settings.policy import NOT_FOR_MANY_USERS, Settings, SettingTimes
from .execution.allocations import Allocations
from .execution.cleanup import CleanUp
from .execution.effects import Effects, Parts
from .execution.evictions import withdraw_ends
from .execution.hibernations import ask_to_hibernate, withdraw_hibernations
from .execution.notices import Notices
from .execution.operations import Operations
from .execution.room_requests import RoomRequests
from .execution.user_requests import UserRequests
from .identity.access import Access, OwnUserAccess
from .identity.identity import OWN_USER, Identity, of_unix_user
from .identity.rate_limits import Accounts
from .leadership import handover
from .leadership.election import Election, GpuServed
from .ledger.past import Present
from .ledger.recorder import present
from .ledger.today import Today
from .link.connection import Ending
from .link.listener import Link
from .metrics.collectors import Metrics
from .metrics.history_options import HistoryOptions, make_history
from .model.gpu import NvmlGpu
from .model.snapshot import Kernel, Node, Waiter
from .pacing import Pacing
from .policy.decide import decide
from .policy.queue import waiters, waits_since
from .policy.wait_estimates import WaitEstimate, estimate_waits
from .shims import Looks, Shims
from .state.host.host_figures import disk_used_bytes
from .state.host.host_lending import promise_lots
from .state.host.host_usage import parks_take_bytes
from .state.host.lots import LotStock
from .state.host.lots_beforehand import LotsBeforehand
from .state.observer import Observers
from .state.persistence import DISK_WRITTEN, FILE_NAME, SHARE_SECRET, StoredRequests
from .state.placement import place_kernel
from .state.records.kernel import KernelRecord
from .state.records.process import read_host_bytes
from .state.registry import NodeState
from .state.room_requests import RequestedRoom
from .state.servers import ServerWatch
from .state.snapshot_builder import kernel_picture, snapshot
from .system.closing import Closing
from .system.host_memory import host_memory
from .system.lot_memory import LOT_NAME
from .system.nvml import Nvml, NvmlReader, NvmlSample
from .views import serializers as describe
from .views.event_stream import EventHub
from .views.kernel_words import notice_in_words
from .views.visibility import node_view
from .views.waits import wait_json

TICK_S = 0.25  # with kernels: pages are looked at this often even if no message comes
TICK_ALONE_S = 1.0
COMPLETE_AFTER_SETTLING = 4  # settle times: until then no allocation is denied, since kernels may be unknown
NVML_EVERY_S = 1.0
NVML_ALONE_EVERY_S = 5.0
NVML_HANGS_AFTER_S = 15.0  # older figures are not used
EMPTY_KERNEL_LASTS_S = 10.0  # a kernel that no living server describes, after its last process ended
UNSERVED_KERNEL_LASTS_S = 600.0  # one that has not used CUDA yet, described by a program that has ended
SHIMS_ARE_BACK_S = 30.0  # all shims have found a new controller by then
LINK_NAME = "link.sock"


class Waiting(NamedTuple):
    """The queue at the last look, and the wait status of each kernel in it."""

    queue: list[Waiter]
    estimates: dict[str, WaitEstimate]
    since: float | None = None  # when the longest of these waits began


class Controller:
    """The node controller, from `start` to `close`, on one event loop.

    `finished` is set when no kernel needs it any more, or when it must not serve; `exit_status` says which.
    """

    def __init__(
        self,
        socket: Path,
        settings: Settings,
        *,
        version: str,
        log: logging.Logger,
        election: Election,
        access: Access | None = None,
        nvml: Nvml | None = None,
        history: HistoryOptions | None = None,
        heartbeat_s: float = 1.0,
        machine_name: str = "",
    ):
        """Prepare. `access` decides which users may connect: by default the controller's own alone."""
        self.machine_name = machine_name or gethostname()
        self.access = access or OwnUserAccess()
        self.accounts = Accounts(self.access.limits)
        self.socket = socket
        self.version = version
        self.log = log
        self.finished = asyncio.Event()
        self.exit_status = 0
        self.api_requests_open = 0
        self.began = self.needed_at = self._counted_until = time.monotonic()
        self._ran_s = 0.0
        self._election = election
        self._heartbeat_s = heartbeat_s
        self._standby = handover.Standby(log) if self.access.is_shared else None
        self._link: Link | None = None
        self._tick_handle: asyncio.TimerHandle | None = None
        self._restoring: asyncio.Task[None] | None = None
        self._ends_at: float | None = None  # it was told to, and kernels hibernate meanwhile
        self._loop = asyncio.get_running_loop()
        self._pacing = Pacing(self._loop, self._pass)
        self.poke = self._pacing.poke  # something changed: decide again, soon and once
        self._make_state(settings, history or HistoryOptions())
        self._make_parts(nvml or Nvml())

    def _make_state(self, settings: Settings, options: HistoryOptions) -> None:
        """Make the state, its history and the first snapshot."""
        self.state = NodeState(settings, host_memory())
        if self.access.is_shared:
            self.state.pages_say_since_until = self.began + SHIMS_ARE_BACK_S
        self.stored_requests = self.state.stored_requests = StoredRequests(
            self.socket.with_name(FILE_NAME), self.log
        )
        with_users = options.metrics_users
        self.metrics = Metrics(self.state, self.node_json, version=self.version, with_users=with_users)
        self.history = make_history(self.state, self.metrics, options, self.log)
        self.today = Today(self.state)
        self.setting_times = SettingTimes()
        self._snapshot = Node({}, (), snapshot(self.state, self.began, is_settled=False).host)
        self._seen: dict[str, Kernel] = {}  # its kernels
        self._waiting = Waiting([], {})
        self._looked_at = self._looked_at_all = 0.0
        self._nvml_answered = False

    def _make_parts(self, nvml: Nvml) -> None:
        """Make the parts that carry actions out, and those that listen to shims, servers and NVML."""
        state, log = self.state, self.log
        self.events = EventHub(self)
        tell_notice = self.events.tell_notice
        self.observers = Observers(log, self.metrics, self.history, self.today, Notices(state, tell_notice))
        self.lots = LotStock(
            log,
            self.poke,
            is_shared=self.access.is_shared,
            parks_take=lambda: parks_take_bytes(state.kernels.values()),
            name=f"{LOT_NAME}-{zlib.crc32(bytes(self.socket)):x}",
        )
        self._lots_beforehand = LotsBeforehand()
        promise = partial(promise_lots, stock=self.lots)
        self.operations = Operations(state, log, self.observers, self._moved, promise)
        self.user_requests = UserRequests(state, log, self.poke)
        self.room_requests = RoomRequests(state, log, self._moved)
        self._parts = Parts(
            self.operations,
            self.user_requests,
            Allocations(state, log, self.observers),
            self.lots,
            self.room_requests,
        )
        self._effects = Effects(state, log, self.observers, tell_notice, self._parts)
        self.servers = ServerWatch(state, log, self.poke)
        self.closing = Closing()
        self.clean_up = CleanUp(log)
        self._nvml = NvmlReader(self._take_sample, log, nvml.read)
        looks = Looks(self.read_pages_of, self._nvml.sample_soon, self.kernel_json, self.poke)
        self._shims = Shims(state, self.access, log, self._parts, looks)

    def start(self) -> None:
        """Listen for shims, and begin to decide once the settle time is over."""
        kept = self.stored_requests.read(time.monotonic(), self.state.settings.hold_max_s)
        self.state.host.disk.recall(kept.get(DISK_WRITTEN), time.monotonic())
        self.state.sharing.recall(kept.get(SHARE_SECRET))
        self._link = Link(
            self.socket.with_name(LINK_NAME),
            self._shims,
            access=self.access,
            accounts=self.accounts,
            closing=self.closing,
            version=self.version,
            log=self.log,
            heartbeat_s=self._heartbeat_s,
        )
        ledger = self.history.ledger
        self._restoring = self._loop.create_task(self.today.restore(None if ledger is None else ledger.path))
        self._nvml.sample_soon()
        self._tick()
        self._loop.call_later(self.state.settings.settle_s, self.poke)  # the next tick may be a second later

    def close(self) -> None:
        """Stop; every kernel stays as it is."""
        self.history.close()
        if self._restoring is not None:
            self._restoring.cancel()
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        # Before their links end one by one: else the end of one would have a park undone in the others.
        for process in list(self.state.processes()):
            self.state.remove_process(process, time.monotonic())
        if self._link is not None:
            self._link.close()
        self._nvml.close()
        self.servers.close()
        self.lots.close()

    def change_settings(self, **changes: Any) -> Settings:
        """Apply new settings and return all. Raises SettingsRefused."""
        settings = self.state.settings.changed(**changes)
        if self.access.is_shared and settings.depth == "context":
            raise SettingsRefused(NOT_FOR_MANY_USERS)
        self.state.take_settings(settings)
        self.log.info("settings: %s", ", ".join(f"{name}={value}" for name, value in changes.items()))
        self.poke()
        return self.state.settings

    def begin_end(self) -> None:
        """End, once the kernels that can have hibernated, if the setting gives them time for that; at once when asked
        again.
        """
        now, within_s = time.monotonic(), self.state.settings.hibernate_at_end_s
        able = [
            each
            for each in self.state.kernels.values()
            if each.may_hibernate and not each.is_hibernated  # a server refuses where a cell runs
        ]
        if self._ends_at is not None or not (within_s and able):
            self.finished.set()
            return
        self.log.info("%d kernels hibernate, within %g s; others stay as they are", len(able), within_s)
        self._ends_at = now + within_s
        for kernel in able:
            ask_to_hibernate(kernel, "the machine stops", now, self.log, until=self._ends_at)
        self.poke()

    def _end_when_hibernated(self, now: float) -> None:
        """End when the kernels that hibernate for it have done so, or the time is over."""
        if self._ends_at is None:
            return
        kernels = self.state.kernels.values()
        waits = [kernel.id for kernel in kernels if kernel.hibernation.reason is not None]
        if waits and now < self._ends_at:
            return
        done = sum(kernel.image_bytes is not None for kernel in kernels)
        late = f"; not in time: {', '.join(waits)}" if waits else ""
        self.log.info("the controller ends: %d kernels are hibernated%s", done, late)
        self.finished.set()

    # ---- what is shown

    def kernels_json(self) -> list[dict[str, Any]]:
        """Return every kernel that a user sees who follows the events, with its id as this controller has it."""
        identities = {
            (each.identity.owner, each.identity.is_admin): each.identity for each in self.events.subscribers
        }
        return list(self.each_kernel_json(*identities.values()))

    def each_kernel_json(self, *identities: Identity) -> Iterator[dict[str, Any]]:
        """Yield the kernels that one of these users may see, with their ids as this controller has them.

        Each is as it is when it is yielded. Kernels may come and go meanwhile.
        """
        for kernel in list(self.state.kernels.values()):
            if not any(identity.sees(kernel.account.owner) for identity in identities):
                continue
            if self.state.kernels.get(kernel.id) is kernel:
                yield self._json(kernel, self._seen.get(kernel.id), time.monotonic())

    def kernel_json(self, kernel: KernelRecord) -> dict[str, Any]:
        """Return one kernel as it is now, for the API."""
        now = time.monotonic()
        self.read_pages_of(kernel, now)
        seen = kernel_picture(self.state, kernel, now)
        waits = seen is not None and (seen.wants_since is not None or bool(seen.rooms))
        if (
            waits != (kernel.id in self._waiting.estimates)
            and now - self._looked_at_all > self._pacing.lasts_s
        ):
            self.take_snapshot(now)
        return self._json(kernel, seen, now)

    def _json(self, kernel: KernelRecord, seen: Kernel | None, now: float) -> dict[str, Any]:
        estimate = self._waiting.estimates.get(kernel.id)
        return describe.kernel_json(self.state, kernel, seen, estimate, now, waits_since=self._waiting.since)

    def node_json(self, identity: Identity = OWN_USER) -> dict[str, Any]:
        """Return the machine for the API, as a user may see it."""
        whole = describe.node_json(
            self.state,
            self._waiting.estimates,
            self.lots,
            name=self.machine_name,
            version=self.version,
            socket=str(self.socket),
            uptime_s=time.monotonic() - self.began,
            history=self.history.as_json(),
            is_system=self.access.is_shared,
        )
        if self.state.settings.share_dir:
            whole["host"]["share_problem"] = self.state.sharing.problem_for(identity)
        whole["today"] = self.today.of(identity.owner or of_unix_user(os.getuid()), time.monotonic())
        return node_view(identity, whole, self.state.kernels)

    def present_kernels(self, wall: float) -> list[Present]:
        """Return every kernel that uses CUDA, as it is now. `wall`: the wall clock's seconds now."""
        shift, estimates = wall - time.monotonic(), self._waiting.estimates
        return [
            present(kernel, estimates.get(kernel.id), shift)
            for kernel in self.state.kernels.values()
            if kernel.processes or kernel.is_hibernated
        ]

    @property
    def has_looked_at_gpus(self) -> bool:
        """Return whether NVML has answered, if only that it is missing."""
        return self._nvml_answered

    def owner_of(self, kernel_id: str) -> str | None:
        """Return the owner of a known kernel."""
        return self.state.kernels[kernel_id].account.owner

    def gpus_to_show(self, kernel: KernelRecord) -> list[NvmlGpu]:
        """Return the GPUs that a kernel which is about to start should see, the best first."""
        now = time.monotonic()
        self.take_snapshot(now)
        return place_kernel(self.state, kernel, self._snapshot, now)

    def ask_for_room(
        self, identity: Identity, size: int, priority: int | None, *, may_raise: bool
    ) -> RequestedRoom:
        """Have room made for a user's next kernel, without a reservation; return the request. See
        `RoomRequests.ask`.
        """
        now = time.monotonic()
        self.take_snapshot(now)
        return self.room_requests.ask(identity, size, self._snapshot, now, priority, may_raise=may_raise)

    # ---- a pass

    def _tick(self) -> None:
        busy = next(self.state.processes(), None) is not None or bool(self.state.room_requests)
        self._tick_handle = self._loop.call_later(TICK_S if busy else TICK_ALONE_S, self._tick)
        now = time.monotonic()
        self._has_run_for(now)
        try:
            self._check_surroundings(now, NVML_EVERY_S if busy else NVML_ALONE_EVERY_S)
            is_quiet = self._pacing.is_quiet(now, self.state.read_pages, waits=bool(self._waiting.estimates))
        except Exception:  # whatever is wrong with the surroundings, kernels are served
            self.log.exception("looking around failed")
            is_quiet = False
        if not is_quiet:
            self._pass()

    def _check_surroundings(self, now: float, apart_s: float) -> None:
        """Check now and then what no shim reports, and whether any kernel needs this controller."""
        if now - self._looked_at >= apart_s:
            self._looked_at = now
            self._nvml.sample_soon()
        sample = self.state.gpus.sample
        if sample is not None and now - sample.began > NVML_HANGS_AFTER_S:
            self.log.warning("NVML has not answered for %.0f s: room is estimated", now - sample.began)
            self.state.gpus.take(None, self.state.settings)
        self._end_if_unneeded(now)
        self._end_when_hibernated(now)

    def _pass(self) -> None:
        """Look, decide, act, report; an error is logged and the next pass continues."""
        if self.finished.is_set():
            return
        now = time.monotonic()
        self._pacing.begin(now)
        try:
            self.take_snapshot(now, at_host=True)
            self._decide(now)
            self._adjust_lots(now)
            self._tidy(now)
            self._tell_places(now)
            self._tell_room_requests(now)
            self.observers.looked(
                now, [each for each in self._waiting.queue if each.kernel.id in self.state.kernels]
            )
            self.events.publish()
            awaits_verdict = any(kernel.made_way is not None for kernel in self.state.kernels.values())
            if self.state.reservations.awaits_sample or awaits_verdict:
                self._nvml.sample_soon()
        except Exception:  # a controller that stopped here would leave kernels waiting for ever
            self.log.exception("a pass failed")
        finally:
            self._pacing.end()

    def _adjust_lots(self, now: float) -> None:
        kernels, host = self._snapshot.kernels, self.state.host.memory
        taken = parks_take_bytes(self.state.kernels.values()) + sum(
            each.host.awaits_bytes for each in kernels
        )
        host = replace(host, available_bytes=host.available_bytes - taken)
        most = (
            host.available_bytes + self.lots.ready_bytes - self.state.settings.host_reserve(host.total_bytes)
        )
        wanted = self._lots_beforehand.wanted_bytes(self._snapshot, self.state.settings, most, now)
        users = len({kernel.charged_user for kernel in kernels})
        self.lots.adjust(self.state.settings, host, self.state.lots_mapped(), wanted, now, users)

    def read_pages_of(self, kernel: KernelRecord, now: float) -> None:
        """Read one kernel's pages; a process whose page is malformed is dropped."""
        for process, error in self.state.read_pages_of(kernel, now):
            if process.connection is not None:
                process.connection.end(Ending.DROPPED, str(error))

    def take_snapshot(self, now: float, *, at_host: bool = False) -> None:
        """Read the pages, and host memory too before a decision; make the snapshot that is decided on and shown."""
        self._looked_at_all = now
        for process, error in self.state.refresh(now):
            if process.connection is not None:
                process.connection.end(Ending.DROPPED, str(error))
        host, kernels = self.state.host, self.state.kernels.values()
        host.lots_ready_bytes, host.lots_held = self.lots.ready_bytes, self.lots.lent()
        host.lots_promised = self.lots.promised()
        host.makes_lots = self.lots.makes_more(self.state.settings, now)
        if at_host and (self.state.settings.lot_bytes != 0 or any(self.state.processes())):
            memory = host_memory()
            host.memory = replace(memory, available_bytes=memory.available_bytes - self.lots.making_bytes)
            host.read_limits(kernels)
            host.disk.measure(self.state.settings, disk_used_bytes(kernels), now, self.log)
            decides = bool(host.disk.limit_bytes) and self.access.is_shared
            read_host_bytes(self.state.processes(), now, decides=decides)
        self.operations.count_broken_promises(self._snapshot, now)  # before another kernel is chosen
        is_complete = self._has_run_for(now) >= self.state.settings.settle_s * COMPLETE_AFTER_SETTLING
        self._snapshot = snapshot(self.state, now, is_settled=self._is_settled(now), is_complete=is_complete)
        self._seen = {kernel.id: kernel for kernel in self._snapshot.kernels}
        self._estimate_waits(self._snapshot, now)

    def _has_run_for(self, now: float) -> float:
        """Return for how many seconds kernels could connect. A pause of this process or of the machine counts as one
        second at most.
        """
        self._ran_s += min(now - self._counted_until, TICK_ALONE_S)
        self._counted_until = now
        return self._ran_s

    def _is_settled(self, now: float) -> bool:
        """Return whether every kernel and the GPUs' figures are known by now, and no other controller decides any more.

        The first look at NVML may take seconds; before it, every kernel would seem to fit.
        """
        if self._has_run_for(now) < self.state.settings.settle_s:
            return False
        if not self._nvml_answered and self._has_run_for(now) < NVML_HANGS_AFTER_S:
            return False
        if self._standby is None:
            return True
        return self._standby.check(now, self.state.gpus.measured if self._nvml_answered else None)

    def _decide(self, now: float) -> None:
        actions = decide(now, self._snapshot, self.state.settings)
        for action in actions:
            try:
                self._effects.carry_out(action, now)
            except Exception:  # a kernel's failure must not affect the others
                self.log.exception("could not carry out %s", action)
        if actions:  # else it was looked at just now
            self._estimate_waits(snapshot(self.state, now, is_settled=self._snapshot.is_settled), now)

    def _estimate_waits(self, node: Node, now: float) -> None:
        queue = waiters(node, self.state.settings)
        told = estimate_waits(now, node, self.state.settings) if queue else {}
        self._waiting = Waiting(queue, told, waits_since(queue))
        if not queue:
            self.state.last_served.forget()

    def _moved(self) -> None:
        """Read the GPUs' figures again: a move ended, or is to be tried again."""
        self._nvml.sample_soon()
        self.poke()

    def _take_sample(self, sample: NvmlSample | None) -> None:
        is_first, self._nvml_answered = not self._nvml_answered, True
        if sample is not None:
            try:
                for uuid in (*(gpu.uuid for gpu in sample.gpus), *sample.unsized):
                    self._election.serve_gpu(uuid)
            except (GpuServed, OSError) as refused:
                self.log.error("this controller ends: %s", refused)
                self.exit_status = 3
                self.finished.set()
                return
        before = self.state.gpus.sample
        self.state.take_sample(sample)
        known, seen = (None if look is None else look.gpus for look in (before, sample))
        awaits_it = self.state.reservations.entries or self.state.room_requests
        if is_first or known != seen or awaits_it:
            self.poke()

    def _tidy(self, now: float) -> None:
        """End requests that no shim will answer, and forget what is gone."""
        self.operations.expire(now)
        withdraw_ends(self.state.kernels, now, self.log, self.poke)
        kernels = self.state.kernels.values()
        withdraw_hibernations(kernels, self.state.failed_spills, now, self.log, self.poke)
        self.state.sharing.tidy(self.state.settings.share_dir, self._loop)
        self.accounts.tidy(now)
        self.servers.watch_all(self.events.origins())
        beside: dict[str, Any] = {DISK_WRITTEN: self.state.host.disk.stored_bytes}
        if self.state.settings.share_dir:
            beside[SHARE_SECRET] = self.state.sharing.secret
        self.stored_requests.save(self.state.kernels.values(), now, beside)
        for process in self.state.stale_processes(now):
            self._shims.forget(process, lives=process.watch is not None)  # its end would have been seen
        for kernel in list(self.state.kernels.values()):
            if kernel.hibernated is not None and now > kernel.hibernated.until:
                self._forget_image_of(kernel)
            self.user_requests.end_fulfilled(kernel)
            is_over = kernel.server.description is None or kernel.past.has_had_processes
            lasts = EMPTY_KERNEL_LASTS_S if is_over else UNSERVED_KERNEL_LASTS_S
            is_old = kernel.past.empty_since is not None and now - kernel.past.empty_since > lasts
            if is_old and not kernel.server.is_there and not kernel.is_hibernated:
                self.state.kernels.pop(kernel.id, None)

    def _forget_image_of(self, kernel: KernelRecord) -> None:
        """Forget a hibernated kernel that no program tells of any more: it woke on another machine, or its image was
        deleted by a program that could not say so. A server that has it describes it anew.
        """
        self.log.info("%s is forgotten: no server or keeper tells of its image any more", kernel.id)
        kernel.note_awake()
        self.user_requests.ended(kernel)
        if not kernel.processes:
            del self.state.kernels[kernel.id]

    def _tell_places(self, now: float) -> None:
        """Tell each shim its kernel's place in the queue, when that changed."""
        waiting = len(self._waiting.estimates)
        for kernel in self.state.kernels.values():
            linked = kernel.connected()
            if not linked:
                continue
            estimate, ends = self._waiting.estimates.get(kernel.id), kernel.held_until
            text = notice_in_words(
                {
                    "text": describe.kernel_text(
                        self.state, kernel, self._seen.get(kernel.id), estimate, now
                    ),
                    **wait_json(kernel, estimate, self.state.kernels, now),
                }
            )
            place = 0 if estimate is None else estimate.position
            told = (place, waiting, text if place or ends is None else f"kept until {ends:.0f}")
            for process in linked:
                if process.told != told and process.connection is not None:
                    process.told = told
                    process.connection.notice(place, waiting, text)

    def _tell_room_requests(self, now: float) -> None:
        """Tell each request for room how it stands, in the words that a waiting kernel of the same user would hear."""
        estimates, kernels = self._waiting.estimates, self.state.kernels
        waits = {
            each.id: wait_json(each.record, estimates.get(each.id), kernels, now)
            for each in self.state.room_requests.values()
        }
        self.room_requests.tell(waits, len(estimates))

    def _end_if_unneeded(self, now: float) -> None:
        needed = self.events.subscribers or self.api_requests_open
        if needed or next(self.state.processes(), None) is not None:
            self.needed_at = now
        elif now - self.needed_at > self.state.settings.keep_alive_s and not self.access.is_shared:
            self.log.info("no kernel has needed this controller for %.0f s: it ends", now - self.needed_at)
            self.finished.set()
        if not self.access.is_shared and handover.gives_way(self.socket):
            self.log.info("this machine has a controller of its own now: this one ends, its kernels go there")
            self.finished.set()
        if not self._election.is_intact() or not self.socket.exists():
            self.log.error("the files in %s were removed: this controller ends", self.socket.parent)
            self.exit_status = 4
            self.finished.set()
