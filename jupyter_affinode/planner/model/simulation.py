"""Users at their notebooks under a virtual clock: they think, run a cell, wait, think again.

A subclass for each way of sharing decides what a cell has to wait for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import partial

from .event_queue import Shared, Timeline
from .machine import Machine
from .results import Outcome
from .sessions import Cell, Session, by_user

Say = Callable[[str], None]
SAID_EVERY_CELLS = 200
STUCK_AFTER = 1_000_000  # events of one moment: a policy that goes back and forth in no time


class ModelBroken(RuntimeError):
    """The replay has come into an impossible state: its model or the policy is wrong."""


class TooSlow(Exception):
    """More cells than the plan allows have waited longer than it allows: the rest need not be replayed."""


class LiveSession:
    """One session while it is open. `gpu` is its GPU's number once it has one."""

    def __init__(self, session: Session, later: list[Session], number: int):
        self.session = session
        self.later = later  # the same user's
        self.number = number
        self.next_cell = 0
        self.gpu: int | None = None
        self.wanted_at: float | None = None  # its cell waits for its memory since
        self.waited_s = 0.0  # the cell that computes, all its waits together
        self.granted_at = 0.0
        self.is_computing = False
        self.cell_is_open = False

    @property
    def cell(self) -> Cell:
        """Return the cell that waits or runs, or else the next one."""
        return self.session.cells[self.next_cell]


class Host:
    """Reacts to events of sessions; by default it does nothing."""

    def settle(self) -> None:
        """React when everything of this moment has happened."""

    def begins(self, live: LiveSession) -> None:
        """React to a session that begins."""

    def idle(self, live: LiveSession) -> None:
        """React to a cell that has ended, or goes on without the GPU."""

    def ends(self, live: LiveSession) -> None:
        """React to a session that is shut down: free what it holds."""


