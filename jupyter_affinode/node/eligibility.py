"""When a kernel may be parked without being asked; pure."""

from __future__ import annotations

from collections.abc import Mapping

from .pauses import SHORTEST_S
from .settings import Settings
from .snapshot import Kernel, Residency, Speed
from .victims import break_even_s

NO_SPEEDS: Mapping[str, Speed] = {}


def eligible_at(
    kernel: Kernel, settings: Settings, *, waits_since: float | None, speeds: Mapping[str, Speed] = NO_SPEEDS
) -> float | None:
    """The moment from which the kernel may be parked if nothing changes; None if time alone will not do.

    No open cell (or one that has not touched CUDA for long), no call in flight, idle for long enough, not
    held, large enough, movable, nothing under way. If anyone waits (`waits_since`: from when on, who waits
    longest), an open cell counts for a minute only: the kernel may hold what the waiter waits for. And who is
    between cells then need not be idle for as long as that somebody would park for nobody: for some seconds, and
    until a round trip pays off (victims.py), or for as long as history says (prediction.py); somebody's waiting
    pays for it, too, or kernels with short pauses would keep everybody else out for ever where moves are slow.
    Who is about to use the GPU stays, if nobody waits.
    """
    if kernel.calls_in_flight or kernel.rooms or kernel.captures:
        return None  # most of those that could be
    if (
        kernel.residency is not Residency.RESIDENT
        or kernel.is_moving
        or kernel.is_dying
        or not kernel.is_parkable
        or kernel.is_opted_out
        or kernel.is_ending
    ):
        return None
    size = kernel.movable_bytes
    if not size or size < settings.min_footprint_bytes:
        return None
    timeout = settings.idle_timeout_s
    if kernel.cell_open:
        timeout = settings.cell_idle_timeout_s
        if waits_since is not None:
            timeout = min(timeout, settings.queue_cell_idle_timeout_s)
    elif waits_since is not None:
        timeout = min(timeout, _patience_s(kernel, settings, waits_since, speeds))
    expected = 0.0 if waits_since is not None else kernel.expected_until
    return max(kernel.last_activity + timeout, kernel.retry_at, kernel.held_until or 0.0, expected)


def _patience_s(kernel: Kernel, settings: Settings, waits_since: float, speeds: Mapping[str, Speed]) -> float:
    """For how long it must have been idle while somebody waits."""
    least_s, own_s = settings.queue_idle_timeout_s, kernel.patience_s
    if own_s is None:
        own_s = max(least_s, break_even_s(kernel, speeds))
    return min(own_s, max(least_s, waits_since + own_s - kernel.last_activity))


def least_idle_s(settings: Settings, *, anyone_waits: bool) -> float:
    """Who has used the GPU within this is not eligible, whatever else is true of them."""
    least = min(settings.idle_timeout_s, settings.cell_idle_timeout_s)
    if anyone_waits:
        least = min(least, settings.queue_idle_timeout_s, settings.queue_cell_idle_timeout_s)
        if settings.prediction:
            least = min(least, SHORTEST_S)
    return least
