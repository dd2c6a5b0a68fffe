"""Host memory for the bench: huge pages, touched by several threads, and how much of it there is."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from typing import Any

from ..node.system.host_memory import host_memory

PIECE_BYTES = 1 << 30
LEFT_ALONE_BYTES = 1 << 30  # of MemAvailable: less, and the kernel may begin to kill
GROWS_WITHIN_S = 10.0

_libc = ctypes.CDLL(None)
_libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)


class HugePages:
    """An anonymous private mapping that asks for transparent huge pages."""

    def __init__(self, size: int):
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._view = (ctypes.c_char * size).from_buffer(self._map)
        self.address = ctypes.addressof(self._view)

    def close(self) -> None:
        """Unmap the memory."""
        del self._view
        self._map.close()


def touch(address: int, size: int) -> None:
    """Write to every page, with half the cores but at most 8."""
    threads = max(min((os.cpu_count() or 2) // 2, 8), 1)
    part = -(-size // threads // mmap.PAGESIZE) * mmap.PAGESIZE
    workers = [
        threading.Thread(target=_libc.memset, args=(address + begin, 1, min(part, size - begin)))
        for begin in range(0, size, part)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def warm(size: int) -> dict[str, Any]:
    """Touch `size` bytes at once and free them: memory of a virtual machine that comes at its first use is there then.

    Stops early where less than 1 GiB would be left. Return bytes touched, seconds, and MemTotal before and after.
    """
    before, begin = host_memory().total_bytes, time.perf_counter()
    held: list[HugePages] = []
    touched = 0
    try:
        while touched < size and _grows():
            piece = min(PIECE_BYTES, size - touched)
            held.append(HugePages(piece))
            touch(held[-1].address, piece)
            touched += piece
        seconds = time.perf_counter() - begin
    finally:
        for mapping in held:
            mapping.close()
    return {
        "asked_bytes": size,
        "bytes": touched,
        "seconds": seconds,
        "total_before_bytes": before,
        "total_after_bytes": host_memory().total_bytes,
    }


def _grows() -> bool:
    """Return whether another piece fits; a machine whose memory grows gets a moment for it."""
    deadline = time.monotonic() + GROWS_WITHIN_S
    while host_memory().available_bytes < PIECE_BYTES + LEFT_ALONE_BYTES:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
