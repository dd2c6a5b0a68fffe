"""Handover: users' own controllers give way to the machine's, so that each GPU has one controller.

A user's controller at the usual place ends as soon as the machine's answers; its shims and clients then find that one
by themselves, as after any end of a controller. At another place, which its clients would not leave, it is refused the
GPUs that the machine's controller serves. The machine's controller decides nothing before the users' locks on the GPUs
are free. Any user can hold a lock: those of users who have nothing on the GPU, as NVML shows it, are not waited for,
and the others not for ever; such a user's memory then counts as unmanaged.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import re
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ... import environment
from ..model.gpu import NvmlGpu
from ..system.peers import user_of
from ..system.subuid import SubordinateIds

ASK_EVERY_S = 0.5
ANSWERS_WITHIN_S = 0.02  # else it is looked for the next time
TOLD_AFTER_S = 5.0  # of files that do not answer: a busy machine takes its time
PATIENCE_S = 60.0  # with users' controllers that do not give way
USERS_FOLDERS = environment.TEMPORARY  # where `election.Election` puts the locks of users' controllers
FOLDER_NAME = re.compile(r"affinode-(\d+)")


def machine_answers() -> bool:
    """Return whether the machine's own controller, run by root or by us, listens now."""
    return environment.listens(environment.NODE_SOCKET)


def gives_way(own_socket: Path) -> bool:
    """Return whether a user's controller must end: the machine's answers, and no client looks for ours then."""
    is_usual = own_socket.name == environment.SOCKET_NAME and own_socket.parent in environment.user_folders()
    return is_usual and machine_answers()


def serves_gpu(uuid: str) -> bool:
    """Return whether the machine's controller serves a GPU now."""
    return environment.NODE_SOCKET.with_name(f"serves-{uuid}.lock").exists() and machine_answers()


def users_controllers(gpus: Mapping[str, NvmlGpu]) -> list[str]:
    """Return the users' controllers that serve one of these GPUs now, in words, of users who have a process on it."""
    subordinate = SubordinateIds()
    users = {uuid: users_of(gpu, subordinate) for uuid, gpu in gpus.items()}
    locks = [
        folder / f"serves-{uuid}.lock"
        for uid, folder in _users_folders()
        for uuid, on_it in users.items()
        if on_it is None or uid in on_it
    ]
    return [holder for lock in locks if (holder := _holder(lock)) is not None]


def users_of(gpu: NvmlGpu, subordinate: SubordinateIds) -> set[int] | None:
    """Return the user ids of the processes on a GPU, those of a user's containers as the user's. None: not known."""
    if gpu.pids is None:
        return None
    found: set[int] = set()
    for pid in gpu.pids:
        uid = user_of(pid)
        if uid is None:  # it has ended, or is in a pid namespace that we do not see
            return None
        found.add(subordinate.owner_of(uid))
    return found


class Standby:
    """The time in which the machine's controller knows shims already and decides nothing."""

    def __init__(self, log: logging.Logger):
        self.is_over = False
        self._log = log
        self._began = time.monotonic()
        self._asked_at = -math.inf
        self._asking: threading.Thread | None = None
        self._holders: list[str] | None = None  # None: not known yet
        self._told: list[str] = []

    def check(self, now: float, gpus: Mapping[str, NvmlGpu] | None) -> bool:
        """Return whether it is over; check the locks now and then, and never again once it is.

        `gpus` are those that NVML sees; None as long as it has not answered.
        """
        if self.is_over or now - self._asked_at < ASK_EVERY_S:
            return self.is_over
        self._asked_at = now
        if gpus is None and now - self._began < PATIENCE_S:
            return False
        self._ask(gpus or {})
        holders = self._holders
        if holders is None:
            holders = ["their files do not answer"]
        if not holders:
            self.is_over = True
        elif now - self._began >= PATIENCE_S:
            self.is_over = True
            self._log.error(
                "not given way: %s; what their kernels have counts as foreign", "; ".join(holders)
            )
        elif holders != self._told and (self._holders is not None or now - self._began >= TOLD_AFTER_S):
            self._told = holders
            self._log.info("waits for users' controllers to give way: %s", "; ".join(holders))
        return self.is_over

    def _ask(self, gpus: Mapping[str, NvmlGpu]) -> None:
        """Check the locks on a thread: a user's folder may be a file system of that user's, which need not answer."""
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._find_holders, args=(gpus,), daemon=True)
            self._asking.start()
            self._asking.join(ANSWERS_WITHIN_S)

    def _find_holders(self, gpus: Mapping[str, NvmlGpu]) -> None:
        self._holders = users_controllers(gpus)


def _users_folders() -> list[tuple[int, Path]]:
    """Return one folder for each user id, so that no user can make us look at more; [] where the folder above cannot be
    read.
    """
    folders: list[tuple[int, Path]] = []
    try:
        with os.scandir(USERS_FOLDERS) as entries:  # users may make any number there
            named_so = [(entry, named) for entry in entries if (named := FOLDER_NAME.fullmatch(entry.name))]
    except OSError:
        return folders
    for entry, named in named_so:
        try:  # it may be gone by now, or a file system of its user's that answers no other user
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid == int(named[1]):
            folders.append((status.st_uid, Path(entry.path)))
    return folders


def _holder(lock: Path) -> str | None:
    """Return the holder of a lock in words; None if it is free, or not a regular file, as locks of controllers are."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            said = os.read(descriptor, 256).decode(errors="replace").split("\n")[0]
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return f"{lock.parent.name}, {said if said.isprintable() else 'unnamed'}"
