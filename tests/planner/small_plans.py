"""Small workloads for the planner's tests."""

from __future__ import annotations

import random

from jupyter_affinode.planner.model.machine import GIB, Machine, Speeds
from jupyter_affinode.planner.model.replay import Replay
from jupyter_affinode.planner.model.sessions import Cell, Session
from jupyter_affinode.settings.policy import Settings

PLAIN = Settings(
    idle_timeout_s=0.0, contended_idle_timeout_s=0.0, low_watermark=0.0, margin_bytes=0, host_reserve_bytes=0
)

ENDLESS = float("inf")
FREE = Speeds(
    ENDLESS, ENDLESS, ENDLESS, 0.0, 0.0, 0.0, "moves cost nothing", exchange_s=0.0
)  # what remains is the wait


def session(name, cells, *, user=None, start_s=0.0, end_think_s=0.0):
    """A session from (think, run, GiB) triples."""
    made = tuple(Cell(think, run, round(size * GIB)) for think, run, size in cells)
    return Session(name, user or name, start_s, made, end_think_s)


def replay(sessions, *, settings=PLAIN, speeds=None, exchanges=True, **machine):
    """Replayed with moves that cost nothing, unless said otherwise."""
    machine = {"gpus": 1, "gpu_bytes": 100 * GIB, "host_bytes": 4096 * GIB, "context_bytes": 0, **machine}
    return Replay(Machine(**machine), speeds or FREE, settings, sessions, exchanges=exchanges)


def random_sessions(chance: random.Random, users: int, cells: int, most_gib: float):
    """Anything goes: no cells, no time, sizes that grow and shrink."""
    made = []
    for user in range(users):
        for number in range(chance.randint(1, 2)):
            size = [chance.choice([1, 5, 20, most_gib, chance.uniform(0.1, most_gib)]) for _ in range(3)]
            triples = [
                (
                    chance.choice([0.0, 1.0, chance.expovariate(1 / 60)]),
                    chance.choice([0.0, 2.0, chance.expovariate(1 / 30)]),
                    chance.choice(size),
                )
                for _ in range(chance.randint(0, cells))
            ]
            start = chance.choice([0.0, chance.uniform(0, 500)])
            name = f"{user}-{number}"
            made.append(
                session(name, triples, user=str(user), start_s=start, end_think_s=chance.uniform(0, 50))
            )
    made.append(session("one at least", [(0.0, 1.0, 1)]))
    return made
