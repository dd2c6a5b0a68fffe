"""A plan's answer as a picture."""

from __future__ import annotations

from typing import Any

from ..bar_chart import Bar, Bars, svg
from .report import wait_text

LABELS = {
    "affinode": "jupyter-affinode",
    "sharing": "shared by memory, no parking",
    "culling": "idle kernels killed",
    "reservation": "reserved for each session",
}


def picture(report: dict[str, Any]) -> str:
    """Return waits and GPU-hours by way, or how many users each way serves, as SVG."""
    charts: list[Bars] = []
    if report["answer"] is not None:
        charts += _answer(report["answer"])
    if report["search"] is not None:
        search = report["search"]
        bars = [
            _bar(way, found["people_per_gpu"], f"{found['people_per_gpu']:.3g}")
            for way, found in search["ways"].items()
        ]
        wait = wait_text(search["p95_wait_s"])
        charts.append(Bars(f"People a GPU, 95 % of cells wait at most {wait}", bars))
    return svg(
        charts,
        about="How many people share the GPUs, and what they wait",
        note=f"{report['machine']['gpus']} GPUs; simulated with the controller's own policy, not measured",
    )


def _answer(answer: dict[str, Any]) -> list[Bars]:
    waits, waited, hours = [], [], []
    for way, outcome in answer["ways"].items():
        wait, together, free = outcome["wait_s"]["p95"], outcome["hours_waited"], answer["without_waits"][way]
        waits.append(_bar(way, wait, wait_text(wait)))
        waited.append(_bar(way, together, f"{together:.1f} h"))
        hours.append(_bar(way, free["gpu_hours"], f"{free['gpu_hours']:.0f} h, {free['gpus']} GPUs"))
    people = f"{answer['people']} people, {answer['people_per_gpu']:.3g} a GPU"
    return [
        Bars(f"What 95 % of cells wait at most ({people})", waits),
        Bars("What all cells wait together", waited),
        Bars("GPU-hours; without us, of as many GPUs as it takes for no waits", hours),
    ]


def _bar(way: str, length: float, text: str) -> Bar:
    return Bar("ours" if way == "affinode" else "other", LABELS[way], length, text)
