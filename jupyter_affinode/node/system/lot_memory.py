"""Fresh host memory behind a descriptor: made, touched and limited by us, handed to one process once.

A file that a process was given cannot be unshared: it may have kept a copy. So each lot goes to one process only and
is never used again. Taking it back cuts the file to nothing, which frees its pages wherever the descriptor is.

A lot is, in this order, of huge pages that the administrator set aside; of huge pages in a tmpfs of our own; a memfd.
A memfd is sealed against growing and against further seals. A tmpfs cannot be sealed: see `huge_tmpfs` for its limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import mmap
import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Literal

from ...settings.policy import MIB
from .huge_tmpfs import SHMEM_ENABLED, NoHugeTmpfs, SizeLimit, open_huge_file

STEP_BYTES = 32 * MIB  # touched at once; sizes are multiples of it, as the shims' slabs are
HUGE_PAGE_BYTES = 2 * MIB
HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
MADV_POPULATE_WRITE = 23  # Linux 5.14
LOT_NAME = "affinode-lot"
ZEROS = bytes(4 * MIB)
TOUCHING_THREADS_MAX = 8
POPULATED_BYTES = 8 * MIB  # at a time: until then all else that changes this process's mappings waits

Inode = tuple[int, int]  # device and number
Pages = Literal["set aside", "2 MiB", "4 KiB"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_log = logging.getLogger("affinode.node.lots")


class LotFailed(Exception):
    """A lot could not be made; the message says why."""


@dataclass(frozen=True)
class Lot:
    """A descriptor of `bytes` of touched, zeroed memory."""

    descriptor: int
    bytes: int
    pages: Pages
    limit: SizeLimit | None = None  # of the tmpfs that has this file alone

    @property
    def is_huge(self) -> bool:
        """Return whether its pages were set aside by the administrator: other programs cannot use them anyway."""
        return self.pages == "set aside"

    def revoke(self) -> None:
        """Free the pages for good; a process that touches a mapping of them gets SIGBUS.

        Only for a lot that no process has mapped: never lent, given back, or its process has ended.
        """
        with contextlib.suppress(OSError):
            os.ftruncate(self.descriptor, 0)
            if self.limit is not None:
                self.limit.shrink()
        self.let_go()

    def let_go(self) -> None:
        """Leave the memory to the process that has it; it is freed when that unmaps it, or ends."""
        os.close(self.descriptor)
        if self.limit is not None:
            self.limit.close()


def touching_threads() -> int:
    """Return how many threads touch a lot: half of the CPUs that this process may use."""
    return max(1, min(len(os.sched_getaffinity(0)) // 2, TOUCHING_THREADS_MAX))


def make_lot(
    size: int,
    may_take: Callable[[int], bool],
    threads: int | None = None,
    *,
    name: str = LOT_NAME,
    small_pages: bool = False,
) -> Lot:
    """Return a new lot. A GiB takes about 0.3 s in small pages, 0.03 s in huge ones: call it on a thread.

    `name`: what /proc calls its file, where that has a name. `small_pages`: of 4 KiB, unless the administrator set huge
    ones aside. `may_take(bytes)` is asked before each step of ordinary memory, by one thread at a time, for what all of
    them are about to touch. Raises LotFailed, with nothing taken.
    """
    threads = threads or touching_threads()
    if free_huge_bytes() >= size:
        with contextlib.suppress(LotFailed):  # another process was faster, or a cgroup forbids them
            descriptor = _memory_file(name, size, os.MFD_HUGETLB | os.MFD_HUGE_2MB)
            return _touched(Lot(descriptor, size, "set aside"), lambda _: True, threads)
    if small_pages:
        return _touched(Lot(_memory_file(name, size), size, "4 KiB"), may_take, threads)
    try:
        descriptor, limit = open_huge_file(size)
        lot = Lot(descriptor, size, "2 MiB", limit)
    except (NoHugeTmpfs, OSError) as error:
        _say_once(str(error))
        lot = Lot(_memory_file(name, size), size, _pages_of_memory_files())
    return _touched(lot, may_take, threads)


def inode_of(lot: Lot) -> Inode:
    """Return which file it is."""
    file = os.fstat(lot.descriptor)
    return file.st_dev, file.st_ino


def bytes_in_other_lots(name: str, ours: Collection[Inode]) -> int:
    """Return the memory behind lots of that name that processes have open or mapped, `ours` left out. It looks at all
    descriptors of all processes: call it on a thread.

    Only what root made counts: any user can make a file of that name.
    """
    found: dict[Inode, int] = {}
    for folder in (*glob("/proc/[0-9]*/fd"), *glob("/proc/[0-9]*/map_files")):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if (
                        os.readlink(entry.path).startswith(f"/memfd:{name} ")
                        and (file := os.stat(entry.path)).st_uid == 0
                    ):
                        found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(size for inode, size in found.items() if inode not in ours)


@lru_cache(maxsize=8)
def _say_once(reason: str) -> None:
    _log.info("lots are memory files, not files in a tmpfs of huge pages: %s", reason)


def _pages_of_memory_files(setting: Path = SHMEM_ENABLED) -> Pages:
    """Return the page size of shared memory that is advised to be of huge pages."""
    with contextlib.suppress(OSError):
        if any(f"[{each}]" in setting.read_text() for each in ("always", "within_size", "advise", "force")):
            return "2 MiB"
    return "4 KiB"


def free_huge_bytes(folder: Path = HUGE_PAGES) -> int:
    """Return the huge pages of 2 MiB that are neither used nor promised."""
    try:
        free, promised = (int((folder / name).read_text()) for name in ("free_hugepages", "resv_hugepages"))
    except (OSError, ValueError):
        return 0
    return max(free - promised, 0) * HUGE_PAGE_BYTES


def _memory_file(name: str, size: int, flags: int = 0) -> int:
    """Return the descriptor of a new memfd that cannot grow. Raises LotFailed."""
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    except OSError as error:
        raise LotFailed(f"no memory file: {error.strerror}") from None
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except OSError as error:
        os.close(descriptor)
        raise LotFailed(f"no memory file of that size: {error.strerror}") from None
    return descriptor


def _touched(lot: Lot, may_take: Callable[[int], bool], threads: int) -> Lot:
    """Return the lot with every page allocated, zeroed and charged to us. Raises LotFailed, with it freed."""
    try:
        _touch(lot, may_take, threads)
    except OSError as error:
        lot.let_go()
        raise LotFailed(f"its pages cannot be had: {error.strerror}") from None
    except BaseException:
        lot.let_go()
        raise
    return lot


@lru_cache(maxsize=1)
def _touching() -> ThreadPoolExecutor:
    """Return the threads that touch lots. They stay: on 16 CPUs of a virtual machine eight new ones for each 128 MiB
    touched 8 GiB/s, the same ones again and again 30.
    """
    return ThreadPoolExecutor(TOUCHING_THREADS_MAX, thread_name_prefix="touch")


def _touch(lot: Lot, may_take: Callable[[int], bool], threads: int) -> None:
    """Touch every page. Raises LotFailed or OSError."""
    descriptor, size = lot.descriptor, lot.bytes
    asking = threading.Lock()
    offsets = iter(range(0, size, STEP_BYTES))
    about_to_take = 0
    failed = False

    def touch_steps() -> None:
        nonlocal about_to_take, failed
        while True:
            with asking:
                offset = None if failed else next(offsets, None)
                if offset is None:
                    return
                step = min(STEP_BYTES, size - offset)
                if not may_take(about_to_take + step):
                    failed = True
                    raise LotFailed("host memory is short")
                about_to_take += step
            try:
                _touch_step(descriptor, address + offset, offset, step)
            except OSError:
                failed = True
                raise
            finally:
                with asking:
                    about_to_take -= step

    with mmap.mmap(descriptor, size) as view:
        with contextlib.suppress(OSError):
            # where shmem_enabled allows it
            view.madvise(mmap.MADV_NOHUGEPAGE if lot.pages == "4 KiB" else mmap.MADV_HUGEPAGE)
        start = ctypes.c_char.from_buffer(view)
        address = ctypes.addressof(start)
        try:
            work = [_touching().submit(touch_steps) for _ in range(threads)]
            wait(work)
            for each in work:
                each.result()
        finally:
            del start  # or the mapping could not be closed


def _touch_step(descriptor: int, address: int, offset: int, size: int) -> None:
    """Touch pages without the interpreter's lock: both calls release it."""
    for at in range(0, size, POPULATED_BYTES):
        if _libc.madvise(address + at, min(POPULATED_BYTES, size - at), MADV_POPULATE_WRITE) == 0:
            continue
        number = ctypes.get_errno()
        if number != errno.EINVAL:
            raise OSError(number, os.strerror(number))
        break
    else:
        return
    # Before Linux 5.14. Allocating alone would leave the zeroing to the process that touches the pages first.
    os.posix_fallocate(descriptor, offset, size)
    for at in range(offset, offset + size, len(ZEROS)):
        try:
            os.pwrite(descriptor, ZEROS[: offset + size - at], at)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return  # hugetlbfs cannot be written to, and has zeroed the pages already
            raise
