"""Tells browsers, through Jupyter events, where the GPU state of this server's kernels is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jupyter_events import EventLogger

from .controller_watch import Kernel, NodeWatch, Notice

KERNEL_RESIDENCY = "https://schema.jupyter.org/jupyter_affinode/kernel_residency/v1"
NOTICE = "https://schema.jupyter.org/jupyter_affinode/notice/v1"
NODE = "https://schema.jupyter.org/jupyter_affinode/node/v1"


def schema_paths() -> Iterator[Path]:
    """The schemas to register with a server's event logger."""
    folder = Path(__file__).parent / "schemas"
    yield folder / "kernel_residency.yaml"
    yield folder / "node.yaml"
    yield folder / "notice.yaml"


def residency_data(previous: Kernel | None, kernel: Kernel) -> dict[str, Any]:
    """The event for a kernel's change; the schema names exactly these."""
    return {
        "kernel_id": kernel["id"],
        "residency": kernel["residency"],
        "previous": None if previous is None else previous["residency"],
        "text": kernel["text"],
        "reason": kernel.get("reason"),
        "resident_bytes": kernel["resident_bytes"],
        "parked_bytes": kernel["parked_bytes"],
        "place": kernel.get("place"),
        "held_for_s": kernel.get("held_for_s"),
        "simulated": bool(kernel.get("simulated")),
    }


def worth_telling(previous: Kernel | None, kernel: Kernel) -> bool:
    """Whether a person would see a difference; times alone are asked for, not told."""
    if previous is None:
        return bool(kernel["residency"] != "none" or kernel.get("held_for_s") is not None)
    return bool(
        previous["residency"] != kernel["residency"]
        or previous.get("place") != kernel.get("place")
        or (previous.get("held_for_s") is None) != (kernel.get("held_for_s") is None)
        or _extended(previous.get("held_for_s"), kernel.get("held_for_s"))
        or _without_hold(previous["text"]) != _without_hold(kernel["text"])
    )


def _without_hold(text: str) -> str:
    """The plain words without for how long the GPU is kept: state and size."""
    return text.split(", kept for ")[0]


def _extended(previous_s: float | None, now_s: float | None) -> bool:
    """Whether a hold was renewed: the time that is left otherwise only falls."""
    return previous_s is not None and now_s is not None and now_s > previous_s + 1


class ResidencyEvents:
    """Emits an event for each change of a kernel that `owns` says is this server's; a `NodeListener`."""

    def __init__(self, logger: EventLogger, watch: NodeWatch, owns: Callable[[str], bool]):
        self._logger = logger
        self._watch = watch
        self._owns = owns

    def register(self) -> None:
        """Make the schemas known to the server."""
        for path in schema_paths():
            self._logger.register_event_schema(path)

    def controller_found(self) -> None:
        """Called by the watch."""
        self._emit_node()

    def controller_lost(self) -> None:
        """Called by the watch."""
        self._emit_node()

    def kernel_changed(self, previous: Kernel | None, kernel: Kernel) -> None:
        """Called by the watch."""
        if self._owns(kernel["id"]) and worth_telling(previous, kernel):
            self._logger.emit(schema_id=KERNEL_RESIDENCY, data=residency_data(previous, kernel))

    def kernel_removed(self, kernel_id: str) -> None:
        """Called by the watch; the Jupyter server itself tells that a kernel is gone."""

    def noticed(self, notice: Notice) -> None:
        """Called by the watch: what concerns this server's kernels, or the machine, goes to its browsers."""
        kernel_id = notice["kernel_id"]
        if kernel_id is None or self._owns(kernel_id):
            data = {name: notice[name] for name in ("kernel_id", "kind", "level", "text")}
            self._logger.emit(schema_id=NOTICE, data=data)

    def _emit_node(self) -> None:
        node = self._watch.node
        data = {
            "available": self._watch.available,
            "simulated": bool(node and node["simulated"]),
            "message": self._watch.message,
        }
        self._logger.emit(schema_id=NODE, data=data)
