"""Room that was granted and that NVML's figure does not surely show yet."""

from __future__ import annotations

from dataclasses import dataclass

GRANT_LASTS_S = 5.0  # an allocation that was granted room and of which nothing is heard
RETRY_TAKES_S = 0.3  # from a shim's "I have your answer" to its allocation being tried again


@dataclass
class Reserved:
    """Bytes of one GPU that belong to a kernel that is resuming, or to one granted allocation."""

    kernel_id: str
    gpu: str
    bytes: int
    room: tuple[int, int] | None = None  # the request's key; None: a resume
    done_at: float | None = None  # looks of NVML that begin later show it
    expires_at: float | None = None

    def is_taken(self, now: float) -> bool:
        """Whether the kernel's page shows the bytes already, and only NVML's figure may not."""
        return self.done_at is not None and self.done_at <= now


class ReservationBook:
    """All reservations; the state's."""

    def __init__(self) -> None:
        self.entries: list[Reserved] = []

    def reserve_resume(self, kernel_id: str, needs: dict[str, int]) -> None:
        """Reserve a kernel's room until `finish_resume`."""
        self.entries += [Reserved(kernel_id, gpu, size) for gpu, size in needs.items() if size]

    def finish_resume(self, kernel_id: str, now: float) -> None:
        """The kernel is resident, or it will not be: the figures are right from the next look on."""
        for entry in self.entries:
            if entry.kernel_id == kernel_id and entry.room is None and entry.done_at is None:
                entry.done_at = now

    def grant(self, kernel_id: str, gpu: str, size: int, key: tuple[int, int], now: float) -> None:
        """Reserve room for one allocation, for a bounded time."""
        self.entries.append(Reserved(kernel_id, gpu, size, key, expires_at=now + GRANT_LASTS_S))

    def finish_grant(self, key: tuple[int, int], now: float, *, failed: bool) -> None:
        """The shim has its answer; `failed`: it was tried in vain, so nothing was taken."""
        for entry in self.entries[:]:
            if entry.room == key:
                if failed:
                    self.entries.remove(entry)
                else:
                    entry.done_at = now + RETRY_TAKES_S

    def forget_process(self, process: int) -> None:
        """A process ended: what it was granted is free, and what it had taken is free too."""
        self.entries = [entry for entry in self.entries if entry.room is None or entry.room[0] != process]

    def forget_kernel(self, kernel_id: str) -> None:
        """No process of the kernel is left."""
        self.entries = [entry for entry in self.entries if entry.kernel_id != kernel_id]

    def sweep(self, now: float, sampled_at: float) -> None:
        """Drop what figures of `sampled_at` show, and grants of which nothing was heard."""
        self.entries = [
            entry
            for entry in self.entries
            if not (entry.done_at is not None and sampled_at > entry.done_at)
            and not (entry.expires_at is not None and now > entry.expires_at)
        ]

    @property
    def awaits_sample(self) -> bool:
        """Whether a new look at the figures would free something."""
        return any(entry.done_at is not None for entry in self.entries)
