"""The last hours: each GPU's figures, and when each kernel was on it, freed or waiting.

Reads the ledger, and blocks. A kernel's past is made of its parks, resumes and waits, which the ledger has with their
moments; its present is the controller's, and has the last word.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..identity.identity import Identity
from ..model.snapshot import Residency
from .report import NothingWritten, reading
from .schema import migrate
from .store import Batch, EventRow, KernelRow, SampleRow
from .waits import SERVED

SHORTEST_S, LONGEST_S = 60.0, 8 * 3600.0
SHORTEST_STEP_S, STEPS_MAX = 10.0, 360
LANES_MAX = 200  # of a GPU, the latest; the rest counts with the other users'
LATE_S = 3.0  # a wait's end is noticed at a pass, its resume when the last process answers
SHOWN = (Residency.RESIDENT, Residency.PARKED, Residency.QUEUED)
UNDER_WAY = (Residency.PARKING, Residency.RESUMING)  # what was before lasts until the move's end
EVENTS = (
    "SELECT at, kind, kernel_id, user, gpu, cause, outcome, depth, bytes, duration_s, waited_s, from_gpu, gpus"
    " FROM events WHERE kind IN ('park', 'resume', 'wait', 'gone')"
)

MOVES = ("park", "resume", "gone")  # after the last nothing is parked: the kernel ended, or was restarted

Json = dict[str, Any]


@dataclass(frozen=True)
class Window:
    """The time that is asked for, in seconds since 1970."""

    since: float
    until: float

    @property
    def step_s(self) -> float:
        """Return how far apart the figures are."""
        return max(SHORTEST_STEP_S, math.ceil((self.until - self.since) / STEPS_MAX))

    @property
    def steps(self) -> int:
        """Return how many figures there are."""
        return math.ceil((self.until - self.since) / self.step_s)

    def step_of(self, at: float) -> int:
        """Return the number of the step that a moment is in."""
        return int((at - self.since) // self.step_s)


@dataclass(frozen=True)
class Present:
    """A kernel as it is now; moments as in the ledger."""

    kernel_id: str
    user: str
    residency: Residency
    since: float
    cause: str
    gpus: tuple[str, ...]
    name: str | None = None
    path: str | None = None


@dataclass(frozen=True)
class Change:
    """From `at` on the kernel was `state` on those GPUs, for that cause, until its next change."""

    at: float
    state: Residency
    cause: str
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class Lane:
    """A kernel on one GPU."""

    kernel: KernelRow
    changes: tuple[Change, ...]

    def as_json(self, shown_id: str, user: str | None) -> Json:
        """Return it for the API."""
        return {
            "kernel_id": shown_id,
            "user": user,
            "name": self.kernel.name,
            "path": self.kernel.path,
            "changes": [
                {"at": round(each.at, 3), "state": each.state.value, "cause": each.cause or None}
                for each in self.changes
            ],
        }


class Past:
    """What the ledger says of a window, with what was not written yet and what is so now."""

    def __init__(
        self,
        path: Path,
        window: Window,
        unwritten: Sequence[Batch],
        present: Iterable[Present],
        *,
        with_samples: bool = True,
    ):
        """Read. Raises ReportRefused."""
        self.window = window
        self._with_samples = with_samples
        self._present = {each.kernel_id: each for each in present}
        try:
            with reading(path) as connection:
                self._read(connection, unwritten)
        except NothingWritten:  # the first write comes after some seconds; the rest is known all the same
            with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as nothing:
                migrate(nothing)
                self._read(nothing, unwritten)

    def lanes(self) -> dict[str, list[Lane]]:
        """Return the kernels' lanes by GPU, the kernel that came first before the others."""
        found: dict[str, list[Lane]] = {}
        for kernel in sorted(self.kernels.values(), key=lambda each: each.began):
            changes = self._changes(kernel)
            for gpu in dict.fromkeys(uuid for change in changes for uuid in change.gpus):
                on_gpu = tuple(_on(gpu, changes, self.window))
                if any(change.state in SHOWN for change in on_gpu):
                    found.setdefault(gpu, []).append(Lane(kernel, on_gpu))
        return found

    def _changes(self, kernel: KernelRow) -> list[Change]:
        """Return a kernel's changes in order, from its beginning or the last move before the window."""
        events = self.moves_and_waits.get(kernel.kernel_id, [])
        first_gpus = next(
            (_split(each.from_gpu or each.gpus or each.gpu) for each in events if each.kind != "wait"), None
        )
        begin = Change(kernel.began, Residency.RESIDENT, "", first_gpus or _split(kernel.gpus))
        changes = [begin, *(_moved(each) for each in events if each.kind != "wait")]
        for wait in (each for each in events if each.kind == "wait"):
            changes = _with_wait(changes, wait)
        present = self._present.get(kernel.kernel_id)
        if present is not None:
            return _with_present(changes, present)
        if kernel.ended is not None:
            changes = [each for each in changes if each.at < kernel.ended]
            changes.append(Change(kernel.ended, Residency.NONE, "", changes[-1].gpus if changes else ()))
        return changes

    # ---- reading

    def _read(self, connection: sqlite3.Connection, unwritten: Sequence[Batch]) -> None:
        self.users: dict[str, str] = dict(connection.execute("SELECT user, name FROM users").fetchall())
        self.samples = self._read_samples(connection, unwritten) if self._with_samples else {}
        self.kernels = self._read_kernels(connection, unwritten)
        self.moves_and_waits = self._read_events(connection, unwritten)

    def _read_samples(
        self, connection: sqlite3.Connection, unwritten: Sequence[Batch]
    ) -> dict[str, list[SampleRow]]:
        rows = connection.execute(
            "SELECT at, gpu, used_bytes, utilization FROM samples WHERE at >= ? ORDER BY at",
            (self.window.since,),
        )
        found = {(row[0], row[1]): SampleRow(*row) for row in rows}
        found.update({(each.at, each.gpu): each for batch in unwritten for each in batch.samples})
        by_gpu: dict[str, list[SampleRow]] = {}
        for each in found.values():
            by_gpu.setdefault(each.gpu, []).append(each)
        return by_gpu

    def _read_kernels(
        self, connection: sqlite3.Connection, unwritten: Sequence[Batch]
    ) -> dict[str, KernelRow]:
        names = "kernel_id, user, began, seen, ended, simulated, name, path, server, gpus"
        rows = connection.execute(f"SELECT {names} FROM kernels WHERE seen >= ?", (self.window.since,))
        found = {row[0]: KernelRow(*row) for row in rows}
        for batch in unwritten:
            for row in batch.kernels.values():
                found[row.kernel_id] = replace(row, began=min(row.began, _began(found, row)))
        for each in self._present.values():
            row = found.get(
                each.kernel_id, KernelRow(each.kernel_id, each.user, each.since, each.since, None, False)
            )
            found[each.kernel_id] = replace(
                row, user=each.user, ended=None, name=each.name or row.name, path=each.path or row.path
            )
        # One that no controller saw end, because none was there, ended when it was last seen.
        return {
            key: row if key in self._present or row.ended is not None else replace(row, ended=row.seen)
            for key, row in found.items()
        }

    def _read_events(
        self, connection: sqlite3.Connection, unwritten: Sequence[Batch]
    ) -> dict[str, list[EventRow]]:
        rows = connection.execute(f"{EVENTS} AND at >= ? ORDER BY at, id", (self.window.since,))
        found = [EventRow(*row) for row in rows]
        written = {(each.at, each.kind, each.kernel_id) for each in found}
        for batch in unwritten:
            for event in batch.events:
                if event.at >= self.window.since and (event.at, event.kind, event.kernel_id) not in written:
                    found.append(event)
        by_kernel: dict[str, list[EventRow]] = {}
        for kernel_id, kernel in self.kernels.items():
            if kernel.began < self.window.since:
                before = connection.execute(
                    f"{EVENTS} AND kernel_id = ? AND at < ? AND kind <> 'wait' AND outcome = 'ok'"
                    " ORDER BY at DESC LIMIT 1",
                    (kernel_id, self.window.since),
                ).fetchall()
                by_kernel[kernel_id] = [EventRow(*row) for row in before]
        for event in sorted(found, key=lambda each: each.at):
            if event.kind == "wait" or (event.kind in MOVES and event.outcome == "ok"):
                by_kernel.setdefault(event.kernel_id, []).append(event)
        return by_kernel


