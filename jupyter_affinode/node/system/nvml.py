"""NVML's figures of the GPUs, read on a thread of its own so that a slow driver never stops the controller.

Uses pynvml (the package nvidia-ml-py). On the simulated GPU the same code reads the simulated NVML.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pynvml

from ..model.backoff import Backoff
from ..model.gpu import NvmlGpu

# A GPU that says so has fallen off the bus or needs a reset; the machine's others go on.
DEAD = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNKNOWN)
STANDS_S = 15.0  # for so long a GPU's last figures stand if NVML does not answer for it
# How long until NVML is looked for again where it was missing: first, then twice as long each time, and at most. What a
# driver says of a moment ("Unknown Error") is over soon, and a library that is not there does not come.
RETRY_FIRST_S, RETRY_S = 1.0, 30.0
SLOW_S = 5.0


@dataclass(frozen=True)
class NvmlSample:
    """One look at all GPUs."""

    began: float  # monotonic seconds
    driver_version: str
    gpus: tuple[NvmlGpu, ...]
    dead: tuple[int, ...] = ()  # the numbers of GPUs that do not answer any more
    unsized: tuple[str, ...] = ()  # the UUIDs of GPUs that have no figures of their memory

    @cached_property
    def by_uuid(self) -> Mapping[str, NvmlGpu]:
        """Return the GPUs by UUID."""
        return {gpu.uuid: gpu for gpu in self.gpus}

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Return each GPU's size in bytes by UUID."""
        return {gpu.uuid: gpu.total_bytes for gpu in self.gpus}


class NvmlMissing(Exception):
    """NVML is missing, or does not work; the message tells why."""


class Nvml:
    """NVML, initialised at the first look and again after any failure."""

    def __init__(self) -> None:
        self._ready = False
        self._utilization_seen: dict[str, int] = {}  # the driver's time of the newest sample, by GPU
        # by number, what each GPU said last, and when
        self._last: dict[int, tuple[float, list[NvmlGpu], list[str]]] = {}
        self._found_dead = _retry()

    def read(self) -> NvmlSample:
        """Look at all GPUs once; return the figures. Raises NvmlMissing. Blocks.

        What goes wrong with one GPU hides no other's figures.
        """
        began = time.monotonic()
        try:
            if self._found_dead.failures and began >= self._found_dead.retry_at:
                self.close()  # one that was reset is found again by an NVML that begins anew
                self._found_dead.fail(began)
            if not self._ready:
                pynvml.nvmlInit()
                self._ready = True
            sample = self._all_gpus(began, pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self.close()
            raise NvmlMissing(str(error)) from None
        if not sample.dead:
            self._found_dead.succeed()
        elif not self._found_dead.failures:
            self._found_dead.fail(began)
        return sample

    def _all_gpus(self, began: float, count: int) -> NvmlSample:
        """Look at each GPU. Raises the last one's error if none answers."""
        gpus: list[NvmlGpu] = []
        unsized: list[str] = []
        dead: list[int] = []
        for index in range(count):
            try:
                found, without = self._gpus(index)
                self._last[index] = began, found, without
            except Exception as error:  # pynvml has errors of its own, over a text that is none for example
                if len(dead) == count - 1:
                    raise
                then, found, without = self._last.get(index, (-math.inf, [], []))
                if getattr(error, "value", None) in DEAD or began - then > STANDS_S:
                    found, without = [], []
                    dead.append(index)
            gpus += found
            unsized += without
        return NvmlSample(
            began, _text_of(pynvml.nvmlSystemGetDriverVersion) or "", tuple(gpus), tuple(dead), tuple(unsized)
        )

    def _gpus(self, index: int) -> tuple[list[NvmlGpu], list[str]]:
        """Return a GPU, or its parts where it is used in parts; and the UUIDs of those that have no figures of their
        memory.
        """
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        parts = _parts(handle)
        if parts:
            return _of_parts(parts, index)
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        is_first_look = uuid not in self._utilization_seen
        percent, seen = _busy_since(handle, self._utilization_seen.get(uuid, 0))
        self._utilization_seen[uuid] = seen
        gpu = _gpu(handle, index, None if is_first_look else percent, is_mig=parts is not None)
        return ([], [uuid]) if gpu is None else ([gpu], [])

    def close(self) -> None:
        """Shut NVML down."""
        if self._ready:
            self._ready = False
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def _retry() -> Backoff:
    return Backoff(first_s=RETRY_FIRST_S, last_s=RETRY_S)


def _of_parts(parts: Sequence[Any], index: int) -> tuple[list[NvmlGpu], list[str]]:
    """Return the parts that answer, and the UUIDs of those without figures of their memory. Raises the last one's error
    if none answers.
    """
    found: list[NvmlGpu] = []
    unsized: list[str] = []
    failed: Exception | None = None
    for part in parts:
        try:
            gpu = _gpu(part, index, None, is_mig=True)
            if gpu is None:
                unsized.append(_as_the_driver_says(_text(pynvml.nvmlDeviceGetUUID(part))))
            else:
                found.append(gpu)
        except Exception as error:  # of this part
            failed = error
    if failed is not None and not found and not unsized:
        raise failed
    return found, unsized


def _as_the_driver_says(uuid: str) -> str:
    """Return a UUID as shims know it: the driver API gives a part's 16 bytes as it gives a GPU's; only NVML tells them
    apart by name.
    """
    return "GPU-" + uuid.removeprefix("MIG-") if uuid.startswith("MIG-") else uuid


def _gpu(handle: Any, index: int, percent: dict[int, int] | None, *, is_mig: bool) -> NvmlGpu | None:
    """Return a GPU's figures; None if it has none of its memory, as some whose memory is the host's. Raises
    NVMLError.
    """
    visible = _text(pynvml.nvmlDeviceGetUUID(handle))
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return None
        raise
    try:
        utilization = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:  # MIG and some virtual GPUs have no such figure
        utilization = None
    used_by = _used_by(handle)
    return NvmlGpu(
        _as_the_driver_says(visible),
        index,
        _text_of(lambda: pynvml.nvmlDeviceGetName(handle)) or "GPU",
        int(memory.total),
        int(memory.used),
        int(memory.free),
        utilization,
        pids=None if used_by is None else frozenset(used_by),
        used_by=used_by or {},
        busy_pids=None if percent is None else frozenset(pid for pid, busy in percent.items() if busy),
        percent_by_pid=percent,
        is_mig=is_mig,
        visible_as=visible,
    )


def _parts(handle: Any) -> list[Any] | None:
    """Return the MIG devices of a GPU that is used in parts; None if it is used whole."""
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
        if not current:
            return None
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:  # there is no MIG on this GPU
        return None
    parts = []
    for index in range(count):
        with contextlib.suppress(pynvml.NVMLError):  # numbers may be free
            parts.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
    return parts


def _used_by(handle: Any) -> dict[int, int | None] | None:
    """Return the processes with a context on a GPU, by NVML's pids, and what each uses. Graphics count too."""
    try:
        processes = list(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError:
        return None
    with contextlib.suppress(pynvml.NVMLError):  # where there can be none
        processes += pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
    return {
        int(process.pid): None if process.usedGpuMemory is None else int(process.usedGpuMemory)
        for process in processes
    }


def _busy_since(handle: Any, seen: int) -> tuple[dict[int, int] | None, int]:
    """Return how busy each process kept the GPU after the driver's time `seen`, in percent, and its time now.

    None: NVML does not tell. Of several samples of a process the busiest counts.
    """
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, seen)
    except pynvml.NVMLError as error:
        # No error, or "not found": there is no newer sample.
        known = error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND)
        return ({} if known else None), seen
    newest = max((int(sample.timeStamp) for sample in samples), default=seen)
    percent: dict[int, int] = {}
    for sample in samples:
        if int(sample.timeStamp) > seen:
            pid = int(sample.pid)
            percent[pid] = max(percent.get(pid, 0), min(int(sample.smUtil), 100))
    return percent, max(newest, seen)


