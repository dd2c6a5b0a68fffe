"""A plan: the same sessions under every way of sharing, and what they would take without parking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..settings.policy import Settings
from .model.baselines import Culled, Culling, Reservation, Sharing
from .model.machine import Machine, Speeds
from .model.results import HOUR_S, Outcome
from .model.sessions import Session, active_share
from .model.simulation import Say, SimulatedUsers
from .workload import Workload

WAYS = ("affinode", "sharing", "culling", "reservation")


@dataclass(frozen=True)
class Plan:
    """Everything that an answer depends on."""

    machine: Machine = field(default_factory=Machine)
    speeds: Speeds = field(default_factory=Speeds)
    settings: Settings = field(default_factory=Settings)
    workload: Workload | None = None
    trace: tuple[Session, ...] = ()
    culling: Culling = field(default_factory=Culling)
    ways: tuple[str, ...] = WAYS

    def sessions(self) -> list[Session]:
        """Return the sessions to replay. Raises ImpossiblePlan."""
        if self.workload is not None:
            return self.workload.sessions(self.machine.gpu_bytes)
        return [session for session in self.trace if session.cells]

    def with_users(self, users: int) -> Plan:
        """Return the plan for more or fewer users; of a trace, its first users, or its users several times over."""
        if self.workload is not None:
            return replace(self, workload=self.workload.with_users(users))
        return replace(self, trace=tuple(_some_users(self.trace, users)))

    def replay(
        self,
        way: str,
        sessions: Sequence[Session],
        say: Say | None = None,
        give_up: tuple[float, int] | None = None,
    ) -> Outcome:
        """Replay one way of sharing. `give_up`, and errors: as `SimulatedUsers`. Raises ImpossiblePlan."""
        replay = self._simulated(way, sessions, self.machine, say)
        replay.give_up = give_up
        return replay.run()

    def without_waits(self, way: str, sessions: Sequence[Session]) -> Outcome:
        """Replay a way without parking, on as many GPUs as it takes for no waits."""
        users = len({session.user for session in sessions})
        return self._simulated(way, sessions, replace(self.machine, gpus=users), None).run()

    def _simulated(
        self, way: str, sessions: Sequence[Session], machine: Machine, say: Say | None
    ) -> SimulatedUsers:
        if way == "affinode":
            from .model.replay import (
                Replay,  # brings the controller's libraries: no other command should wait for them
            )

            return Replay(
                machine,
                self.speeds,
                self.settings,
                sessions,
                rebuild_s=self.culling.rebuild_s,
                say=say,
            )
        if way == "sharing":
            return Sharing(machine, sessions, say)
        if way == "culling":
            return Culled(machine, sessions, self.culling, say)
        return Reservation(machine, sessions, say)

    def check(self, sessions: Sequence[Session]) -> None:
        """Check the plan before anything is replayed. Raises ImpossiblePlan."""
        self.machine.check(self.settings, sessions)


def answer(plan: Plan, say: Say) -> dict[str, Any]:
    """Replay every way; return the figures, ready for JSON. Raises as `Plan.replay`."""
    sessions = plan.sessions()
    plan.check(sessions)
    outcomes = {way: plan.replay(way, sessions, say) for way in plan.ways}
    users = len({session.user for session in sessions})
    return {
        "users": users,
        "users_per_gpu": users / plan.machine.gpus,
        "sessions": len(sessions),
        "cells": sum(len(session.cells) for session in sessions),
        "active_share": active_share(sessions),
        "ways": {way: outcome.as_dict() for way, outcome in outcomes.items()},
        "without_waits": saved(plan, sessions, outcomes),
    }


def saved(plan: Plan, sessions: Sequence[Session], outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Return by way the GPUs with which no session waits, their GPU-hours, and how many of these our machine spares.

    Each GPU counts for as long as any session is open, ours too. Of a GPU that is shared by memory any part may be used
    (no packing is lost), which is the best for that way.
    """
    ours = outcomes.get("affinode")
    hours = plan.machine.gpus * ours.open_s / HOUR_S if ours is not None else None
    found: dict[str, Any] = {}
    for way in outcomes:
        if way == "affinode":
            found[way] = {"gpus": plan.machine.gpus, "gpu_hours": hours}
            continue
        free = plan.without_waits(way, sessions)
        gpus = math.ceil(free.gpus_most)
        theirs = gpus * free.open_s / HOUR_S
        spared = theirs - hours if hours is not None else None
        found[way] = {
            "gpus": gpus,
            "gpu_hours": theirs,
            "gpu_hours_held": free.held_s / HOUR_S,
            "gpu_hours_saved": spared,
        }
    return found


def _some_users(trace: Sequence[Session], users: int) -> list[Session]:
    names = list(dict.fromkeys(session.user for session in trace))
    chosen: list[Session] = []
    for number in range(users):
        again, place = divmod(number, len(names))
        for session in trace:
            if session.user == names[place]:
                suffix = f"+{again}" if again else ""
                chosen.append(replace(session, id=session.id + suffix, user=session.user + suffix))
    return chosen
