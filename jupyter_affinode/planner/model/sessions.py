"""Sessions of cells to replay. They are the same for every way of sharing, so that only the sharing differs.

A session is closed: a cell begins a think time after the one before it has ended, however long that one waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ImpossiblePlan(ValueError):
    """Something that no machine could do, or that makes no sense; the message tells what to change."""


@dataclass(frozen=True)
class Cell:
    """One execution that uses the GPU. Times in seconds, sizes in bytes."""

    think_s: float  # from the end of the cell before (or the session's start) until it wants the GPU
    gpu_s: float  # how long it computes with a GPU of its own
    bytes: int  # GPU memory that the kernel holds from then on, its CUDA context left out
    cpu_s: float = 0.0  # how long it runs on without the GPU
    compute_share: float | None = None  # of a GPU's compute that it uses alone; None: as the machine says


@dataclass(frozen=True)
class Session:
    """One kernel from its start to its end."""

    id: str
    user: str
    start_s: float  # not before that, and not before the user's previous session has ended
    cells: tuple[Cell, ...]
    end_think_s: float = 0.0  # from the end of its last cell until the kernel is shut down

    @property
    def peak_bytes(self) -> int:
        """Return the most memory that it holds."""
        return max((cell.bytes for cell in self.cells), default=0)

    @property
    def gpu_s(self) -> float:
        """Return how long it computes."""
        return sum(cell.gpu_s for cell in self.cells)

    @property
    def length_s(self) -> float:
        """Return how long it lasts if no cell ever waits."""
        return sum(cell.think_s + cell.gpu_s + cell.cpu_s for cell in self.cells) + self.end_think_s


def by_user(sessions: Sequence[Session]) -> list[list[Session]]:
    """Return each user's sessions in the order of their starts; users in the order of their first."""
    users: dict[str, list[Session]] = {}
    for session in sorted(sessions, key=lambda session: (session.start_s, session.id)):
        users.setdefault(session.user, []).append(session)
    return list(users.values())


def active_share(sessions: Sequence[Session]) -> float:
    """Return the part of all sessions' time in which they compute, if no cell ever waits."""
    length = sum(session.length_s for session in sessions)
    return sum(session.gpu_s for session in sessions) / length if length else 0.0
