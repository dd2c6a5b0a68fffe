"""What parked processes of one user share in host memory: which is to look at that next, and what ended ones left.

The shims compare and share (shim/src/host/memory_packs.h); here is only when they are told to. A process is told once
after each park, while its user has another kernel with GPU memory, and again when another of that user's has put
something new there: it may have the same.

A user's folder has a name that no other user can know before it is made (`number_for`): all may make names where it
lies.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from .... import private_folders
from ...identity.identity import Identity
from ...model.snapshot import Residency
from ..records.kernel import KernelRecord
from ..records.operations import Seen, Sharing
from ..records.process import Process

PARKED_FOR_S = 2.0  # a kernel that goes to and fro shares nothing
APART_S = 1.0  # between two of one user
FAILED_APART_S = 60.0
USERS_FOLDER = re.compile(r"affinode-(\d+)-[0-9a-f]{16}")
ENTRIES_MAX = 1 << 14  # read of one folder: more are no shim's
SECRET_BYTES = 16
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SharedMemory:
    """When processes are told to share."""

    def __init__(self) -> None:
        # A part of the names of users' folders; the next controller has it, too, so that kernels keep their folder.
        self.secret = secrets.token_hex(SECRET_BYTES)
        self._taken: Counter[str] = Counter()  # by user: how often the name was taken all the same
        self._problems: dict[str, str] = {}  # by user: what a process said last, why it cannot
        self.is_left = True  # a process ended, and its folder may be left
        self._news: Counter[str] = Counter()  # by user: how often something new was put there
        self._not_before: dict[str, float] = {}  # by user
        self._with_memory: Counter[str] = Counter()  # kernels with GPU memory, by user
        self._at_work: set[str] = set()

    def look(self, kernels: Iterable[KernelRecord]) -> None:
        """Note how many kernels of each user could have something in common, and which users' share now."""
        kernels = list(kernels)
        self._with_memory = Counter(
            _user(kernel)
            for kernel in kernels
            if any(process.uses_gpu for process in kernel.processes.values())
        )
        self._at_work = {_user(kernel) for kernel in kernels if isinstance(kernel.operation, Sharing)}
        for user in self._problems.keys() - self._with_memory.keys():
            del self._problems[user]

    def recall(self, secret: object) -> None:
        """Take what an earlier controller kept."""
        if isinstance(secret, str) and re.fullmatch(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}", secret):
            self.secret = secret

    def number_for(self, kernel: KernelRecord) -> int:
        """Return the number in the name of the folder of the kernel's user (SHARE in shim/src/protocol.h)."""
        user = _user(kernel)
        named = f"{self._taken[user]} {user}".encode()
        digest = hashlib.blake2b(named, key=bytes.fromhex(self.secret), digest_size=8)
        return int.from_bytes(digest.digest(), "big")

    def name_is_taken(self, kernel: KernelRecord) -> None:
        """Have the user's processes use another name from now on."""
        self._taken[_user(kernel)] += 1

    def problem_for(self, identity: Identity) -> str | None:
        """Return why kernels share nothing: in their own words to their user, and as a number of users to others."""
        own = self._problems.get(identity.charged_user or "")
        if own is not None or not identity.is_admin or not self._problems:
            return own
        return f"for {len(self._problems)} users something is in the way; the controller's log says what"

    def next_of(self, kernel: KernelRecord, now: float) -> Process | None:
        """Return the process of a parked kernel that is to be told to share, if one is now."""
        user = _user(kernel)
        is_settled = kernel.residency is Residency.PARKED and now - kernel.residency_since >= PARKED_FOR_S
        if not is_settled or self._with_memory[user] < 2 or user in self._at_work:
            return None
        if kernel.operation is not None or now < self._not_before.get(user, 0.0):
            return None
        parked = (process for process in kernel.connected() if process.is_parked)
        return next((process for process in parked if process.shared != self.seen_by(kernel, process)), None)

    def seen_by(self, kernel: KernelRecord, process: Process) -> Seen:
        """Return what a process that shares now has looked at."""
        return Seen(process.data.parks, self._news[_user(kernel)])

    def tidy(self, folder: str, loop: asyncio.AbstractEventLoop) -> None:
        """Have what ended processes left removed, beside the loop: it may be gigabytes."""
        if folder and self.is_left:
            self.is_left = False
            loop.run_in_executor(None, remove_left, folder)

    def ended(
        self, kernel: KernelRecord, now: float, *, news: bool = False, problem: str | None = None
    ) -> None:
        """Note how one ended: whether it put something new there (`news`), or what was in the way."""
        user = _user(kernel)
        self._news[user] += news
        self._not_before[user] = now + (APART_S if problem is None else FAILED_APART_S)
        if problem is None:
            self._problems.pop(user, None)
        else:
            self._problems[user] = problem

    def is_news(self, kernel: KernelRecord, problem: str) -> bool:
        """Return whether the kernel's user had another problem until now, or none."""
        return self._problems.get(_user(kernel)) != problem


def shared_bytes(processes: Iterable[Process]) -> int:
    """Return the host memory that holds parked contents of several processes each, counted once."""
    return sum(process.data.shared_part_bytes for process in processes if process.is_parked)


def _user(kernel: KernelRecord) -> str:
    return kernel.account.charged_user or ""


def remove_left(folder: str) -> None:
    """Remove what ended processes of all users, as far as we may, have left below `folder`.

    A living process holds a lock on its folder. Users may put anything into theirs: no link is followed, and only names
    in folders of that user are removed.
    """
    try:
        above = private_folders.open_folder(Path(folder), private_folders.SHARED)
    except OSError:
        return  # processes that are told to share say why
    try:
        for name in _names(above, ENTRIES_MAX):
            match = USERS_FOLDER.fullmatch(name)
            if match is not None and os.geteuid() in (0, int(match[1])):
                with contextlib.suppress(OSError), _locked(name, above, int(match[1])) as users:
                    _remove_left_of(users, int(match[1]))
    finally:
        os.close(above)


def _remove_left_of(users: int, uid: int) -> None:
    """Remove what one user's processes have left, as much as one look may: no user keeps others waiting by more."""
    may_remove = ENTRIES_MAX
    for entry in _names(users, ENTRIES_MAX):
        with contextlib.suppress(OSError), _locked(entry, users, uid) as left:
            for each in _names(left, may_remove):
                may_remove -= 1
                os.unlink(each, dir_fd=left)
            os.rmdir(entry, dir_fd=users)


def _names(folder: int, most: int) -> list[str]:
    """Return the first names in a folder: a user may put any number there."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in itertools.islice(entries, most)]
    except OSError:
        return []


@contextlib.contextmanager
def _locked(name: str, above: int, uid: int) -> Iterator[int]:
    """Open a user's folder and lock it, as shims do; OSError if it is locked, no folder, or not private."""
    descriptor = os.open(name, FOLDER, dir_fd=above)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != uid or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(f"{name} is not private")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)
