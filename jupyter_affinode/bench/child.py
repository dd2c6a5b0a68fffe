"""A process of the bench that uses the GPU: `python -m jupyter_affinode.bench.child`.

Reads one JSON object a line, `{"do": NAME, …}`, and answers each with one: the results, or `{"error": TEXT}`.
Ends with its input, and dies with the process that started it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import host_memory
from .driver import HOST_REGISTER_DEFAULT, CudaError, Driver
from .test_pattern import Content

PR_SET_PDEATHSIG = 1


class Child:
    """The requests that the process serves; every method is one."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.content: Content | None = None

    def describe(self) -> dict[str, Any]:
        """Return the GPU and the driver."""
        return self.driver.describe()

    def hold(self, size: int, block: int) -> dict[str, Any]:
        """Allocate `size` bytes of zeros in blocks of `block` bytes."""
        self.content = Content(self.driver, size, block)
        return {}

    def change(self, seed: int, fraction: float | None = None) -> dict[str, Any]:
        """Write something else into all chunks, or a fraction of them; `seed` 0 writes zeros."""
        assert self.content is not None
        if fraction is None:
            self.content.change_all(seed)
            return {}
        return {"chunks": self.content.change_some(fraction, seed)}

    def verify(self) -> dict[str, Any]:
        """Count the words that are not what was written."""
        assert self.content is not None
        return {"differing_words": self.content.differing_words()}

    def touch(self) -> dict[str, Any]:
        """Copy 4 bytes from the device, in one CUDA call; return how long it took to return."""
        assert self.content is not None
        four = ctypes.c_uint32()
        source, size = ctypes.c_uint64(self.content.address), ctypes.c_size_t(4)
        begin = time.perf_counter()
        self.driver.call("cuMemcpyDtoH_v2", ctypes.byref(four), source, size)
        return {"seconds": time.perf_counter() - begin}

    def copy_rates(self, size: int, repeats: int, pinned_by: str) -> dict[str, Any]:
        """Time copies of `size` bytes each way over pinned memory (by "register" or "alloc")."""
        call = self.driver.call
        device = self.driver.allocate(size)
        pinned, how_long = (
            self._pinned_by_register(size) if pinned_by == "register" else self._pinned_by_alloc(size)
        )
        stream = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(stream), 1)
        there, bytes_ = ctypes.c_uint64(device), ctypes.c_size_t(size)
        to_host: list[float] = []
        to_device: list[float] = []
        for round_ in range(repeats + 1):
            for name, arguments, times in (
                ("cuMemcpyHtoDAsync_v2", (there, pinned), to_device),
                ("cuMemcpyDtoHAsync_v2", (pinned, there), to_host),
            ):
                begin = time.perf_counter()
                call(name, *arguments, bytes_, stream)
                call("cuStreamSynchronize", stream)
                if round_:  # the first is to warm up
                    times.append(time.perf_counter() - begin)
        return {"to_host_s": to_host, "to_device_s": to_device, **how_long}

    def duplex_rates(self, size: int, repeats: int) -> dict[str, Any]:
        """Time copies of `size` bytes out and as many in, both at once over pinned memory."""
        call = self.driver.call
        pairs = []
        for _ in range(2):
            stream, pinned, device = ctypes.c_void_p(), ctypes.c_void_p(), self.driver.allocate(size)
            call("cuStreamCreate", ctypes.byref(stream), 1)
            call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(size), 0)
            pairs.append((ctypes.c_uint64(device), pinned, stream))
        (from_, out, leaves), (to, back, comes) = pairs
        bytes_, times = ctypes.c_size_t(size), list[float]()
        for round_ in range(repeats + 1):
            begin = time.perf_counter()
            call("cuMemcpyDtoHAsync_v2", out, from_, bytes_, leaves)
            call("cuMemcpyHtoDAsync_v2", to, back, bytes_, comes)
            call("cuStreamSynchronize", leaves)
            call("cuStreamSynchronize", comes)
            if round_:  # the first is to warm up
                times.append(time.perf_counter() - begin)
        return {"bytes": size, "together_s": times}

    def room(self) -> dict[str, Any]:
        """Return what is free on the GPU."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {"free_bytes": free.value}

    def checkpoint(self) -> dict[str, Any]:
        """Have the driver park and resume this very process; return how long each took."""
        entry = getattr(self.driver.library, "cuCheckpointProcessLock", None)
        if entry is None:
            return {"skipped": "this driver has no cuCheckpointProcessLock (it came with CUDA 12.8)"}
        with ThreadPoolExecutor(1) as thread:  # without a current context, as an agent's own thread would be
            park_s = thread.submit(self._checkpoint_calls, "Lock", "Checkpoint").result()
            resume_s = thread.submit(self._checkpoint_calls, "Restore", "Unlock").result()
        return {"park_s": park_s, "resume_s": resume_s}

    def warm_host(self, size: int) -> dict[str, Any]:
        """Touch `size` bytes of host memory once and give them back."""
        return host_memory.warm(size)

    def _checkpoint_calls(self, *steps: str) -> float:
        nothing = (ctypes.c_uint64 * 8)()  # every argument struct is 64 bytes, zero for the defaults
        begin = time.perf_counter()
        for step in steps:
            self.driver.call(f"cuCheckpointProcess{step}", os.getpid(), ctypes.byref(nothing))
        return time.perf_counter() - begin

    def _pinned_by_register(self, size: int) -> tuple[ctypes.c_void_p, dict[str, float]]:
        self._host = host_memory.HugePages(size)
        times = [time.perf_counter()]
        host_memory.touch(self._host.address, size)
        times.append(time.perf_counter())
        address = ctypes.c_void_p(self._host.address)
        self.driver.call("cuMemHostRegister_v2", address, ctypes.c_size_t(size), HOST_REGISTER_DEFAULT)
        times.append(time.perf_counter())
        return address, {"touch_s": times[1] - times[0], "pin_s": times[2] - times[1]}

    def _pinned_by_alloc(self, size: int) -> tuple[ctypes.c_void_p, dict[str, float]]:
        address, begin = ctypes.c_void_p(), time.perf_counter()
        self.driver.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), 0)
        return address, {"pin_s": time.perf_counter() - begin}


REQUESTS = (
    *("describe", "hold", "change", "verify", "touch", "room"),
    *("copy_rates", "duplex_rates", "checkpoint", "warm_host"),
)


def main() -> int:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches us too; the bench itself ends us
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        child = Child()
    except CudaError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    print(json.dumps(child.describe()), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        name = request.pop("do")
        try:
            if name not in REQUESTS:
                raise ValueError(f"there is no request {name!r}")
            answer: Callable[..., dict[str, Any]] = getattr(child, name)
            said = answer(**request)
        except (CudaError, OSError, MemoryError, ValueError) as error:
            said = {"error": str(error) or type(error).__name__}
        print(json.dumps(said), flush=True)
    os._exit(0)  # no destructors: a parked process would wait for the GPU in them


if __name__ == "__main__":
    sys.exit(main())
