"""The files that a kernel's processes have open or in memory, which must be there when it is woken.

A file that is only open may have other contents then: other programs write to it while the kernel runs, too, as all
kernels of a user do to IPython's history. What a process has in memory as its own, libraries above all, must be as it
was: the process has pointers into it. CRIU asks the same of both, so its list of files is changed (criu_files.py).
"""

from __future__ import annotations

import contextlib
import fcntl
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
from .machine import objection_to_port
from .seen import DELETED, NOT_ON_A_DISK, SHIMS_DESCRIPTORS, Seen, everything

NOTES = 4  # PT_NOTE
BUILD_ID = 3  # NT_GNU_BUILD_ID
NOTES_BYTES_MAX = 1 << 16
READ_BYTES = 1 << 20
DIGEST_BYTES_MAX = 64 << 20  # a larger file that is not a library, as a model's weights, must have its time

F_OFD_GETLK, FLOCK = 36, struct.Struct("@hhqqi4x")  # struct flock
# What is needed beside files: that a folder is there, that no other has a terminal, a port, or a lock on a file; that
# a file is there to write to, which is made anew where it is gone.
FOLDER, TERMINAL, PORT, LOCKED, LOG = "folder", "terminal", "port", "locked", "log"

# Of a file that must be as it was: its size, when it was written to, and its build id, or a digest where it has none.
# Of what must only be there: nothing, or one of the words above and what belongs to it.
Known = dict[str, list[Any]]
# Of a file in host memory, which is gone after a restart of the machine: its copy in the image, and its permissions.
Saved = dict[str, tuple[str, int]]


def needed_by(
    pids: Collection[int], outer: Collection[tuple[int, int]] = (), logs: Collection[str] = ()
) -> Known:
    """Return what these processes, which are stopped, need to find again; [] for a file that must only be there.

    `outer`: descriptors that lead nowhere at the wake, by process and number. `logs`: files that are made anew then.
    """
    found: Known = {}
    own = tuple(f"/proc/{pid}/" for pid in pids)  # there again once the processes are
    for pid in pids:
        process = Seen(pid)
        if (folder := process.working_folder) and not folder.endswith(DELETED):
            found.setdefault(folder, [FOLDER])
        for number, path in process.opened.items():
            if (pid, number) in outer or number >= SHIMS_DESCRIPTORS or path.startswith(own):
                continue
            if path.startswith("/"):
                found |= _opened(process, number, path, found)
        for inode, ip, port in process.listening:
            if inode in process.sockets:
                found[f"{ip}, port {port}"] = [PORT, ip, port]
        for part in process.mapped:
            path = part.path
            if path.startswith(NOT_ON_A_DISK) or path.endswith(DELETED) or not _is_named_file(path):
                continue
            if part.permissions.endswith("p") and not _is_as_it_was(found.get(path, [])):
                found[path] = _as_it_is(path)
            else:
                found.setdefault(path, [])
    return found | {path: [LOG] for path in logs if found.get(path) == []}


def _opened(process: Seen, number: int, path: str, found: Known) -> Known:
    """Return what a descriptor needs to find again, beside what was found before."""
    if path.endswith("/ptmx"):
        return {f"/dev/pts/{process.told_of(number, 'tty-index')}": [TERMINAL]}
    status = process.stat_of(number)
    if status is None or path.startswith(NOT_ON_A_DISK) or not os.path.lexists(path):
        return {}
    if stat.S_ISDIR(status.st_mode):
        return {path: [FOLDER]}
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISFIFO(status.st_mode):
        return {}
    before = found.get(path, [])
    if _is_as_it_was(before) or not (locks := process.locks_of(number)):
        return {path: before}
    return {path: [LOCKED, *before[1:], *locks]}


def _is_as_it_was(known: list[Any]) -> bool:
    return bool(known) and not isinstance(known[0], str)


