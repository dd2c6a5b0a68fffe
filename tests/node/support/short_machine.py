"""A machine whose host memory may be short, under a virtual clock: kernels think, want the GPU, and are parked.

Sizes are whole GiB. Host memory is taken while a park goes on and given back a while after it was asked for; shims keep
to their budgets, and say what a park would have taken. `order_exists` tries every way of making room there is.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from jupyter_affinode.node.model.actions import Action, Park, RefusePark, Resume, Trim
from jupyter_affinode.node.model.backoff import Backoff
from jupyter_affinode.node.model.reasons import Cause
from jupyter_affinode.node.model.snapshot import Gpu, Host, HostUse, Kernel, Node, Reservation, Residency
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.host_memory import CGROUP_RESERVE, CUSHION
from jupyter_affinode.settings.policy import GIB, Settings

STEP_S = 0.25
PARK_S, RESUME_S, TRIM_S = 1.5, 1.0, 0.75
SETTINGS = Settings(
    idle_timeout_s=3600.0,
    contended_idle_timeout_s=1.0,
    low_watermark=0.0,
    margin_bytes=0,
    depth="context",
)


@dataclass
class Sharer:
    """One kernel."""

    id: str
    size: int
    gpu: str
    cgroups: tuple[str, ...] = ()
    goes_elsewhere: bool = False
    residency: Residency = Residency.RESIDENT
    kept: int = 0
    known: bool = True  # what its park takes
    keep: int = 0  # … what it was asked to keep, at trimmed_at
    trimmed_at: float | None = None
    moving_until: float | None = None
    moves_since: float = 0.0
    budget: int | None = None
    short: int = 0
    wants_since: float | None = None
    last_activity: float = 0.0
    thinks_until: float = 0.0
    host_backoff: Backoff = field(default_factory=Backoff)
    cells: int = 0
    waited_s: float = 0.0  # the longest
    image: int = 0  # the driver's copy of its context on the host, if that leaves too

    @property
    def is_here(self) -> bool:
        """Whether it has room on its GPU."""
        return self.residency in (Residency.RESIDENT, Residency.PARKING, Residency.RESUMING)

    @property
    def on_host(self) -> int:
        """What it has of host memory: a copy and the context's, or what it keeps."""
        if self.residency is Residency.RESIDENT:
            return self.kept
        return self.size + self.image


