"""The controller's table of kernels and processes, rebuilt from hellos and pages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ...settings.policy import Settings
from ..link.connection import Connection
from ..model.backoff import UserBackOff
from ..model.pauses import Pauses
from ..model.reasons import StuckReason
from ..model.snapshot import Residency
from ..policy.queue import LastServed
from ..protocol.page import State
from ..protocol.wire import Hello, HelloFlag
from ..system.host_memory import HostMemory
from ..system.mapped_page import Page
from ..system.nvml import NvmlSample
from ..system.peers import parent_of, started_at
from .gpus.context_depth import (
    Objection,
    context_objection,
    kernel_needs,
    may_be_going_to,
    read_visible,
)
from .gpus.gpu_processes import shown_bytes, take_use
from .gpus.gpu_table import GpuTable
from .gpus.reservations import ReservationBook, ShownBytes
from .gpus.transfer_speeds import MoveSpeeds
from .host.host_figures import HostFigures
from .host.shared_memory import SharedMemory
from .persistence import StoredRequests
from .records.kernel import KernelRecord
from .records.process import BadPages, Process, read_pages, within
from .room_requests import RequestedRoom
from .stuck import stuck

HUNG_UP_FORGOTTEN_S = 10.0  # a live process that closed its link for longer runs without a shim
UNSEEN_HUNG_UP_FORGOTTEN_S = 3.0  # in a container its end cannot be seen: the process may connect again
UNSEEN_FORGOTTEN_S = 600.0  # a silent one whose end we cannot see; what it has on the GPU is "unmanaged" then
PAGES_TELL_WITHIN_S = 1.0  # … of a move that has ended


class NodeState:
    """Kernels by id, GPUs, reservations: all that the controller knows."""

    def __init__(self, settings: Settings, host: HostMemory):
        self.settings = settings
        self.host = HostFigures(host)
        self.kernels: dict[str, KernelRecord] = {}
        self.room_requests: dict[str, RequestedRoom] = {}  # by id
        self.gpus = GpuTable()
        self.reservations = ReservationBook()
        self.speeds = MoveSpeeds()
        self.failed_parks = UserBackOff(10.0, 3600.0)  # of users whose kernels are parked last
        self.unused_room = UserBackOff(1.0, 60.0)  # of users whose kernels get no room for a while
        self.asked_room = UserBackOff(
            1.0, 60.0
        )  # … and of those whose requests for it had others' kernels parked
        self.failed_spills = UserBackOff(60.0, 3600.0)  # of users whose kernels are not spilled for a while
        self.sharing = SharedMemory()
        self.last_served = LastServed()
        self.pauses = Pauses()
        self.stored_requests: StoredRequests | None = None  # users' requests to an earlier controller
        # Where there are other users, a page is not believed how long its process has waited, but for those that
        # waited already when this controller began.
        self.pages_say_since_until = math.inf
        self._keys = itertools.count(1)
        self._by_connection: dict[Connection, Process] = {}

    def processes(self) -> Iterator[Process]:
        """Yield every process."""
        for kernel in self.kernels.values():
            yield from kernel.processes.values()

    def process_of(self, connection: Connection) -> Process | None:
        """Return the process that a connection belongs to."""
        return self._by_connection.get(connection)

    def disconnect(self, process: Process) -> None:
        """Forget the process's connection."""
        if process.connection is not None:
            self._by_connection.pop(process.connection, None)
            process.connection = None

    def count_of(self, charged_user: str | None) -> int:
        """Return how many kernels of one user are known."""
        return sum(kernel.account.charged_user == charged_user for kernel in self.kernels.values())

    def kernel(self, kernel_id: str, now: float) -> KernelRecord:
        """Return a kernel by id; make its record if there is none."""
        kernel = self.kernels.get(kernel_id)
        if kernel is None:
            kernel = self.kernels[kernel_id] = KernelRecord(kernel_id, residency_since=now)
            kernel.past.empty_since = now
            kernel.failures.park.name = kernel_id  # tries of kernels that failed together spread
            if self.stored_requests is not None:
                self.stored_requests.recall(kernel, now)
        return kernel

    def add_process(self, connection: Connection, hello: Hello, page: Page, now: float) -> Process:
        """Add the process of a shim that said HELLO, in place of its records from earlier connections."""
        key = next(self._keys)
        identity, pid = connection.identity, connection.peer.pid
        kernel_id = identity.scoped(hello.kernel_id or f"process-{pid}-{key}")
        was_asked = False
        for old in self.earlier(connection, page):
            if not hello.kernel_id:
                kernel_id = old.kernel_id
            was_asked = was_asked or self.kernels[old.kernel_id].requests.resume
            self.remove_process(old, now, lives=True)
        said = within(page.last, self.gpus.sizes)
        process = Process(
            key, kernel_id, hello, page, said, connection, connection.peer.pid, connected_at=now
        )
        process.peer_uid, process.calls_changed_at = connection.peer.uid, now
        if page.last.state is State.PARKED:
            process.parked_at = page.last.state_since
        parent = parent_of(pid) if pid > 0 else None
        process.parent = parent if parent is not None and parent > 1 else None
        is_new = page.last.state is State.NONE  # else it may have begun at any time before
        process.started_at = started_at(connection.peer.pid, now if is_new else math.nan)
        self._read_visible(process)
        kernel = self.kernel(kernel_id, now)
        kernel.account.take_identity(identity)
        kernel.processes[key], kernel.refused = process, None
        kernel.note_awake()
        if self.stored_requests is not None:
            self.stored_requests.recall(kernel, now)
        if now > self.pages_say_since_until:
            process.queued_after = now
        self._by_connection[connection] = process
        kernel.past.empty_since = None
        kernel.past.has_had_processes = True
        kernel.requests.resume = kernel.requests.resume or (
            was_asked and kernel.requests.resume_done is not None
        )
        return process

    def earlier(self, connection: Connection, page: Page) -> list[Process]:
        """Return the records of the process behind a new connection: those with the same page file, or with the pid of
        a process that hung up or was silent.

        Pids of other pid namespaces are 0 and tell nothing.
        """
        owner, pid = connection.identity.owner, connection.peer.pid
        return [
            old
            for old in self.processes()
            if self.kernels[old.kernel_id].account.owner == owner
            and (old.page.inode == page.inode or (0 < pid == old.pid and old.connection is None))
        ]

    def knows(self, owner: str, page: Page) -> bool:
        """Return whether the page is that of a known process of the owner's, or of one that an earlier controller
        knew.
        """
        known = {
            self.kernels[old.kernel_id].account.owner
            for old in self.processes()
            if old.page.inode == page.inode
        }
        return owner in known or (
            self.stored_requests is not None and self.stored_requests.knows(owner, page.inode)
        )

    def take_settings(self, settings: Settings) -> None:
        """Apply new settings."""
        self.settings = settings
        for process in self.processes():
            self._read_visible(process)

    def remove_process(self, process: Process, now: float, *, lives: bool = False) -> None:
        """Remove a process that ended, or that has no shim any more (`lives`); the caller answers what waits for its
        reply.
        """
        process.page.close()
        if process.watch is not None:
            process.watch.close()
        if process.connection is not None:
            self._by_connection.pop(process.connection, None)
        kernel = self.kernels[process.kernel_id]
        del kernel.processes[process.key]
        if not lives:  # else it may connect again with these counts
            self.sharing.is_left = True
            kernel.past.parks += process.data.parks
            kernel.past.resumes += process.data.resumes
            kernel.past.calls += sum(process.data.calls)
            if kernel.processes and process.uses_gpu:
                kernel.past.peer_ended_at = now
        self.reservations.forget_process(process.key)
        if not kernel.processes:
            kernel.past.empty_since = now
            kernel.wants_since = None
            kernel.requests.resume = False
            if not lives:  # what follows, as after a restart, has not been moved, and nothing of it refused
                kernel.because(None, None)
                failures = kernel.failures
                failures.refusal = failures.refusal_code = failures.context_refusal = None
            self.reservations.forget_kernel(kernel.id)

    def read_pages(self, now: float) -> tuple[bool, BadPages]:
        """Read every page; return whether any is new, and the malformed ones."""
        before = [process.data for process in self.processes()]
        bad = read_pages(self.processes(), self.gpus.sizes, now)
        is_new = any(process.data is not data for process, data in zip(self.processes(), before, strict=True))
        return is_new, bad

    def read_pages_of(self, kernel: KernelRecord, now: float) -> BadPages:
        """Read one kernel's pages; return its processes whose page is malformed."""
        bad = read_pages(kernel.processes.values(), self.gpus.sizes, now)
        self._refresh_kernel(kernel, now)
        return bad

    def refresh(self, now: float) -> BadPages:
        """Read every page and update the table; return the processes whose page is malformed, for the caller
        to drop.
        """
        bad = read_pages(self.processes(), self.gpus.sizes, now)
        for size, seconds in self.speeds.learn(
            self.processes(), self.gpus.sizes, lambda process: self._last_move_s(process, now)
        ):
            self.host.disk.take_read(size, seconds)
        managed: dict[str, int] = {}
        for kernel in self.kernels.values():
            self._refresh_kernel(kernel, now)
            for gpu in kernel.by_gpu().values():
                managed[gpu.uuid] = managed.get(gpu.uuid, 0) + gpu.on_gpu_bytes
        self.gpus.take_pages(managed, now)
        sampled_at = self.gpus.sample.began if self.gpus.sample is not None else now
        self.reservations.sweep(now, sampled_at)
        return bad

    def shown_bytes(self, kernel_id: str, uuid: str) -> ShownBytes | None:
        """Return what NVML shows of a kernel on a GPU (reservations.py); None without NVML."""
        gpu = self.gpus.measured.get(uuid)
        if gpu is None:
            return None
        is_clear = not self.gpus.changed_bytes(uuid)  # else pages and figures are of different moments
        return shown_bytes(self.kernels[kernel_id], gpu, self.gpus.managed_bytes(uuid), is_clear=is_clear)

    def take_sample(self, sample: NvmlSample | None) -> None:
        """Take NVML's new figures; None: there is no NVML.

        A process that NVML saw computing counts as active, whatever its page shows.
        """
        self.gpus.take(sample, self.settings)
        if sample is None:
            return
        self.reservations.bear_out(sample.began, self.shown_bytes)
        take_use(sample, self.kernels)

    def stuck(self, process: Process, now: float) -> StuckReason | None:
        """Return why a process cannot make progress any more; None if it can."""
        kernel = self.kernels[process.kernel_id]
        measured = self.gpus.measured if process.is_parked else {}
        return stuck(process, kernel, measured, self.settings, now)

    def context_objection(self, kernel: KernelRecord) -> Objection | None:
        """Return why the kernel's CUDA context stays on the GPU when it is parked; None if it may be parked too."""
        return context_objection(kernel, self.processes(), self.gpus, self.settings)

    def stale_processes(self, now: float) -> list[Process]:
        """Return the processes that hung up and did not connect again.

        Stopped processes keep their memory until they end, or for a while where their end cannot be seen.
        """
        return [
            process
            for process in self.processes()
            if process.silent_since is not None and now - process.silent_since > _remembered_s(process)
        ]

    def lots_mapped(self) -> dict[int, int]:
        """Return the bytes of lots that each process shows, by its key."""
        return {process.key: process.data.lot_bytes for process in self.processes()}

    def _needs_of_earlier_resume(self, kernel: KernelRecord) -> dict[str, int]:
        """Return what a resume that an earlier controller began may take, by GPU: that room is reserved for it.

        If it finds no room after all, it releases what it took and asks again.
        """
        needs = dict(kernel_needs(kernel))
        needs.update(dict.fromkeys(may_be_going_to(kernel, self.gpus), sum(needs.values())))
        sizes = self.gpus.sizes or {}
        return {gpu: min(size, sizes.get(gpu, size)) for gpu, size in needs.items()}

    def _last_move_s(self, process: Process, now: float) -> float | None:
        """Return how long the kernel's present move has taken, or its last one if that has just ended; else None."""
        kernel = self.kernels[process.kernel_id]
        if kernel.move is not None:
            return now - kernel.move.began
        return kernel.last_move.lasted_s if now - kernel.last_move.ended_at < PAGES_TELL_WITHIN_S else None

    def _read_visible(self, process: Process) -> None:
        """Read which GPUs the process was started to see, if it could migrate: it may be another user's process."""
        if (
            self.settings.depth == "context"
            and process.connection is not None
            and process.hello.flags & HelloFlag.MIGRATES
        ):
            process.visible = read_visible(process.pid)

    def _refresh_kernel(self, kernel: KernelRecord, now: float) -> None:
        residency = kernel.residency_now()
        waiting = []
        for process in kernel.connected():
            if process.data.state is State.QUEUED:
                waiting.append(process)
            elif now > self.pages_say_since_until:
                process.queued_after = now
        if waiting or kernel.requests.resume:
            if kernel.wants_since is None:
                moments = (max(process.data.state_since, process.queued_after) for process in waiting)
                kernel.wants_since = min(moments, default=now)
        elif residency is not Residency.RESUMING and kernel.move is None:
            kernel.wants_since = None  # while it is on its way it keeps its place, in case that fails
        if residency is Residency.QUEUED and not waiting and not kernel.requests.resume:
            residency = Residency.PARKED  # its only waiter is stopped, or has hung up
        if residency is not kernel.residency:
            if kernel.residency is Residency.RESUMING and kernel.move is None:
                self.reservations.finish_resume(kernel.id, now)  # of one that was not waited for any more
            if residency is Residency.RESUMING and kernel.move is None and now <= self.pages_say_since_until:
                needs = self._needs_of_earlier_resume(kernel)
                self.reservations.reserve_resume(kernel.id, needs, now, self.shown_bytes)
            if residency is Residency.RESIDENT and kernel.residency is not Residency.PARKING:
                kernel.resident_since = now
            kernel.residency, kernel.residency_since = residency, now
        if kernel.held_until is not None and kernel.held_until <= now:
            kernel.held_until = None


def _remembered_s(process: Process) -> float:
    """Return how long a process without a connection is remembered."""
    if process.is_stopped:
        return math.inf if process.watch is not None else UNSEEN_FORGOTTEN_S
    return HUNG_UP_FORGOTTEN_S if process.watch is not None else UNSEEN_HUNG_UP_FORGOTTEN_S
