"""The GPUs: NVML's figures where there are any, else an estimate of free memory from failed allocations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ....settings.policy import Settings
from ...model.gpu import NvmlGpu
from ...model.snapshot import Gpu
from ...system.nvml import NvmlSample

PAGES_LATE_S = 0.3  # a shim samples its page every 100 ms, and we look at it every 250 ms
DOUBT_S = 1.0  # memory missing for longer was taken by an unmanaged program; pages show ours sooner
HISTORY_EVERY_S = 2.0
HISTORY_LOOKS = 30  # a minute
FIGURE_STANDS_LOOKS = 4  # without kernels NVML is asked every 5 s
OUTDATED_LASTS_S = 0.5  # NVML is asked at each move's end, and answers within some ten milliseconds
UNKNOWN_FREE = 1 << 50  # without NVML everything fits until something fails


@dataclass
class _Estimate:
    free_bytes: int = UNKNOWN_FREE
    managed_bytes: int = 0
    # when it changed, and how much
    changes: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=256))
    is_reclaiming: bool = False
    moved_at: float = 0.0  # when a move of a kernel there last ended
    utilization: deque[int | None] = field(default_factory=lambda: deque(maxlen=HISTORY_LOOKS))
    # what was free and ours together, the largest of the last moments first
    sums: deque[tuple[float, int]] = field(default_factory=deque)

    def note_sum(self, now: float, size: int) -> None:
        """Note the sum of free memory and ours, by the present figures."""
        while self.sums and self.sums[-1][1] <= size:
            self.sums.pop()
        self.sums.append((now, size))
        while self.sums[0][0] < now - DOUBT_S:
            self.sums.popleft()

    def missing(self) -> int:
        """Return how much of what was free or ours a moment ago is neither now: NVML may show an allocation before its
        page does.
        """
        return self.sums[0][1] - self.sums[-1][1] if self.sums else 0

    def changed_since(self, moment: float) -> int:
        """Return how much our memory changed since `moment`, or shortly before: pages may show it late."""
        return sum(size for when, size in self.changes if when >= moment - PAGES_LATE_S)


class GpuTable:
    """What is known of each GPU; part of the state."""

    def __init__(self) -> None:
        self.sample: NvmlSample | None = None
        self._known: dict[str, _Estimate] = {}
        self._remembered_at: float | None = None  # the last entry of the histories of utilisation

    @property
    def measured(self) -> Mapping[str, NvmlGpu]:
        """Return NVML's figures by UUID; empty without NVML."""
        return self.sample.by_uuid if self.sample is not None else {}

    @property
    def sizes(self) -> Mapping[str, int] | None:
        """Return each GPU's size in bytes by UUID; None without NVML."""
        return None if self.sample is None else self.sample.sizes

    @property
    def uuids(self) -> list[str]:
        """Return every GPU that NVML or a shim named, in NVML's order first."""
        return list(dict.fromkeys([*self.measured, *self.unsized, *self._known]))

    @property
    def unsized(self) -> tuple[str, ...]:
        """Return the GPUs of whose memory NVML says nothing: pages are all that is known of it."""
        return () if self.sample is None else self.sample.unsized

    def managed_bytes(self, uuid: str) -> int:
        """Return what our kernels have on a GPU, by their pages."""
        known = self._known.get(uuid)
        return known.managed_bytes if known is not None else 0

    def utilization_history(self, uuid: str) -> list[int | None]:
        """Return the utilisation in percent of the last minute, one each `HISTORY_EVERY_S`, the oldest first; None
        where unknown.
        """
        known = self._known.get(uuid)
        return [] if known is None else list(known.utilization)

    def changed_bytes(self, uuid: str) -> int:
        """Return how much our kernels' memory on a GPU changed since, or just before, NVML's last look."""
        known = self._known.get(uuid)
        return 0 if known is None or self.sample is None else known.changed_since(self.sample.began)

    def take(self, sample: NvmlSample | None, settings: Settings) -> None:
        """Take new figures; None if NVML is missing."""
        self.sample = sample
        looks = 0 if sample is None else self._looks_due(sample.began)
        for gpu in self.measured.values():
            known = self._known.setdefault(gpu.uuid, _Estimate())
            known.utilization.extend(self._looks(looks, gpu.utilization_percent))
            if gpu.free_bytes < settings.low_watermark * gpu.total_bytes:
                known.is_reclaiming = True
            elif gpu.free_bytes >= settings.high_watermark * gpu.total_bytes:
                known.is_reclaiming = False

    def _looks_due(self, now: float) -> int:
        """Return how many entries the histories lack: NVML's last figure stands where it is asked less often."""
        if self._remembered_at is None:
            self._remembered_at = now
            return 1
        looks = int((now - self._remembered_at) / HISTORY_EVERY_S)
        self._remembered_at += looks * HISTORY_EVERY_S
        return min(looks, HISTORY_LOOKS)

    @staticmethod
    def _looks(due: int, percent: int | None) -> list[int | None]:
        """Return `due` entries for the time until a new figure: unknown ones where NVML was not asked for long."""
        unknown: list[int | None] = [None] * (due - 1 if due > FIGURE_STANDS_LOOKS else 0)
        return unknown + [percent] * (due - len(unknown))

    def take_pages(self, managed: Mapping[str, int], now: float) -> None:
        """Take what our kernels have on each GPU now."""
        for uuid in managed.keys() | self._known.keys():
            known = self._known.setdefault(uuid, _Estimate())
            grown = managed.get(uuid, 0) - known.managed_bytes
            if grown:
                known.managed_bytes += grown
                known.changes.append((now, abs(grown)))
                if known.free_bytes != UNKNOWN_FREE:
                    known.free_bytes = max(known.free_bytes - grown, 0)
        for uuid, nvml in self.measured.items():
            known = self._known[uuid]
            known.note_sum(now, nvml.free_bytes + known.managed_bytes)
        for uuid in self._known.keys() - managed.keys() - self.measured.keys():
            del self._known[uuid]  # no NVML and no kernel on it any more

    def take_failure(self, uuid: str, size: int, *, again: bool = False) -> None:
        """Learn that `size` bytes did not fit; `again`: although there should have been room."""
        known = self._known.setdefault(uuid, _Estimate())
        known.free_bytes = min(known.free_bytes, 0 if again else max(size - 1, 0))

    def take_parked_context(self, uuid: str, size: int, now: float) -> None:
        """Note that a context of `size` bytes has left a GPU: older figures do not show it."""
        if size and uuid in self._known:
            self._known[uuid].changes.append((now, size))

    def move_ended(self, uuids: Iterable[str], now: float) -> None:
        """Note that a kernel's move to or from those GPUs has ended or failed."""
        for uuid in uuids:
            if uuid in self._known:
                self._known[uuid].moved_at = now

    def snapshot(self, now: float) -> dict[str, Gpu]:
        """Return the GPUs for the policy's snapshot."""
        measured = self.measured
        gpus = {}
        for uuid in self.uuids:
            known = self._known.get(uuid, _Estimate())
            nvml = measured.get(uuid)
            if nvml is None or self.sample is None:
                gpus[uuid] = Gpu(uuid, known.free_bytes, None, now, known.changed_since(now))
            else:
                gpus[uuid] = Gpu(
                    uuid,
                    nvml.free_bytes,
                    nvml.total_bytes,
                    self.sample.began,
                    max(known.changed_since(self.sample.began), known.missing()),
                    known.is_reclaiming,
                    self.sample.began < known.moved_at and now < known.moved_at + OUTDATED_LASTS_S,
                    nvml.index,
                )
        return gpus
