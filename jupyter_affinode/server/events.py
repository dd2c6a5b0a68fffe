"""Tells browsers, through Jupyter events, where the GPU state of this server's kernels is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jupyter_events import EventLogger

from .controller_watch import Kernel, NodeListener, NodeWatch, Notice

KERNEL_RESIDENCY = "https://schema.jupyter.org/jupyter_affinode/kernel_residency/v1"
NOTICE = "https://schema.jupyter.org/jupyter_affinode/notice/v1"
NODE = "https://schema.jupyter.org/jupyter_affinode/node/v1"


def schema_paths() -> Iterator[Path]:
    """Return the schemas to register with a server's event logger."""
    return Path(__file__).with_name("schemas").glob("*.yaml")


NAMES = ("name", "path", "paths", "server", "user")  # all subscribers of the server's events get them
# What a user sees of a kernel but for sizes and what ticks; a controller of another version may lack some.
SHOWN = (
    "residency",
    "depth",
    "place",
    "cell_open",
    "reason",
    "reason_code",
    "reason_args",
    "refusal",
    "refusal_code",
    "refusal_args",
    "depth_refusal",
    "depth_refusal_code",
    "end_asked",
    "hibernate_asked",
    "image_bytes",
    "tracked",
    "priority",
    "moved_from",
)
SIZES = (
    "resident_bytes",
    "parked_bytes",
    "footprint_bytes",
    "copy_bytes",
    "retained_bytes",
    "set_aside_bytes",
    "shared_bytes",
    "disk_bytes",
)
SIZE_PART = 0.01  # of a size: a smaller change is not seen


def without_names(kernel: Kernel) -> Kernel:
    """Return a kernel without its names, for all subscribers of the server's events."""
    told = {name: value for name, value in kernel.items() if name not in NAMES}
    told["processes"] = [{**process, "command": None} for process in kernel.get("processes", [])]
    return told


def residency_data(previous: Kernel | None, kernel: Kernel) -> dict[str, Any]:
    """Return the event for a kernel's change; the schema names exactly these fields."""
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
        "kernel": without_names({**kernel, "own": True}),
    }


def needs_event(previous: Kernel | None, kernel: Kernel) -> bool:
    """Return whether a user would see a difference; figures that change by themselves are requested and cause no
    event."""
    if previous is None:
        return bool(kernel["residency"] != "none" or kernel.get("held_for_s") is not None)
    if previous["residency"] == kernel["residency"] == "none":
        return previous.get("refusal_code") != kernel.get("refusal_code") or (
            (previous.get("held_for_s") is None) != (kernel.get("held_for_s") is None)
        )
    return bool(
        any(previous.get(name) != kernel.get(name) for name in SHOWN)
        or any(_is_resized(previous.get(name) or 0, kernel.get(name) or 0) for name in SIZES)
        or (previous.get("held_for_s") is None) != (kernel.get("held_for_s") is None)
        or _extended(previous.get("held_for_s"), kernel.get("held_for_s"))
        or _of_wait(previous) != _of_wait(kernel)
        or _kind_of_move(previous) != _kind_of_move(kernel)
        or _stuck(previous) != _stuck(kernel)
    )


def _is_resized(before: int, now: int) -> bool:
    return abs(now - before) > SIZE_PART * max(before, now)


def _kind_of_move(kernel: Kernel) -> str | None:
    move = kernel.get("move")
    return None if move is None else move["kind"]


def _stuck(kernel: Kernel) -> list[Any]:
    """Return which processes make no progress, and why."""
    return [
        (each.get("number"), (each.get("stuck") or {}).get("reason")) for each in kernel.get("processes", [])
    ]


def _of_wait(kernel: Kernel) -> list[Any]:
    """Return why and for what a kernel waits, without times that change by themselves."""
    wait = kernel.get("wait")
    if wait is None:
        return [kernel.get("wait_reason")]
    blockers = [(each["kernel_id"], each["own"], each["why"]) for each in wait["blockers"]]
    return [wait["code"], wait["args"], blockers, kernel.get("estimate_s") is None]


def _extended(previous_s: float | None, now_s: float | None) -> bool:
    """Return whether a hold was renewed: otherwise the time that is left only falls."""
    return previous_s is not None and now_s is not None and now_s > previous_s + 1


class ResidencyEvents(NodeListener):
    """Emits an event for each change of a kernel that `owns` says is this server's."""

    def __init__(
        self,
        logger: EventLogger,
        watch: NodeWatch,
        owns: Callable[[str], bool],
        seen: Callable[[Kernel], Kernel] = lambda kernel: kernel,
    ):
        """`seen` returns a kernel as a person sees it, with its hibernation."""
        self._logger = logger
        self._seen = seen
        self._heard_at: dict[
            str, float
        ] = {}  # when the controller last told of a kernel, in monotonic seconds
        self._watch = watch
        self._owns = owns

    def register(self) -> None:
        """Make the schemas known to the server."""
        for path in schema_paths():
            self._logger.register_event_schema(path)

    def controller_found(self) -> None:
        """Tell browsers that a controller answers."""
        self._emit_node()

    def controller_lost(self) -> None:
        """Tell browsers that no controller answers."""
        self._emit_node()

    def kernel_changed(self, previous: Kernel | None, kernel: Kernel) -> None:
        """Tell browsers of a change of one of this server's kernels, if a user would see it."""
        self._heard_at[kernel["id"]] = time.monotonic()
        if self._owns(kernel["id"]) and needs_event(previous, kernel):
            self._emit(previous, kernel)

    def hibernation_changed(self, kernel_id: str) -> None:
        """Send an event about a kernel whose hibernation a person sees otherwise, if the controller knows it."""
        kernel = self._watch.kernels.get(kernel_id)
        if kernel is not None and self._owns(kernel_id):
            passed_s = time.monotonic() - self._heard_at.get(kernel_id, time.monotonic())
            self._emit(kernel, {**kernel, "as_of_s": kernel.get("as_of_s", 0.0) + passed_s})

    def _emit(self, previous: Kernel | None, kernel: Kernel) -> None:
        data = residency_data(previous, self._seen(kernel))
        self._logger.emit(schema_id=KERNEL_RESIDENCY, data=data)

    def kernel_removed(self, kernel_id: str) -> None:
        """Forget a kernel."""
        self._heard_at.pop(kernel_id, None)

    def noticed(self, notice: Notice) -> None:
        """Send a notice about one of this server's kernels, or the machine, to its browsers."""
        kernel_id = notice["kernel_id"]
        if kernel_id is None or self._owns(kernel_id):
            data = {name: notice[name] for name in ("kernel_id", "kind", "level", "text")}
            data["args"] = notice.get("args") or {}
            self._logger.emit(schema_id=NOTICE, data=data)

    def _emit_node(self) -> None:
        node = self._watch.node
        data = {
            "available": self._watch.available,
            "simulated": bool(node and node["simulated"]),
            "message": self._watch.message,
            "code": self._watch.code,
        }
        self._logger.emit(schema_id=NODE, data=data)
