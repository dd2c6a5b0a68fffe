"""Prometheus metrics of the node, collected from the state when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .observer import MoveEnded, RoomAnswered
from .records import KernelRecord
from .snapshot import Residency, Waiter

MOVE_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
GPU_FIGURES = ("total", "used", "free", "managed", "unmanaged")


class Metrics:
    """The registry behind /metrics; an Observer."""

    def __init__(self, node: Callable[[], dict[str, Any]], kernels: Callable[[], list[dict[str, Any]]]):
        self.registry = CollectorRegistry()
        self.moves = Counter(
            "affinode_moves", "Parks and resumes that ended.", ["move", "outcome"], registry=self.registry
        )
        self.move_seconds = Histogram(
            "affinode_move_duration_seconds",
            "How long parks and resumes of whole kernels took.",
            ["move"],
            buckets=MOVE_BUCKETS_S,
            registry=self.registry,
        )
        self.room = Counter(
            "affinode_room_requests",
            "Allocations that met a full GPU, by how they were answered.",
            ["answer"],
            registry=self.registry,
        )
        self.registry.register(_NodeCollector(node, kernels))

    def move_ended(self, kernel: KernelRecord, ended: MoveEnded) -> None:
        """See observer.Observer."""
        move = "park" if ended.parks else "resume"
        self.moves.labels(move, ended.outcome).inc()
        self.move_seconds.labels(move).observe(ended.duration_s)

    def park_refused(self, kernel: KernelRecord, slug: str) -> None:
        """See observer.Observer."""

    def room_answered(self, kernel: KernelRecord, answered: RoomAnswered) -> None:
        """See observer.Observer."""
        self.room.labels("granted" if answered.granted else "denied").inc()

    def looked(self, now: float, queue: Sequence[Waiter]) -> None:
        """See observer.Observer."""

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


class _NodeCollector(Collector):
    def __init__(self, node: Callable[[], dict[str, Any]], kernels: Callable[[], list[dict[str, Any]]]):
        self._node = node
        self._kernels = kernels

    def collect(self) -> Iterator[Metric]:
        node, kernels = self._node(), self._kernels()
        memory = GaugeMetricFamily(
            "affinode_gpu_memory_bytes", "Memory of each GPU.", labels=["gpu", "kind", "simulated"]
        )
        for gpu in node["gpus"]:
            for kind in GPU_FIGURES:
                value = gpu[f"{kind}_bytes"]
                if value is not None:
                    memory.add_metric([gpu["uuid"], kind, str(node["simulated"]).lower()], value)
        yield memory
        count = GaugeMetricFamily("affinode_kernels", "Kernels by residency.", labels=["residency"])
        for residency in Residency:
            number = sum(kernel["residency"] == residency.value for kernel in kernels)
            count.add_metric([residency.value], number)
        yield count
        parked = GaugeMetricFamily("affinode_parked_bytes", "GPU memory kept in host memory.")
        parked.add_metric([], node["host"]["parked_bytes"])
        yield parked
        host = GaugeMetricFamily("affinode_host_available_bytes", "Host memory that is available.")
        host.add_metric([], node["host"]["available_bytes"])
        yield host
        use = GaugeMetricFamily("affinode_host_bytes", "Host memory in use for parking.", labels=["use"])
        use.add_metric(["parked"], node["host"]["copy_bytes"])
        use.add_metric(["kept"], node["host"]["kept_bytes"])
        use.add_metric(["lots_ready"], node["host"]["lots"]["ready_bytes"])
        use.add_metric(["lots_given"], node["host"]["lots"]["given_bytes"])
        yield use
        queue = GaugeMetricFamily("affinode_queue_length", "Kernels that wait for the GPU.")
        queue.add_metric([], len(node["queue"]))
        yield queue
