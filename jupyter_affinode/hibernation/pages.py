"""Contents of processes' memory: plain as CRIU writes and reads them (`pages-N.img`), compressed in an image (`.zst`).

Plain, they are there for a moment: in host memory where that has room, else on the image's disk. CRIU only ever appends
to such a file, so it is compressed while CRIU writes. Parts of a file are frames of zstd, in any order, each with its
digest in the manifest; zeros are in none. Threads compress and decompress them side by side, one frame each at a time,
so nothing grows with the size of a process.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..units import bytes_in_words

PLAIN = re.compile(r"pages-\d+\.img")
COMPRESSED = ".zst"
FRAME_BYTES = 4 << 20
ZEROS = bytes(256 << 10)  # where there are none, a frame begins or goes on
# On two processors about as fast as a disk writes; where there are many, smaller costs little time. Level 5 takes 4.8 %
# less than level 3 for what Python and NumPy have, at 107 instead of 172 MB/s on each processor.
FAST, SMALL, MANY_PROCESSORS = -1, 5, 8
THREADS_MAX = 16
LOOK_EVERY_S = 0.01  # for what CRIU has written meanwhile
OFFERED = 32  # files in host memory for CRIU to write to, beside one for each process
SPARE_BYTES = 1 << 30  # of host memory stay free
CGROUPS = Path("/sys/fs/cgroup")
MEMORY = Path("/proc/meminfo")
HEAD_AT, HEAD_BYTES_MAX = 12, 6  # of a pagemap: the number of its file, after two magic numbers and a size
FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class PagesRefused(RuntimeError):
    """What an image has of a process's memory is not what was written; the message says of which file."""


@dataclass
class Packed:
    """One of CRIU's files, as an image has it."""

    size: int  # of the plain file
    # Of each: where its contents are in the plain file, and how many bytes; where it is in the other, length, digest.
    frames: list[tuple[int, int, int, int, str]] = field(default_factory=list)

    @property
    def packed_size(self) -> int:
        """The size of the file with the frames."""
        return sum(length for _, _, _, length, _ in self.frames)


class PlainPages:
    """The plain files of one folder. A context: they are gone afterwards."""

    def __init__(self, folder: Path, size: int):
        """`size`: about how many bytes they have."""
        self.folder = folder
        self.is_in_memory = (
            free_memory() >= 2 * size + SPARE_BYTES
        )  # the processes take as much when they are woken
        self._descriptors: list[int] = []

    def __enter__(self) -> PlainPages:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            remove_plain(self.folder)
        threading.Thread(
            target=_close, args=(self._descriptors,)
        ).start()  # Linux takes a while to free gigabytes

    def offer(self, count: int) -> None:
        """Have CRIU write so many of them to host memory, if there is room; the others it makes itself."""
        for number in range(1, count + 1):
            if self.is_in_memory:
                self._make_in_memory(f"pages-{number}.img")

    def make(self, name: str, size: int) -> int:
        """Make one of that size, empty, for CRIU to read; return its descriptor. Raises OSError."""
        if self.is_in_memory:
            descriptor = self._make_in_memory(name)
        else:
            path = self.folder / name
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS, 0o600)
            self._descriptors.append(descriptor)
        os.ftruncate(descriptor, size)
        return descriptor

    def _make_in_memory(self, name: str) -> int:
        descriptor = os.memfd_create(f"affinode-{name}", os.MFD_CLOEXEC)
        self._descriptors.append(descriptor)
        os.symlink(f"/proc/{os.getpid()}/fd/{descriptor}", self.folder / name)
        return descriptor


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def remove_plain(folder: Path) -> None:
    """Remove plain files: those of a keeper that was killed, too. What CRIU has open stays for that."""
    for path in folder.glob("pages-*.img"):
        if PLAIN.fullmatch(path.name):
            path.unlink(missing_ok=True)


