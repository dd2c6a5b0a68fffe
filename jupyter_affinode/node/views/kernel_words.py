"""Plain words for users: sizes, times, places, and what a kernel's residency means to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...time_of_day import clock_in_words
from ...units import bound_in_words, bytes_in_words, duration_in_words, ordinal
from ..model.snapshot import Residency
from ..protocol.page import UnmovableReason

INTEGRATED = "integrated"  # what is UNBACKED in a page with PageFlag.INTEGRATED
UNMOVABLE_WORDS: dict[UnmovableReason | str, str] = {
    UnmovableReason.SMALL: "small allocations under 2 MiB",
    UnmovableReason.MANAGED: "managed (unified) memory",
    UnmovableReason.MAPPED: "memory that the program maps itself",
    UnmovableReason.POOL: "stream-ordered memory pools",
    UnmovableReason.ARRAY: "CUDA arrays and textures",
    UnmovableReason.SHARED: "memory shared with another process",
    UnmovableReason.UNBACKED: "memory on a device without virtual memory management, or limited by another library",
    INTEGRATED: "memory on a GPU that uses the host's memory: freeing it would gain nothing",
    UnmovableReason.DEVICE: "memory that a network card or disk may write to (RDMA, GPUDirect Storage)",
}


def reason_slug(reason: UnmovableReason | str) -> str:
    """Return a reason why bytes stay on the GPU as the API names it."""
    return reason if isinstance(reason, str) else reason.name.lower()


def status_in_words(kernel: Mapping[str, Any]) -> str:
    """Return a kernel's JSON as a line for its user: `Waiting: 2nd (train.ipynb is computing; at most 3 min more)`."""
    if kernel["wait_reason"] is None:
        return str(kernel["text"])
    return f"{kernel['text']} ({kernel['wait_reason']}; {bound_in_words(kernel['estimate_s'])})"


def notice_in_words(kernel: Mapping[str, Any]) -> str:
    """Return what a kernel's cells show while they wait, without figures that change by themselves; else its state."""
    if kernel["place"] is None:
        return str(kernel["text"])
    return f"Waiting for the GPU ({ordinal(kernel['place'])} in line): {kernel['wait_reason']}"


def residency_in_words(
    residency: Residency,
    *,
    resident_bytes: int,
    parked_bytes: int,
    place: int | None,
    held_for_s: float | None,
    reason: str | None,
    is_simulated: bool,
    is_managed: bool = True,
    is_off_gpu: bool = False,
    disk_bytes: int = 0,
    return_s: float | None = None,
    image_bytes: int | None = None,
) -> str:
    """Return one line about a kernel. `resident_bytes` includes what cannot move; `place` counts from 1.

    `is_off_gpu`: parked at context depth. `return_s`: how long the resume takes if `disk_bytes` of it are on disk.
    """
    freed = "GPU freed completely" if is_off_gpu else "GPU freed"
    if residency is Residency.LOST:
        text = f"GPU state lost: {reason or 'the shim gave no reason'}"
    elif place is not None and residency in (Residency.RESIDENT, Residency.PARKED, Residency.QUEUED):
        text = f"Waiting: {ordinal(place)}"
    else:
        text = {
            Residency.NONE: "No GPU used" if is_managed else "Not managed",
            Residency.RESIDENT: _on_the_gpu(resident_bytes),
            Residency.PARKING: "Freeing",
            Residency.PARKED: freed + _where_parked(parked_bytes, disk_bytes, return_s),
            Residency.QUEUED: "Waiting",
            Residency.RESUMING: "Getting it back",
            Residency.HIBERNATED: "Hibernating"
            if image_bytes is None
            else f"Hibernated, {bytes_in_words(image_bytes)} on disk",
        }[residency]
    if held_for_s is not None and residency is not Residency.LOST:
        text += f", kept until {clock_in_words(held_for_s)}"
    return text + (" (simulated)" if is_simulated and residency is not Residency.NONE else "")


def _on_the_gpu(resident_bytes: int) -> str:
    return f"On the GPU: {bytes_in_words(resident_bytes)}" if resident_bytes else "No GPU memory in use"


def _where_parked(parked_bytes: int, disk_bytes: int, return_s: float | None) -> str:
    if not parked_bytes:  # it had nothing that could be moved, and woke from an image
        return ""
    if not disk_bytes:
        return f", {bytes_in_words(parked_bytes)} safe in RAM"
    returns = "" if return_s is None else f", about {duration_in_words(return_s)} to return"
    return f", {bytes_in_words(parked_bytes)} safe, {bytes_in_words(disk_bytes)} of it on disk{returns}"
