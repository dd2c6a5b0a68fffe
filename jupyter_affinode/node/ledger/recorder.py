"""History's observer: measures, counts and writes the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from ..identity.rate_limits import TokenBucket
from ..model.reasons import Cause, Refusal
from ..model.snapshot import Residency, Waiter
from ..policy.wait_estimates import WaitEstimate
from ..protocol.wire import LARGEST_BYTES
from ..state.gpus.gpu_table import HISTORY_EVERY_S
from ..state.observer import MoveEnded, Observer, RoomAnswered, SpillEnded
from ..state.records.kernel import KernelRecord
from ..state.records.ownership import own_name, owner_of
from ..state.registry import NodeState
from .past import Present
from .store import EventRow, KernelRow, SampleRow
from .usage import DAY_S, ByteSeconds, Meter, Seen
from .waits import WaitEnded, WaitWatch
from .writer import Ledger

LOOK_EVERY_S = 1.0
ROWS_PER_S, ROWS_AT_ONCE = (
    2.0,
    2000.0,
)  # that a user may have written: more than kernels that change places all day
PACES_MAX = 4096
# Sums that a user has in a day, by user id and GPU: a container has thousands of ids, and pages name any GPU. What is
# beyond counts as the user's own, and on no GPU. Sums are never purged for want of space.
SUMS_A_DAY_MAX = 256
SAMPLED_EVERY_S = 10
LOOKS_A_SAMPLE = round(SAMPLED_EVERY_S / HISTORY_EVERY_S)
KERNELS_WRITTEN_EVERY_S = 60.0  # as exact is what is known of a kernel whose end no controller saw


class EventKind(str, Enum):
    """The subject of a row of the ledger's `events`."""

    PARK = "park"
    RESUME = "resume"
    REFUSAL = "refusal"  # a park that was not tried; one that failed is a PARK with its outcome
    ROOM = "room"  # an allocation that met a full GPU: outcome "granted" or "denied"
    WAIT = "wait"  # outcome: waits.OUTCOMES
    GONE = "gone"  # the processes of a parked kernel ended: it ended, or was restarted with nothing to park
    SPILL = "spill"  # parked memory was written to disk: outcome "ok" or "failed"
    HIBERNATION = "hibernation"  # … to an image, for which its processes left: the same outcomes
    END = "end"  # its server was asked to shut it down for another


class Figures(Protocol):
    """Takes measurements for the metrics."""

    def waited(self, ended: WaitEnded) -> None:
        """Take a wait that ended."""

    def metered(self, seen: Seen, gpu: str, sums: ByteSeconds) -> None:
        """Take what a kernel held of a GPU since the last look."""

    def seen(self, kernels: Sequence[Seen], now: float) -> None:
        """Take every kernel that uses CUDA, as it is now."""


@dataclass(frozen=True)
class _Whose:
    """A kernel's user, the charged user, and the job in which it runs."""

    user: str = ""
    charged: str = ""
    account: str = ""
    job: str = ""


