"""Folders on /run in which a user of a job may have files: how much, and how they are removed, whatever is in them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MS_NOSUID, MS_NODEV = 2, 4
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
LEFT = ".left-"  # before the name of a folder that could not be removed whole
REMOVES_WITHIN_S = 10.0
AT_ONCE = 1000  # names of a folder
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Room:
    """What a user may put into a folder."""

    size_bytes: int
    files: int


def mount(folder: Path, room: Room, mode: str) -> None:
    """Have a file system of that size at a folder, in host memory that is charged to its writers. Raises OSError."""
    options = f"size={room.size_bytes},nr_inodes={room.files},mode={mode}".encode()
    path = os.fsencode(folder)
    if _libc.mount(b"affinode", path, b"tmpfs", ctypes.c_ulong(MS_NOSUID | MS_NODEV), options) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def remove(folder: Path) -> None:
    """Remove a folder that lies in one of root's. Raises OSError; nothing has its name then either.

    What is mounted there goes whole, with all that is in it, though processes have it open. Else it is removed file by
    file, for some seconds at most. What is left then has another name, for `remove_left`.
    """
    _unmount(folder)
    aside = folder.with_name(f"{LEFT}{folder.name}-{secrets.token_hex(4)}")
    folder.rename(aside)
    _remove_tree(aside, time.monotonic() + REMOVES_WITHIN_S)


def remove_left(above: Path) -> None:
    """Go on with what could not be removed, for some seconds at most."""
    deadline = time.monotonic() + REMOVES_WITHIN_S
    for path in above.glob(f"{LEFT}*"):
        with contextlib.suppress(OSError):
            _remove_tree(path, deadline)


def _unmount(path: Path) -> None:
    while _libc.umount2(os.fsencode(path), MNT_DETACH | UMOUNT_NOFOLLOW) == 0:
        pass


def _remove_tree(path: Path, deadline: float) -> None:
    """Remove a folder with all that is in it. Raises OSError where that takes too long, or something cannot be removed.

    It has one level at a time: folders in a folder are moved up. So however deep it is, two descriptors are enough, and
    no name is followed that its user could have changed meanwhile.
    """
    top = os.open(path, FOLDER)
    try:
        _take_over(top)
        numbers = (f".moved-{secrets.token_hex(8)}-{number}" for number in itertools.count())
        while names := _names(top):
            is_less = False
            for name in names:
                is_less |= _is_removed(name, top, numbers)
                if time.monotonic() > deadline:
                    raise OSError(
                        errno.ETIMEDOUT, "it has too much in it; the next Epilog goes on", str(path)
                    )
            if not is_less:
                raise OSError(errno.EBUSY, "something in it cannot be removed", str(path))
    finally:
        os.close(top)
    path.rmdir()


def _take_over(folder: int) -> None:
    """Have the user put nothing more into a folder, by a descriptor that is open yet."""
    if os.geteuid() == 0:
        os.fchown(folder, 0, 0)
    os.fchmod(folder, 0o700)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in itertools.islice(entries, AT_ONCE)]


def _is_removed(name: str, top: int, numbers: Iterator[str]) -> bool:
    """Remove a name, or what is in it; return whether anything was."""
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=top)
            return True
        inner = os.open(name, FOLDER, dir_fd=top)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        _take_over(inner)
        moved = [_is_moved_up(each, inner, top, numbers) for each in _names(inner)]
    finally:
        os.close(inner)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=top)
        return True
    return any(moved)


def _is_moved_up(name: str, inner: int, top: int, numbers: Iterator[str]) -> bool:
    """Remove a file of a folder, or move a folder in it up."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.stat(name, dir_fd=inner, follow_symlinks=False).st_mode):
            os.rename(name, next(numbers), src_dir_fd=inner, dst_dir_fd=top)
        else:
            os.unlink(name, dir_fd=inner)
        return True
    return False
