"""The report of `moves` as a picture."""

from __future__ import annotations

from html import escape
from typing import Any

from jupyter_affinode.bench.report import largest_moves
from jupyter_affinode.units import bytes_in_words

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


Bar = tuple[str, str, float]  # a class of STYLE, which gives its colour; what it is of; seconds


def driver_moves(report: dict[str, Any], size: int) -> dict[str, Any] | None:
    """Return what the driver's checkpoint of a size took; None if that was not measured."""
    return next((case for case in report["driver"]["cases"] if case["bytes"] == size), None)


def picture(report: dict[str, Any]) -> str:
    """Return parks and resumes of the largest size, in seconds, as SVG: ours, the driver's, and a plain copy."""
    size, moves = largest_moves(report)
    ours = {name: row["median_s"] for name, row in moves[max(moves)].items()} if moves else {}
    lots = [
        row["median_s"]
        for row in report["ours"]
        if (row["name"], row["host"], row["bytes"]) == ("first park", "lot", size)
    ]
    parks: list[Bar] = [
        ("ours", f"ours: {name.replace('park,', 'later park,')}", took)
        for name, took in ours.items()
        if name != "resume"
    ]
    parks[1:1] = [("ours", "ours: first park into a lot", took) for took in lots]
    resumes: list[Bar] = [("ours", "ours: resume", ours["resume"])] if "resume" in ours else []
    driver, top = driver_moves(report, size), report["ceiling"]
    if driver is not None:
        parks.insert(0, ("driver", "the driver's checkpoint", driver["park_s"]))
        resumes.insert(0, ("driver", "the driver's checkpoint", driver["resume_s"]))
    if top is not None and size:
        parks.append(("other", "pinned copy, nothing else", size / top["to_host_bytes_per_s"]))
        resumes.append(("other", "pinned copy, nothing else", size / top["to_device_bytes_per_s"]))

    y, body = 0, []
    if report["simulated"]:
        y = 30
        body.append(f'<text class="warning" x="0" y="{y}">SIMULATED: not GPU performance</text>')
    for title, bars in (("Park", parks), ("Resume", resumes)):
        y += TITLE
        body.append(f'<text class="title" x="0" y="{y}">{title} {bytes_in_words(size)} of random data</text>')
        y += GAP
        longest = max((took for _, _, took in bars), default=1.0)
        for bar in bars:
            y += GAP
            body += _drawn(y, longest, bar)
            y += BAR
    y += TITLE
    machine = report["machine"]
    note = escape(f"{machine['gpu']}, {machine['date']}; time, less is better")
    body.append(f'<text class="note" x="0" y="{y}">{note}</text>')
    height = y + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" aria-label="Times to park and resume"><style>{STYLE}</style>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _drawn(y: int, longest: float, bar: Bar) -> list[str]:
    kind, label, took = bar
    width = max((WIDTH - LABEL - VALUE) * took / longest, 1.5)
    text = f"{took:.2f} s" if took >= 0.995 else f"{took * 1e3:.0f} ms"
    return [
        f'<text x="0" y="{y + 14}">{escape(label)}</text>',
        f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>',
        f'<text x="{LABEL + width + 8:.1f}" y="{y + 14}">{text}</text>',
    ]
