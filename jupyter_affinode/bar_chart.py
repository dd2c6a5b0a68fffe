"""Bars as a picture: an SVG that reads on light and dark pages alike, as the README's and a plan's do."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NamedTuple

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


def svg(charts: Iterable[Bars], *, about: str, note: str, warning: str = "") -> str:
    """Return the picture. `about` is for readers that see none; a `warning` stands above everything."""
    y = 30 if warning else 0
    body = [f'<text class="warning" x="0" y="{y}">{escape(warning)}</text>'] if warning else []
    for title, bars in charts:
        y += TITLE
        body.append(f'<text class="title" x="0" y="{y}">{escape(title)}</text>')
        y += GAP
        longest = max((bar.length for bar in bars), default=0.0) or 1.0
        for bar in bars:
            y += GAP
            body += _bar(y, longest, bar)
            y += BAR
    y += TITLE
    body.append(f'<text class="note" x="0" y="{y}">{escape(note)}</text>')
    height = y + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" aria-label="{escape(about)}"><style>{STYLE}</style>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _bar(y: int, longest: float, bar: Bar) -> list[str]:
    width = max((WIDTH - LABEL - VALUE) * bar.length / longest, 1.5)
    return [
        f'<text x="0" y="{y + 14}">{escape(bar.label)}</text>',
        f'<rect class="{bar.kind}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>',
        f'<text x="{LABEL + width + 8:.1f}" y="{y + 14}">{escape(bar.text)}</text>',
    ]
