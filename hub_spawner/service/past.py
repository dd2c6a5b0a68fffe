"""The last hour of a machine's GPUs, and the days before it, as parts of pictures that need no script."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_affinode.units import bytes_in_words, duration_in_words

from .figures import BAR_WIDTH, Bar, Part, hours

CHART_HEIGHT = 40
WORDS = {"resident": "on the GPU", "parked": "freed", "queued": "waiting"}

Json = dict[str, Any]


@dataclass(frozen=True)
class PastView:
    """One GPU's hour. `memory` and `busy` are paths of SVG."""

    title: str
    memory: str
    busy: str
    text: str
    lanes: tuple[Bar, ...]


def past_views(past: Json) -> list[PastView]:
    """Return each GPU's hour."""
    return [_past_view(past, gpu) for gpu in past["gpus"]]


def sums_text(past: Json) -> str:
    """Return what was given back and waited together; a kernel of several GPUs waits once."""
    given_back, waits = 0.0, dict[str, float]()
    for lane in (each for gpu in past["gpus"] for each in gpu["lanes"]):
        sums = _sums(_spans(lane, past))
        given_back += sums["parked"]
        waits[lane["kernel_id"]] = max(sums["queued"], waits.get(lane["kernel_id"], 0.0))
    waited = duration_in_words(sum(waits.values()))
    return f"{duration_in_words(given_back)} of GPUs given back, {waited} waited"


def moments(past: Json) -> tuple[str, str]:
    """Return when the hour began and ended, in UTC."""
    began, ended = (time.strftime("%H:%M UTC", time.gmtime(past[name])) for name in ("since", "until"))
    return began, ended


def day_rows(report: Json) -> list[tuple[str, list[tuple[str, Part]]]]:
    """Return (day, what was on the GPU, used and freed, each with its bar) of a report by day."""
    kinds = {"held_gib_hours": "kernels", "used_gib_hours": "used", "given_back_gib_hours": "parked"}
    most = max((row[name] for row in report["rows"] for name in kinds), default=0.0) or 1.0
    return [
        (
            row["day"],
            [
                (hours(row[name]), Part(kind, 0.0, round(BAR_WIDTH * row[name] / most, 1)))
                for name, kind in kinds.items()
            ],
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
        + (f" of {bytes_in_words(gpu['total_bytes'])}" if gpu["total_bytes"] else "")
    )
    return PastView(
        f"GPU {gpu['index']}, {gpu['name']}",
        _path([None if each is None else each / total for each in gpu["used_bytes"]], closes=True),
        _path([None if each is None else each / 100 for each in gpu["utilization_percent"]], closes=False),
        text,
        tuple(_lane_view(lane, past) for lane in gpu["lanes"]),
    )


def _lane_view(lane: Json, past: Json) -> Bar:
    length = past["until"] - past["since"]
    spans = _spans(lane, past)
    counted = [f"{WORDS[state]} {duration_in_words(sum_s)}" for state, sum_s in _sums(spans).items() if sum_s]
    freed = sum(state == "parked" for state, _, _ in spans)
    parts = (
        Part(state, round(BAR_WIDTH * after_s / length, 1), round(max(BAR_WIDTH * lasted_s / length, 1.0), 1))
        for state, after_s, lasted_s in spans
    )
    name = lane["path"] or lane["name"] or lane["kernel_id"].rpartition("/")[2]
    whose = f"{lane['user']}: {name}" if lane["user"] else name
    return Bar(whose, f"{', '.join(counted)}; freed {freed} times", tuple(parts))


def _sums(spans: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """Return how long each state lasted."""
    sums = dict.fromkeys(WORDS, 0.0)
    for state, _, lasted_s in spans:
        sums[state] += lasted_s
    return sums


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
