"""What many_kernels.py sees: the GPUs and the host's memory meanwhile, and the controller's ledger afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median

import pynvml
from controlled import say
from many_people import Person

from jupyter_affinode.client.api import ControllerClient
from jupyter_affinode.client.errors import ControllerUnavailable
from jupyter_affinode.node.policy.resources.host_memory import cgroup_reserve
from jupyter_affinode.node.system.host_memory import cgroup_memory, host_memory
from jupyter_affinode.settings.policy import GIB, Settings

SAMPLE_EVERY_S = 0.2
ENDS_WITHIN_S = 20.0
HEADINGS = ("kernel", "cells", "parks", "resumes", "resume: median, max", "wait: p50, p95, max", "on GPUs", "wrong",
            "error")  # fmt: skip


def percentile(values: Sequence[float], part: float) -> float:
    """The least value that `part` of them are not above; nan of none."""
    return sorted(values)[max(ceil(part * len(values)), 1) - 1] if values else float("nan")


class Steal:
    """How much of its processors' time a virtual machine was without: others on its host had them (Linux, proc(5))."""

    def __init__(self) -> None:
        self._before = self._read()

    def share(self) -> float:
        """Return the part of that time since the last look."""
        (stolen, total), (stolen_before, total_before) = now, _ = self._read(), self._before
        self._before = now
        return (stolen - stolen_before) / max(total - total_before, 1)

    def _read(self) -> tuple[int, int]:
        times = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return times[7], sum(times)


class Sampler:
    """Looks every 0.2 s at what GPUs hold, by NVML, and at what is left of host memory beyond the reserve."""

    def __init__(self, gpus: int, settings: Settings):
        pynvml.nvmlInit()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(gpus)]
        self.gpus = [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in self._handles]
        self.totals = [int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in self._handles]
        self.most_used = [0] * gpus
        self.least_beyond_reserve: int | None = None  # bytes; less than nothing: the reserve was touched
        self.least_available = 0  # bytes, at that moment
        self.least_after_s = 0.0  # … which was so long after the first look
        self.samples = self.samples_below = 0
        self._settings = settings
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._ends.wait(SAMPLE_EVERY_S):
            for index, handle in enumerate(self._handles):
                used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
                self.most_used[index] = max(self.most_used[index], used)
            host = host_memory()
            reserve = self._settings.host_reserve(host.total_bytes)
            left = host.available_bytes - reserve
            cgroup = cgroup_memory(os.getpid())
            if cgroup is not None:  # the kernels are in it, too
                left = min(left, cgroup.headroom_bytes - cgroup_reserve(cgroup.limit_bytes, reserve))
            self.samples += 1
            self.samples_below += left < 0
            if self.least_beyond_reserve is None or left < self.least_beyond_reserve:
                self.least_beyond_reserve, self.least_available = left, host.available_bytes
                self.least_after_s = time.monotonic() - begin


@dataclass(frozen=True)
class Moved:
    """A park or resume that went well, by the ledger."""

    at: float  # seconds since 1970
    kernel_id: str
    parks: bool
    gpu: str
    depth: str
    bytes: int
    duration_s: float
    waited_s: float | None


@dataclass(frozen=True)
class Told:
    """The ledger of a run."""

    moves: list[Moved]
    failures: dict[str, int]  # moves and refusals, by what went wrong
    spills: list[int]  # bytes of each that went well

    def of(self, kernel_id: str, *, parks: bool) -> list[Moved]:
        """One kernel's, in their order."""
        return [move for move in self.moves if move.kernel_id == kernel_id and move.parks is parks]

    def elsewhere(self) -> list[Moved]:
        """Resumes on another GPU than the one that the kernel had left."""
        left: dict[str, str] = {}
        found = []
        for move in self.moves:
            if not move.parks and left.get(move.kernel_id, move.gpu) != move.gpu:
                found.append(move)
            left[move.kernel_id] = move.gpu
        return found

    def resume_lines(self, gpus: Sequence[str], names: dict[str, int]) -> list[str]:
        """Every resume, a line each."""
        resumes = [move for move in self.moves if not move.parks]
        elsewhere = {id(move) for move in self.elsewhere()}
        return [
            f"resume {number}: {move.at - resumes[0].at:.1f} s, kernel {names.get(move.kernel_id, '?')},"
            f" {move.bytes / GIB:.2f} GiB to GPU {_index(gpus, move.gpu)} in {move.duration_s:.3f} s"
            f" ({move.bytes / GIB / max(move.duration_s, 1e-9):.1f} GiB/s)"
            + (", from the other GPU" if id(move) in elsewhere else "")
            for number, move in enumerate(resumes, 1)
        ]


def read_ledger(path: Path) -> Told:
    """What a controller that has ended wrote. Raises sqlite3.Error."""
    with contextlib.closing(sqlite3.connect(path)) as ledger:
        rows = ledger.execute(
            "SELECT at, kernel_id, kind, gpu, depth, bytes, duration_s, waited_s, outcome FROM events"
            " WHERE kind IN ('park', 'resume', 'refusal', 'spill') ORDER BY at, id"
        ).fetchall()
    moves, failures, spills = [], dict[str, int](), []
    for at, kernel_id, kind, gpu, depth, size, duration_s, waited_s, outcome in rows:
        if outcome == "ok" and kind == "spill":
            spills.append(size)
        elif outcome == "ok":
            moves.append(Moved(at, kernel_id, kind == "park", gpu, depth, size, duration_s, waited_s))
        else:
            failures[f"{kind}: {outcome}"] = failures.get(f"{kind}: {outcome}", 0) + 1
    return Told(moves, failures, spills)


def end_controller(path: Path) -> None:
    """End it and wait until it has written its ledger; say so if it has ended by itself. Raises TimeoutError."""
    try:
        pid = int(asyncio.run(ControllerClient(path).node())["controller"]["pid"])
    except ControllerUnavailable as error:
        return say(f"the controller has ended by itself; its log beside {path} says why ({error})")
    ending = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(ending, signal.SIGTERM)
        if not select.select([ending], [], [], ENDS_WITHIN_S)[0]:
            raise TimeoutError("the controller did not end")
    finally:
        os.close(ending)


def person_row(person: Person, told: Told, gpus: Sequence[str]) -> tuple[str, ...]:
    """A row of the table."""
    kernel_id = person.kernel.id if person.kernel is not None else ""
    resumes = told.of(kernel_id, parks=False)
    durations = [move.duration_s for move in resumes]
    waits = [cell.wait_s for cell in person.cells]
    used = {person.gpu, *(_index(gpus, move.gpu) for move in resumes)}
    return (
        f"{person.number}",
        f"{len(person.cells)}",
        f"{len(told.of(kernel_id, parks=True))}",
        f"{len(resumes)}",
        f"{median(durations):.2f}, {max(durations):.2f} s" if durations else "-",
        f"{percentile(waits, 0.5):.2f}, {percentile(waits, 0.95):.2f}, {max(waits):.2f} s" if waits else "-",
        ", ".join(map(str, sorted(used))),
        f"{sum(not cell.is_right for cell in person.cells)}",
        person.error or "-",
    )


def _index(gpus: Sequence[str], uuid: str) -> int:
    return gpus.index(uuid) if uuid in gpus else -1


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
