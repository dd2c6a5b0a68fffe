"""A plan's answer as a picture: an SVG with bars that reads on light and dark pages alike."""

from __future__ import annotations

from html import escape
from typing import Any

from .report import wait_text

WIDTH, LABEL, VALUE = 760, 260, 130
BAR, GAP, TITLE = 18, 8, 36
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 15px; } .note { fill: #59636e; }
.ours { fill: #1a7f5a; } .other { fill: #6e7781; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .note { fill: #9198a1; } .ours { fill: #3fb68b; } .other { fill: #8b949e; }
}
"""
Bar = tuple[str, float, str]  # label, length, text
Chart = tuple[str, list[Bar]]


def picture(report: dict[str, Any]) -> str:
    """Waits and GPU-hours by way, or how many people each way serves."""
    charts: list[Chart] = []
    if report["answer"] is not None:
        charts += _answer(report["answer"])
    if report["search"] is not None:
        search = report["search"]
        bars = [
            (_label(way), found["people_per_gpu"], f"{found['people_per_gpu']:.3g}")
            for way, found in search["ways"].items()
        ]
        charts.append((f"People a GPU, 95 % of cells wait at most {wait_text(search['p95_wait_s'])}", bars))
    body: list[str] = []
    y = 0
    for title, bars in charts:
        y += TITLE
        body.append(f'<text class="title" x="0" y="{y}">{escape(title)}</text>')
        y += GAP
        longest = max((length for _, length, _ in bars), default=0.0) or 1.0
        for bar in bars:
            y += GAP
            body += _bar(y, longest, *bar)
            y += BAR
    machine = report["machine"]
    note = f"{machine['gpus']} GPUs; simulated with the controller's own policy, not measured"
    y += TITLE
    body.append(f'<text class="note" x="0" y="{y}">{escape(note)}</text>')
    height = y + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" aria-label="How many people share the GPUs, and what they wait"><style>{STYLE}</style>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _answer(answer: dict[str, Any]) -> list[Chart]:
    ways = answer["ways"]
    waits, waited, hours = [], [], []
    for way, outcome in ways.items():
        wait = outcome["wait_s"]["p95"]
        waits.append((_label(way), wait, wait_text(wait)))
        together = outcome["hours_waited"]
        waited.append((_label(way), together, f"{together:.1f} h"))
        free = answer["without_waits"][way]
        hours.append((_label(way), free["gpu_hours"], f"{free['gpu_hours']:.0f} h, {free['gpus']} GPUs"))
    people = f"{answer['people']} people, {answer['people_per_gpu']:.3g} a GPU"
    return [
        (f"What 95 % of cells wait at most ({people})", waits),
        ("What all cells wait together", waited),
        ("GPU-hours; without us, of as many GPUs as it takes for no waits", hours),
    ]


def _label(way: str) -> str:
    return {
        "affinode": "jupyter-affinode",
        "sharing": "shared by memory, no parking",
        "culling": "idle kernels killed",
        "reservation": "reserved for each session",
    }[way]


def _bar(y: int, longest: float, label: str, length: float, text: str) -> list[str]:
    width = max((WIDTH - LABEL - VALUE) * length / longest, 1.5)
    kind = "ours" if label == _label("affinode") else "other"
    return [
        f'<text x="0" y="{y + 14}">{escape(label)}</text>',
        f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>',
        f'<text x="{LABEL + width + 8:.1f}" y="{y + 14}">{escape(text)}</text>',
    ]