class History(Observer):
    """The observer. Without a ledger it only measures."""

    def __init__(
        self,
        state: NodeState,
        figures: Figures,
        ledger: Ledger | None = None,
        *,
        with_names: bool = False,
        wall: Callable[[], float] = time.time,
    ):
        """Prepare. `with_names`: the notebook's name, path and server are written too."""
        self.ledger = ledger
        self._state = state
        self._figures = figures
        self._with_names = with_names
        self._wall = wall
        self._meter = Meter()
        self._waits = WaitWatch()
        self._began: dict[str, KernelRow] = {}
        self._parked: dict[str, str] = {}  # by kernel: the GPUs that it left, with commas
        self._told_at: dict[str, float] = {}  # by hibernated kernel: when it was last told of
        self._users: dict[str, _Whose] = {}  # by kernel
        self._paces: dict[str, TokenBucket] = {}  # by charged user
        self._sums: dict[str, set[tuple[str, str]]] = {}  # of today: users and GPUs, by charged user
        self._sums_day = 0
        self._looked_at = 0.0
        self._kernels_written_at = 0.0
        self._sampled_at = 0

    # ---- Observer

    def move_ended(self, kernel: KernelRecord, ended: MoveEnded) -> None:
        """See observer.Observer."""
        self._write(
            EventKind.PARK if ended.parks else EventKind.RESUME,
            kernel,
            cause=ended.cause.value,
            outcome=ended.outcome,
            gpu=ended.to_gpu or "",
            depth=ended.depth,
            bytes=ended.bytes,
            duration_s=ended.duration_s,
            waited_s=ended.waited_s,
            from_gpu=ended.from_gpu or "",
        )

    def park_refused(self, kernel: KernelRecord, slug: Refusal, was_tried: bool) -> None:
        """See observer.Observer."""
        if not was_tried:
            self._write(EventKind.REFUSAL, kernel, outcome=slug)

    def spill_ended(self, kernel: KernelRecord, ended: SpillEnded) -> None:
        """See observer.Observer."""
        kind = EventKind.HIBERNATION if ended.into_image else EventKind.SPILL
        self._write(kind, kernel, outcome=ended.outcome, bytes=ended.bytes, duration_s=ended.duration_s)

    def room_answered(self, kernel: KernelRecord, answered: RoomAnswered) -> None:
        """See observer.Observer."""
        if not answered.granted:
            self._waits.denied(kernel.id)
        self._write(
            EventKind.ROOM,
            kernel,
            gpu=answered.gpu,
            cause="" if answered.granted else answered.cause.value,
            outcome="granted" if answered.granted else "denied",
            bytes=answered.bytes,
            waited_s=answered.waited_s,
        )

    def looked(self, now: float, queue: Sequence[Waiter]) -> None:
        """See observer.Observer."""
        for ended in self._waits.take_queue(now, queue, self._state.kernels):
            self._figures.waited(ended)
            self._write_row(
                EventKind.WAIT,
                ended.kernel_id,
                gpu=ended.gpu,
                outcome=ended.outcome,
                bytes=ended.bytes,
                waited_s=ended.waited_s,
            )
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._measure(now)

    def kernel_ending(self, kernel: KernelRecord, cause: Cause) -> None:
        """See observer.Observer."""
        self._write(EventKind.END, kernel, cause=cause.value, outcome="asked")

    def as_json(self) -> dict[str, Any]:
        """Return whether history is kept, for the API."""
        problem = None if self.ledger is None else self.ledger.problem
        return {"kept": self.ledger is not None, "problem": problem}

    def close(self) -> None:
        """Write the last measurements, as the controller ends; the kernels live on."""
        if self.ledger is not None:
            self.measure_now()
            self.ledger.close(self._wall())

    def measure_now(self) -> None:
        """Measure, whenever the last look was."""
        self._measure(time.monotonic())

    # ---- measuring

    def _measure(self, now: float) -> None:
        wall = self._wall()
        if wall // DAY_S != self._sums_day:
            self._sums, self._sums_day = {}, int(wall // DAY_S)
        self._write_gone(now, wall)
        seen = [self._seen(kernel) for kernel in self._state.kernels.values() if _counts(kernel)]
        for kernel, gpu, sums in self._meter.count(now, wall, seen):
            self._figures.metered(kernel, gpu, sums)
        self._figures.seen(seen, now)
        self._users = {}
        for record in self._state.kernels.values():
            self._user(record)
        usage = self._meter.take()
        if self.ledger is not None:
            self.ledger.usage(usage)
            self._write_kernels(self.ledger, seen, now, wall)
            self._write_samples(self.ledger, wall)
            self.ledger.write_due(now, wall)

    def _seen(self, kernel: KernelRecord) -> Seen:
        user, gpus = self._of_sums(kernel)
        processes = kernel.processes.values()
        return Seen(
            kernel.id,
            user,
            owner_name(kernel),
            _last_activity(kernel),
            any(process.data.calls_in_flight or process.data.captures for process in processes),
            {uuid: held for uuid, (held, _) in gpus.items()},
            {uuid: parked for uuid, (_, parked) in gpus.items()},
            kernel.account.account,
            kernel.account.job,
            None if kernel.hibernated is None else kernel.hibernated.told_at,
        )

    def _of_sums(self, kernel: KernelRecord) -> tuple[str, dict[str, tuple[int, int]]]:
        """Return the user, and the figures of each GPU, to which those of the kernel are added."""
        user, gpus = self._user(kernel), self._gpus(kernel)
        charged = self._users[kernel.id].charged
        known = self._sums.setdefault(charged, set())
        new = {(user, uuid) for uuid in gpus} - known
        if len(known) + len(new) <= SUMS_A_DAY_MAX:
            known |= new
        elif new:
            held, parked = (sum(column) for column in zip(*gpus.values(), strict=True))
            user, gpus = charged, {"": (held, parked)}
        return user, gpus

    def _gpus(self, kernel: KernelRecord) -> dict[str, tuple[int, int]]:
        """Return bytes held and parked by GPU.

        A GPU that NVML does not know is "", and no kernel counts more than a GPU has: pages may claim anything, and
        reports are for all users.
        """
        sizes = self._state.gpus.sizes
        largest = max((sizes or {}).values(), default=LARGEST_BYTES)
        sums: dict[str, tuple[int, int]] = {}
        of_processes = (gpu for process in kernel.processes.values() for gpu in process.data.gpus)
        for gpu in of_processes if kernel.hibernated is None else kernel.by_gpu().values():
            uuid = gpu.uuid if sizes is None or gpu.uuid in sizes else ""
            most = (sizes or {}).get(uuid, largest)
            held, parked = sums.get(uuid, (0, 0))
            held = min(held + gpu.on_gpu_bytes, most)
            sums[uuid] = held, parked + min(gpu.parked_bytes, most)
        return sums

    # ---- writing

    def _write_samples(self, ledger: Ledger, wall: float) -> None:
        """Write how full and how busy each GPU is, now and then."""
        at = int(wall) // SAMPLED_EVERY_S * SAMPLED_EVERY_S
        if at != self._sampled_at:
            self._sampled_at = at
            gpus = self._state.gpus
            ledger.samples(
                SampleRow(at, gpu.uuid, gpu.used_bytes, _mean(gpus.utilization_history(gpu.uuid)))
                for gpu in gpus.measured.values()
            )

    def _write_kernels(self, ledger: Ledger, seen: Sequence[Seen], now: float, wall: float) -> None:
        """Write the kernels that came and went; now and then all, so that it is known until when they lived."""
        is_due = now - self._kernels_written_at >= KERNELS_WRITTEN_EVERY_S
        if is_due:
            self._kernels_written_at = now
        living = {kernel.kernel_id for kernel in seen}
        for kernel in self._state.kernels.values():
            if kernel.id not in living:
                continue
            row, known = self._row(kernel, wall), self._began.get(kernel.id)
            if known is None and not self._may_write(kernel.id):
                continue
            if is_due or known is None or known.gpus != row.gpus:
                self._began[kernel.id] = row
                ledger.kernel(row)
        for kernel_id in self._began.keys() - living:
            row, ended = self._began.pop(kernel_id), self._ended_at(kernel_id, now, wall)
            ledger.kernel(KernelRow(**{**vars(row), "seen": ended, "ended": ended}))
        self._told_at = {each.kernel_id: each.known_until for each in seen if each.known_until is not None}

    def _row(self, kernel: KernelRecord, wall: float) -> KernelRow:
        known = self._began.get(kernel.id)
        simulated = any(process.is_simulated for process in kernel.processes.values())
        said = kernel.server.description if self._with_names else None
        return KernelRow(
            kernel.id,
            self._user(kernel),
            wall if known is None else known.began,
            wall,
            None,
            simulated,
            said.name if said and said.name else None,
            said.path if said and said.path else None,
            said.server if said and said.server else None,
            self._gpu_names(kernel) or (known.gpus if known is not None else ""),
        )

    def _ended_at(self, kernel_id: str, now: float, wall: float) -> float:
        """Return since when a kernel is gone, by the wall clock: a hibernated one has not been known since it was last
        told of.
        """
        return wall - (now - self._told_at.get(kernel_id, now))

    def _write_gone(self, now: float, wall: float) -> None:
        """Write which of the kernels that were parked at the last look have no memory any more."""
        kernels = {kernel.id: kernel for kernel in self._state.kernels.values() if _counts(kernel)}
        for kernel_id, gpus in self._parked.items():
            kernel = kernels.get(kernel_id)
            if kernel is None or kernel.residency is Residency.NONE:
                at = self._ended_at(kernel_id, now, wall) if kernel is None else wall
                self._write_row(EventKind.GONE, kernel_id, at=at, gpus=gpus)
        self._parked = {
            kernel_id: self._gpu_names(kernel)
            for kernel_id, kernel in kernels.items()
            if kernel.residency in (Residency.PARKED, Residency.HIBERNATED)
        }

    def _write(self, kind: EventKind, kernel: KernelRecord, *, gpu: str = "", **columns: Any) -> None:
        """Write an event; `columns`: the others of EventRow."""
        if self.ledger is not None:
            self._user(kernel)
            columns |= {"gpu": gpu or kernel.main_gpu(), "gpus": self._gpu_names(kernel)}
            self._write_row(kind, kernel.id, **columns)

    def _write_row(self, kind: EventKind, kernel_id: str, *, at: float | None = None, **columns: Any) -> None:
        """Write an event of a kernel that may be gone, with the user and the job that are remembered. `at`: when it
        was, by the wall clock; None: now.
        """
        if self.ledger is not None and self._may_write(kernel_id):
            whose = self._users.get(kernel_id, _Whose())
            columns |= {"account": whose.account, "job": whose.job}
            moment = self._wall() if at is None else at
            self.ledger.event(EventRow(moment, kind.value, kernel_id, whose.user, **columns))

    def _may_write(self, kernel_id: str) -> bool:
        """Return whether a kernel's user has not had too much written lately, and count a row."""
        charged = self._users.get(kernel_id, _Whose()).charged
        pace = self._paces.get(charged)
        if pace is None:
            if len(self._paces) >= PACES_MAX:
                self._paces.clear()
            pace = self._paces[charged] = TokenBucket(ROWS_PER_S, ROWS_AT_ONCE)
        return pace.take()

    def _gpu_names(self, kernel: KernelRecord) -> str:
        """Return the GPUs that a kernel has memory on or parked from, with commas."""
        return ",".join(sorted(uuid for uuid, sums in self._gpus(kernel).items() if uuid and any(sums)))

    def _user(self, kernel: KernelRecord) -> str:
        """Return the kernel's user; remembered for the waits that end because the kernel is gone."""
        user, account = owner_of(kernel), kernel.account
        self._users[kernel.id] = _Whose(user, account.charged_user or user, account.account, account.job)
        if self.ledger is not None:
            self.ledger.user(user, owner_name(kernel))
        return user


def _counts(kernel: KernelRecord) -> bool:
    """Return whether it has processes, or gives GPU memory back without any."""
    return bool(kernel.processes) or kernel.residency is Residency.HIBERNATED


def owner_name(kernel: KernelRecord) -> str:
    """Return the kernel's user as users see it, as text that every file takes: passwd(5) may have any bytes."""
    account = kernel.account
    name = (account.name or account.owner) if account.owner else own_name()
    return name.encode("utf-8", "replace").decode()


def _mean(utilization: Sequence[int | None]) -> float | None:
    known = [percent for percent in utilization[-LOOKS_A_SAMPLE:] if percent is not None]
    return round(sum(known) / len(known), 1) if known else None


def present(kernel: KernelRecord, wait: WaitEstimate | None, shift: float) -> Present:
    """Return a kernel as the pictures of the past end. `shift`: from the monotonic clock to the wall clock."""
    waits = wait is not None and kernel.residency not in (Residency.PARKING, Residency.RESUMING)
    said = kernel.server.description
    residency = Residency.PARKED if kernel.residency is Residency.HIBERNATED else kernel.residency
    return Present(
        kernel.id,
        owner_of(kernel),
        Residency.QUEUED if waits else residency,
        shift + (wait.since if wait is not None and waits else kernel.residency_since),
        kernel.reason_code or "",
        tuple(uuid for uuid, gpu in kernel.by_gpu().items() if gpu.in_all_bytes or gpu.parked_bytes),
        said.name if said and said.name else None,
        said.path if said and said.path else None,
    )


def _last_activity(kernel: KernelRecord) -> float:
    return max((process.last_activity for process in kernel.processes.values()), default=0.0)
