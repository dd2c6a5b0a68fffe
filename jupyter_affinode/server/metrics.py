"""The Prometheus metric of this server, served with the server's own on `/metrics`.

Defined at module level in prometheus_client's default registry, as Jupyter Server does. Everything about kernels and
GPUs is on the controller's own `/metrics`: told here, too, it would be counted twice.
"""

from __future__ import annotations

from prometheus_client import Gauge

from .controller_watch import NodeListener, NodeWatch

CONTROLLER_AVAILABLE = Gauge(
    "affinode_controller_available", "Whether the node's GPU controller answers this server (1) or not"
)


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