def past_json(past: Past, gpus: Iterable[Json], identity: Identity) -> Json:
    """Return the API's answer for a user. `gpus`: those of the machine, as that user may see them."""
    window, lanes = past.window, past.lanes()
    return {
        "since": round(window.since, 3),
        "until": round(window.until, 3),
        "step_s": window.step_s,
        "gpus": [_gpu_json(past, gpu, lanes.get(gpu["uuid"], []), identity) for gpu in gpus],
    }


def _gpu_json(past: Past, gpu: Json, lanes: list[Lane], identity: Identity) -> Json:
    own = [lane for lane in lanes if identity.is_admin or lane.kernel.user == identity.owner][-LANES_MAX:]
    shown = {lane.kernel.kernel_id for lane in own}
    others = [lane for lane in lanes if lane.kernel.kernel_id not in shown]
    return {
        **{name: gpu[name] for name in ("uuid", "index", "name", "total_bytes")},
        **_figures(past.samples.get(gpu["uuid"], []), past.window),
        "lanes": [
            lane.as_json(
                identity.shown_id(lane.kernel.kernel_id, lane.kernel.user),
                None if identity.owner is None else past.users.get(lane.kernel.user),
            )
            for lane in own
        ],
        "others": _counts(others, past.window) if others else None,
    }


