"""The exit status is 0 if a CUDA driver with at least one GPU answers here; used by demo and tests."""

from __future__ import annotations

import ctypes
import sys


def has_gpu() -> bool:
    """Whether there is one. Initialises CUDA in this process."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


if __name__ == "__main__":
    sys.exit(0 if has_gpu() else 1)