@dataclass
class ShortMachine:
    """GPUs, host memory, limits by cgroup, and who shares them."""

    gpus: Mapping[str, int]
    host: int
    sharers: list[Sharer]
    limits: Mapping[str, int] = field(default_factory=dict)
    reserve: int = 0
    contexts: int = 0  # what each takes of its GPU beside its memory, also parked if it cannot leave
    think_s: tuple[float, float] = (2.0, 10.0)
    draw: random.Random = field(default_factory=random.Random)
    now: float = 1000.0
    others: int = 0  # host memory of somebody else's
    counts: dict[str, int] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        reserve = self.reserve * GIB * CUSHION // (CUSHION + 1)  # with the margin above it, whole GiB
        self.settings = SETTINGS.changed(host_reserve_bytes=reserve)
        for each in self.sharers:
            each.image = self.contexts if each.goes_elsewhere else 0
            each.last_activity = self.now
            each.thinks_until = self.now + self.draw.uniform(*self.think_s)

    # ---- what there is

    def free(self, gpu: str) -> int:
        """Of a GPU."""
        used = 0
        for each in self.sharers:
            if each.gpu == gpu:
                stays = each.is_here or not each.goes_elsewhere
                used += each.size * each.is_here + self.contexts * stays
        return self.gpus[gpu] - used

    def left(self, place: str) -> int:
        """Of host memory beyond the reserve, on the machine ("") or in a cgroup."""
        inside = [each for each in self.sharers if not place or place in each.cgroups]
        used = sum(each.on_host for each in inside)
        if not place:
            return self.host - self.others - used - self.reserve
        limit = self.limits[place]
        return limit - used - self._reserve_in(limit)

    def _reserve_in(self, limit: int) -> int:
        """What is left free of a cgroup with so much, the margin included: at least what the policy leaves."""
        return min(-(-limit * (CUSHION + 1) // (CUSHION * CGROUP_RESERVE)), self.reserve)

    def snapshot(self) -> Node:
        """What the policy sees."""
        gpus = {gpu: Gpu(gpu, self._shown(gpu), total * GIB, self.now) for gpu, total in self.gpus.items()}
        headroom = {
            cgroup: (self.left(cgroup) + self._reserve_in(limit)) * GIB
            for cgroup, limit in self.limits.items()
        }
        limits = {cgroup: limit * GIB for cgroup, limit in self.limits.items()}
        host = Host((self.left("") + self.reserve) * GIB, headroom, self.host * GIB, limits)
        reserved = tuple(
            Reservation(each.id, each.gpu, (each.size + self.contexts * each.goes_elsewhere) * GIB)
            for each in self.sharers
            if each.residency is Residency.RESUMING
        )
        return Node(gpus, tuple(map(self._seen, self.sharers)), host, reserved)

    def _shown(self, gpu: str) -> int:
        """Free by NVML, which does not show yet what is resuming."""
        coming = sum(
            each.size + self.contexts * each.goes_elsewhere
            for each in self.sharers
            if each.gpu == gpu and each.residency is Residency.RESUMING
        )
        return (self.free(gpu) + coming) * GIB

    def _seen(self, each: Sharer) -> Kernel:
        here = each.residency in (Residency.RESIDENT, Residency.PARKING)
        waits = each.wants_since is not None and each.goes_elsewhere and not each.is_here
        trimming = each.trimmed_at is not None
        context = self.contexts * GIB if each.goes_elsewhere else 0
        return Kernel(
            each.id,
            each.residency,
            {each.gpu: each.size * GIB * here},
            {each.gpu: each.size * GIB * (not here)},
            context_bytes={each.gpu: context} if context and not here else {},
            may_leave=each.goes_elsewhere,
            leaves_bytes={each.gpu: each.image * GIB} if each.goes_elsewhere and here else {},
            elsewhere=tuple(gpu for gpu in self.gpus if gpu != each.gpu) if waits else (),
            last_activity=each.last_activity,
            is_moving=each.moving_until is not None,
            moves_since=each.moves_since if each.moving_until is not None else None,
            wants_since=each.wants_since,
            cgroups=each.cgroups,
            host=HostUse(
                is_frugal=True,
                kept_bytes=(each.size if each.residency is Residency.PARKING else each.kept) * GIB
                if here
                else 0,
                trimmable_bytes=(each.keep if trimming else each.kept) * GIB
                if each.residency is Residency.RESIDENT
                else 0,
                trimming_bytes=(each.kept - each.keep) * GIB if trimming else 0,
                park_takes_bytes=each.size * GIB if each.known else None,
                park_short_bytes=each.short * GIB,
                budget_bytes=each.budget,
                retry_at=each.host_backoff.retry_at,
            ),
        )

    # ---- time

    def step(self) -> list[Action]:
        """Everybody goes on; the policy decides and is carried out; time passes."""
        for each in self.sharers:
            self._live(each)
        actions = decide(self.now, self.snapshot(), self.settings)
        ids = [action.kernel_id for action in actions]
        assert len(ids) == len(set(ids)), "two actions for one kernel"
        for action in actions:
            self._apply(action)
        assert all(self.free(gpu) >= 0 for gpu in self.gpus), "a GPU is over-committed"
        self.now += STEP_S
        return actions

    def _live(self, each: Sharer) -> None:
        if each.moving_until is not None and self.now >= each.moving_until:
            self._arrive(each)
        if each.trimmed_at is not None and self.now >= each.trimmed_at + TRIM_S:
            each.kept, each.trimmed_at = min(each.kept, each.keep), None
        if self.now < each.thinks_until:
            return
        if each.residency is Residency.RESIDENT:
            self._has_cell(each)
        elif each.residency is Residency.PARKED and each.wants_since is None:
            each.wants_since, each.residency = self.now, Residency.QUEUED
        elif each.residency is Residency.PARKING:
            self._count("came back while parking")
            each.kept = each.size
            each.residency, each.moving_until = Residency.RESIDENT, None
            self._has_cell(each)

    def _has_cell(self, each: Sharer) -> None:
        waited = 0.0 if each.wants_since is None else self.now - each.wants_since
        self.waits.append(waited)
        each.waited_s, each.wants_since = max(each.waited_s, waited), None
        each.cells, each.last_activity, each.short = each.cells + 1, self.now, 0
        each.thinks_until = self.now + self.draw.uniform(*self.think_s)

    def _arrive(self, each: Sharer) -> None:
        each.moving_until = None
        if each.residency is Residency.RESUMING:
            each.residency, each.kept = Residency.RESIDENT, each.size
            self._count("resumes")
            self._has_cell(each)
            return
        each.residency, each.kept, each.budget, each.known = Residency.PARKED, 0, None, True
        each.host_backoff.succeed()
        self._count("parks")

    def _apply(self, action: Action) -> None:
        each = next(each for each in self.sharers if each.id == action.kernel_id)
        if isinstance(action, Park):
            self._park(each, action)
        elif isinstance(action, Resume):
            (gpu,) = action.reserved_bytes
            if action.gpu is not None and action.gpu != each.gpu:
                assert each.goes_elsewhere and action.cause is Cause.CELL
                self._count("resumes elsewhere")
            each.gpu = gpu
            each.residency, each.moves_since = Residency.RESUMING, self.now
            each.moving_until = self.now + RESUME_S
        elif isinstance(action, Trim):
            assert each.residency is Residency.RESIDENT and each.moving_until is None
            each.keep, each.trimmed_at = action.keep_bytes // GIB, self.now
            self._count("trims")
        elif isinstance(action, RefusePark):
            self._refuse(each, "refused")
        else:
            raise AssertionError(action)

    def _park(self, each: Sharer, action: Park) -> None:
        assert each.residency is Residency.RESIDENT and each.moving_until is None
        if (each.size - each.kept) * GIB > action.budget_bytes:
            each.short, each.kept = each.size, 0
            self._refuse(each, "failed")
            return
        each.residency, each.budget = Residency.PARKING, action.budget_bytes
        each.moves_since, each.moving_until, each.trimmed_at = self.now, self.now + PARK_S, None
        places = ["", *each.cgroups]
        assert all(self.left(place) >= 0 for place in places), "the reserve was touched"

    def _refuse(self, each: Sharer, how: str) -> None:
        self._count(f"parks {how} for host memory")
        each.host_backoff.fail(self.now)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # ---- every way there is

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way, and everybody on a GPU has been idle for long enough to yield."""
        return all(
            each.moving_until is None
            and each.trimmed_at is None
            and (each.residency is not Residency.RESIDENT or self.now - each.last_activity > 30)
            for each in self.sharers
        )

    def orders(self) -> Iterator[tuple[Sharer, str, tuple[Sharer, ...]]]:
        """Every way in which somebody who waits can be served: on which GPU, and who is parked for it."""
        here = [each for each in self.sharers if each.residency is Residency.RESIDENT]
        for waiter in self.sharers:
            if waiter.wants_since is None:
                continue
            for gpu in self.gpus if waiter.goes_elsewhere else (waiter.gpu,):
                lacks = waiter.size + self.contexts * waiter.goes_elsewhere - self.free(gpu)
                there = [each for each in here if each.gpu == gpu]
                most = len(there) if gpu == waiter.gpu else 0  # kernels yield for a waiter at home alone
                for count in range(most + 1):
                    for parked in itertools.combinations(there, count):
                        frees = sum(each.size + self.contexts * each.goes_elsewhere for each in parked)
                        if frees >= lacks and self._host_does(parked):
                            yield waiter, gpu, parked

    def _host_does(self, parked: Iterable[Sharer]) -> bool:
        """Whether host memory does for all of them, when all others have given back what they keep."""
        together = list(parked)
        if not together:
            return True
        for place in ("", *self.limits):
            inside = [each for each in self.sharers if not place or place in each.cgroups]
            takes = sum(each.size - each.kept + each.image for each in together if each in inside)
            gives = sum(
                each.kept for each in inside if each.residency is Residency.RESIDENT and each not in together
            )
            if takes > 0 and takes > self.left(place) + gives:
                return False
        return True