def _figures(samples: Sequence[SampleRow], window: Window) -> Json:
    """Return the means of each step; None where no controller looked."""
    used: list[list[int]] = [[] for _ in range(window.steps)]
    busy: list[list[float]] = [[] for _ in range(window.steps)]
    for sample in samples:
        step = window.step_of(sample.at)
        if 0 <= step < window.steps:
            used[step].append(sample.used_bytes)
            if sample.utilization is not None:
                busy[step].append(sample.utilization)
    return {
        "used_bytes": [round(sum(each) / len(each)) if each else None for each in used],
        "utilization_percent": [round(sum(each) / len(each), 1) if each else None for each in busy],
    }


def _counts(lanes: Sequence[Lane], window: Window) -> Json:
    """Return how many kernels were in each state in the middle of each step."""
    sums = {state: [0] * window.steps for state in SHOWN}
    for lane in lanes:
        moments = [change.at for change in lane.changes]
        for step in range(window.steps):
            place = bisect_right(moments, window.since + (step + 0.5) * window.step_s) - 1
            if place >= 0 and lane.changes[place].state in SHOWN:
                sums[lane.changes[place].state][step] += 1
    return {state.value: counts for state, counts in sums.items()}


# ---- one kernel's changes


def _moved(event: EventRow) -> Change:
    state = Residency.PARKED if event.kind == "park" else Residency.RESIDENT
    return Change(event.at, state, event.cause, _split(event.gpus or event.gpu))


def _with_wait(changes: list[Change], wait: EventRow) -> list[Change]:
    """Add a wait: it lasts until its end, whatever moves were made for it; the last of them tells why it ended."""
    began = wait.at - (wait.waited_s or 0.0)
    before = [each for each in changes if each.at < began]
    during = [each for each in changes if began <= each.at <= wait.at]
    later = [each for each in changes if each.at > wait.at]
    gpus = before[-1].gpus if before else _split(wait.gpu)
    after = (during or before or [Change(began, Residency.RESIDENT, "", gpus)])[-1]
    if wait.outcome == SERVED and after.state is not Residency.RESIDENT:
        # Its resume is noted a moment after the wait's end.
        resume = later[0] if later and later[0].at <= wait.at + LATE_S else None
        after = replace(after, state=Residency.RESIDENT, cause="" if resume is None else resume.cause)
        if resume is not None and resume.state is Residency.RESIDENT:
            after, later = replace(after, gpus=resume.gpus), later[1:]
    return [*before, Change(began, Residency.QUEUED, "", gpus), replace(after, at=wait.at), *later]


def _with_present(changes: list[Change], present: Present) -> list[Change]:
    state = present.residency
    if state in UNDER_WAY or (changes[-1].state is state and changes[-1].gpus == present.gpus):
        return changes
    gpus = present.gpus or changes[-1].gpus
    return [*changes, Change(max(present.since, changes[-1].at), state, present.cause, gpus)]


def _on(gpu: str, changes: Iterable[Change], window: Window) -> Iterator[Change]:
    """Yield the changes of one GPU inside the window, the first at its beginning, without those that change nothing."""
    last: Change | None = None
    state: Residency | None = None  # of the one that was yielded last
    for change in changes:
        is_there = gpu in change.gpus and change.state in SHOWN
        here = replace(
            change, at=max(change.at, window.since), state=change.state if is_there else Residency.NONE
        )
        if last is not None and here.at > last.at and last.state is not state:
            yield last
            state = last.state
        if last is None or here.state is not last.state or here.at <= last.at:
            last = here
    if last is not None and last.state is not state:
        yield last


def _split(gpus: str) -> tuple[str, ...]:
    return tuple(filter(None, gpus.split(",")))


def _began(known: Mapping[str, KernelRow], row: KernelRow) -> float:
    return known[row.kernel_id].began if row.kernel_id in known else row.began
