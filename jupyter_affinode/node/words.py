"""Plain words for people: sizes, times, places, and what a kernel's residency means to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .page import Fixed
from .snapshot import Residency

FIXED_WORDS = {
    Fixed.SMALL: "small allocations under 2 MiB",
    Fixed.MANAGED: "managed (unified) memory",
    Fixed.MAPPED: "memory that the program maps itself",
    Fixed.POOL: "stream-ordered memory pools",
    Fixed.ARRAY: "CUDA arrays and textures",
    Fixed.SHARED: "memory shared with another process",
    Fixed.UNBACKED: "memory on a device without virtual memory management",
    Fixed.DEVICE: "memory that a network card or disk may write to (RDMA, GPUDirect Storage)",
}


def bytes_in_words(size: int) -> str:
    """`12 GiB`, `1.5 GiB`, `300 MiB`, `12 KiB`, `0 bytes`."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            value = size / unit
            return f"{value:.1f} {name}".replace(".0 ", " ") if value < 10 else f"{value:.0f} {name}"
    return f"{size} bytes"


def duration_in_words(seconds: float) -> str:
    """`40 s`, `6 min`, `1 h`, `1 h 30 min`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s".replace(".0 ", " ")
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def outlook_in_words(reason: str, estimate_s: float | None) -> str:
    """Why somebody waits, and for how much longer if that can be said: `… ; probably 3 min more`."""
    return reason if estimate_s is None else f"{reason}; probably {duration_in_words(estimate_s)} more"


def status_in_words(kernel: Mapping[str, Any]) -> str:
    """A kernel's JSON as one line for its person."""
    if kernel["wait_reason"] is None:
        return str(kernel["text"])
    return f"{kernel['text']} ({outlook_in_words(kernel['wait_reason'], kernel['estimate_s'])})"


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `11th`."""
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def residency_in_words(
    residency: Residency,
    *,
    resident_bytes: int,
    parked_bytes: int,
    place: int | None,
    held_for_s: float | None,
    reason: str | None,
    is_simulated: bool,
    is_off_gpu: bool = False,
) -> str:
    """One line about a kernel. `resident_bytes` includes what cannot move; `place` counts from 1.

    `is_off_gpu`: parked at context depth.
    """
    freed = "GPU freed completely" if is_off_gpu else "GPU freed"
    if residency is Residency.LOST:
        text = f"GPU state lost: {reason or 'the shim gave no reason'}"
    elif place is not None and residency in (Residency.RESIDENT, Residency.PARKED, Residency.QUEUED):
        text = f"Waiting for GPU: {ordinal(place)}"
    else:
        text = {
            Residency.NONE: "No GPU in use",
            Residency.RESIDENT: f"On the GPU: {bytes_in_words(resident_bytes)}",
            Residency.PARKING: "Freeing the GPU…",
            Residency.PARKED: f"{freed}, {bytes_in_words(parked_bytes)} safe in RAM",
            Residency.QUEUED: "Waiting for GPU",
            Residency.RESUMING: "Getting the GPU back…",
        }[residency]
    if held_for_s is not None and residency is not Residency.LOST:
        text += f", kept for {duration_in_words(held_for_s)}"
    return text + (" (simulated)" if is_simulated and residency is not Residency.NONE else "")
