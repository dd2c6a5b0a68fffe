"""Baselines: what sites do today, replayed with the same sessions. No kernel is parked, so a session waits for
another's end.

- reservation: a GPU is one user's from the session's start to its end.
- culling: the same, but a kernel that is idle for too long is killed; the next cell builds its state again.
- sharing: kernels share GPUs by memory, which stays theirs to the end; a session that does not fit waits.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from ...units import duration_in_words
from .machine import Machine
from .results import Outcome
from .sessions import Session
from .simulation import LiveSession, Say, SimulatedUsers


@dataclass(frozen=True)
class Culling:
    """When idle kernels are killed, and how long building their state again takes."""

    timeout_s: float = 3600.0  # as in jupyterhub-idle-culler's own example (its README on PyPI)
    rebuild_s: float = 120.0  # imports, data, weights: an assumption, nothing published was found


class _InTurn(SimulatedUsers):
    """Serves sessions in the order in which they ask; each GPU has so many bytes, or is one whole."""

    def __init__(
        self,
        machine: Machine,
        sessions: Sequence[Session],
        outcome: Outcome,
        capacity: int,
        say: Say | None = None,
    ):
        super().__init__(machine, sessions, outcome, say)
        self._free = [capacity] * machine.gpus
        self._capacity = capacity
        self._held = 0
        self._line: list[tuple[LiveSession, int]] = []
        self._has: dict[int, tuple[int, int, float]] = {}  # by session: GPU, how much, since when

    def has(self, live: LiveSession) -> bool:
        """Return whether the session has its part."""
        return live.number in self._has

    def ask(self, live: LiveSession, size: int) -> None:
        """Queue for a part of a GPU."""
        self._line.append((live, size))
        self._serve()

    def give_back(self, live: LiveSession) -> None:
        """Free the session's part, or end its wait."""
        self._line = [(other, size) for other, size in self._line if other is not live]
        if live.number in self._has:
            gpu, size, since = self._has.pop(live.number)
            self._free[gpu] += size
            self._held -= size
            self.outcome.held_s += (self.now - since) * size / self._capacity
            live.gpu = None
        self._serve()

    def part_held(self, live: LiveSession) -> float:
        """Return its part of a GPU."""
        return self._has[live.number][1] / self._capacity

    def wants(self, live: LiveSession) -> None:
        """Compute if the session has its part, else ask for it."""
        if self.has(live):
            self.compute(live)
        else:
            self.ask(live, self.part_needed(live))

    def part_needed(self, live: LiveSession) -> int:
        """Return the part of a GPU that the session asks for."""
        return self._capacity

    def served(self, live: LiveSession) -> None:
        """React to the session getting its part: compute."""
        self.compute(live)

    def ends(self, live: LiveSession) -> None:
        """Free its part."""
        self.give_back(live)

    def _serve(self) -> None:
        while self._line:
            live, size = self._line[0]
            gpu = max(range(len(self._free)), key=lambda number: (self._free[number], -number))
            if self._free[gpu] < size:
                return
            del self._line[0]
            self._free[gpu] -= size
            self._held += size
            self.outcome.gpus_most = max(self.outcome.gpus_most, self._held / self._capacity)
            self._has[live.number] = (gpu, size, self.now)
            live.gpu = gpu
            self.served(live)


class Reservation(_InTurn):
    """A GPU for the session. A cell waits until the session has it."""

    def __init__(
        self,
        machine: Machine,
        sessions: Sequence[Session],
        say: Say | None = None,
    ):
        super().__init__(machine, sessions, Outcome("reservation", "a GPU each"), 1, say)

    def begins(self, live: LiveSession) -> None:
        """Ask at once."""
        self.ask(live, self.part_needed(live))

    def wants(self, live: LiveSession) -> None:
        """Compute if the session has its GPU; else it waits."""
        if self.has(live):
            self.compute(live)

    def served(self, live: LiveSession) -> None:
        """Compute if a cell is waiting."""
        if live.wanted_at is not None:
            self.compute(live)

    def computes_on(self, live: LiveSession) -> Hashable:
        """Return a key of the session's own: nothing is shared."""
        return ("own", live.number)


class Culled(Reservation):
    """Reservation with a culler. A culled kernel asks again at its next cell, and builds its state again first."""

    def __init__(
        self,
        machine: Machine,
        sessions: Sequence[Session],
        culling: Culling,
        say: Say | None = None,
    ):
        super().__init__(machine, sessions, say)
        self._culling = culling
        after = duration_in_words(culling.timeout_s)
        self.outcome.way = "culling"
        self.outcome.title += f", killed after {after} idle"
        self._was_culled: set[int] = set()

    def begins(self, live: LiveSession) -> None:
        """Do nothing: it asks at its first cell, since a culler would have ended it before."""

    def wants(self, live: LiveSession) -> None:
        """Compute if the session has its GPU, else ask for one."""
        _InTurn.wants(self, live)

    def served(self, live: LiveSession) -> None:
        """Compute, after building the state again if it was lost."""
        if live.number in self._was_culled:
            self._was_culled.discard(live.number)
            self.outcome.losses += 1
            self.outcome.rebuild_s += self._culling.rebuild_s
            self.outcome.held_computing_s += self._culling.rebuild_s * self.part_held(live)
            self.timeline.after(self._culling.rebuild_s, partial(self.compute, live))
        else:
            self.compute(live)

    def idle(self, live: LiveSession) -> None:
        """Schedule the culler's next look at the session."""
        if not live.cell_is_open:
            done = live.next_cell
            self.timeline.after(self._culling.timeout_s, partial(self._cull, live, done))

    def _cull(self, live: LiveSession, done: int) -> None:
        is_idle = live.next_cell == done and not live.cell_is_open
        if is_idle and live.number in self.open and self.has(live):
            self.outcome.counts["kernels killed"] += 1
            self._was_culled.add(live.number)
            self.give_back(live)


class Sharing(_InTurn):
    """Sharing by memory, without parking: a session holds its peak from its first cell to its end."""

    def __init__(self, machine: Machine, sessions: Sequence[Session], say: Say | None = None):
        outcome = Outcome("sharing", "shared by memory, no parking")
        super().__init__(machine, sessions, outcome, machine.gpu_bytes, say)

    def part_needed(self, live: LiveSession) -> int:
        """Return all that the session will hold: its first cell waits until there is room for that."""
        return live.session.peak_bytes + self.machine.context_bytes
