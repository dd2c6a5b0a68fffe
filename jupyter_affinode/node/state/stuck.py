"""Stuck processes: those that cannot make progress any more, and why; only a user may end them.

A process is reported to its owner only where that is certain, and never while it computes: it has been idle, or in the
same call, for `cell_idle_timeout_s`, or the driver itself gave it up. A stopped process may continue, but holds its
memory until then, so it is reported too.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...settings.policy import Settings
from ..model.gpu import NvmlGpu
from ..model.reasons import StuckReason
from ..protocol.page import Depth, State
from ..system.peers import is_stopped, parent_of
from .records.kernel import KernelRecord
from .records.process import Process

FAILED_RESUMES = 3  # with pauses that double between them


def stuck(
    process: Process,
    kernel: KernelRecord,
    measured: Mapping[str, NvmlGpu],
    settings: Settings,
    now: float,
) -> StuckReason | None:
    """Return why a process is stuck; None if it may still make progress."""
    if process.is_dying:
        return None
    return (
        (StuckReason.LOST if process.data.state is State.LOST else None)
        or _cannot_resume(process, measured)
        or _peer_gone(process, kernel, settings, now)
        or _parent_gone(process, kernel, settings, now)
        or _stopped(process)
    )


def _cannot_resume(process: Process, measured: Mapping[str, NvmlGpu]) -> StuckReason | None:
    """Return whether it is parked for good: its resume failed again and again, or its GPU is gone or too small."""
    if not process.is_parked:
        return None
    if process.failed_resumes >= FAILED_RESUMES:
        return StuckReason.RESUME_FAILED
    if not measured:
        return None
    for gpu in process.data.gpus:
        known = measured.get(gpu.uuid)
        # A process without a context that was woken on another machine comes back on another GPU.
        if gpu.parked_bytes and known is None and process.data.depth is not Depth.CONTEXT:
            return StuckReason.GPU_GONE
        if known is not None and gpu.parked_bytes > known.total_bytes:
            return StuckReason.GPU_TOO_SMALL
    return None


def _peer_gone(process: Process, kernel: KernelRecord, settings: Settings, now: float) -> StuckReason | None:
    """Return whether it has been in one call since another process of the kernel, which used the GPU too, ended."""
    ended_at = kernel.past.peer_ended_at
    if ended_at is None or not process.data.calls_in_flight:
        return None
    if process.calls_changed_at > ended_at or now - ended_at < settings.cell_idle_timeout_s:
        return None
    return StuckReason.PEER_GONE


def _parent_gone(
    process: Process, kernel: KernelRecord, settings: Settings, now: float
) -> StuckReason | None:
    """Return whether its parent has ended, no server describes its kernel, and it has not used the GPU since."""
    if process.parent is None or kernel.server.pid is not None:
        return None
    if process.data.calls_in_flight or process.data.captures:
        return None
    if process.orphaned_at is None:
        if parent_of(process.pid) in (None, process.parent):
            return None
        process.orphaned_at = now
    if now - max(process.orphaned_at, process.last_activity) < settings.cell_idle_timeout_s:
        return None
    return StuckReason.PARENT_GONE


def _stopped(process: Process) -> StuckReason | None:
    """Return whether a signal or a debugger stopped it while it holds memory that others may need."""
    if process.connection is not None or not process.is_stopped or not is_stopped(process.pid):
        return None
    data = process.data
    holds = (
        any(gpu.on_gpu_bytes for gpu in data.gpus) or data.copy_bytes or data.retained_bytes or data.lot_bytes
    )
    return StuckReason.STOPPED if holds else None
