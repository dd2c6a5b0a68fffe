"""The last hour of a machine's GPUs, and the days before it, as parts of pictures that need no script."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_affinode.units import bytes_in_words, duration_in_words

from .figures import BAR_WIDTH, Part

CHART_HEIGHT = 40
WORDS = {"resident": "on the GPU", "parked": "freed", "queued": "waiting"}

Json = dict[str, Any]


@dataclass(frozen=True)
class LaneView:
    """A kernel's hour on one GPU, and the same in words."""

    name: str
    text: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class PastView:
    """One GPU's hour. `memory` and `busy` are paths of SVG."""

    title: str
    memory: str
    busy: str
    text: str
    lanes: tuple[LaneView, ...]


@dataclass(frozen=True)
class DayView:
    """One day: GiB times hours on the GPU, used and freed, each with its bar's width."""

    day: str
    figures: tuple[tuple[str, str, float], ...]


def past_views(past: Json) -> list[PastView]:
    """Return each GPU's hour."""
    return [_past_view(past, gpu) for gpu in past["gpus"]]


def sums_text(past: Json) -> str:
    """Return what was given back and waited together."""
    given_back = waited = 0.0
    for gpu in past["gpus"]:
        for lane in gpu["lanes"]:
            for state, _, lasted_s in _spans(lane, past):
                given_back += lasted_s if state == "parked" else 0.0
                waited += lasted_s if state == "queued" else 0.0
    return f"{duration_in_words(given_back)} of GPUs given back, {duration_in_words(waited)} waited"


def moments(past: Json) -> tuple[str, str]:
    """Return when the hour began and ended, in UTC."""
    began, ended = (time.strftime("%H:%M UTC", time.gmtime(past[name])) for name in ("since", "until"))
    return began, ended


def day_views(report: Json) -> list[DayView]:
    """Return the days of a report by day."""
    kinds = (("held", "kernels"), ("used", "used"), ("given_back", "parked"))
    most = max((row[f"{name}_gib_hours"] for row in report["rows"] for name, _ in kinds), default=0.0)
    return [
        DayView(
            row["day"],
            tuple(
                (
                    kind,
                    f"{row[f'{name}_gib_hours']:.2f}",
                    round(BAR_WIDTH * row[f"{name}_gib_hours"] / most, 1) if most else 0.0,
                )
                for name, kind in kinds
            ),
        )
        for row in report["rows"]
    ]


def _past_view(past: Json, gpu: Json) -> PastView:
    total = gpu["total_bytes"] or max(filter(None, gpu["used_bytes"]), default=1)
    used = [each for each in gpu["used_bytes"] if each is not None]
    text = (
        "memory and utilisation are not known"
        if not used
        else f"used memory from {bytes_in_words(min(used))} to {bytes_in_words(max(used))}"
    )
    return PastView(
        f"GPU {gpu['index']}, {gpu['name']}",
        _path([None if each is None else each / total for each in gpu["used_bytes"]], closes=True),
        _path([None if each is None else each / 100 for each in gpu["utilization_percent"]], closes=False),
        text,
        tuple(_lane_view(lane, past) for lane in gpu["lanes"]),
    )


def _lane_view(lane: Json, past: Json) -> LaneView:
    length = past["until"] - past["since"]
    spans = _spans(lane, past)
    sums = {state: sum(lasted for each, _, lasted in spans if each == state) for state in WORDS}
    counted = [f"{words} {duration_in_words(sums[state])}" for state, words in WORDS.items() if sums[state]]
    freed = sum(state == "parked" for state, _, _ in spans)
    parts = (
        Part(state, round(BAR_WIDTH * after_s / length, 1), round(max(BAR_WIDTH * lasted_s / length, 1.0), 1))
        for state, after_s, lasted_s in spans
    )
    name = lane["path"] or lane["name"] or lane["kernel_id"].rpartition("/")[2]
    whose = f"{lane['user']}: {name}" if lane["user"] else name
    return LaneView(whose, f"{', '.join(counted)}; freed {freed} times", tuple(parts))


def _spans(lane: Json, past: Json) -> list[tuple[str, float, float]]:
    """Return each stretch of a lane in which there was something: its state, when it began, and how long it lasted."""
    changes: Sequence[Json] = lane["changes"]
    ends: Iterable[float] = [*(each["at"] for each in changes[1:]), past["until"]]
    return [
        (change["state"], change["at"] - past["since"], end - change["at"])
        for change, end in zip(changes, ends, strict=True)
        if change["state"] in WORDS
    ]


def _path(shares: Sequence[float | None], *, closes: bool) -> str:
    """Return a line of steps, which has gaps where nothing is known; with `closes` the area below it."""
    step, drawn, is_open = BAR_WIDTH / max(len(shares), 1), "", False
    for place, share in enumerate([*shares, None]):
        x = round(place * step, 1)
        if share is None:
            drawn += f"V{CHART_HEIGHT}Z" if is_open and closes else ""
            is_open = False
            continue
        y = round(CHART_HEIGHT * (1 - min(share, 1.0)), 1)
        if not is_open:
            drawn += f"M{x} {CHART_HEIGHT}V{y}" if closes else f"M{x} {y}"
        drawn += f"V{y}H{round(x + step, 1)}"
        is_open = True
    return drawn
