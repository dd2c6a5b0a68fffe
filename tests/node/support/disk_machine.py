"""A GPU, short host memory and a disk under a virtual clock: kernels think, want the GPU, are parked and spilled.

Sizes are whole GiB. Host memory is taken while a park goes on and given back as contents are written to disk.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from jupyter_affinode.node.model.actions import Action, Park, RefusePark, Resume, Spill, Trim
from jupyter_affinode.node.model.backoff import Backoff
from jupyter_affinode.node.model.snapshot import Gpu, Host, HostUse, Kernel, Node, Reservation, Residency
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.host_memory import CUSHION
from jupyter_affinode.settings.policy import GIB, Settings

GPU = "GPU"
STEP_S = 0.25
PARK_S, RESUME_S, TRIM_S = 1.5, 1.0, 0.75
DISK_S = 0.25  # to write a GiB, or to read it


@dataclass
class Sharer:
    """One kernel."""

    id: str
    size: int
    user: str = ""
    residency: Residency = Residency.PARKED
    kept: int = 0
    keep: int = 0  # what it was asked to keep, at trimmed_at
    trimmed_at: float | None = None
    on_disk: int = 0  # of what is parked
    spilling: int = 0  # on its way there, until spilled_at
    spilled_at: float = 0.0
    moving_until: float | None = None
    moves_since: float = 0.0
    budget: int | None = None
    wants_since: float | None = None
    last_activity: float = 0.0
    thinks_until: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    cells: int = 0

    @property
    def is_here(self) -> bool:
        """Whether it has room on the GPU."""
        return self.residency in (Residency.RESIDENT, Residency.PARKING, Residency.RESUMING)

    @property
    def on_host(self) -> int:
        """What it has of host memory: a copy, or what it keeps."""
        return self.kept if self.residency is Residency.RESIDENT else self.size - self.on_disk


@dataclass
class DiskMachine:
    """What there is, and the kernels that share it."""

    gpu: int
    host: int
    disk: int
    sharers: list[Sharer]
    draw: random.Random
    think_s: tuple[float, float] = (2.0, 10.0)
    now: float = 1000.0
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        reserve = 3 * GIB * CUSHION // (CUSHION + 1)  # with the margin above it, whole GiB
        self.settings = Settings(
            contended_idle_timeout_s=1.0, low_watermark=0.0, margin_bytes=0, host_reserve_bytes=reserve
        )
        for each in self.sharers:
            each.last_activity = self.now - self.draw.uniform(1, 100)
            each.thinks_until = self.now + self.draw.uniform(*self.think_s)

    @property
    def free(self) -> int:
        """Of the GPU."""
        return self.gpu - sum(each.size for each in self.sharers if each.is_here)

    @property
    def left(self) -> int:
        """Of host memory beyond the reserve."""
        return self.host - 3 - sum(each.on_host for each in self.sharers)

    def snapshot(self) -> Node:
        """What the policy sees; NVML does not show yet what is resuming."""
        coming = [each for each in self.sharers if each.residency is Residency.RESUMING]
        free = (self.free + sum(each.size for each in coming)) * GIB
        on_disk = sum(each.on_disk + each.spilling for each in self.sharers)
        host = Host((self.left + 3) * GIB, total_bytes=self.host * GIB, disk_limit_bytes=self.disk * GIB)
        return Node(
            {GPU: Gpu(GPU, free, self.gpu * GIB, self.now)},
            tuple(map(_seen, self.sharers)),
            Host(**{**_fields(host), "disk_writable_bytes": max(self.disk - on_disk, 0) * GIB}),
            tuple(Reservation(each.id, GPU, each.size * GIB) for each in coming),
        )

    def step(self) -> None:
        """Let every kernel go on; the policy decides and is carried out; time passes."""
        for each in self.sharers:
            self._live(each)
        actions = decide(self.now, self.snapshot(), self.settings)
        ids = [action.kernel_id for action in actions]
        assert len(ids) == len(set(ids)), "two actions for one kernel"
        for action in actions:
            self._apply(next(each for each in self.sharers if each.id == action.kernel_id), action)
        assert self.free >= 0, "the GPU is over-committed"
        assert self.left >= 0, "the reserve was touched"
        assert sum(each.on_disk + each.spilling for each in self.sharers) <= self.disk
        self.now += STEP_S

    @property
    def is_waited(self) -> bool:
        """Whether any kernel waits."""
        return any(each.wants_since is not None for each in self.sharers)

    def _live(self, each: Sharer) -> None:
        if each.moving_until is not None and self.now >= each.moving_until:
            self._arrive(each)
        if each.trimmed_at is not None and self.now >= each.trimmed_at + TRIM_S:
            each.kept, each.trimmed_at = min(each.kept, each.keep), None
        if each.spilling and self.now >= each.spilled_at:
            each.on_disk, each.spilling = each.on_disk + each.spilling, 0
        if self.now < each.thinks_until:
            return
        if each.residency is Residency.RESIDENT:
            self._has_cell(each)
        elif each.residency is Residency.PARKED and each.wants_since is None:
            each.wants_since, each.residency = self.now, Residency.QUEUED
            each.spilling = 0  # a call ends it

    def _has_cell(self, each: Sharer) -> None:
        each.wants_since = None
        each.cells, each.last_activity = each.cells + 1, self.now
        each.thinks_until = self.now + self.draw.uniform(*self.think_s)

    def _arrive(self, each: Sharer) -> None:
        each.moving_until = None
        if each.residency is Residency.RESUMING:
            each.residency, each.kept, each.on_disk = Residency.RESIDENT, each.size - each.on_disk, 0
            self._has_cell(each)
        else:
            each.residency, each.kept, each.budget = Residency.PARKED, 0, None

    def _apply(self, each: Sharer, action: Action) -> None:
        self.counts[type(action).__name__] += 1
        if isinstance(action, Park):
            assert each.residency is Residency.RESIDENT
            assert (each.size - each.kept) * GIB <= action.budget_bytes, "a park that had to fail"
            each.residency, each.budget, each.trimmed_at = Residency.PARKING, action.budget_bytes, None
            each.moves_since, each.moving_until = self.now, self.now + PARK_S
        elif isinstance(action, Resume):
            each.residency, each.moves_since = Residency.RESUMING, self.now
            each.moving_until = self.now + RESUME_S + DISK_S * each.on_disk
        elif isinstance(action, Trim):
            each.keep, each.trimmed_at = action.keep_bytes // GIB, self.now
        elif isinstance(action, Spill):
            assert not each.is_here and not each.spilling and action.bytes > 0
            each.spilling = min(-(-action.bytes // GIB), each.size - each.on_disk)
            each.spilled_at = self.now + DISK_S * each.spilling
        elif isinstance(action, RefusePark):
            each.backoff.fail(self.now)
        else:
            raise AssertionError(action)


def _fields(host: Host) -> dict[str, object]:
    return {name: getattr(host, name) for name in host.__dataclass_fields__}


def _seen(each: Sharer) -> Kernel:
    here = each.residency in (Residency.RESIDENT, Residency.PARKING)
    is_resident, trimming = each.residency is Residency.RESIDENT, each.trimmed_at is not None
    kept = each.size if each.residency is Residency.PARKING else each.kept if here else 0
    return Kernel(
        each.id,
        each.residency,
        {GPU: each.size * GIB * here},
        {GPU: each.size * GIB * (not here)},
        last_activity=each.last_activity,
        is_moving=each.moving_until is not None or each.spilling > 0,
        moves_since=each.moves_since if each.moving_until is not None else None,
        wants_since=each.wants_since,
        payer=each.user,
        host=HostUse(
            is_frugal=True,
            kept_bytes=kept * GIB,
            trimmable_bytes=(each.keep if trimming else each.kept) * GIB * is_resident,
            trimming_bytes=(each.kept - each.keep) * GIB if trimming else 0,
            park_takes_bytes=each.size * GIB,
            budget_bytes=each.budget,
            retry_at=each.backoff.retry_at,
            spillable_bytes=(each.size - each.on_disk) * GIB * (not each.is_here),
            spilling_bytes=each.spilling * GIB,
            disk_bytes=each.on_disk * GIB,
        ),
    )
