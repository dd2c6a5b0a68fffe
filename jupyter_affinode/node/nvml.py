"""What NVML says about the GPUs, read on a thread of its own so that a slow driver never stops the
controller.

Uses pynvml (the package nvidia-ml-py). On the simulated GPU the same code reads the simulated NVML.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pynvml

RETRY_S = 30.0  # how long until NVML is looked for again where it was missing
SLOW_S = 5.0


@dataclass(frozen=True)
class NvmlGpu:
    """One GPU as NVML describes it."""

    uuid: str
    index: int
    name: str
    total_bytes: int
    used_bytes: int
    free_bytes: int
    utilization_percent: int | None

    @property
    def is_simulated(self) -> bool:
        """Whether it is our simulated GPU."""
        return "simulated" in self.name.lower()


@dataclass(frozen=True)
class NvmlSample:
    """One look at all GPUs."""

    began: float  # monotonic seconds
    driver_version: str
    gpus: tuple[NvmlGpu, ...]


class NvmlMissing(Exception):
    """There is no NVML here, or it does not work; the message says why."""


class Nvml:
    """NVML, initialised at the first look and again after any failure."""

    def __init__(self) -> None:
        self._ready = False

    def read(self) -> NvmlSample:
        """Look at all GPUs once. Raises NvmlMissing. Blocks."""
        began = time.monotonic()
        try:
            if not self._ready:
                pynvml.nvmlInit()
                self._ready = True
            count = pynvml.nvmlDeviceGetCount()
            gpus = tuple(_gpu(index) for index in range(count))
            return NvmlSample(began, _text(pynvml.nvmlSystemGetDriverVersion()), gpus)
        except pynvml.NVMLError as error:
            self.close()
            raise NvmlMissing(str(error)) from None

    def close(self) -> None:
        """Let go of NVML."""
        if self._ready:
            self._ready = False
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def _gpu(index: int) -> NvmlGpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        utilization = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:  # MIG and some virtual GPUs have no such figure
        utilization = None
    uuid, name = _text(pynvml.nvmlDeviceGetUUID(handle)), _text(pynvml.nvmlDeviceGetName(handle))
    return NvmlGpu(uuid, index, name, int(memory.total), int(memory.used), int(memory.free), utilization)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class NvmlReader:
    """Looks when asked, one look at a time; `on_sample` gets each sample (or None) on the event loop."""

    def __init__(
        self,
        on_sample: Callable[[NvmlSample | None], None],
        log: logging.Logger,
        read: Callable[[], NvmlSample],
    ):
        self._on_sample = on_sample
        self._log = log
        self._read = read
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="affinode-nvml")
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._missing_until = 0.0
        self._missing: str | None = None

    def look(self) -> None:
        """Have a sample taken that begins after now."""
        if self._task is not None:
            self._again = True
        elif time.monotonic() >= self._missing_until:
            self._task = asyncio.get_running_loop().create_task(self._look())

    def close(self) -> None:
        """Take no more samples; one that hangs in the driver is left behind."""
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _look(self) -> None:
        while True:
            self._again = False
            began = time.monotonic()
            sample: NvmlSample | None = None
            try:
                sample = await asyncio.get_running_loop().run_in_executor(self._thread, self._read)
                self._missing = None
            except NvmlMissing as missing:
                self._missing_until = time.monotonic() + RETRY_S
                if self._missing != str(missing):
                    self._missing = str(missing)
                    self._log.warning("no NVML (%s): room is estimated from what succeeds and fails", missing)
            took = time.monotonic() - began
            if took > SLOW_S:
                self._log.warning("NVML took %.1f s", took)
            if sample is not None or not self._again:
                self._on_sample(sample)
            if not self._again or sample is None:
                self._task = None
                return
