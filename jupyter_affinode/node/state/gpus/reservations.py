"""Reservations: room that was granted and that NVML's figure may not show yet.

Other kernels wait for reserved room, and a process can claim to be resuming for as long as it likes. So a resume's
reservation lasts while NVML shows ever more of its memory (gpu_processes.py), and ends within seconds where it does
not. What was taken by then NVML counts as used. A kernel that is merely slow continues, and takes the rest like any
other program's memory. If two kernels then meet on a GPU, the driver tells the later one that the GPU is full: it stays
parked with all its contents, and is tried again. Without NVML nothing can be confirmed: a reservation lasts for
`UNSEEN_LASTS_S`, and only the shims' figures and failed allocations are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

GRANT_LASTS_S = 5.0  # a granted allocation of which the shim reports nothing
RETRY_TAKES_S = 0.3  # from a shim's "I have your answer" to its allocation being tried again
NOTHING_COMES_S = 5.0  # NVML is looked at once a second, and a busy machine's threads begin late
UNSEEN_LASTS_S = 30.0  # while NVML's figures say nothing of it
TAKEN_PART = 0.5  # of what was reserved: with less, the resume did not take place


@dataclass(frozen=True)
class ShownBytes:
    """What NVML shows of a kernel on a GPU, by its pids. Where pids tell nothing: all memory in use, of which the pages
    of others name `others_bytes`. `is_clear` is False if pages have just changed, so that they are of another moment.
    """

    used_bytes: int
    others_bytes: int = 0
    is_clear: bool = True


Shown = Callable[[str, str], ShownBytes | None]  # by the ids of a kernel and a GPU; None: there is no NVML


@dataclass
class Reserved:
    """Bytes of one GPU that are reserved for a resuming kernel, or for one granted allocation."""

    kernel_id: str
    gpu: str
    bytes: int
    room: tuple[int, int] | None = None  # the request's key; None: a resume
    began: float = 0.0
    done_at: float | None = None  # looks of NVML that begin later show it
    expires_at: float | None = None
    last: ShownBytes | None = None  # what NVML showed when it was last looked at
    shown_bytes: int = 0  # how much of it has come since the first look …
    most_bytes: int = 0  # … and the most of that
    freed_bytes: int = 0  # by others: seen by NVML, and in no page yet …
    unnamed_bytes: int = 0  # … or the other way round

    def is_taken(self, now: float) -> bool:
        """Return whether the kernel's page shows the bytes already, and only NVML's figure may not."""
        return self.done_at is not None and self.done_at <= now

    def take(self, used: int, others: int) -> None:
        """Take changes of the memory in use and of what others' pages name.

        What others name anew is theirs. What they name no more was theirs as far as less is in use too: a page that
        only claims to have freed memory adds nothing to this kernel.
        """
        self.freed_bytes += max(-used, 0)
        self.unnamed_bytes += max(-others, 0)
        both = min(self.freed_bytes, self.unnamed_bytes)
        self.freed_bytes -= both
        self.unnamed_bytes -= both
        self.shown_bytes += used + both - max(others, 0)
        self.most_bytes -= max(others, 0)  # it may have been taken for this kernel's until now

    @property
    def is_verified(self) -> bool:
        """Return whether NVML has shown that it was used."""
        return self.most_bytes >= TAKEN_PART * self.bytes


class ReservationBook:
    """All reservations; part of the state."""

    def __init__(self) -> None:
        self.entries: list[Reserved] = []
        self.expired: list[Reserved] = []  # resumes without progress, until the caller takes them

    def reserve_resume(self, kernel_id: str, needs: Mapping[str, int], now: float, shown: Shown) -> None:
        """Reserve a kernel's room until `finish_resume`, or until NVML shows no progress."""
        self.entries += [
            Reserved(kernel_id, gpu, size, began=now, expires_at=now + UNSEEN_LASTS_S)
            for gpu, size in needs.items()
            if size
        ]
        self.bear_out(now, shown)

    def bear_out(self, now: float, shown: Shown) -> None:
        """Extend the reservations of resumes of which NVML shows more memory."""
        for entry in self._resumes():
            before, found = entry.last, shown(entry.kernel_id, entry.gpu)
            if found is None or (before is None and not found.is_clear):
                continue
            entry.last = found
            if before is None:
                entry.expires_at = now + NOTHING_COMES_S
                continue
            entry.take(found.used_bytes - before.used_bytes, found.others_bytes - before.others_bytes)
            if entry.shown_bytes > entry.most_bytes:
                entry.most_bytes = entry.shown_bytes
                for each in self._resumes(entry.kernel_id):  # its GPUs may be filled one after the other
                    each.expires_at = now + NOTHING_COMES_S

    def finish_resume(self, kernel_id: str, now: float) -> list[Reserved]:
        """End a resume's reservations, done or failed, and return them; the next figures show what was taken."""
        finished = list(self._resumes(kernel_id))
        for entry in finished:
            entry.done_at, entry.expires_at = now, None
        return finished

    def grant(self, kernel_id: str, gpu: str, size: int, key: tuple[int, int], now: float) -> None:
        """Reserve room for one allocation, for a bounded time."""
        expires_at = now + GRANT_LASTS_S
        self.entries.append(Reserved(kernel_id, gpu, size, key, began=now, expires_at=expires_at))

    def finish_grant(self, key: tuple[int, int], now: float, *, failed: bool) -> None:
        """Note that the shim has its answer; `failed`: the allocation failed, so nothing was taken."""
        for entry in self.entries[:]:
            if entry.room == key:
                if failed:
                    self.entries.remove(entry)
                else:
                    entry.done_at = now + RETRY_TAKES_S

    def forget_process(self, process: int) -> None:
        """Drop the grants of a process that ended."""
        self.entries = [entry for entry in self.entries if entry.room is None or entry.room[0] != process]

    def forget_kernel(self, kernel_id: str) -> None:
        """Drop all reservations of a kernel that has no process left."""
        self.entries = [entry for entry in self.entries if entry.kernel_id != kernel_id]

    def sweep(self, now: float, sampled_at: float) -> None:
        """Drop what figures of `sampled_at` show, and what has expired."""
        kept = []
        for entry in self.entries:
            if entry.expires_at is not None and now > entry.expires_at:
                self.expired += [entry] if entry.done_at is None else []
            elif entry.done_at is None or sampled_at <= entry.done_at:
                kept.append(entry)
        self.entries = kept

    @property
    def awaits_sample(self) -> bool:
        """Return whether newer figures would free a reservation."""
        return any(entry.done_at is not None for entry in self.entries)

    def _resumes(self, kernel_id: str | None = None) -> Iterable[Reserved]:
        """Return the reservations of resumes under way, of one kernel or of all."""
        return (
            entry
            for entry in self.entries
            if entry.room is None and entry.done_at is None and kernel_id in (None, entry.kernel_id)
        )
