"""The disk of a folder for images: what it can, whether what is written is encrypted there, and its errors in words."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
DEVICES = Path("/sys/dev/block")
GET_POLICY = 0xC0096616  # FS_IOC_GET_ENCRYPTION_POLICY_EX, linux/fscrypt.h
POLICY = struct.Struct("=Q24s")
IN_MEMORY = ("tmpfs", "ramfs")
ENCRYPTED = ("ecryptfs", "fuse.gocryptfs", "fuse.encfs", "fuse.cryfs")
ELSEWHERE = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "glusterfs",
    "9p",
    "fuse.sshfs",
)
NO_LOCKS = (
    "its file system has no locks, as NFS without its lock service: name another folder as hibernate_dir"
)
IN_WORDS = {
    errno.ENOSPC: "the disk is full: delete something there, or an image",
    errno.EDQUOT: "your quota on the disk is used up: delete something there, or an image",
    errno.ENOLCK: NO_LOCKS,
}
ESCAPED = re.compile(r"\\(\d{3})")


@dataclass(frozen=True)
class Disk:
    """Where a folder lies."""

    kind: str  # of file system, as Linux names it; "" if that is not known
    device: str  # major:minor

    @property
    def is_memory(self) -> bool:
        """Whether what is written there stays in host memory."""
        return self.kind in IN_MEMORY

    @property
    def is_on_another_machine(self) -> bool:
        """Whether it is a network's: encryption there, and on the way, is not to be seen from here."""
        return self.kind in ELSEWHERE


def disk_of(folder: Path) -> Disk:
    """Return the disk of a folder, or of the first above it that is there."""
    there = next(each for each in (folder, *folder.parents) if each.exists()).resolve()
    best, found = -1, Disk("", "")
    with contextlib.suppress(OSError):
        for line in MOUNTS.read_text().splitlines():
            fields, _, kind = line.partition(" - ")
            words = fields.split()
            at = Path(ESCAPED.sub(lambda code: chr(int(code[1], 8)), words[4]))
            if there.is_relative_to(at) and len(at.parts) >= best:
                best, found = len(at.parts), Disk(kind.split()[0], words[2])
    return found


def in_words(error: Exception) -> str:
    """Return what a person reads of an error: of Linux's what to do, or what failed, and where."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    where = f" ({error.filename})" if error.filename else ""
    return IN_WORDS.get(error.errno) or f"{os.strerror(error.errno)}{where}"


def objection_to_folder(folder: Path) -> str | None:
    """Return why no image can be in a folder, which is there; None: a file in it can be written and locked."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return in_words(error)
    return None


def encryption_of(folder: Path) -> str | None:
    """Return what encrypts a folder at rest, as far as that can be seen here; None: nothing does."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    disk = disk_of(there)
    if disk.kind in ENCRYPTED:
        return disk.kind.removeprefix("fuse.")
    if _has_policy(there):
        return "fscrypt"
    return "dm-crypt" if _is_crypt(DEVICES / disk.device) else None


def _has_policy(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, GET_POLICY, POLICY.pack(24, b""))
            return True
        finally:
            os.close(descriptor)
    return False


def _is_crypt(device: Path) -> bool:
    """Return whether a device, or one that it lies on, is dm-crypt's."""
    with contextlib.suppress(OSError):
        if (device / "dm" / "uuid").read_text().startswith("CRYPT-"):
            return True
    with contextlib.suppress(OSError):
        slaves = list((device / "slaves").iterdir())
        return bool(slaves) and all(_is_crypt(each) for each in slaves)
    return False


def sync(path: Path | str) -> None:
    """Have a file, or the names in a folder, outlive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
