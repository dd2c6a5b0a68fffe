"""A pytest plugin for numba_suite.py: a block of GPU memory of our own beside whatever the tests hold.

numba's tests use arrays of a few KiB, which the driver keeps where they are; with 16 MiB there is something to park.
The block is made before a test if the process has a CUDA context by then, and its contents are looked at before the
next.
"""

from __future__ import annotations

import ctypes

import pytest

SIZE = 16 << 20
PATTERN = bytes(range(1, 252)) * (SIZE // 251 + 1)


class Ballast:
    """The block, if there is one; made again when a test has reset the device."""

    def __init__(self) -> None:
        self.driver: ctypes.CDLL | None = None
        self.pointer = ctypes.c_uint64()
        self.host = ctypes.create_string_buffer(SIZE)

    def has_context(self) -> bool:
        if self.driver is None:
            with open("/proc/self/maps") as maps:
                if "libcuda.so" not in maps.read() and "libaffinode-sim-cuda" not in maps.read():
                    return False
            self.driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        return self.driver.cuCtxGetCurrent(ctypes.byref(context)) == 0 and bool(context.value)

    def check(self) -> str | None:
        """What is wrong with the block, or None."""
        if not self.has_context():
            return None
        assert self.driver is not None
        size = ctypes.c_size_t(SIZE)
        if self.pointer.value:
            if self.driver.cuMemcpyDtoH_v2(self.host, self.pointer, size) == 0:
                return None if self.host.raw == PATTERN[:SIZE] else "16 MiB came back other than they went"
            self.pointer = ctypes.c_uint64()  # the device was reset, or another is current
        if self.driver.cuMemAlloc_v2(ctypes.byref(self.pointer), size) == 0:
            self.driver.cuMemcpyHtoD_v2(self.pointer, PATTERN[:SIZE], size)
        else:
            self.pointer = ctypes.c_uint64()
        return None


ballast = Ballast()


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    wrong = ballast.check()
    if wrong:
        pytest.fail(f"before {item.nodeid}: {wrong}", pytrace=False)
