"""Fresh host memory behind a descriptor: made, touched and sealed by us, handed to one process once.

A memfd that a process was given cannot be unshared: it may have kept a copy. So each lot goes to one process
only and is never used again. It is sealed against growing and against further seals, which leaves us, and the
process, one change of its size: to cut it to nothing. That frees its pages wherever the descriptor is, and
nothing can be put into it again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...settings.policy import MIB

STEP_BYTES = 32 * MIB  # touched at once; sizes are multiples of it, as the shims' slabs are
HUGE_PAGE_BYTES = 2 * MIB
HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
MADV_POPULATE_WRITE = 23  # Linux 5.14
ZEROS = bytes(4 * MIB)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class LotFailed(Exception):
    """A lot could not be made; the message says why."""


@dataclass(frozen=True)
class Lot:
    """A descriptor of `bytes` of touched, zeroed memory."""

    descriptor: int
    bytes: int
    is_huge: bool  # of pages set aside by the administrator: other programs cannot use them anyway

    def revoke(self) -> None:
        """Free the pages for good; a process that touches a mapping of them gets SIGBUS.

        Only for a lot that no process has mapped: never handed out, given back, or its process has ended.
        """
        with contextlib.suppress(OSError):
            os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)

    def let_go(self) -> None:
        """Leave the memory to the process that has it; it is freed when that unmaps it, or ends."""
        os.close(self.descriptor)


def make_lot(size: int, may_take: Callable[[int], bool]) -> Lot:
    """A new lot, of huge pages if enough are free. Takes about 0.3 s a GiB: call it on a thread.

    `may_take(bytes)` is asked before each step of ordinary memory. Raises LotFailed, with nothing taken.
    """
    if free_huge_bytes() >= size:
        with contextlib.suppress(LotFailed):  # another process was faster, or a cgroup forbids them
            return _make(size, is_huge=True, may_take=lambda _: True)
    return _make(size, is_huge=False, may_take=may_take)


def free_huge_bytes(folder: Path = HUGE_PAGES) -> int:
    """Return the huge pages of 2 MiB that are neither used nor promised."""
    try:
        free, promised = (int((folder / name).read_text()) for name in ("free_hugepages", "resv_hugepages"))
    except (OSError, ValueError):
        return 0
    return max(free - promised, 0) * HUGE_PAGE_BYTES


def _make(size: int, *, is_huge: bool, may_take: Callable[[int], bool]) -> Lot:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    if is_huge:
        flags |= os.MFD_HUGETLB | os.MFD_HUGE_2MB
    try:
        descriptor = os.memfd_create("affinode-lot", flags)
    except OSError as error:
        raise LotFailed(f"no memory file: {error.strerror}") from None
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        _touch(descriptor, size, may_take)
    except OSError as error:
        os.close(descriptor)
        raise LotFailed(f"its pages cannot be had: {error.strerror}") from None
    except LotFailed:
        os.close(descriptor)
        raise
    return Lot(descriptor, size, is_huge)


def _touch(descriptor: int, size: int, may_take: Callable[[int], bool]) -> None:
    """Have every page allocated, zeroed and charged to us. Raises LotFailed or OSError."""
    with mmap.mmap(descriptor, size) as view:
        with contextlib.suppress(OSError):
            view.madvise(mmap.MADV_HUGEPAGE)  # where shmem_enabled allows it
        start = ctypes.c_char.from_buffer(view)
        try:
            for offset in range(0, size, STEP_BYTES):
                step = min(STEP_BYTES, size - offset)
                if not may_take(step):
                    raise LotFailed("host memory is short")
                _touch_step(descriptor, ctypes.addressof(start) + offset, offset, step)
        finally:
            del start  # or the mapping could not be closed


def _touch_step(descriptor: int, address: int, offset: int, size: int) -> None:
    """Without the interpreter's lock: both calls release it."""
    if _libc.madvise(address, size, MADV_POPULATE_WRITE) == 0:
        return
    number = ctypes.get_errno()
    if number != errno.EINVAL:
        raise OSError(number, os.strerror(number))
    # Before Linux 5.14. Allocating alone would leave the zeroing to the process that touches the pages first.
    os.posix_fallocate(descriptor, offset, size)
    for at in range(offset, offset + size, len(ZEROS)):
        try:
            os.pwrite(descriptor, ZEROS[: offset + size - at], at)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return  # hugetlbfs cannot be written to, and has zeroed the pages already
            raise
