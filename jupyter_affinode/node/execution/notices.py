"""Notices: what users are told about moves of their kernels, in plain words and not too often.

A notice is for users who may see its kernel, or for all where it is about the machine. No user is named: others are
"another user". Nothing is stored: a client that was not listening reads the kernel's state instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...units import bytes_in_words
from ..model.reasons import EVERYDAY_REFUSALS, Cause, NoticeKind, Refusal
from ..model.snapshot import Waiter
from ..state.observer import MoveEnded, Observer, RoomAnswered
from ..state.records.kernel import KernelRecord
from ..state.records.ownership import own_or_other
from ..state.registry import NodeState

SAME_AGAIN_S = 300.0  # the same kind of notice about one kernel
MACHINE_AGAIN_S = 900.0
REMEMBERED = 4096
LOOKS_APART_S = 1.0


@dataclass(frozen=True)
class Notice:
    """One message for users."""

    kind: NoticeKind
    level: str  # "info" or "warning"
    text: str  # of a kernel: what comes after its name
    kernel_id: str | None = None  # None: about the machine
    args: Mapping[str, Any] = field(default_factory=dict)  # what a sentence about it needs, beside the text

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "kind": self.kind,
            "level": self.level,
            "text": self.text,
            "kernel_id": self.kernel_id,
            "args": dict(self.args),
        }


class Notices(Observer):
    """An observer that makes notices of what is reported to it."""

    def __init__(self, state: NodeState, tell: Callable[[Notice], None]):
        self._state = state
        self._tell_listeners = tell
        self._looked_at = 0.0
        self._told: dict[tuple[str, str], float] = {}  # when, by kind and kernel or GPU

    def move_ended(self, kernel: KernelRecord, ended: MoveEnded) -> None:
        """Tell that a kernel was parked for others, that it migrated, or that its resume failed."""
        if ended.parks and ended.outcome == "ok":
            why = self._why_parked(kernel, ended)
            if why is not None:
                size = bytes_in_words(ended.bytes)
                text = f"freed the GPU {why}. Its {size} are safe in RAM and come back at the next use."
                args = {"bytes": ended.bytes, "reason": ended.cause, **self._for(kernel, ended.for_kernel)}
                self._tell(Notice(NoticeKind.MADE_ROOM, "info", text, kernel.id, args))
        elif not ended.parks and ended.outcome == "ok" and ended.to_gpu is not None:
            now, before = self._gpu(ended.to_gpu), self._gpu(ended.from_gpu or "")
            text = f"came back on {now}, since {before} was full. Its tensors are as they were."
            args = {"gpu": self._index(ended.to_gpu), "from_gpu": self._index(ended.from_gpu)}
            self._tell(Notice(NoticeKind.MOVED, "info", text, kernel.id, args))
        elif not ended.parks and ended.outcome == "failed":
            text = "could not get its GPU memory back yet; it is still safe in RAM, and is tried again."
            args = {"bytes": sum(gpu.parked_bytes for gpu in kernel.by_gpu().values())}
            self._tell(Notice(NoticeKind.RESUME_FAILED, "warning", text, kernel.id, args))

    def park_refused(self, kernel: KernelRecord, slug: Refusal, was_tried: bool) -> None:
        """Tell why a kernel stays although others wait; a kernel that computes is no news."""
        if slug in EVERYDAY_REFUSALS:
            return
        if kernel.requests.park is not None:
            return  # the client that asked is answered
        text = f"stays on the GPU: {kernel.failures.refusal}."
        args = {**kernel.failures.refusal_args, "reason": slug}
        self._tell(Notice(NoticeKind.REFUSED, "info", text, kernel.id, args))

    def room_answered(self, kernel: KernelRecord, answered: RoomAnswered) -> None:
        """Tell that an allocation fails and that waiting would not help."""
        if not answered.granted:
            size = bytes_in_words(answered.bytes)
            text = f"asked for {size} more GPU memory, which cannot become free: it runs out of memory there."
            args = {"bytes": answered.bytes, "gpu": self._index(answered.gpu), "reason": answered.cause}
            self._tell(Notice(NoticeKind.NO_ROOM, "warning", text, kernel.id, args))

    def looked(self, now: float, queue: Sequence[Waiter]) -> None:
        """Tell that memory runs low, and which processes are stuck; a kernel's own state has its place in the queue."""
        if now - self._looked_at < LOOKS_APART_S:
            return
        self._looked_at = now
        for uuid, gpu in self._state.gpus.snapshot(now).items():
            if gpu.is_reclaiming and gpu.total_bytes is not None:
                free, total = bytes_in_words(gpu.free_bytes), bytes_in_words(gpu.total_bytes)
                text = f"GPU memory is low: {free} of {total} are free. Idle notebooks make room."
                args = {
                    "gpu": self._index(uuid),
                    "free_bytes": gpu.free_bytes,
                    "total_bytes": gpu.total_bytes,
                }
                notice = Notice(NoticeKind.MEMORY_LOW, "info", text, args=args)
                self._tell(notice, uuid, again_s=MACHINE_AGAIN_S)
        host, settings = self._state.host.memory, self._state.settings
        any_process = next(self._state.processes(), None) is not None
        if any_process and host.available_bytes < settings.host_reserve(host.total_bytes):
            free = bytes_in_words(host.available_bytes)
            text = f"The machine's RAM is low: {free} are left. Idle notebooks may have to stay on the GPU."
            args = {"free_bytes": host.available_bytes, "total_bytes": host.total_bytes}
            notice = Notice(NoticeKind.HOST_MEMORY_LOW, "warning", text, args=args)
            self._tell(notice, "", again_s=MACHINE_AGAIN_S)
        for kernel in self._state.kernels.values():
            self._tell_stuck(kernel, now)

    def _tell_stuck(self, kernel: KernelRecord, now: float) -> None:
        for process in kernel.processes.values():
            verdict = self._state.stuck(process, now)
            was_told, process.is_told_stuck = process.is_told_stuck, verdict is not None
            if verdict is not None and not was_told:
                text = f"has a process that is stuck (pid {process.pid}): {verdict.phrase}. You can end it."
                args = {"pid": process.pid, "reason": verdict}
                self._tell(Notice(NoticeKind.STUCK, "warning", text, kernel.id, args), again_s=0.0)

    def _why_parked(self, kernel: KernelRecord, ended: MoveEnded) -> str | None:
        """Return why it was parked; None if its own user asked for that or set it."""
        if ended.cause is Cause.ROOM:
            return f"to make room for {self._waiter_in_words(kernel, ended.for_kernel)}"
        if ended.cause is Cause.TIME_SLICE:
            return f"to take turns with {self._waiter_in_words(kernel, ended.for_kernel)}"
        if ended.cause is Cause.LOW_MEMORY:
            return "because GPU memory is low"
        if ended.cause is Cause.LIMIT:
            return "because of the limit on your GPU memory"
        return None

    def _gpu(self, uuid: str) -> str:
        """Return a GPU by its number, for users."""
        gpu = self._state.gpus.measured.get(uuid)
        return "another GPU" if gpu is None else f"GPU {gpu.index}"

    def _index(self, uuid: str | None) -> int | None:
        """Return a GPU's number; None where NVML does not know it."""
        gpu = self._state.gpus.measured.get(uuid or "")
        return None if gpu is None else gpu.index

    def _for(self, kernel: KernelRecord, other_id: str | None) -> dict[str, str]:
        """Return which user a kernel was parked for; {} if that is not known."""
        other = self._state.kernels.get(other_id) if other_id is not None else None
        return {} if other is None else {"for": own_or_other(kernel, other)}

    def _waiter_in_words(self, kernel: KernelRecord, other_id: str | None) -> str:
        words = {"own": "another notebook of yours", "other": "another user"}
        return words.get(self._for(kernel, other_id).get("for", ""), "another notebook")

    def _tell(self, notice: Notice, about: str | None = None, *, again_s: float = SAME_AGAIN_S) -> None:
        """Send a notice, unless much the same was sent a moment ago."""
        now = time.monotonic()
        key = notice.kind, about if about is not None else notice.kernel_id or ""
        if now - self._told.get(key, -again_s) < again_s:
            return
        if len(self._told) >= REMEMBERED:
            del self._told[min(self._told, key=self._told.__getitem__)]
        self._told[key] = now
        self._tell_listeners(notice)
