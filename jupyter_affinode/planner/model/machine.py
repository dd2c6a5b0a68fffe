"""The machine that is planned for, and how fast it parks and resumes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...settings.policy import Settings
from ...units import bytes_in_words
from .sessions import ImpossiblePlan, Session

MIB = 1 << 20
GIB = 1 << 30
CONTEXT_BYTES = 620 * MIB  # a CUDA context on an H200, measured
RESUME_SPARE_BYTES = GIB  # what the driver must find free beyond a context that it restores


@dataclass(frozen=True)
class Speeds:
    """Moves in bytes a second and seconds; the defaults are one H200's, as tests/gpu/RESULTS.md has them."""

    first_park_bytes_per_s: float = 32 * GIB / 1.92  # into host memory that was never touched
    park_bytes_per_s: float = 32 * GIB / 0.6688  # everything changed since the last park
    resume_bytes_per_s: float = 32 * GIB / 0.6772
    wake_s: float = 0.0263 - 0.0215  # what a call through a controller takes beside the resume itself
    context_park_s: float = 1.60 - 0.6688  # what context depth adds
    context_resume_s: float = 1.49 - 0.6772
    source: str = "NVIDIA H200, measured (tests/gpu/RESULTS.md)"
    exchange_s: float = 0.15  # what an exchange takes beside its copies
    exchange_slower: float = 1.06  # … which take so many times as long beside those of the other direction
    hand_over_slower: float = 1.5  # … or where host memory is handed over meanwhile: 1.49 and 1.61
    disk_bytes_per_s: float = 2 * GIB  # an NVMe disk's: an assumption
    image_wake_s: float = (
        1.6  # until a hibernated kernel's processes run; its GPU memory follows when it is used
    )

    def park_s(self, size: int, retained: int, *, context: bool) -> float:
        """Return how long a park of `size` bytes takes, `retained` of which have host memory from the last one."""
        again = min(retained, size)
        took = (size - again) / self.first_park_bytes_per_s + again / self.park_bytes_per_s
        return took + (self.context_park_s if context else 0.0)

    def resume_s(self, size: int, *, context: bool) -> float:
        """Return how long a resume of `size` bytes takes."""
        return self.wake_s + size / self.resume_bytes_per_s + (self.context_resume_s if context else 0.0)


@dataclass(frozen=True)
class Machine:
    """GPUs of one kind and the host's memory."""

    gpus: int = 1
    gpu_bytes: int = 140 * GIB  # an H200's
    host_bytes: int = 256 * GIB
    disk_bytes: int = 0  # how much parked memory may be on a local disk
    context_bytes: int = CONTEXT_BYTES  # each kernel that used CUDA, on its GPU
    compute_share: float = 1.0  # of a GPU's compute that one running cell could use
    hibernate_after_s: float | None = None  # kernels' owners let them; 0: only where host memory is short

    def gpu_sizes(self) -> dict[str, int]:
        """Return each GPU's memory by its UUID."""
        return {f"GPU-{number:02d}": self.gpu_bytes for number in range(self.gpus)}

    def check(self, settings: Settings, sessions: Sequence[Session]) -> None:
        """Check that the sessions fit the machine. Raises ImpossiblePlan."""
        if self.gpu_bytes <= self.context_bytes:
            raise ImpossiblePlan(
                f"a GPU of {bytes_in_words(self.gpu_bytes)} has no room beside one CUDA context of"
                f" {bytes_in_words(self.context_bytes)}"
            )
        if not any(session.cells for session in sessions):
            raise ImpossiblePlan("there is no cell to replay")
        room = self.gpu_bytes - self.context_bytes - settings.margin_bytes
        for session in sessions:
            if session.peak_bytes > room:
                raise ImpossiblePlan(
                    f"session {session.id} needs {bytes_in_words(session.peak_bytes)} and a GPU of"
                    f" {bytes_in_words(self.gpu_bytes)} has room for {bytes_in_words(room)} beside one CUDA"
                    " context and the margin: no way of sharing can serve it"
                )


class BenchUnusable(ValueError):
    """A bench report without usable moves; the message tells why."""


def speeds_from_bench(path: Path) -> Speeds:
    """Return what `jupyter affinode bench --json` measured. Raises OSError and BenchUnusable."""
    try:
        report: dict[str, Any] = json.loads(path.read_text())
        if report["simulated"]:
            raise BenchUnusable(
                f"{path} was made with the simulated GPU: its figures are no GPU's performance"
            )
        if "script" in report:
            raise BenchUnusable(f"{path} is of another program than `jupyter affinode bench`")
        size = max((row["bytes"] for row in report["ours"]), default=0)
        if not size:
            raise BenchUnusable(f"{path} has no park and resume (part `ours`)")
        times = {row["name"]: float(row["median_s"]) for row in report["ours"] if row["bytes"] == size}
        return replace(
            Speeds(),
            first_park_bytes_per_s=size / times["first park"],
            park_bytes_per_s=size / times["park, all changed"],
            resume_bytes_per_s=size / times["resume"],
            source=f"{report['machine']['gpu']}, measured on {report['machine']['date']} ({path.name})",
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, BenchUnusable):
            raise
        raise BenchUnusable(
            f"{path} is not a report of `jupyter affinode bench --json` ({type(error).__name__}: {error})"
        ) from None
