"""Prometheus metrics of this server's GPU kernels, served with the server's own on `/metrics`.

Defined at module level in prometheus_client's default registry, as Jupyter Server does; filled from the
controller by `MetricsListener`. The machine's whole picture is on the controller's own `/metrics`.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable

from prometheus_client import Counter, Gauge

from .node_watch import Kernel, NodeWatch, Notice

RESIDENCIES = ("none", "resident", "parking", "parked", "queued", "resuming", "lost")

CONTROLLER_AVAILABLE = Gauge(
    "affinode_controller_available", "Whether the node's GPU controller answers (1) or not"
)
KERNELS = Gauge("affinode_kernels", "Kernels of this server by where their GPU state is", ["residency"])
RESIDENT_BYTES = Gauge(
    "affinode_kernel_resident_bytes", "GPU memory of this server's kernels that is on the GPU"
)
PARKED_BYTES = Gauge(
    "affinode_kernel_parked_bytes", "GPU memory of this server's kernels that is in host memory"
)
PARKS = Counter("affinode_kernel_parks", "How often kernels of this server were parked")
RESUMES = Counter("affinode_kernel_resumes", "How often kernels of this server were resumed")
PARKED_TOTAL_BYTES = Counter("affinode_kernel_parked_moved_bytes", "Bytes moved to host memory by parking")
LOST = Counter("affinode_kernel_lost", "Kernels of this server whose GPU state was lost; must stay 0")


class MetricsListener:
    """Keeps the metrics true; a `NodeListener`."""

    def __init__(self, watch: NodeWatch, owns: Callable[[str], bool]):
        self._watch = watch
        self._owns = owns

    def controller_found(self) -> None:
        """Called by the watch."""
        self._set_gauges()

    def controller_lost(self) -> None:
        """Called by the watch."""
        self._set_gauges()

    def kernel_changed(self, previous: Kernel | None, kernel: Kernel) -> None:
        """Called by the watch."""
        if not self._owns(kernel["id"]):
            return
        if previous is not None:
            self._count(previous, kernel)
        self._set_gauges()

    def kernel_removed(self, kernel_id: str) -> None:
        """Called by the watch."""
        self._set_gauges()

    def noticed(self, notice: Notice) -> None:
        """Called by the watch; not counted."""

    @staticmethod
    def _count(previous: Kernel, kernel: Kernel) -> None:
        """Count what happened between two reports; a kernel's own counters restart at 0 with its process."""
        parks = max(kernel["parks"] - previous["parks"], 0)
        if parks:
            PARKS.inc(parks)
            PARKED_TOTAL_BYTES.inc((kernel.get("last_park") or {}).get("bytes", 0))
        RESUMES.inc(max(kernel["resumes"] - previous["resumes"], 0))
        if kernel["residency"] == "lost" != previous["residency"]:
            LOST.inc()

    def _set_gauges(self) -> None:
        available = self._watch.available
        own = [kernel for kernel in self._watch.kernels.values() if available and self._owns(kernel["id"])]
        tally = Tally(kernel["residency"] for kernel in own)
        CONTROLLER_AVAILABLE.set(1 if available else 0)
        for residency in RESIDENCIES:
            KERNELS.labels(residency=residency).set(tally[residency])
        RESIDENT_BYTES.set(sum(kernel["resident_bytes"] for kernel in own))
        PARKED_BYTES.set(sum(kernel["parked_bytes"] for kernel in own))