class SimulatedUsers(Host, ABC):
    """Replays sessions; `run` returns the outcome."""

    def __init__(
        self,
        machine: Machine,
        sessions: Sequence[Session],
        outcome: Outcome,
        say: Say | None = None,
    ):
        self.machine = machine
        self.outcome = outcome
        self.timeline = Timeline()
        self.open: dict[int, LiveSession] = {}
        self.give_up: tuple[float, int] | None = None  # a wait in seconds, and how many cells may wait longer
        self._say = say  # what is told of progress
        self._ended_cells = 0
        self._all_cells = sum(len(session.cells) for session in sessions)
        self._open_since = 0.0
        self._numbers = 0
        self._compute: dict[Hashable, Shared] = {}
        queues = by_user(sessions)
        self._users = len(queues)
        for queue in queues:
            self.timeline.at(queue[0].start_s, partial(self._arrive, queue))

    @property
    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self.timeline.now

    def run(self) -> Outcome:
        """Run until every session has ended; return the outcome. Raises ModelBroken and TooSlow."""
        at_once, moment = 0, -1.0
        while self.timeline.advance():
            at_once = at_once + 1 if self.now == moment else 0
            moment = self.now
            if at_once > STUCK_AFTER:
                raise ModelBroken(f"at {self.now:.3f} s nothing comes to an end any more")
            self.settle()
        if self.open or self._ended_cells != self._all_cells:
            stuck = next((live.session.id for live in self.open.values()), "none")
            raise ModelBroken(
                f"{self._all_cells - self._ended_cells} cells of {self._all_cells} never came to an end; the"
                f" first session with one: {stuck}"
            )
        used = sum(shared.busy_s for shared in self._compute.values())
        whole = self.outcome.open_s * self.machine.gpus
        self.outcome.gpu_busy = used / whole if whole else 0.0
        return self.outcome

    # ---- for subclasses, beside what a `Host` may do

    @abstractmethod
    def wants(self, live: LiveSession) -> None:
        """Let the next cell `compute`, now or later: it calls CUDA."""

    # ---- what they call

    def compute(self, live: LiveSession) -> None:
        """Compute the cell, whose memory is there."""
        if live.wanted_at is None:
            raise ModelBroken(f"{live.session.id} computes and nothing asked it to")
        live.waited_s = 0.0
        self.outcome.alone_s += live.cell.gpu_s
        self.go_on(live, live.cell.gpu_s)

    def go_on(self, live: LiveSession, left_s: float) -> None:
        """Compute what is left of a cell."""
        if live.wanted_at is not None:
            live.waited_s += self.now - live.wanted_at
            live.wanted_at = None
        live.is_computing, live.granted_at = True, self.now
        demand = self.demand(live)
        self._compute_of(live).begin(live.number, left_s, partial(self._computed, live), demand)

    def interrupt(self, live: LiveSession) -> float:
        """Take the GPU from a computing cell, which waits from now on; return what is left of it, in seconds."""
        live.is_computing, live.wanted_at = False, self.now
        self._count_computed(live)
        return self._compute_of(live).stop(live.number)

    def fail(self, live: LiveSession, how: str) -> None:
        """End the cell that waits or computes as failed."""
        if live.is_computing:
            self.interrupt(live)
        live.wanted_at = None
        self.outcome.counts[f"cells {how}"] += 1
        self._cell_ended(live)

    def demand(self, live: LiveSession) -> float:
        """Return the part of a GPU's compute that its cell uses alone."""
        share = live.cell.compute_share
        return self.machine.compute_share if share is None else share

    def part_held(self, live: LiveSession) -> float:
        """Return the part of a GPU that no other session can have while this one is there; 0 with parking."""
        return 0.0

    def computes_on(self, live: LiveSession) -> Hashable:
        """Return what it shares the speed of with others."""
        if live.gpu is None:
            raise ModelBroken(f"{live.session.id} computes and has no GPU")
        return live.gpu

    # ---- the users

    def _count_computed(self, live: LiveSession) -> None:
        computed_s = self.now - live.granted_at
        self.outcome.computed_s += computed_s
        self.outcome.held_computing_s += computed_s * self.part_held(live)

    def _compute_of(self, live: LiveSession) -> Shared:
        key = self.computes_on(live)
        if key not in self._compute:
            self._compute[key] = Shared(self.timeline)
        return self._compute[key]

    def _arrive(self, queue: list[Session]) -> None:
        live = LiveSession(queue[0], queue[1:], self._numbers)
        self._numbers += 1
        if not self.open:
            self._open_since = self.now
        self.open[live.number] = live
        self.outcome.sessions += 1
        self.outcome.sessions_most = max(self.outcome.sessions_most, len(self.open))
        self.begins(live)
        self._think(live)

    def _think(self, live: LiveSession) -> None:
        if live.next_cell < len(live.session.cells):
            self.timeline.after(live.cell.think_s, partial(self._want, live))
        else:
            self.timeline.after(live.session.end_think_s, partial(self._leave, live))

    def _want(self, live: LiveSession) -> None:
        live.wanted_at = self.now
        live.cell_is_open = True
        self.wants(live)

    def _computed(self, live: LiveSession) -> None:
        live.is_computing = False
        self.outcome.waits_s.append(live.waited_s)
        if self.give_up is not None and live.waited_s > self.give_up[0]:
            self.give_up = (self.give_up[0], self.give_up[1] - 1)
            if self.give_up[1] < 0:
                raise TooSlow
        self._count_computed(live)
        if live.cell.cpu_s:
            self.idle(live)
            self.timeline.after(live.cell.cpu_s, partial(self._cell_ended, live))
        else:
            self._cell_ended(live)

    def _cell_ended(self, live: LiveSession) -> None:
        live.cell_is_open = False
        live.next_cell += 1
        self._ended_cells += 1
        if self._say is not None and self._ended_cells % SAID_EVERY_CELLS == 0:
            self._say(
                f"{self.outcome.way}, {self._users} users: {self._ended_cells} of {self._all_cells} cells"
            )
        self.idle(live)
        self._think(live)

    def _leave(self, live: LiveSession) -> None:
        self.ends(live)
        del self.open[live.number]
        self.outcome.ended_s = self.now
        if not self.open:
            self.outcome.open_s += self.now - self._open_since
        if live.later:
            self.timeline.at(live.later[0].start_s, partial(self._arrive, live.later))
