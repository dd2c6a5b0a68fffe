"""Waits for the GPU, how long each was, and how it ended: found by comparing the queue with what it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..model.snapshot import Residency, Waiter
from ..state.records.kernel import KernelRecord

SERVED, DENIED, GIVEN_UP, GONE = "served", "denied", "given-up", "gone"
OUTCOMES = (SERVED, DENIED, GIVEN_UP, GONE)


@dataclass(frozen=True)
class WaitEnded:
    """A wait that ended. `waited_s` is what the cell saw: from the first call that waited until the memory was there,
    the resume included.
    """

    kernel_id: str
    outcome: str  # one of OUTCOMES
    waited_s: float
    gpu: str  # the one of which it needed most
    bytes: int  # that it needed, on all GPUs


@dataclass(frozen=True)
class _Waiting:
    since: float
    gpu: str
    bytes: int


class WaitWatch:
    """Remembers the queue from look to look."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._denied: set[str] = set()

    def denied(self, kernel_id: str) -> None:
        """Note that an allocation of the kernel was denied."""
        self._denied.add(kernel_id)

    def take_queue(
        self, now: float, queue: Sequence[Waiter], kernels: Mapping[str, KernelRecord]
    ) -> Iterator[WaitEnded]:
        """Yield the waits that ended since the last look. However many of its calls wait, a kernel waits once."""
        before, self._waiting = self._waiting, _by_kernel(queue)
        denied, self._denied = self._denied, set()
        for kernel_id, waiting in before.items():
            if kernel_id not in self._waiting:
                outcome = _outcome(kernels.get(kernel_id), kernel_id in denied)
                waited = max(now - waiting.since, 0.0)
                yield WaitEnded(kernel_id, outcome, waited, waiting.gpu, waiting.bytes)


def _by_kernel(queue: Sequence[Waiter]) -> dict[str, _Waiting]:
    waiting: dict[str, _Waiting] = {}
    for waiter in queue:
        needs = waiter.needs
        gpu = max(needs, key=lambda uuid: needs[uuid], default="")
        known = waiting.get(waiter.kernel.id)
        since = waiter.since if known is None else min(known.since, waiter.since)
        size = sum(needs.values()) + (0 if known is None else known.bytes)
        waiting[waiter.kernel.id] = _Waiting(since, gpu, size)
    return waiting


def _outcome(kernel: KernelRecord | None, was_denied: bool) -> str:
    if kernel is None or not kernel.processes:
        return GONE
    if was_denied:
        return DENIED
    return GIVEN_UP if kernel.residency in (Residency.PARKED, Residency.QUEUED) else SERVED