def must_only_be_there(known: Known, path: str) -> bool:
    """Return whether a file or folder may have other contents than before."""
    return path in known and not _is_as_it_was(known[path])


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
    """Return which file, terminal or port is not as the kernel needs it, and what to do; None: all are, or will be."""
    gone: list[str] = []
    folders: list[str] = []
    changed: list[str] = []
    for path, was in sorted(known.items()):
        kind = was[0] if was else None
        if kind in (TERMINAL, PORT):
            if objection := _terminal(path) if kind == TERMINAL else objection_to_port(*was[1:]):
                return objection
            continue
        try:
            status = os.stat(path)
        except PermissionError:
            return f"this user may not look at {path}, which the kernel had open: have its permissions changed back"
        except OSError:
            above = os.path.dirname(path)
            if path not in saved:
                (folders if kind == FOLDER else gone).append(path)
            elif kind == LOG and not os.path.isdir(above):
                folders.append(above)
            continue
        if path in saved and status.st_uid != os.geteuid():
            return f"the file {path} is another user's now, and the kernel had its own there: remove it"
        if stat.S_ISDIR(status.st_mode) != (kind == FOLDER):
            is_now, was_before = ("file", "folder") if kind == FOLDER else ("folder", "file")
            return f"{path} is a {is_now} now, and the kernel had a {was_before} there: put that back"
        if not _is_as_it_was(was) or (status.st_size, status.st_mtime_ns) == (was[0], was[1]):
            continue
        if status.st_size != was[0] or not was[2] or was[2] != _content_id(path, status.st_size):
            changed.append(path)
    if folders:
        return f"{_named(folders, 'folder')} not there any more: the kernel worked in it. Make it again, or put it back"
    if gone:
        return (
            f"{_named(gone)} not there any more: the kernel had it open. Put it back where it was, or an empty file if"
            " the kernel only wrote to it"
        )
    if changed:
        return f"{_named(changed)} changed since, and the kernel has it in memory. Install what there was"
    return None


def _terminal(path: str) -> str | None:
    """A terminal of the kernel's own comes back with its number, which its keeper holds for it (terminals.py)."""
    keeper = Seen(os.getpid())
    held = {
        keeper.told_of(number, "tty-index") for number, to in keeper.opened.items() if to.endswith("/ptmx")
    }
    if not os.path.exists(path) or path.removeprefix("/dev/pts/") in held:
        return None
    holder = next((each for each in everything() if path in each.opened.values()), None)
    named = f" (`{holder.command}`, process {holder.pid})" if holder is not None else ""
    return f"its terminal {path} is another program's now{named}: close that terminal, and try again"


def objection_to_locks(known: Known) -> str | None:
    """Return which file another program has locked that the kernel had locked, and what to do.

    CRIU would wait for it. A lock is taken for a moment where Linux does not tell by whom it is held.
    """
    for path, was in sorted(known.items()):
        if was[:1] == [LOCKED]:
            with contextlib.suppress(FileNotFoundError):
                if any(_is_taken(path, *lock) for lock in was[1:]):
                    return (
                        f"another program{_locker(path)} has locked {path}, which the kernel had locked: end it, or"
                        " close the file there"
                    )
    return None


def _is_taken(path: str, kind: str, access: str, begin: int, end: int) -> bool:
    descriptor = _without_waiting(path, os.O_RDONLY)
    try:
        if kind == "FLOCK":
            fcntl.flock(descriptor, (fcntl.LOCK_EX if access == "WRITE" else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            return False
        wanted = fcntl.F_WRLCK if access == "WRITE" else fcntl.F_RDLCK
        asked = FLOCK.pack(wanted, os.SEEK_SET, begin, end - begin + 1 if end else 0, 0)
        return FLOCK.unpack(fcntl.fcntl(descriptor, F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _locker(path: str) -> str:
    """Return which program has a file locked, as far as Linux tells."""
    inode = str(os.stat(path).st_ino)
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "->" not in words and words[5].rpartition(":")[2] == inode and int(words[4]) > 0:
                holder = Seen(int(words[4]))
                return f" (`{holder.command}`, process {holder.pid})"
    return ""


def _named(paths: list[str], what: str = "file") -> str:
    if len(paths) == 1:
        return f"the {what} {paths[0]} is"
    return f"the {what} {paths[0]}, and {len(paths) - 1} more, are"


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
        if not os.path.isfile(path):
            continue
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            is_log = known[path] == [LOG]  # of which only the name is needed
            is_ours = status.st_uid == os.geteuid() and (is_log or status.st_size <= criu.GHOST_BYTES)
            if is_ours and (is_log or disk_of(Path(path)).is_memory):
                copy = folder / f"file-{len(found)}.img"
                with open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as into:
                    if not is_log:
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
