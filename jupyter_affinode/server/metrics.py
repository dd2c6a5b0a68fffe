"""The Prometheus metrics of this server, served with the server's own on `/metrics`.

Defined at module level in prometheus_client's default registry, as Jupyter Server does. Everything about kernels and
GPUs is on the controller's own `/metrics`: told here, too, it would be counted twice.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import Gauge

from .controller_watch import NodeListener, NodeWatch

CONTROLLER_AVAILABLE = Gauge(
    "affinode_controller_available", "Whether the node's GPU controller answers this server (1) or not"
)
WARM_KERNELS = Gauge(
    "affinode_warm_kernels",
    "Kernels that no notebook has had yet, by kernelspec: ready, or being made",
    ["kernelspec", "state"],
)
WARM_REQUESTS = Gauge(
    "affinode_warm_kernel_requests",
    "How often a warm kernel was asked for since the user's keeper started: taken, or none was ready",
    ["kernelspec", "outcome"],
)


def show_warm(pools: list[dict[str, Any]]) -> None:
    """Show what the keeper says of warm kernels."""
    for metric in (WARM_KERNELS, WARM_REQUESTS):
        metric.clear()
    for pool in pools:
        for state in ("ready", "making"):
            WARM_KERNELS.labels(pool["name"], state).set(pool[state])
        for outcome, key in (("taken", "taken"), ("none_ready", "misses")):
            WARM_REQUESTS.labels(pool["name"], outcome).set(pool[key])


class MetricsListener(NodeListener):
    """Keeps the metric true."""

    def __init__(self, watch: NodeWatch):
        CONTROLLER_AVAILABLE.set(watch.available)

    def controller_found(self) -> None:
        """Say that a controller answers."""
        CONTROLLER_AVAILABLE.set(1)

    def controller_lost(self) -> None:
        """Say that no controller answers."""
        CONTROLLER_AVAILABLE.set(0)
