"""Files that keep a kernel on the GPU: what a program that is no notebook can say with `touch`.

In the folder `keep` beside the controller's socket, which only its owner (on a machine's own controller: root) can
write, a file named as a kernel's id, or `all`, is a hold. The file's first line, if any, says why. A hold ends: the
file counts for as long after its last change as the longest hold may last, so one that was forgotten does not keep
a GPU for ever, and a program that touches it now and then keeps it for as long as it lives.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

EVERYBODY = "all"
REASON_LENGTH = 120
FILES_MAX = 4096


@dataclass(frozen=True)
class Keep:
    """A kernel is kept until then (monotonic seconds), in somebody's words."""

    until: float
    reason: str


def read_keeps(folder: Path, lasts_s: float) -> dict[str, Keep]:
    """The files that count now, by name. Never raises: no folder, no holds."""
    offset = time.monotonic() - time.time()
    keeps = {}
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(FILES_MAX), entries, strict=False):
                keep = _read(Path(entry.path), lasts_s, offset)
                if keep is not None and keep.until > time.monotonic():
                    keeps[entry.name] = keep
    except OSError:
        return keeps
    return keeps


def file_name(kernel_id: str) -> str:
    """What a kernel's file is called: its id, with %2F where the controller of all users has a slash in it."""
    return quote(kernel_id, safe=":@+=,~")


def _read(path: Path, lasts_s: float, offset: float) -> Keep | None:
    """One file; None if it is none, or not its folder's owner's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (os.getuid(), 0):
            return None
        changed = min(status.st_mtime, time.time())  # a clock that was wrong must not keep for ever
        text = os.read(descriptor, REASON_LENGTH).decode(errors="replace").split("\n")[0]
        reason = "".join(sign for sign in text if sign.isprintable()).strip()
        return Keep(changed + offset + lasts_s, reason or "a file says so")
    except OSError:
        return None
    finally:
        os.close(descriptor)
