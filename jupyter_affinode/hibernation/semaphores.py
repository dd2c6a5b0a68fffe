"""Named semaphores, which a process has in memory by a name that glibc has removed.

glibc's sem_open makes `/dev/shm/sem.XXXXXX`, links that to the semaphore's own name, and removes the first name. Linux
shows the process to have `/dev/shm/sem.XXXXXX (deleted)` in memory, and CRIU refuses a file that has names, but not
that one. So it gets that one while CRIU writes, and CRIU's list then says the semaphore's own name instead. joblib's
workers have such semaphores, and with them much that computes in parallel.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from .seen import Seen

FOLDER = "/dev/shm"
SHOWN = re.compile(rf"{FOLDER}/sem\.[A-Za-z0-9]{{6}} \(deleted\)")
NOTE_BYTES_MAX = 1 << 20


def own_names(pids: Iterable[int]) -> dict[str, str]:
    """Return the named semaphores that processes have in memory: as Linux shows them, and an own name of each."""
    inodes = {
        part.path: part.inode for pid in pids for part in Seen(pid).mapped if SHOWN.fullmatch(part.path)
    }
    names: dict[int, str] = {}
    if inodes:
        with os.scandir(FOLDER) as entries:
            names = {entry.inode(): entry.path for entry in entries if not SHOWN.fullmatch(entry.path)}
    return {shown: names[inode] for shown, inode in inodes.items() if inode in names}


def link_shown_names(pids: Iterable[int], note: Path) -> None:
    """Have semaphores be there by the names that Linux shows; a note says which, before. Raises OSError."""
    if found := own_names(pids):
        note.write_text(json.dumps(sorted(found)))
    for shown, own in found.items():
        with contextlib.suppress(FileExistsError):
            os.link(own, shown)


def remove_shown_names(note: Path) -> None:
    """Remove the names that a note has, and the note."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        with note.open() as file:
            shown = json.loads(file.read(NOTE_BYTES_MAX))
        for name in filter(SHOWN.fullmatch, shown):
            with contextlib.suppress(OSError):
                os.unlink(name)
    with contextlib.suppress(OSError):
        note.unlink()