def _text_of(ask: Callable[[], str | bytes]) -> str | None:
    """Return what is only shown; None where NVML does not tell."""
    try:
        return _text(ask())
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class NvmlReader:
    """Looks when asked, one look at a time; `on_sample` gets each sample (or None) on the event loop.

    The thread is a daemon: one that hangs in the driver keeps neither the loop nor the process's end.
    """

    def __init__(
        self,
        on_sample: Callable[[NvmlSample | None], None],
        log: logging.Logger,
        read: Callable[[], NvmlSample],
    ):
        self._on_sample = on_sample
        self._log = log
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: look; False: end
        self._is_looking = self._look_again = self._is_closed = False
        self._missing = _retry()
        self._missing_why = ""
        self._dead: tuple[int, ...] = ()
        threading.Thread(target=self._work, name="affinode-nvml", daemon=True).start()

    def sample_soon(self) -> None:
        """Have a sample taken that begins after now."""
        if self._is_closed:
            return
        if self._is_looking:
            self._look_again = True
        elif time.monotonic() >= self._missing.retry_at:
            self._is_looking = True
            self._orders.put(True)

    def close(self) -> None:
        """Take no more samples."""
        self._is_closed = True
        self._orders.put(False)

    def _work(self) -> None:
        """Look, pass the result on, and wait for the next order; runs on the thread."""
        while self._orders.get():
            result: NvmlSample | NvmlMissing
            try:
                result = self._read()
            except NvmlMissing as missing:
                result = missing
            except Exception as error:  # the thread must live: what failed once is tried again
                self._log.exception("looking at the GPUs failed")
                result = NvmlMissing(f"{type(error).__name__}: {error}")
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._looked, result)

    def _looked(self, result: NvmlSample | NvmlMissing) -> None:
        if self._is_closed:
            return
        self._is_looking = False
        if isinstance(result, NvmlMissing):
            self._loop.call_later(self._missing.fail(time.monotonic()), self.sample_soon)
            if self._missing_why != str(result):
                self._log.warning("no NVML (%s): room is estimated from what succeeds and fails", result)
            self._missing_why = str(result)
            self._on_sample(None)
            return
        if self._missing.failures:
            self._log.info("NVML is there: driver %s", result.driver_version)
            self._missing.succeed()
            self._missing_why = ""
        if result.dead != self._dead:
            self._tell_dead(result.dead)
        took = time.monotonic() - result.began
        if took > SLOW_S:
            self._log.warning("NVML took %.1f s", took)
        self._on_sample(result)
        if self._look_again:
            self._look_again = False
            self.sample_soon()

    def _tell_dead(self, dead: tuple[int, ...]) -> None:
        self._dead = dead
        if dead:
            which = ", ".join(map(str, dead))
            self._log.error("GPU %s does not answer NVML any more: is it lost? nvidia-smi says more", which)
        else:
            self._log.info("all GPUs answer NVML again")
