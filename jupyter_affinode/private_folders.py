"""Folders and files by whose names no other user can have this process read, write or run something else.

That a folder is this user's own says little: who may rename a folder above it can put another in its place, after any
look at it. So all folders on the way are looked at, as sshd does by its `StrictModes`. Each must belong to this user or
to root, and no other user may write to it. A folder with the sticky bit, as /tmp, is an exception: there nobody else
can rename what belongs to this user or to root. Symbolic links are followed as Linux does, and each must belong to this
user or to root, too. The shim has the same rule in shim/src/host/packs/private_folder.c.

What was looked at is what is opened: each step of the way is a descriptor, from which the next one is opened.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LINKS_MAX = 40  # as Linux
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
UID_MAP = Path("/proc/self/uid_map")
OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


class FolderRefused(OSError):
    """Another user can change a folder, or exchange it; the message says which, and what to do."""


@dataclass(frozen=True)
class Rule:
    """What is asked of the folder itself, and how strict the way to it is.

    `own`: it is this user's, not root's. `private`: no other user may enter it. `shared`: others may write to it if it
    has the sticky bit. `follow`: its name may be a symbolic link. `lets_group`: a group may write to folders above, but
    not to root's. That is for small files below a home folder, as Kubernetes has them (`fsGroup`): a group that may
    write to a home folder may run programs as its user anyway.
    """

    own: bool = False
    private: bool = False
    shared: bool = False
    follow: bool = True
    lets_group: bool = False


SHARED = Rule(shared=True, follow=False)  # a folder in which many users have files
OWN = Rule(own=True)
IMAGES = Rule(own=True, private=True, follow=False)
KEYS = Rule()  # what it has decides: root's, or this user's own controller's
OWN_FILES = Rule(own=True, follow=False, lets_group=True)


def open_folder(path: Path, rule: Rule) -> int:
    """Return a descriptor of a folder. Raises FolderRefused, and OSError, as FileNotFoundError, where it is none."""
    found, shown = _way_to(path, rule)
    try:
        _verify_end(os.fstat(found), shown, rule)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found)
    except OSError as error:
        error.filename = error.filename or str(shown)
        raise
    finally:
        os.close(found)


def verify_folder(path: Path, rule: Rule) -> None:
    """Raise FolderRefused unless a folder may be used; OSError where it is none."""
    found, shown = _way_to(path, rule)
    try:
        _verify_end(os.fstat(found), shown, rule)
    finally:
        os.close(found)


def make_folder(path: Path, rule: Rule) -> None:
    """Make a folder, and those above that are missing, for this user alone. Raises FolderRefused and OSError."""
    verify_way_to(path, rule)
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            each.mkdir(mode=0o700)
    verify_folder(path, rule)


def is_private(path: Path) -> bool:
    """Return whether a name in a folder that is this user's alone is a folder that is so, too. Raises OSError."""
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def verify_way_to(path: Path, rule: Rule) -> None:
    """Raise FolderRefused unless a folder that is not there yet may be made; one that is there must be as asked for."""
    try:
        return verify_folder(path, rule)
    except FileNotFoundError:
        above = next(each for each in path.parents if each.exists())
    verify_folder(above, Rule(shared=True, lets_group=rule.lets_group))


