"""A parametrised notebook workload: published figures where there are any, assumptions where there are none.

Published, and used as they are:

- Cells that use the GPU take 2 min at the median and 5 min at the 75th percentile; from one such cell of a session
  to the next it is 5 min at the median, never less than 4; GPUs that sessions reserve are idle more than 81 % of
  the time; about three quarters of the sessions use theirs for at most 5 % of the time. All from the notebooks of
  one company's research platform ("AdobeTrace"): Carver, Zhang, Wang, Mahadik and Cheng, "NotebookOS: A Replicated
  Notebook Platform for Interactive Training with On-Demand GPUs", ASPLOS 2026, doi 10.1145/3760250.3762230. So
  there are busy users and quiet ones: a quarter of them use the GPU 61 % of their time, three quarters 5 %,
  which is 19 % for all together; a think time of 3 min makes the median from cell to cell.

Assumed, since nothing published was found; set them for your site, or replay a trace of it:

- How much GPU memory a notebook holds. The nearest published figure is of batch jobs: of those that asked for
  GPUs of 80 GB on a supercomputer, 55 % never held more than half (Cankur, Austin, Kulkarni and Bhatele,
  "Characterizing Production GPU Workloads using System-wide Telemetry Data", arXiv 2502.18680).
- When users come, how long they stay, how long their breaks are, and that times are log-normal.
- That a running cell could use a whole GPU's compute (`Machine.compute_share`), the worst case for sharing.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from .model.machine import GIB, MIB
from .model.sessions import Cell, ImpossiblePlan, Session

DAY_S = 86400.0
HOUR_S = 3600.0
Z75 = 0.674489750196082  # the standard normal distribution's 75th percentile
LARGEST = 0.9  # of a GPU's memory: larger footprints than fit are cut there
CELLS_MAX = 100_000  # of one session; more is a mistake in the parameters
ALL_CELLS_MAX = 1_000_000  # of all sessions together; more are not replayed in reasonable time
LONGEST_S = 30 * DAY_S  # of a cell or a session, whatever the distribution's tail says
BREAKS_MAX = 1000  # before one cell, on average


def round_half_up(number: float) -> int:
    """Return the nearest whole number."""
    return math.floor(number + 0.5)


@dataclass(frozen=True)
class Spread:
    """A log-normal distribution by its median and its 75th percentile; equal ones make a constant."""

    median: float
    p75: float

    @property
    def sigma(self) -> float:
        """Return the standard deviation of the logarithm."""
        return math.log(self.p75 / self.median) / Z75

    @property
    def mean(self) -> float:
        """Return the arithmetic mean."""
        return self.median * math.exp(self.sigma**2 / 2)

    def draw(self, chance: random.Random) -> float:
        """Return a random value."""
        return self.median * math.exp(self.sigma * chance.gauss(0.0, 1.0))


@dataclass(frozen=True)
class Workload:
    """Users on working days; seconds and bytes. Module docstring: what is published, what is assumed."""

    users: int = 8
    days: int = 5
    seed: int = 1
    run_s: Spread = Spread(120.0, 300.0)  # published
    think_s: Spread = Spread(180.0, 220.0)  # published cell to cell, less a run; the spread is assumed
    busy_users: float = 0.25  # published; spread evenly among all, so that not even that is chance
    busy_share: float = 0.61  # published: of their time that they use the GPU
    quiet_share: float = 0.05  # published
    break_s: Spread = Spread(3600.0, 7200.0)  # assumed; how many there are follows from the shares
    session_s: Spread = Spread(6 * HOUR_S, 8 * HOUR_S)  # assumed
    starts_h: tuple[float, float] = (8.0, 11.0)  # of the day, assumed
    footprint: Spread = Spread(8.0 * GIB, 16.0 * GIB)  # assumed

    def check(self) -> None:
        """Raise ImpossiblePlan where options that are good by themselves do not go together."""
        for share in (self.busy_share, self.quiet_share):
            most = self.run_s.mean / (self.run_s.mean + self.think_s.mean)
            if share > most + 0.01:
                raise ImpossiblePlan(
                    f"no user with {self.think_s.mean:.0f} s between cells of {self.run_s.mean:.0f} s (means)"
                    f" uses the GPU for {share:.0%} of the time; {most:.0%} is the most"
                )
            if self.breaks_a_cell(share) > BREAKS_MAX:
                raise ImpossiblePlan(
                    f"with breaks of {self.break_s.mean:g} s and runs of {self.run_s.mean:g} s (means), using"
                    f" the GPU for {share:.1%} of the time takes more than {BREAKS_MAX} breaks for each cell"
                )
        first, last = self.starts_h
        if not 0 <= first <= last <= 24:
            raise ImpossiblePlan(f"users come between two hours of the day, not {first:g} and {last:g}")

    def breaks_a_cell(self, share: float) -> float:
        """Return how many breaks there are for each cell, so that `share` of the time is computing."""
        idle_s = self.run_s.mean * (1 / share - 1)
        return max(idle_s - self.think_s.mean, 0.0) / self.break_s.mean

    def sessions(self, gpu_bytes: int) -> list[Session]:
        """Return all users' sessions; with one user more, the others' stay what they are. Raises ImpossiblePlan."""
        self.check()
        sessions: list[Session] = []
        cells = 0
        for user in range(self.users):
            made = self._of_user(user, gpu_bytes)
            sessions += made
            cells += sum(1 + len(session.cells) for session in made)
            if cells > ALL_CELLS_MAX:
                raise ImpossiblePlan(
                    f"{user + 1} of {self.users} users have more than {ALL_CELLS_MAX} cells in {self.days}"
                    " days: plan for fewer users or days"
                )
        return sessions

    def with_users(self, users: int) -> Workload:
        """Return the same for more or fewer users."""
        return replace(self, users=users)

    def _of_user(self, user: int, gpu_bytes: int) -> list[Session]:
        chance = random.Random(f"affinode plan {self.seed} {user}")
        is_busy = round_half_up((user + 1) * self.busy_users) > round_half_up(user * self.busy_users)
        breaks = self.breaks_a_cell(self.busy_share if is_busy else self.quiet_share)
        made = []
        for day in range(self.days):
            start_s = day * DAY_S + chance.uniform(*self.starts_h) * HOUR_S
            largest = int(gpu_bytes * LARGEST)
            size = min(max(int(self.footprint.draw(chance)), MIB), largest)
            cells, left_s = self._cells(chance, breaks, min(self.session_s.draw(chance), LONGEST_S), size)
            made.append(Session(f"p{user}-d{day}", f"p{user}", start_s, cells, left_s))
        return made

    def _cells(
        self, chance: random.Random, breaks: float, length_s: float, size: int
    ) -> tuple[tuple[Cell, ...], float]:
        """Return the cells of one session, and what time is left after the last."""
        cells: list[Cell] = []
        left_s = length_s
        while len(cells) < CELLS_MAX:
            think_s = self.think_s.draw(chance) + self._break(chance, breaks)
            if think_s > left_s:
                return tuple(cells), left_s
            run_s = min(self.run_s.draw(chance), LONGEST_S)
            cells.append(Cell(think_s, run_s, size))
            left_s = max(left_s - think_s - run_s, 0.0)
        raise ImpossiblePlan(
            f"a session of {length_s / HOUR_S:.1f} h has more than {CELLS_MAX} cells: think times or runs are too short"
        )

    def _break(self, chance: random.Random, breaks: float) -> float:
        """Return the breaks before a cell, together."""
        whole, part = divmod(breaks, 1.0)
        count = int(whole) + (chance.random() < part)
        return sum(self.break_s.draw(chance) for _ in range(count))
