"""Stuck processes: those that cannot make progress any more, and why; only a user may end them.

A process is reported to its owner only where that is certain, and never while it computes: it has been idle, or in the
same call, for `cell_idle_timeout_s`, or the driver itself gave it up. A stopped process may continue, but holds its
memory until then, so it is reported too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...settings.policy import Settings
from ...units import bytes_in_words
from ..model.gpu import NvmlGpu
from ..model.reasons import StuckReason
from ..protocol.page import State
from ..system.peers import is_stopped
from .records.kernel import KernelRecord
from .records.process import Process

FAILED_RESUMES = 3  # with pauses that double between them


@dataclass(frozen=True)
class Stuck:
    """Why a process is stuck: a code for programs, and words for its owner."""

    slug: StuckReason
    text: str


def stuck(
    process: Process,
    kernel: KernelRecord,
    measured: Mapping[str, NvmlGpu],
    settings: Settings,
    now: float,
) -> Stuck | None:
    """Return why a process is stuck; None if it may still make progress."""
    if process.is_dying:
        return None
    return (
        _lost(process, kernel)
        or _cannot_resume(process, measured)
        or _peer_gone(process, kernel, settings, now)
        or _parent_gone(process, kernel, settings, now)
        or _stopped(process)
    )


def _lost(process: Process, kernel: KernelRecord) -> Stuck | None:
    if process.data.state is not State.LOST:
        return None
    return Stuck(StuckReason.LOST, f"its GPU state is lost ({kernel.reason or 'the driver gave it up'})")


def _cannot_resume(process: Process, measured: Mapping[str, NvmlGpu]) -> Stuck | None:
    """Return whether it is parked for good: its resume failed again and again, or its GPU is gone or too small."""
    if not process.is_parked:
        return None
    if process.failed_resumes >= FAILED_RESUMES:
        return Stuck(
            StuckReason.RESUME_FAILED, f"its GPU memory cannot be brought back: {process.failed_resume_text}"
        )
    if not measured:
        return None
    for gpu in process.data.gpus:
        known = measured.get(gpu.uuid)
        if gpu.parked_bytes and known is None:
            return Stuck(StuckReason.GPU_GONE, "the GPU that its memory belongs to is not there any more")
        if known is not None and gpu.parked_bytes > known.total_bytes:
            size, total = bytes_in_words(gpu.parked_bytes), bytes_in_words(known.total_bytes)
            return Stuck(StuckReason.GPU_TOO_SMALL, f"its {size} cannot fit on the GPU, which has {total}")
    return None


def _peer_gone(process: Process, kernel: KernelRecord, settings: Settings, now: float) -> Stuck | None:
    """Return whether it has been in one call since another process of the kernel, which used the GPU too, ended."""
    ended = kernel.past.peer_ended
    if ended is None or not process.data.calls_in_flight:
        return None
    pid, when = ended
    since = max(when, process.calls_changed_at)
    if process.calls_changed_at > when or now - since < settings.cell_idle_timeout_s:
        return None
    return Stuck(
        StuckReason.PEER_GONE, f"one CUDA call has not come back since process {pid} of the same kernel ended"
    )


def _parent_gone(process: Process, kernel: KernelRecord, settings: Settings, now: float) -> Stuck | None:
    """Return whether its parent has ended, no server describes its kernel, and it has not used the GPU since."""
    if process.orphaned_at is None or kernel.server.pid is not None:
        return None
    if process.data.calls_in_flight or process.data.captures:
        return None
    if now - max(process.orphaned_at, process.last_activity) < settings.cell_idle_timeout_s:
        return None
    return Stuck(
        StuckReason.PARENT_GONE, "the process that started it has ended, and it does nothing with the GPU"
    )


def _stopped(process: Process) -> Stuck | None:
    """Return whether a signal or a debugger stopped it while it holds memory that others may need."""
    if process.connection is not None or not process.is_stopped or not is_stopped(process.pid):
        return None
    gpu = sum(gpu.on_gpu_bytes for gpu in process.data.gpus)
    host = max(process.data.copy_bytes + process.data.retained_bytes, process.data.lot_bytes)
    held = [
        f"{bytes_in_words(size)} of {what} memory" for size, what in ((gpu, "GPU"), (host, "host")) if size
    ]
    return Stuck(StuckReason.STOPPED, f"it is stopped and holds {' and '.join(held)}") if held else None