def read_file(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a file that no other user can change or exchange. Raises OSError."""
    found, shown = _way_to(path, KEYS)
    try:
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode):
            raise FolderRefused(f"{shown} is not a file")
        _verify_owner(status, shown, KEYS)
        if status.st_mode & OTHERS_MAY_WRITE:
            raise FolderRefused(
                f"others than root and its owner can write to {shown}: `chmod go-w {shown}` prevents that"
            )
        with open(f"/proc/self/fd/{found}", "rb") as file:
            return file.read(most)
    finally:
        os.close(found)


@contextlib.contextmanager
def opened(path: Path, rule: Rule) -> Iterator[Path]:
    """Yield a path to a folder that stays the folder's, whatever its name leads to meanwhile. Raises OSError."""
    descriptor = open_folder(path, rule)
    try:
        yield by_descriptor(descriptor)
    finally:
        os.close(descriptor)


def by_descriptor(descriptor: int) -> Path:
    """Return a path to what a descriptor is of, for this process, and for one that inherits the descriptor."""
    return Path(f"/proc/self/fd/{descriptor}")


def _way_to(path: Path, rule: Rule) -> tuple[int, Path]:
    """Go to a path as Linux does; return a descriptor of what is there, and its path without links.

    Raises FolderRefused, where another user could have led elsewhere, and OSError.
    """
    left, links = list(path.absolute().parts[1:]), 0
    way = [(os.open("/", STEP | os.O_DIRECTORY), Path("/"))]
    try:
        while left:
            here, shown = way[-1]
            _verify_above(os.fstat(here), shown, rule)
            name = left.pop(0)
            if name == "..":
                if len(way) > 1:
                    os.close(way.pop()[0])
                continue
            found = _step(here, name, shown, is_last=not left)
            status = os.fstat(found)
            if not stat.S_ISLNK(status.st_mode):
                way.append((found, shown / name))
                continue
            try:
                if not left and not rule.follow:
                    raise FolderRefused(
                        f"{shown / name} is not a folder, but a symbolic link: name the folder itself"
                    )
                _verify_owner(status, shown / name, rule)
                links += 1
                if links > LINKS_MAX:
                    raise FolderRefused(f"{path} leads through too many symbolic links")
                target = Path(os.readlink("", dir_fd=found))
            finally:
                os.close(found)
            if target.is_absolute():
                while len(way) > 1:
                    os.close(way.pop()[0])
            left[:0] = target.parts[1:] if target.is_absolute() else target.parts
        found, shown = way.pop()
        return found, shown
    finally:
        for descriptor, _ in way:
            os.close(descriptor)


def _step(above: int, name: str, shown: Path, *, is_last: bool) -> int:
    """Open one name in a folder: another folder, a link, or, as the last one, anything."""
    try:
        try:
            return os.open(name, STEP | os.O_DIRECTORY, dir_fd=above)  # O_DIRECTORY has automounts come
        except NotADirectoryError:
            found = os.open(name, STEP, dir_fd=above)
        if is_last or stat.S_ISLNK(os.fstat(found).st_mode):
            return found
        os.close(found)
        raise NotADirectoryError(20, os.strerror(20))
    except OSError as error:
        error.filename = str(shown / name)
        raise


def _verify_end(status: os.stat_result, shown: Path, rule: Rule) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise FolderRefused(f"{shown} is not a folder")
    if rule.own and status.st_uid != os.geteuid():
        raise FolderRefused(f"{shown} belongs to user {status.st_uid}: name a folder of your own")
    if rule.private and status.st_mode & 0o077:
        raise FolderRefused(f"others may enter {shown}: `chmod 700 {shown}` closes it")
    _verify_owner(status, shown, rule)
    if not status.st_mode & OTHERS_MAY_WRITE or (rule.shared and status.st_mode & stat.S_ISVTX):
        return
    if rule.shared:
        raise FolderRefused(f"others may change {shown}, and it has no sticky bit: `chmod 1777 {shown}`")
    raise FolderRefused(f"others may write to {shown}: `chmod go-w {shown}` prevents that")


def _verify_above(status: os.stat_result, shown: Path, rule: Rule) -> None:
    """Raise FolderRefused if another user can exchange what is in a folder, though it is this user's or root's."""
    _verify_owner(status, shown, rule)
    others = stat.S_IWOTH if rule.lets_group and os.geteuid() else OTHERS_MAY_WRITE
    if status.st_mode & others and not status.st_mode & stat.S_ISVTX:
        raise FolderRefused(
            f"others may write to {shown}, and so exchange what is in it: `chmod go-w {shown}` prevents that. Else name"
            " another folder"
        )


def _verify_owner(status: os.stat_result, shown: Path, rule: Rule) -> None:
    if status.st_uid in (0, os.geteuid()) or (rule.lets_group and _may_be_roots(status.st_uid)):
        return
    raise FolderRefused(
        f"{shown} belongs to user {status.st_uid}, who can exchange what is in it: name one of which all folders"
        f" above belong to {'you or root' if os.geteuid() else 'root'}"
    )


def _may_be_roots(uid: int) -> bool:
    """Return whether that is how root is shown: in a user namespace in which the machine's root is no user."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        if uid == int(OVERFLOW_UID.read_text()):
            lines = [line.split() for line in UID_MAP.read_text().splitlines()]
            return not any(line[1] == "0" for line in lines)
    return False
