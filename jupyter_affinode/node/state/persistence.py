"""What only the controller knows of users' requests, kept in a file beside its socket for the next controller.

Shims and servers tell a new controller where memory is, how long a kernel has waited, and what a cell does. They do not
tell it that a user holds the GPU, that a user's request alone waits for it, or that a kernel is being shut down for
another. A controller that is killed must not end a hold, or have a second kernel shut down for what the first one's end
will free. Nor do they repeat a kernelspec's options for a kernel that no server describes. And a process that a grant
admitted must be admitted again when that grant has expired: its page is recorded with its owner.

The file is written when one of these changes. It belongs to one boot of the machine, since its times are those of the
monotonic clock, and nothing in it lasts longer than the settings allow. A file that is missing, damaged or cannot be
written costs what is in it and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ... import environment
from ...settings.rules import LARGEST
from ..protocol.page import PageGpu
from .records.kernel import KernelRecord

FILE_NAME = "remembered.json"
DISK_WRITTEN, SHARE_SECRET = (
    "disk_written",
    "share_secret",
)  # beside the requests: host/disk.py, host/shared_memory.py
BYTES_MAX = 32 << 20  # more than all kernels that a controller knows, each with the longest id
TEXT_MAX = 4096
WRITE_AGAIN_S = 10.0  # after a failure
# how long an end, a request or a page waits for its kernel to connect; a hold, until it ends
ENDS_KNOWN_S = 120.0
Inode = tuple[int, int]  # of a page: device and number


@dataclass(frozen=True)
class KernelRequests:
    """The stored requests of one kernel. Times are monotonic seconds."""

    held_until: float | None = None
    resume_since: float | None = None  # its user asked for the GPU, and waits since
    end_asked: str | None = None
    end_for: str | None = None
    may_park: bool | None = None  # of its kernelspec, if no server tells it anew
    priority: int | None = None
    gpus_hibernated: Mapping[str, int] | None = None  # of one that its server tells of anew: bytes by GPU

    def and_then(self, kernel: KernelRecord) -> KernelRequests:
        """Return this with what the controller knows now, itself if that is nothing; what only an earlier controller
        knew stays until the kernel has connected.
        """
        known: dict[str, Any] = {}
        if kernel.held_until != self.held_until:
            known["held_until"] = kernel.held_until
        told = kernel.server.description
        if told is not None and told.server is None:
            known |= {"may_park": told.may_park, "priority": told.priority}
        if kernel.requests.resume:
            known["resume_since"] = kernel.wants_since
        if kernel.ending.reason is not None:
            known |= {"end_asked": kernel.ending.reason, "end_for": kernel.ending.for_kernel}
        if kernel.hibernated is not None and kernel.hibernated.gpus:
            gpus = kernel.hibernated.gpus.items()
            known["gpus_hibernated"] = {uuid: gpu.parked_bytes for uuid, gpu in gpus}
        return replace(self, **known) if known else self

    @classmethod
    def read(cls, stored: object, now: float, hold_max_s: float) -> KernelRequests:
        """Return the requests read from the file, as far as they are plausible and not over."""
        if not isinstance(stored, dict):
            return NOTHING
        held_until = _moment(stored.get("held_until"))
        if held_until is not None:
            held_until = min(held_until, now + hold_max_s) if held_until > now else None
        resume_since = _past(stored.get("resume_since"), now)
        reason, end_for = stored.get("end_asked"), stored.get("end_for")
        may_park, priority = stored.get("may_park"), stored.get("priority")
        gpus = stored.get("gpus_hibernated")
        return cls(
            held_until,
            resume_since,
            reason[:TEXT_MAX] if isinstance(reason, str) else None,
            end_for if isinstance(end_for, str) else None,
            may_park if isinstance(may_park, bool) else None,
            priority if isinstance(priority, int) and not isinstance(priority, bool) else None,
            {str(uuid): size for uuid, size in gpus.items() if isinstance(size, int) and 0 < size <= LARGEST}
            if isinstance(gpus, dict)
            else None,
        )


NOTHING = KernelRequests()


class StoredRequests:
    """Keeps the file. `recall` gives each kernel once what an earlier controller knew."""

    def __init__(self, path: Path, log: logging.Logger):
        self._path = path
        self._log = log
        self._earlier: dict[str, KernelRequests] = {}  # of kernels that are not back yet
        self._written: Mapping[str, KernelRequests] = {}
        self._pages: dict[str, str] = {}  # of an earlier controller's processes with grants: the owner
        self._pages_written: Mapping[str, str] = {}
        self._read_at = 0.0
        self._write_at = 0.0  # not before
        self._boot = environment.boot_id()
        self._beside_written: Mapping[str, Any] = {}

    def read(self, now: float, hold_max_s: float) -> Mapping[str, Any]:
        """Read what an earlier controller left; return all of the file, {} for none. `now` is monotonic."""
        self._read_at = now
        try:
            kept = _load(self._path)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            self._log.warning("holds of earlier are not known any more: %s: %s", self._path, error)
            return {}
        kernels, pages = kept.get("kernels"), kept.get("pages", {})
        if not isinstance(kernels, dict) or not isinstance(pages, dict):
            return {}
        if not self._boot or kept.get("boot") != self._boot:
            return {}
        self._pages = {str(page): str(owner) for page, owner in pages.items()}
        self._pages_written = dict(self._pages)
        found = {
            kernel_id: KernelRequests.read(stored, now, hold_max_s) for kernel_id, stored in kernels.items()
        }
        self._earlier = {kernel_id: stored for kernel_id, stored in found.items() if stored != NOTHING}
        self._written = dict(self._earlier)
        if self._earlier:
            self._log.info(
                "%d kernels are held or waited for since an earlier controller", len(self._earlier)
            )
        return kept

    def knows(self, owner: str, inode: Inode) -> bool:
        """Return whether a page is that of a process of the owner's that an earlier controller admitted."""
        return self._pages.get(_page_name(inode)) == owner

    def recall(self, kernel: KernelRecord, now: float) -> None:
        """Restore a kernel's requests: its hold once the kernel is known, all else once its first process is."""
        stored = self._earlier.pop(kernel.id, NOTHING)
        if stored.held_until is not None:
            kernel.held_until = stored.held_until
        if not kernel.processes:
            if stored.gpus_hibernated is not None:
                kernel.note_hibernated(now)
                assert kernel.hibernated is not None
                gpus = stored.gpus_hibernated.items()
                kernel.hibernated.gpus = {uuid: PageGpu.off_gpu(uuid, size) for uuid, size in gpus}
            rest = replace(stored, held_until=None, gpus_hibernated=None)
            if rest != NOTHING:
                self._earlier[kernel.id] = rest
            return
        if (stored.may_park, stored.priority) != (None, None) and kernel.server.description is None:
            kernel.describe(may_park=stored.may_park, priority=stored.priority)
        if stored.resume_since is not None:
            kernel.requests.resume, kernel.wants_since = True, stored.resume_since
            # the client that asked is not there any more
            kernel.requests.resume_done = asyncio.get_running_loop().create_future()
        # One that was restarted meanwhile has nothing that its end would free.
        uses_gpu = any(process.uses_gpu for process in kernel.processes.values())
        if stored.end_asked is not None and uses_gpu:
            kernel.ending.reason, kernel.ending.for_kernel = stored.end_asked, stored.end_for
            kernel.ending.asked_at, kernel.ending.is_recalled = now, True

    def save(
        self,
        kernels: Iterable[KernelRecord],
        now: float,
        beside: Mapping[str, Any] | None = None,
    ) -> None:
        """Write what has changed; called after each pass. `beside`: what else the next controller is to know."""
        beside = {name: value for name, value in (beside or {}).items() if value}
        kernels = list(kernels)
        if self._earlier or self._pages:
            self._forget_old(now)
        pages = {**self._pages, **_pages_of(kernels)}
        told = dict(self._earlier)
        for kernel in kernels:
            stored = told.get(kernel.id, NOTHING).and_then(kernel)
            if stored is not NOTHING and stored != NOTHING:  # mostly it is that itself
                told[kernel.id] = stored
        is_known = told == self._written and pages == self._pages_written
        if (is_known and beside == self._beside_written) or now < self._write_at:
            return
        rows = {kernel_id: asdict(stored) for kernel_id, stored in told.items()}
        try:
            _save(self._path, {"boot": self._boot, "kernels": rows, "pages": pages, **beside})
        except OSError as error:
            self._write_at = now + WRITE_AGAIN_S
            self._log.warning(
                "holds would not outlive this controller: %s cannot be written: %s", self._path, error
            )
        else:
            self._written, self._pages_written, self._beside_written = told, pages, beside

    def _forget_old(self, now: float) -> None:
        """Forget kernels that did not connect: holds when they end, all else soon; pages likewise."""
        is_late = now - self._read_at > ENDS_KNOWN_S
        if is_late:
            self._pages.clear()
        for kernel_id, stored in list(self._earlier.items()):
            if stored.held_until is not None and stored.held_until > now:
                self._earlier[kernel_id] = KernelRequests(stored.held_until) if is_late else stored
            elif is_late:
                del self._earlier[kernel_id]


def _pages_of(kernels: Iterable[KernelRecord]) -> dict[str, str]:
    """Return the pages of the processes that grants admitted, each with its owner."""
    return {
        _page_name(process.page.inode): kernel.account.owner
        for kernel in kernels
        if kernel.account.owner is not None and kernel.account.granted_at
        for process in kernel.processes.values()
    }


def _page_name(inode: Inode) -> str:
    return "{}:{}".format(*inode)


def _load(path: Path) -> dict[str, Any]:
    """Return the file's JSON. Raises OSError and ValueError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ValueError("others may have written it")
        kept = json.loads(file.read(BYTES_MAX))
    if not isinstance(kept, dict):
        raise ValueError("it is no JSON object")
    return kept


def _save(path: Path, kept: Mapping[str, Any]) -> None:
    """Replace the file atomically: a reader finds the old one or the new. Raises OSError."""
    fresh = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()  # of a controller that was killed; there is one at a time, by the election's lock
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(fresh, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(kept, file)
        fresh.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def _moment(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        moment = float(value)
    except OverflowError:
        return None
    return moment if math.isfinite(moment) else None


def _past(value: object, now: float) -> float | None:
    moment = _moment(value)
    return None if moment is None else min(moment, now)
