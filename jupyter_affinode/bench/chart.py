"""The bench's report as a picture."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, NamedTuple

from ..units import bytes_in_words

WIDTH, LABEL, VALUE = 760, 260, 130
BAR, GAP, TITLE = 18, 8, 34
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 15px; }
.note { fill: #59636e; }
.ours { fill: #1a7f5a; } .driver { fill: #b35900; } .other { fill: #6e7781; }
.warning { font-size: 22px; font-weight: 700; fill: #cf222e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .note { fill: #9198a1; }
  .ours { fill: #3fb68b; } .driver { fill: #e08a3c; } .other { fill: #8b949e; } .warning { fill: #ff7b72; }
}
"""


class Bar(NamedTuple):
    """One bar; `kind` is a class of STYLE and gives its colour."""

    kind: str
    label: str
    length: float
    text: str


class Bars(NamedTuple):
    """Bars of one scale."""

    title: str
    bars: list[Bar]


def picture(report: dict[str, Any]) -> str:
    """Return parks and resumes of the largest size, in seconds, as SVG: ours, the driver's, and a plain copy."""
    rows = [
        row
        for row in report["ours"]
        if (row["depth"], row["host"]) == ("memory", "private") and "zeros" not in row["name"]
    ]
    size = max((row["bytes"] for row in rows), default=0)
    block = max((row["block_bytes"] for row in rows if row["bytes"] == size), default=0)
    ours = {
        row["name"]: row["median_s"] for row in rows if (row["bytes"], row["block_bytes"]) == (size, block)
    }
    driver = next((case for case in report["driver"]["cases"] if case["bytes"] == size), None)
    top = report["ceiling"]

    parks = [
        _bar("ours", f"ours: {name.replace('park,', 'later park,')}", took)
        for name, took in ours.items()
        if name != "resume"
    ]
    lots = [
        row
        for row in report["ours"]
        if (row["name"], row["host"], row["bytes"]) == ("first park", "lot", size)
    ]
    parks[1:1] = [_bar("ours", "ours: first park into a lot", row["median_s"]) for row in lots]
    resumes = [_bar("ours", "ours: resume", ours["resume"])] if "resume" in ours else []
    if driver is not None:
        parks.insert(0, _bar("driver", "the driver's checkpoint", driver["park_s"]))
        resumes.insert(0, _bar("driver", "the driver's checkpoint", driver["resume_s"]))
    if top is not None and size:
        parks.append(_bar("other", "pinned copy, nothing else", size / top["to_host_bytes_per_s"]))
        resumes.append(_bar("other", "pinned copy, nothing else", size / top["to_device_bytes_per_s"]))
    what = f"{bytes_in_words(size)} of random data"
    machine = report["machine"]
    return _svg(
        [Bars(f"Park {what}", parks), Bars(f"Resume {what}", resumes)],
        about="Times to park and resume",
        note=f"{machine['gpu']}, {machine['date']}; time, less is better",
        warning="SIMULATED: not GPU performance" if report["simulated"] else "",
    )


def _bar(kind: str, label: str, seconds: float) -> Bar:
    return Bar(kind, label, seconds, f"{seconds:.2f} s" if seconds >= 0.995 else f"{seconds * 1e3:.0f} ms")


def _svg(charts: Iterable[Bars], *, about: str, note: str, warning: str) -> str:
    """Return an SVG that reads on light and dark pages alike. `about` is for readers that see no picture."""
    y = 30 if warning else 0
    body = [f'<text class="warning" x="0" y="{y}">{escape(warning)}</text>'] if warning else []
    for title, bars in charts:
        y += TITLE
        body.append(f'<text class="title" x="0" y="{y}">{escape(title)}</text>')
        y += GAP
        longest = max((bar.length for bar in bars), default=0.0) or 1.0
        for bar in bars:
            y += GAP
            body += _drawn(y, longest, bar)
            y += BAR
    y += TITLE
    body.append(f'<text class="note" x="0" y="{y}">{escape(note)}</text>')
    height = y + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" aria-label="{escape(about)}"><style>{STYLE}</style>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _drawn(y: int, longest: float, bar: Bar) -> list[str]:
    width = max((WIDTH - LABEL - VALUE) * bar.length / longest, 1.5)
    return [
        f'<text x="0" y="{y + 14}">{escape(bar.label)}</text>',
        f'<rect class="{bar.kind}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>',
        f'<text x="{LABEL + width + 8:.1f}" y="{y + 14}">{escape(bar.text)}</text>',
    ]
