"""The few calls of the CUDA driver API that the bench's processes make, by ctypes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

SUCCESS = 0
HOST_REGISTER_DEFAULT = 0
LAUNCH_BLOCKS = 1024
LAUNCH_THREADS = 256
CONTENT = Path(__file__).with_name("test_pattern.ptx")

Word = ctypes.c_uint64


class CudaError(RuntimeError):
    """A call failed; the message has its name and the driver's name for the error."""


class Driver:
    """libcuda.so.1 with a context of the first GPU, current on the calling thread."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"there is no CUDA driver here: {error}") from None
        self.call("cuInit", 0)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)
        self._functions: dict[str, ctypes.c_void_p] = {}

    def call(self, name: str, *arguments: Any) -> None:
        """Call an entry point. Raises CudaError unless it succeeds, or if the driver does not have it."""
        entry = getattr(self.library, name, None)
        if entry is None:
            raise CudaError(f"this driver has no {name}")
        result = entry(*arguments)
        if result != SUCCESS:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(result, ctypes.byref(text))
            raise CudaError(f"{name}: {text.value.decode() if text.value else result}")

    def describe(self) -> dict[str, Any]:
        """Return the GPU's name and memory in bytes, the driver's CUDA version, and whether it is simulated."""
        name, version = ctypes.create_string_buffer(128), ctypes.c_int()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuDeviceGetName", name, 128, self.device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        maps = Path("/proc/self/maps").read_text(errors="replace")
        return {
            "gpu": name.value.decode(errors="replace"),
            "gpu_bytes": total.value,
            "gpu_free_bytes": free.value,
            "cuda_version": f"{version.value // 1000}.{version.value % 1000 // 10}",
            "simulated": "libaffinode-sim-cuda" in maps,
        }

    def allocate(self, size: int) -> int:
        """Allocate device memory of `size` bytes; return its address."""
        pointer = Word()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return int(pointer.value)

    def free(self, address: int) -> None:
        """Free device memory."""
        self.call("cuMemFree_v2", Word(address))

    def synchronize(self) -> None:
        """Wait for everything submitted."""
        self.call("cuCtxSynchronize")

    def launch(self, name: str, words: int, *parameters: int) -> None:
        """Launch a kernel of test_pattern.ptx whose parameters are all 64 bits wide, on `words` elements."""
        function = self._functions.get(name) or self._load(name)
        values = [Word(parameter) for parameter in parameters]
        addresses = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        blocks = max(min(words // LAUNCH_THREADS, LAUNCH_BLOCKS), 1)
        shape = [ctypes.c_uint(number) for number in (blocks, 1, 1, LAUNCH_THREADS, 1, 1, 0)]
        self.call("cuLaunchKernel", function, *shape, None, addresses, None)

    def _load(self, name: str) -> ctypes.c_void_p:
        if "module" not in self._functions:
            module = ctypes.c_void_p()
            self.call("cuModuleLoadData", ctypes.byref(module), CONTENT.read_bytes() + b"\0")
            self._functions["module"] = module
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self._functions["module"], name.encode())
        self._functions[name] = function
        return function
