"""The folder of sockets that a kernel knows from its environment, where the kernel is woken beside another one.

A batch job has such a folder of its own, and a kernel that wakes in the next job has the environment of the first. So
the way to the first job's folder, a link that is the user's own, is led to that of the job that wakes it.
"""

from __future__ import annotations

import os
from pathlib import Path

from .. import environment


def folder_of(pid: int) -> str:
    """Return the folder that a process knows; "" if it knows none, or has ended."""
    mark = f"{environment.FOLDER}=".encode()
    try:
        known = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((os.fsdecode(each[len(mark) :]) for each in known if each.startswith(mark)), "")


def stand_in_for(folder: str) -> None:
    """Lead the way to a folder that is not there any more to this process's own. Raises OSError."""
    own = os.environ.get(environment.FOLDER, "")
    if not folder or not own or os.path.exists(folder):
        return
    way, ours = Path(folder).parent, Path(own).parent
    if way.parent != ours.parent or not ours.is_symlink():
        return  # it is no job's
    if way.is_symlink():  # it led to a job that has ended
        way.unlink()
    way.symlink_to(os.readlink(ours))
