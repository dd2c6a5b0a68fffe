"""When a kernel may be parked without being asked, and who waits for the GPU; pure."""

from __future__ import annotations

from .settings import Settings
from .snapshot import Kernel, Node, Residency, Waiter


def eligible_at(kernel: Kernel, settings: Settings, *, anyone_waits: bool) -> float | None:
    """The moment from which the kernel may be parked if nothing changes; None if time alone will not do.

    No open cell (or one that has not touched CUDA for long), no call in flight, idle for long enough, not
    held, large enough, movable, nothing under way. If anyone waits, an open cell counts for a minute only:
    the kernel may hold what the waiter waits for.
    """
    if (
        kernel.residency is not Residency.RESIDENT
        or kernel.is_moving
        or kernel.is_dying
        or not kernel.is_parkable
    ):
        return None
    if kernel.rooms or kernel.calls_in_flight or kernel.captures:
        return None
    if not kernel.movable_bytes or kernel.movable_bytes < settings.min_footprint_bytes:
        return None
    timeout = settings.idle_timeout_s
    if kernel.cell_open:
        timeout = settings.cell_idle_timeout_s
        if anyone_waits:
            timeout = min(timeout, settings.queue_cell_idle_timeout_s)
    return max(kernel.last_activity + timeout, kernel.retry_at, kernel.held_until or 0.0)


def waiters(node: Node) -> list[Waiter]:
    """Everyone who waits for the GPU, first come first; a kernel on its way keeps its place."""
    queue = [waiter for kernel in node.kernels for waiter in _of(kernel)]
    return sorted(
        queue, key=lambda waiter: (waiter.since, waiter.kernel.id, waiter.room.key if waiter.room else ())
    )


def _of(kernel: Kernel) -> list[Waiter]:
    if kernel.is_dying:
        return []
    if kernel.residency in (Residency.PARKED, Residency.QUEUED, Residency.RESUMING):
        return _resume(kernel)
    return [Waiter(kernel, room.since, {room.gpu: room.bytes}, room) for room in kernel.rooms]


def _resume(kernel: Kernel) -> list[Waiter]:
    """A parked kernel waits once, for all it had and for the largest allocation that it was parked in."""
    since = [kernel.wants_since] if kernel.wants_since is not None else []
    since += [room.since for room in kernel.rooms]
    if not since:
        return []
    needs = kernel.resume_bytes
    for gpu in {room.gpu for room in kernel.rooms}:
        needs[gpu] = needs.get(gpu, 0) + max(room.bytes for room in kernel.rooms if room.gpu == gpu)
    return [Waiter(kernel, min(since), needs)]
