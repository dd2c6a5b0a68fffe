"""The owners of user namespaces' user ids: subuid(5) gives each user some beside their own.

The processes in a user's rootless containers have such ids, thousands of them. They see and move their own kernels
alone, as any user; but what they take of the controller and of the GPUs counts as that user's. Otherwise a user could
have thousands of times the allowed share.
"""

from __future__ import annotations

import math
import os
import pwd
import time
from bisect import bisect_right
from pathlib import Path

SUBUID = Path("/etc/subuid")
LOOK_AGAIN_S = 5.0
FILE_BYTES_MAX = 4 << 20

Range = tuple[int, int, int]  # the first id, how many, and the user id of whose they are


class SubordinateIds:
    """The ranges of one file, read again when it changes. Ranges from a directory server are not known."""

    def __init__(self, path: Path = SUBUID):
        self._path = path
        self._ranges: list[Range] = []
        self._seen: tuple[int, int, int] | None = None
        self._looked_at = -math.inf

    def owner_of(self, uid: int) -> int:
        """Return the user id that has `uid` in one of its ranges; else `uid` itself."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_AGAIN_S:
            self._looked_at = now
            self._read_files()
        place = bisect_right(self._ranges, (uid, math.inf, 0)) - 1
        if place < 0:
            return uid
        first, count, owner = self._ranges[place]
        return owner if first <= uid < first + count else uid

    def _read_files(self) -> None:
        try:
            status = os.stat(self._path)
            seen = status.st_ino, status.st_mtime_ns, status.st_size
            if seen == self._seen:
                return
            text = self._path.read_bytes()[:FILE_BYTES_MAX].decode(errors="replace")
        except OSError:  # there is none, or it is being written: what was known is good for now
            return
        self._seen = seen
        self._ranges = sorted(found for line in text.split("\n") if (found := _range(line)) is not None)


def _range(line: str) -> Range | None:
    """Parse `alice:100000:65536`, or the same with a user id; return None for a line that is no range, or of an unknown
    user.
    """
    name, _, rest = line.strip().partition(":")
    first, _, count = rest.partition(":")
    if not (name and _is_number(first) and _is_number(count)):
        return None
    try:
        return int(first), int(count), int(name) if _is_number(name) else pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10
