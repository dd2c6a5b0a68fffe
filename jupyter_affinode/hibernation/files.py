"""The files that a kernel's processes have open or in memory, which must be there when it is woken.

A file that is only open may have other contents then: other programs write to it while the kernel runs, too, as all
kernels of a user do to IPython's history. What a process has in memory as its own, libraries above all, must be as it
was: the process has pointers into it. CRIU asks the same of both, so its list of files is changed (criu_files.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from . import criu
from .disk import disk_of
from .seen import DELETED, NOT_ON_A_DISK, SHIMS_DESCRIPTORS, Seen

NOTES = 4  # PT_NOTE
BUILD_ID = 3  # NT_GNU_BUILD_ID
NOTES_BYTES_MAX = 1 << 16
READ_BYTES = 1 << 20
DIGEST_BYTES_MAX = 64 << 20  # a larger file that is not a library, as a model's weights, must have its time

# Of a file that must be as it was: its size, when it was written to, and its build id, or a digest where it has none.
Known = dict[str, list[Any]]
# Of a file in host memory, which is gone after a restart of the machine: its copy in the image, and its permissions.
Saved = dict[str, tuple[str, int]]


def needed_by(pids: Collection[int]) -> Known:
    """Return what these processes, which are stopped, need to find again; [] for a file that must only be there."""
    found: Known = {}
    own = tuple(f"/proc/{pid}/" for pid in pids)  # there again once the processes are
    for pid in pids:
        process = Seen(pid)
        for number, path in process.opened.items():
            is_elsewhere = path.startswith("/") and not path.startswith(own)
            if is_elsewhere and number < SHIMS_DESCRIPTORS and _is_named_file(path):
                found.setdefault(path, [])
        for part in process.mapped:
            path = part.path
            if path.startswith(NOT_ON_A_DISK) or path.endswith(DELETED) or not _is_named_file(path):
                continue
            if part.permissions.endswith("p") and not found.get(path):
                found[path] = _as_it_is(path)
            else:
                found.setdefault(path, [])
    return found


def _is_named_file(path: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISREG(os.stat(path).st_mode)
    return False


def _as_it_is(path: str) -> list[Any]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, _content_id(path, status.st_size)]


def _content_id(path: str, size: int) -> str:
    return build_id(path) or (_digest(path) if size <= DIGEST_BYTES_MAX else "")


def objection_to_files(known: Known, saved: Saved) -> str | None:
    """Return which file is not as the kernel needs it, and what to do; None: all are, or can be put back."""
    gone, changed = [], []
    for path, was in sorted(known.items()):
        try:
            status = os.stat(path)
        except OSError:
            if path not in saved:
                gone.append(path)
            continue
        if path in saved and status.st_uid != os.geteuid():
            return f"the file {path} is another user's now, and the kernel had its own there: remove it"
        if not was or (status.st_size, status.st_mtime_ns) == (was[0], was[1]):
            continue
        if status.st_size != was[0] or not was[2] or was[2] != _content_id(path, status.st_size):
            changed.append(path)
    if gone:
        return f"{_named(gone)} not there any more: the kernel had it open. Put it back where it was"
    if changed:
        return f"{_named(changed)} changed since, and the kernel has it in memory. Install what there was"
    return None


def _named(paths: list[str]) -> str:
    if len(paths) == 1:
        return f"the file {paths[0]} is"
    return f"the file {paths[0]}, and {len(paths) - 1} more, are"


def build_id(path: str) -> str | None:
    """Return the build id of an ELF file, in hexadecimal; None if it has none."""
    try:
        with open(path, "rb") as file:
            return _build_id(file.read(64), file)
    except (OSError, struct.error, ValueError, OverflowError):
        return None


def _build_id(head: bytes, file: Any) -> str | None:
    if head[:4] != b"\x7fELF" or head[4] != 2 or head[5] != 1:  # 64 bits, little-endian
        return None
    offset = struct.unpack_from("<Q", head, 32)[0]
    size, count = struct.unpack_from("<HH", head, 54)
    for number in range(count):
        file.seek(offset + number * size)
        kind, _, begin, _, _, length = struct.unpack_from("<IIQQQQ", file.read(size))
        if kind == NOTES:
            file.seek(begin)
            for owner, note, content in _notes(file.read(min(length, NOTES_BYTES_MAX))):
                if owner == b"GNU\0" and note == BUILD_ID:
                    return content.hex()
    return None


def _notes(raw: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    at = 0
    while at + 12 <= len(raw):
        name, size, kind = struct.unpack_from("<III", raw, at)
        at += 12
        owner, at = raw[at : at + name], at + (name + 3 & ~3)
        content, at = raw[at : at + size], at + (size + 3 & ~3)
        yield owner, kind, content


def _digest(path: str) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with open(path, "rb") as file:
        while part := file.read(READ_BYTES):
            digest.update(part)
    return digest.hexdigest()


# ---- files in host memory, as those in /dev/shm by which processes share memory


def save(known: Known, folder: Path) -> Saved:
    """Copy this user's small files in host memory into a folder, and return which. Raises OSError."""
    found: Saved = {}
    for path in sorted(known):
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            is_ours = status.st_uid == os.geteuid() and status.st_size <= criu.GHOST_BYTES
            if is_ours and disk_of(Path(path)).is_memory:
                copy = folder / f"file-{len(found)}.img"
                with open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as into:
                    shutil.copyfileobj(file, into)
                found[path] = (copy.name, stat.S_IMODE(status.st_mode))
    return found


def put_back(saved: Saved, folder: Path) -> list[Path]:
    """Make the files anew that are gone, and return them. Raises OSError: then none is."""
    made: list[Path] = []
    try:
        for path, (name, mode) in saved.items():
            with contextlib.suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(path, flags, 0o600)
                made.append(Path(path))
                with open(descriptor, "wb") as into, (folder / name).open("rb") as copy:
                    shutil.copyfileobj(copy, into)
                    os.fchmod(into.fileno(), mode)
    except BaseException:
        remove(made)
        raise
    return made


def remove(made: Iterable[Path]) -> None:
    """Remove what was put back."""
    for path in made:
        path.unlink(missing_ok=True)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
