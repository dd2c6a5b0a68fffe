"""Cells that use the GPU through the driver's own API, as a library would."""

from __future__ import annotations

BEGIN = """\
import ctypes, pathlib, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    assert result == 0, f"CUDA error {result}"
device, context = ctypes.c_int(), ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
"""

CPU = "sum(range(1000))"


def allocate(mib: int, value: int = 7) -> str:
    """Allocate memory and fill it with a value."""
    return (
        BEGIN
        + f"""\
memory, words = ctypes.c_uint64(), {mib << 18}
check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(words * 4)))
check(cuda.cuMemsetD32_v2(memory, ctypes.c_uint({value}), ctypes.c_size_t(words)))
check(cuda.cuCtxSynchronize())
print("allocated")
"""
    )


READ = """\
first, last = ctypes.c_uint(), ctypes.c_uint()
check(cuda.cuMemcpyDtoH_v2(ctypes.byref(first), memory, ctypes.c_size_t(4)))
end = ctypes.c_uint64(memory.value + 4 * words - 4)
check(cuda.cuMemcpyDtoH_v2(ctypes.byref(last), end, ctypes.c_size_t(4)))
print(first.value, last.value)
"""

POOLED = """\
pooled = ctypes.c_uint64()
check(cuda.cuMemAllocAsync(ctypes.byref(pooled), ctypes.c_size_t(32 << 20), None))
print("pooled")
"""


def compute_until(path: str) -> str:
    """Use the GPU again and again until a file appears; one that ends with `.begun` says that it does."""
    return f"""\
done = pathlib.Path({path!r})
while not done.exists():
    check(cuda.cuMemsetD32_v2(memory, ctypes.c_uint(7), ctypes.c_size_t(1024)))
    done.with_suffix(".begun").touch()
    time.sleep(0.01)
print("computed")
"""


def launch_until(path: str) -> str:
    """Launch work on the GPU again and again until a file appears."""
    return f"""\
nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
while not pathlib.Path({path!r}).exists():
    check(cuda.cuLaunchHostFunc(None, nothing, None))
    time.sleep(0.01)
print("launched")
"""


ARRAYS = (
    BEGIN
    + """\

class DeviceArray:
    \"\"\"Memory on the GPU.\"\"\"

    def __init__(self, mib):
        self.words, self.address = mib << 18, ctypes.c_uint64()
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(self.words * 4)))

    def fill(self, value):
        check(cuda.cuMemsetD32_v2(self.address, ctypes.c_uint(value), ctypes.c_size_t(self.words)))
        check(cuda.cuCtxSynchronize())
        return self
"""
)
"""A module for notebooks that are looked at."""


def array(name: str, mib: int) -> str:
    """Allocate and fill an array of the module `arrays`."""
    return (
        f"from pathlib import Path\nfrom arrays import DeviceArray\n\n{name} = DeviceArray(mib={mib}).fill(7)"
    )
