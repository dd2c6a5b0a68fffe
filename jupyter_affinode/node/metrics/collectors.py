"""Prometheus metrics of the node: counted as things happen, or collected from the state when they are asked for.

Every label has a bounded set of values. Users are no label unless the administrator turns that on.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..ledger.usage import ByteSeconds, Seen
from ..ledger.waits import OUTCOMES, WaitEnded
from ..ledger.writer import Ledger
from ..model.reasons import PARK_REFUSALS, Cause, Refusal
from ..model.snapshot import Residency, Waiter
from ..state.observer import MoveEnded, Observer, RoomAnswered, SpillEnded
from ..state.records.kernel import KernelRecord
from ..state.registry import NodeState

MOVE_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
WAIT_BUCKETS_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0)
GPU_FIGURES = ("total", "used", "free", "managed", "unmanaged")
GPUS_MAX = 64
USERS_MAX = 500
OTHER = "other"  # the label of all further values


class Labels:
    """The values that a label may take: the first so many, then "other"."""

    def __init__(self, most: int):
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """Return the value to use."""
        if value not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(value)
        return value


class Metrics(Observer):
    """The registry behind /metrics; an Observer, and the history's Figures."""

    def __init__(
        self,
        state: NodeState,
        node: Callable[[], dict[str, Any]],
        *,
        version: str,
        with_users: bool = False,
    ):
        """Register all metrics. `with_users`: memory by user, too."""
        self.registry = CollectorRegistry()
        self._gpus, self._users, self.with_users = Labels(GPUS_MAX), Labels(USERS_MAX), with_users
        self._make_moves()
        self._make_waits()
        self._make_memory()
        self.collector = _NodeCollector(state, node, self._gpus)
        self.registry.register(self.collector)
        self._make_build(version)

    def _make_moves(self) -> None:
        """Make the metrics of parks and resumes, and of their outcomes."""
        self.moves = self._counter(
            "moves",
            "Parks and resumes that ended, by what they were for, how deep, and how they ended.",
            ["move", "cause", "depth", "outcome"],
        )
        self.move_seconds = Histogram(
            "affinode_move_duration_seconds",
            "How long parks and resumes of whole kernels took.",
            ["move", "depth"],
            buckets=MOVE_BUCKETS_S,
            registry=self.registry,
        )
        self.moved_bytes = self._counter(
            "moved_bytes", "GPU memory that was parked and resumed.", ["move"], ["park", "resume"]
        )
        self.spills = self._counter(
            "spills",
            "Times that parked memory was written to disk, by how that ended.",
            ["outcome"],
            ["ok", "failed"],
        )
        self.hibernations = self._counter(
            "hibernations",
            "Times that all of a kernel was written to an image, by how that ended.",
            ["outcome"],
            ["ok", "failed"],
        )
        self.spilled_bytes = Counter(
            "affinode_spilled_bytes", "Parked memory that was written to disk.", registry=self.registry
        )
        self.migrations = self._counter(
            "resumes_elsewhere",
            "Resumes on another GPU than the one that was left, by how they ended.",
            ["outcome"],
            ["ok"],
        )
        self.refusals = self._counter(
            "park_refusals",
            "Times that a kernel which should have been parked stayed.",
            ["reason"],
            PARK_REFUSALS,
        )

    def _make_waits(self) -> None:
        """Make the metrics of waits and their ends."""
        self.endings = self._counter(
            "kernel_endings", "Kernels whose server was asked to shut them down for others.", ["cause"]
        )
        self.room = self._counter(
            "room_requests",
            "Allocations that met a full GPU, by how they were answered.",
            ["answer"],
            ["granted", "denied"],
        )
        self.wait_seconds = Histogram(
            "affinode_wait_seconds",
            "How long kernels waited for the GPU as their cells saw it, the resume included, by how it ended.",
            ["outcome"],
            buckets=WAIT_BUCKETS_S,
            registry=self.registry,
        )
        for outcome in OUTCOMES:
            self.wait_seconds.labels(outcome)

    def _make_memory(self) -> None:
        """Make the metrics of memory times time (ledger/usage.py)."""
        self.byte_seconds = self._counter(
            "gpu_memory_byte_seconds",
            "GPU memory of kernels times time: used, idle (held without being used), given_back (parked).",
            ["gpu", "use"],
        )
        self.user_byte_seconds = self._counter(
            "user_gpu_memory_byte_seconds",
            "The same by user; empty unless the administrator turned it on.",
            ["user", "use"],
        )

    def _make_build(self, version: str) -> None:
        build = Gauge(
            "affinode_build_info", "1, with the controller's version.", ["version"], registry=self.registry
        )
        build.labels(version).set(1)
        started = Gauge(
            "affinode_start_time_seconds",
            "When the controller started, in seconds since 1970.",
            registry=self.registry,
        )
        started.set(time.time())

    def _counter(self, name: str, text: str, labels: Sequence[str], begins: Iterable[str] = ()) -> Counter:
        """Return a counter. `begins`: values of its one label that exist from the start, so that their first increase
        is seen as one.
        """
        counter = Counter(f"affinode_{name}", text, labels, registry=self.registry)
        for value in begins:
            counter.labels(value)
        return counter

    def move_ended(self, kernel: KernelRecord, ended: MoveEnded) -> None:
        """See observer.Observer."""
        move = "park" if ended.parks else "resume"
        self.moves.labels(move, ended.cause.value, ended.depth, ended.outcome).inc()
        if ended.outcome == "ok":
            self.move_seconds.labels(move, ended.depth).observe(ended.duration_s)
        self.moved_bytes.labels(move).inc(ended.bytes)
        if ended.to_gpu is not None:
            self.migrations.labels(ended.outcome).inc()

    def spill_ended(self, kernel: KernelRecord, ended: SpillEnded) -> None:
        """See observer.Observer."""
        (self.hibernations if ended.into_image else self.spills).labels(ended.outcome).inc()
        self.spilled_bytes.inc(ended.bytes)

    def park_refused(self, kernel: KernelRecord, slug: Refusal, was_tried: bool) -> None:
        """See observer.Observer."""
        self.refusals.labels(slug).inc()

    def room_answered(self, kernel: KernelRecord, answered: RoomAnswered) -> None:
        """See observer.Observer."""
        self.room.labels("granted" if answered.granted else "denied").inc()

    def kernel_ending(self, kernel: KernelRecord, cause: Cause) -> None:
        """See observer.Observer."""
        self.endings.labels(cause.value).inc()

    def looked(self, now: float, queue: Sequence[Waiter]) -> None:
        """See observer.Observer."""
        self.collector.queue = queue

    def waited(self, ended: WaitEnded) -> None:
        """See history.Figures."""
        self.wait_seconds.labels(ended.outcome).observe(ended.waited_s)

    def metered(self, seen: Seen, gpu: str, sums: ByteSeconds) -> None:
        """See history.Figures."""
        for use, value in (("used", sums.used), ("idle", sums.idle_held), ("given_back", sums.given_back)):
            self.byte_seconds.labels(self._gpus(gpu), use).inc(max(value, 0.0))
            if self.with_users:
                self.user_byte_seconds.labels(self._users(seen.user_name), use).inc(max(value, 0.0))

    def seen(self, kernels: Sequence[Seen], now: float) -> None:
        """See history.Figures."""
        self.collector.kernels, self.collector.seen_at = kernels, now

    def text(self) -> bytes:
        """Return the exposition format."""
        return generate_latest(self.registry)