def free_memory() -> int:
    """Return how much host memory this process may take, as far as Linux tells, without page cache of its cgroup."""
    free = 0
    with contextlib.suppress(OSError, ValueError, LookupError):
        figures = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
        free = int(figures["MemAvailable"].split()[0]) << 10
    with contextlib.suppress(OSError, ValueError, LookupError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        group = CGROUPS / next(line[len("0::") :] for line in lines if line.startswith("0::")).lstrip("/")
        for each in (group if group.is_dir() else CGROUPS, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # "max"
                free = min(
                    free, int((each / "memory.max").read_text()) - int((each / "memory.current").read_text())
                )
    return free


# ---- into an image


class Packing:
    """Compresses the plain files of a folder while they are being written. Others say when that has ended."""

    def __init__(self, folder: Path):
        """Begin with nothing."""
        self._folder = folder
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._is_in_vain = False
        self._files: dict[str, _BeingPacked] = {}
        self._named: set[str] = set()

    def end(self, *, is_in_vain: bool) -> None:
        """Say that nothing is written any more; `is_in_vain`: nothing of it is needed."""
        self._is_in_vain = is_in_vain
        self._ended.set()

    def run(self) -> dict[str, Packed]:
        """Compress all that is written; return the files by name, on the disk. Raises OSError."""
        try:
            _on_threads(self._work)
            self._named = _named_by_criu(self._folder)
            for each in self._files.values():
                os.fsync(each.target)
            return {
                name + COMPRESSED: each.packed for name, each in self._files.items() if self._is_needed(name)
            }
        finally:
            for name, each in self._files.items():
                each.close(is_needed=self._is_needed(name))

    def _is_needed(self, name: str) -> bool:
        return self._files[name].packed.size > 0 or name in self._named

    def _work(self, stop: threading.Event) -> None:
        import zstandard  # the keeper alone needs it

        level = SMALL if _processors() >= MANY_PROCESSORS else FAST
        compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
        buffer = bytearray(FRAME_BYTES)
        while not stop.is_set() and not self._is_in_vain:
            has_ended = self._ended.is_set()  # before it is looked what there is
            with self._lock:
                part = self._next(has_ended)
            if part is not None:
                self._pack(*part, buffer, compressor)
            elif has_ended:
                return
            else:
                time.sleep(LOOK_EVERY_S)

    def _next(self, has_ended: bool) -> tuple[_BeingPacked, int, int] | None:
        """Return the next part that CRIU has written: the file, the position in it, and the size."""
        for name in filter(PLAIN.fullmatch, os.listdir(self._folder)):
            if name not in self._files:
                self._files[name] = _BeingPacked(self._folder / name)
        for each in self._files.values():
            at, size = each.packed.size, os.fstat(each.source).st_size
            length = min(size - at, FRAME_BYTES)
            if length == FRAME_BYTES or (has_ended and length):
                each.packed.size += length
                return each, at, length
        return None

    def _pack(self, file: _BeingPacked, at: int, size: int, buffer: bytearray, compressor: Any) -> None:
        whole = memoryview(buffer)[:size]
        _read(file.source, whole, at)
        for begin, end in _runs(buffer, size):
            frame = compressor.compress(whole[begin:end])
            digest = hashlib.blake2b(frame, digest_size=32).hexdigest()
            with self._lock:
                position, file.position = file.position, file.position + len(frame)
                file.packed.frames.append((at + begin, end - begin, position, len(frame), digest))
            _write(file.target, frame, position)


class _BeingPacked:
    """A plain file, and what is compressed of it by now."""

    def __init__(self, path: Path):
        self._path = path.with_name(path.name + COMPRESSED)
        self.source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.target = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | FLAGS, 0o600)
        except BaseException:
            os.close(self.source)
            raise
        self.packed, self.position = Packed(0), 0

    def close(self, *, is_needed: bool) -> None:
        os.close(self.source)
        os.close(self.target)
        if not is_needed:
            self._path.unlink(missing_ok=True)


def _named_by_criu(folder: Path) -> set[str]:
    """Return the plain files that CRIU will look for, which may be empty."""
    found = set()
    for path in folder.glob("pagemap-*.img"):
        entry = path.read_bytes()[HEAD_AT : HEAD_AT + HEAD_BYTES_MAX]
        number = shift = 0
        for byte in entry[1:]:  # the first: it is field 1, a number
            number, shift = number | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        found.add(f"pages-{number}.img")
    return found


def _runs(buffer: bytearray, size: int) -> Iterator[tuple[int, int]]:
    """Yield where there are no zeros: begins and ends."""
    begin = None
    for at in range(0, size, len(ZEROS)):
        is_zero = at + len(ZEROS) <= size and buffer.startswith(ZEROS, at)
        if not is_zero and begin is None:
            begin = at
        elif is_zero and begin is not None:
            yield begin, at
            begin = None
    if begin is not None:
        yield begin, size


# ---- out of it


def unpack(folder: Path, packed: dict[str, Packed], plain: PlainPages) -> None:
    """Make the plain files, for CRIU to read. Raises PagesRefused if an image is not what was written, and OSError."""
    needs = sum(each.size for each in packed.values())
    if not plain.is_in_memory and shutil.disk_usage(folder).free < needs:
        raise OSError(
            f"waking it needs {bytes_in_words(needs)} for a moment, and neither host memory nor the disk of its image"
            " has so much free: make room in one of them"
        )
    with contextlib.ExitStack() as opened:
        work = []
        for name, each in packed.items():
            source = _opened(folder / name, each.packed_size)
            opened.callback(os.close, source)
            target = _Target(
                plain.make(name.removesuffix(COMPRESSED), each.size), each.size, plain.is_in_memory
            )
            work += [(name, source, target, frame) for frame in each.frames]
        waiting, lock = iter(work), threading.Lock()

        def run(stop: threading.Event) -> None:
            read, written = bytearray(), bytearray(FRAME_BYTES)
            while not stop.is_set():
                with lock:
                    name, source, target, frame = next(waiting, (None, 0, None, None))
                if target is None or frame is None:
                    return
                at, size, position, length, digest = frame
                if len(read) < length:
                    read = bytearray(length)
                compressed = memoryview(read)[:length]
                _read(source, compressed, position)
                if hashlib.blake2b(compressed, digest_size=32).hexdigest() != digest:
                    raise PagesRefused(name)
                target.take(compressed, at, memoryview(written)[:size])

        _on_threads(run)


class _Target:
    """A plain file that is being made."""

    def __init__(self, descriptor: int, size: int, is_in_memory: bool):
        self._descriptor = descriptor
        # Many threads can write to memory that is mapped, one to a file. On a disk that is full, the first kills.
        self._mapped = memoryview(mmap.mmap(descriptor, size)) if is_in_memory and size else None

    def take(self, frame: memoryview, at: int, buffer: memoryview) -> None:
        """Decompress a frame to its place. `buffer` has its size."""
        import zstandard

        into = buffer if self._mapped is None else self._mapped[at : at + len(buffer)]
        reader = zstandard.ZstdDecompressor().stream_reader(frame, read_size=len(frame))
        done = 0
        while done < len(into) and (count := reader.readinto(into[done:])):
            done += count
        if done != len(into):
            raise OSError("a frame of the image is shorter than it was")
        if self._mapped is None:
            _write(self._descriptor, into, at)


def _opened(path: Path, size: int) -> int:
    """Open a file of an image for reading. Raises PagesRefused if it is not one of that size that this user wrote."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | FLAGS)
    except OSError:
        raise PagesRefused(path.name) from None
    status = os.fstat(descriptor)
    is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    if not is_plain or status.st_size != size or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise PagesRefused(path.name)
    return descriptor


# ---- threads and files


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _on_threads(work: Callable[[threading.Event], None]) -> None:
    """Have some threads do it until they return; where one raises, the others stop, and that is raised."""
    stop = threading.Event()

    def watched() -> None:
        try:
            work(stop)
        except BaseException:
            stop.set()
            raise

    count = min(_processors(), THREADS_MAX)
    with ThreadPoolExecutor(count) as pool:
        for each in [pool.submit(watched) for _ in range(count)]:
            each.result()


def _read(descriptor: int, into: memoryview, at: int) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done:]], at + done)
        if not count:
            raise OSError("a file of the image is shorter than it was")
        done += count


def _write(descriptor: int, contents: bytes | memoryview, at: int) -> None:
    left = memoryview(contents)
    while left:
        count = os.pwrite(descriptor, left, at)
        left, at = left[count:], at + count