class _NodeCollector(Collector):
    """Figures of the moment."""

    def __init__(self, state: NodeState, node: Callable[[], dict[str, Any]], gpus: Labels):
        self.queue: Sequence[Waiter] = ()
        self.kernels: Sequence[Seen] = ()
        self.seen_at = 0.0
        self.ledger: Ledger | None = None
        self._state = state
        self._node = node
        self._gpus = gpus

    def describe(self) -> list[Metric]:
        """Return nothing: registering must not ask a controller that is not ready yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the present figures, at each scrape."""
        node = self._node()
        yield self._gpu_memory(node)
        yield _one(
            "affinode_nvml_available", "Whether NVML answers (1) or room is estimated (0).", node["nvml"]
        )
        yield self._residencies()
        yield from self._use_of_memory()
        host = node["host"]
        yield _one("affinode_parked_bytes", "GPU memory kept in host memory.", host["parked_bytes"])
        yield _one("affinode_host_available_bytes", "Host memory that is available.", host["available_bytes"])
        yield _one("affinode_host_reserve_bytes", "Host memory that parking leaves.", host["reserve_bytes"])
        use = GaugeMetricFamily("affinode_host_bytes", "Host memory in use for parking.", labels=["use"])
        use.add_metric(["parked"], host["copy_bytes"])
        use.add_metric(["kept"], host["retained_bytes"])
        use.add_metric(["set_aside"], host["set_aside_bytes"])
        use.add_metric(["shared"], host["shared_bytes"])
        use.add_metric(["lots_ready"], host["lots"]["ready_bytes"])
        use.add_metric(["lots_given"], host["lots"]["given_bytes"])
        yield use
        if node["spill"] is not None:
            disk = node["spill"]
            yield _one("affinode_disk_bytes", "GPU memory of kernels on the local disk.", disk["used_bytes"])
            yield _one("affinode_disk_limit_bytes", "How much of it there may be.", disk["limit_bytes"])
        image_bytes = sum(kernel.image_bytes or 0 for kernel in self._state.kernels.values())
        yield _one("affinode_image_bytes", "What hibernated kernels take on disk.", image_bytes)
        yield from self._queue()
        if self.ledger is not None:
            writes = self.ledger.problem is None
            yield _one("affinode_ledger_available", "Whether history is written (1) or not (0).", writes)

    def _gpu_memory(self, node: dict[str, Any]) -> Metric:
        memory = GaugeMetricFamily(
            "affinode_gpu_memory_bytes", "Memory of each GPU.", labels=["gpu", "kind", "simulated"]
        )
        for gpu in node["gpus"][:GPUS_MAX]:
            for kind in GPU_FIGURES:
                value = gpu[f"{kind}_bytes"]
                if value is not None:
                    memory.add_metric([gpu["uuid"], kind, str(node["simulated"]).lower()], value)
        return memory

    def _residencies(self) -> Metric:
        waiting = {waiter.kernel.id for waiter in self.queue}
        by_residency = collections.Counter(_shown(kernel, waiting) for kernel in self._state.kernels.values())
        count = GaugeMetricFamily("affinode_kernels", "Kernels by residency.", labels=["residency"])
        for residency in Residency:
            count.add_metric([residency.value], by_residency[residency])
        return count

    def _use_of_memory(self) -> Iterator[Metric]:
        idle, reclaimed = collections.Counter[str](), collections.Counter[str]()
        for kernel in self.kernels:
            is_using = kernel.is_using(self.seen_at)
            for gpu, size in kernel.held_bytes.items():
                idle[self._gpus(gpu)] += 0 if is_using else size
            for gpu, size in kernel.parked_bytes.items():
                reclaimed[self._gpus(gpu)] += size
        for name, words, sums in (
            ("affinode_gpu_idle_held_bytes", "GPU memory of kernels that do nothing on the GPU.", idle),
            ("affinode_gpu_reclaimed_bytes", "GPU memory that parked kernels gave back.", reclaimed),
        ):
            family = GaugeMetricFamily(name, words, labels=["gpu"])
            for gpu, size in sums.items():
                family.add_metric([gpu], size)
            yield family

    def _queue(self) -> Iterator[Metric]:
        waiting = [waiter for waiter in self.queue if waiter.kernel.residency is not Residency.RESUMING]
        yield _one(
            "affinode_queue_length",
            "Kernels that wait for room on a GPU; those whose memory is on its way are not among them.",
            len({waiter.kernel.id for waiter in waiting}),
        )
        needs = sum(sum(waiter.needs.values()) for waiter in waiting)
        yield _one("affinode_queue_needed_bytes", "GPU memory that they need together.", needs)
        first = min((waiter.since for waiter in waiting), default=None)
        oldest = 0.0 if first is None else max(time.monotonic() - first, 0.0)
        yield _one("affinode_queue_oldest_wait_seconds", "How long the first of them has waited.", oldest)


def _shown(kernel: KernelRecord, waiting: set[str]) -> Residency:
    """Return the residency that users see: a kernel that waits with memory on the GPU is queued, too."""
    is_moving = kernel.residency in (Residency.PARKING, Residency.RESUMING)
    return Residency.QUEUED if kernel.id in waiting and not is_moving else kernel.residency


def _one(name: str, words: str, value: float) -> Metric:
    """Return a gauge without labels."""
    family = GaugeMetricFamily(name, words)
    family.add_metric([], float(value))
    return family
